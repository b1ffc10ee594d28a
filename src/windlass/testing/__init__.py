"""Tools for tests of windlass, and of applications built on it."""

from windlass.clock import ManualClock
from windlass.testing.apps import AsyncInMemory, Enqueued, InMemory, fixture, in_memory

__all__ = ["AsyncInMemory", "Enqueued", "InMemory", "ManualClock", "fixture", "in_memory"]
