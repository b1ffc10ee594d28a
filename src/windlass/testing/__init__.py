"""What tests of windlass, and tests of what is built on it, start from."""

from windlass.clock import ManualClock
from windlass.testing.apps import AsyncInMemory, Enqueued, InMemory, fixture, in_memory

__all__ = ["AsyncInMemory", "Enqueued", "InMemory", "ManualClock", "fixture", "in_memory"]
