"""The public library: the apps, their jobs, and the handles of runs."""

from windlass.app.apps import App, AsyncApp
from windlass.app.groups import AsyncGroupHandle, GroupHandle
from windlass.app.handles import AsyncHandle, Handle
from windlass.app.jobs import AsyncJob, Job

__all__ = ["App", "AsyncApp", "AsyncGroupHandle", "AsyncHandle", "AsyncJob", "GroupHandle", "Handle", "Job"]
