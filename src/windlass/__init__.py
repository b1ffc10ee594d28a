"""A durable job scheduler, queue and runner."""

from windlass.app import App, AsyncApp, AsyncGroupHandle, AsyncHandle, AsyncJob, GroupHandle, Handle, Job
from windlass.model import Key, Rate, State, Use
from windlass.slots import HeldSlot
from windlass.worker import Context, Fail, RunLog, Snooze, Stopped, current

__version__ = "0.1.0"

__all__ = [
    "App", "AsyncApp", "AsyncGroupHandle", "AsyncHandle", "AsyncJob", "Context", "Fail", "GroupHandle", "Handle", "HeldSlot", "Job", "Key",
    "Rate", "RunLog", "Snooze", "State", "Stopped", "Use", "current",
]  # fmt: skip
