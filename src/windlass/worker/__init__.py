"""Execution of runs: a worker over a port, with handlers that are coroutines, functions, processes or commands."""

from typing import TYPE_CHECKING, Any

from windlass.worker.context import Context, RunLog, current
from windlass.worker.handlers import Handler, Place
from windlass.worker.outcomes import Fail, Skip, Snooze, Stopped
from windlass.worker.port import Maintenance, Port

if TYPE_CHECKING:
    from windlass.worker.loop import Worker

__all__ = ["Context", "Fail", "Handler", "Maintenance", "Place", "Port", "RunLog", "Skip", "Snooze", "Stopped", "Worker", "current"]


def __getattr__(name: str) -> Any:
    """`Worker` is imported on first use, because many programs only enqueue."""
    if name != "Worker":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from windlass.worker.loop import Worker

    return Worker
