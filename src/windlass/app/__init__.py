"""The public library: the apps, their jobs, and the handles of runs."""

from windlass.app.apps import AsyncApp
from windlass.app.blocking import App, GroupHandle, Handle, Job
from windlass.app.groups import AsyncGroupHandle
from windlass.app.handles import AsyncHandle
from windlass.app.jobs import AsyncJob

__all__ = ["App", "AsyncApp", "AsyncGroupHandle", "AsyncHandle", "AsyncJob", "GroupHandle", "Handle", "Job"]
