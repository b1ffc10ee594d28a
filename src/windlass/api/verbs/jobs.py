"""Jobs: the definitions from which runs are created."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from windlass.api.gives import DONE, one, paged
from windlass.api.requests import DefineJob
from windlass.api.rows import AFTER_NAME, COUNT, DELETE, GET, PUT, ByRow, verb
from windlass.api.views import JOB
from windlass.model import JobRecord, Options

_PAGE = paged("Jobs", "Definitions by name, and after which the next page begins.", lambda job: job.name, jobs=JOB)


class JobVerbs(Protocol):
    """Definitions."""

    @verb(GET, "/jobs", "Definitions by name", _PAGE, scope="read", query=(AFTER_NAME, COUNT))
    async def jobs(self, *, after: str = "", count: int = 100) -> list[JobRecord]:
        """Definitions by name."""
        raise ByRow

    @verb(GET, "/jobs/{name}", "One definition", one(JOB), scope="read")
    async def get_job(self, name: str) -> JobRecord:
        """One definition."""
        raise ByRow

    @verb(PUT, "/jobs/{name}", "Define a job", one(JOB), scope=("work", "admin"), takes=DefineJob, repeatable=True)
    async def define(
        self,
        name: str,
        *,
        handler: str | None = None,
        payload: Mapping[str, Any] | None = None,
        options: Options | None = None,
        schema: Mapping[str, Any] | None = None,
        description: str | None = None,
    ) -> JobRecord:
        """Store a definition; the same one again changes nothing."""
        raise ByRow

    @verb(DELETE, "/jobs/{name}", "Remove the placeholder of an undefined job", DONE, scope="admin", audit="remove job {name}")
    async def drop_job(self, name: str) -> None:
        """Remove the placeholder of an undefined job that has no runs."""
        raise ByRow
