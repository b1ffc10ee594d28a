"""Schedules: rules that create runs."""

from __future__ import annotations

from typing import Any, Protocol

from windlass.answers import Preview
from windlass.api.answers import Previews
from windlass.api.codec import instant
from windlass.api.gives import DONE, Gives, listed, one, paged
from windlass.api.requests import PatchSchedule, PutSchedule
from windlass.api.rows import AFTER_NAME, COUNT, DELETE, GET, IDEMPOTENCY_KEY, PATCH, POST, PUT, ByRow, Param, verb
from windlass.api.verbs.runs import CREATED
from windlass.api.views import PREVIEW, SCHEDULE, SKIPPED
from windlass.defaults import MAX_MISSED
from windlass.firing import Fire
from windlass.model import Created, Missed, Options, Overlap, Schedule, Skipped

_SCHEDULE = one(SCHEDULE)
_PAGE = paged("Schedules", "Some schedules, and after which key the next page begins.", lambda schedule: schedule.key, schedules=SCHEDULE)
_PREVIEWS = Gives(Previews, read=lambda answer, _: [PREVIEW.read(view) for view in answer.next])
_SKIPS = listed("Skips", "Skipped instants, latest first.", skips=SKIPPED)
_START = Param("start", form=instant("start"))
_SOME = Param("count", COUNT.kind, 20, description=COUNT.description)


class ScheduleVerbs(Protocol):
    """Schedules."""

    @verb(GET, "/schedules", "Schedules by key", _PAGE, scope="read", query=(AFTER_NAME, COUNT))
    async def schedules(self, *, after: str = "", count: int = 100) -> list[Schedule]:
        """Schedules by key."""
        raise ByRow

    @verb(GET, "/schedules/{key}", "One schedule", _SCHEDULE, scope="read")
    async def get_schedule(self, key: str) -> Schedule:
        """The schedule with this key."""
        raise ByRow

    @verb(
        PUT, "/schedules/{key}", "Store a rule under a key, or update it", _SCHEDULE,
        scope=("work", "admin"), takes=PutSchedule, audit="schedule schedule {key}", repeatable=True,
    )  # fmt: skip
    async def schedule(
        self,
        key: str,
        job: str,
        *,
        cron: str | None = None,
        every: str | float | None = None,
        at: str | None = None,
        zone: str = "UTC",
        payload: dict[str, Any] | None = None,
        options: Options | None = None,
        missed: Missed = "latest",
        max_missed: int = MAX_MISSED,
        max_age: int | None = None,
        overlap: Overlap = "allow",
        jitter: int = 0,
        enabled: bool = True,
        by_code: bool = False,
        new: bool = False,
        checked: bool = False,
    ) -> Schedule:
        """Store a rule under a key; the same key again updates it. Existing runs do not change."""
        raise ByRow

    @verb(PATCH, "/schedules/{key}", "Edit a schedule", _SCHEDULE, scope="admin", takes=PatchSchedule, audit="edit schedule {key}")
    async def set_schedule(self, /, key: str, **fields: Any) -> Schedule:
        """Edit a schedule."""
        raise ByRow

    @verb(DELETE, "/schedules/{key}", "Remove a schedule; its runs stay", DONE, scope="admin", audit="remove schedule {key}")
    async def remove_schedule(self, key: str) -> None:
        """Remove a schedule. Its runs stay."""
        raise ByRow

    @verb(
        POST, "/schedules/{key}/trigger", "Create a run of it now", CREATED,
        scope="submit", query=(IDEMPOTENCY_KEY,), status=202, audit="trigger schedule {key}",
    )  # fmt: skip
    async def trigger(self, key: str) -> Created:
        """Create a run of a schedule now; its instants do not change."""
        raise ByRow

    @verb(GET, "/schedules/{key}/preview", "Its coming instants", _PREVIEWS, scope="read", query=(_START, _SOME))
    async def preview(self, key: str, *, start: int | None = None, count: int = 20) -> list[Preview]:
        """The coming instants of a schedule, from now or from a time."""
        raise ByRow

    @verb(GET, "/schedules/{key}/skips", "Its skipped instants", _SKIPS, scope="read", query=(COUNT,))
    async def skips(self, key: str, *, count: int = 100) -> list[Skipped]:
        """The skipped instants of a schedule, latest first."""
        raise ByRow

    async def outage(self, key: str, start: int, end: int) -> Fire:
        """What a schedule would do at the end of a downtime."""
