"""A durable job scheduler, queue and runner."""

from windlass.app import App, AsyncApp, AsyncHandle, AsyncJob, Handle, Job
from windlass.model import Key, State
from windlass.worker import Context, Fail, RunLog, Snooze, Stopped, current

__version__ = "0.1.0"

__all__ = [
    "App", "AsyncApp", "AsyncHandle", "AsyncJob", "Context", "Fail", "Handle", "Job", "Key", "RunLog", "Snooze", "State", "Stopped",
    "current",
]  # fmt: skip
