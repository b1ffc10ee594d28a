"""Who does the work: a worker over a port, with handlers that are coroutines, functions, processes or commands."""

from windlass.worker.context import Context, RunLog, current
from windlass.worker.handlers import Handler, Place
from windlass.worker.loop import Worker
from windlass.worker.outcomes import Fail, Snooze, Stopped
from windlass.worker.port import House, Port

__all__ = ["Context", "Fail", "Handler", "House", "Place", "Port", "RunLog", "Snooze", "Stopped", "Worker", "current"]
