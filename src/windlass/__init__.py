"""A durable job scheduler, queue and runner."""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "App", "AsyncApp", "AsyncGroupHandle", "AsyncHandle", "AsyncJob", "Context", "Fail", "GroupHandle", "Handle", "HeldSlot", "Job", "Key",
    "Rate", "RunLog", "Skip", "Snooze", "State", "Stopped", "Use", "current",
]  # fmt: skip

if TYPE_CHECKING:
    from windlass.app import App, AsyncApp, AsyncGroupHandle, AsyncHandle, AsyncJob, GroupHandle, Handle, Job
    from windlass.model import Key, Rate, State, Use
    from windlass.slots import HeldSlot
    from windlass.worker import Context, Fail, RunLog, Skip, Snooze, Stopped, current
else:
    # Imported at the first use: `windlass --help` needs none of them.
    def __getattr__(name):
        for home in ("app", "worker", "slots", "model") if name in __all__ else ():
            module = import_module(f"windlass.{home}")
            if hasattr(module, name):
                value = globals()[name] = getattr(module, name)
                return value
        raise AttributeError(f"module 'windlass' has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__all__})
