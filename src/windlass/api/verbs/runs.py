"""Runs: creation, reading, changes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal, Protocol, Unpack

from msgspec import Meta
from msgspec.structs import replace

from windlass.answers import Page, Reason, RunDetail, RunFilters, Status
from windlass.api.answers import CreatedRun, CreatedRuns
from windlass.api.codec import Form, instant
from windlass.api.gives import Gives, listed, one, page_of
from windlass.api.requests import CancelRun, CreateRun, CreateRuns, MoveRun, PatchRun
from windlass.api.rows import AFTER_NUMBER, COUNT, CURSOR, GET, IDEMPOTENCY_KEY, PATCH, POST, ByRow, Param, Verb, row_of, verb
from windlass.api.views import ATTEMPT, ENTRY, LINE, REASON, RUN, RUN_DETAIL, STEP, line_cursor, line_place
from windlass.model import Attempt, Created, Entry, LogLine, NewRun, Run, State, Step

CREATED = Gives(
    CreatedRun,
    lambda created, _: CreatedRun(created.id, created.created, created.pruned),
    lambda answer, _: Created(answer.id, created=True, pruned=answer.pruned),
)
STATE = Param("state", State | None)

_RUN = one(RUN)
_DETAIL = one(RUN_DETAIL)
_PAGE = page_of(
    Page, "ListedRuns", "Some runs, and the cursor of the next page. `looked_at` is where a page that is not full has ended.", runs=RUN
)
_STATES = Form(str, ",".join, lambda text: text.split(","))
_FILTERS = (
    Param("job"), Param("queue"), STATE,
    Param("states", form=_STATES, description="Any of these states, separated by commas."),
    Param("group", description="The id of its group."),
    Param("schedule", description="The key of its schedule."),
    Param("worker", description="The worker of its current or last attempt."),
    Param("key"),
    Param("tag", description="A tag that its worker must have."),
    Param("error", description="The code of its error."),
    Param("created_since", form=instant("created_since"), description="Created at or after this instant."),
    Param("created_before", form=instant("created_before"), description="Created before this instant."),
    Param("ended_since", form=instant("ended_since"), description="Ended at or after this instant."),
    Param("ended_before", form=instant("ended_before"), description="Ended before this instant."),
    Param("text", description="The beginning or end of its id, the beginning of its key, or a part of its error's message."),
    CURSOR, COUNT,
)  # fmt: skip
_AFTER_LINE = Param("after", AFTER_NUMBER.kind, 0, form=Form(int, lambda place: line_cursor(*place) if place[0] else 0, line_place))
_LINES_OF = Param("attempt", Annotated[int, Meta(ge=1)] | None, description="Of this attempt only.")
_LAST = Param("last", Annotated[int, Meta(ge=1, le=1_000)] | None, description="The last so many lines.")
_ATTEMPTS = listed("Attempts", "All attempts of a run, oldest first.", attempts=ATTEMPT)
_HISTORY = listed("History", "Changes of state, oldest first.", events=ENTRY)
_LINES = listed("Lines", "Log lines, oldest first.", lines=LINE)
_STEPS = listed("Steps", "The completed steps of a run, in their order.", steps=STEP)
_WHY = listed("Why", "Everything that blocks a run.", reasons=REASON)
_ATTEMPT = Param(
    "attempt", Annotated[int, Meta(ge=1)] | None, description="The number of an attempt: it is rerun with the payload that it ran with."
)
_MANY = Param("count", COUNT.kind, 1_000, description=COUNT.description)

_IN_DETAIL = Param(
    "detail",
    bool,
    True,
    description="Whether its schedule, group and place and how many are ahead are looked up; else they are null.",
)

CREATE_RUN = Verb(
    "create_run", POST, "/runs", "Create a run", CREATED, scope="submit", takes=CreateRun, query=(IDEMPOTENCY_KEY,), status=202
)  # fmt: skip


class RunVerbs(Protocol):
    """Runs."""

    @verb(
        POST, "/runs/batch", "Create many runs, all or none", Gives(CreatedRuns),
        scope="submit", takes=CreateRuns, query=(IDEMPOTENCY_KEY,), status=202,
    )  # fmt: skip
    async def create(self, news: Sequence[NewRun], *, undefined: Literal["refuse", "wait"] = "refuse") -> list[Created]:
        """Store these runs, all or none; the results are in the same order."""
        raise ByRow

    @verb(GET, "/runs", "A page of runs", _PAGE, scope="read", query=_FILTERS)
    async def runs(
        self,
        *,
        cursor: str | None = None,
        count: int = 100,
        **filters: Unpack[RunFilters],
    ) -> Page:
        """A page of runs that match all of these filters."""
        raise ByRow

    @verb(GET, "/runs/{run_id}", "One run", Gives(_DETAIL.form, _DETAIL.show, _RUN.read), scope="read", query=(_IN_DETAIL,))
    async def get(self, run_id: str) -> Run:
        """The run with this id, or with an attempt of this id."""
        raise ByRow

    @verb(PATCH, "/runs/{run_id}", "Change a waiting run", _RUN, scope="submit", takes=PatchRun, audit="patch run {run_id}")
    async def patch(self, /, run_id: str, *, by: str | None = None, **fields: Any) -> Run:
        """Edit a run that still waits: payload, priority, due_at, max_attempts, queue."""
        raise ByRow

    @verb(POST, "/runs/{run_id}/cancel", "Cancel a run", _RUN, scope="submit", takes=CancelRun | None, audit="cancel run {run_id}")
    async def cancel(
        self, run_id: str, *, reason: str | None = None, only: Collection[State | str] | None = None, by: str | None = None
    ) -> Run:
        """Cancel a waiting run at once; stop a running one. With `only`, cancel it only while it is in one of these states."""
        raise ByRow

    @verb(
        POST, "/runs/{run_id}/rerun", "Rerun it as a new run", CREATED,
        scope="submit", query=(_ATTEMPT, IDEMPOTENCY_KEY), status=202, audit="rerun run {run_id}",
    )  # fmt: skip
    async def rerun(self, run_id: str, *, attempt: int | None = None) -> Created:
        """Create a new run from an ended one, or from one attempt: the same payload and rules, a fresh limit of attempts, no key."""
        raise ByRow

    @verb(GET, "/runs/{run_id}/attempts", "All attempts of a run", _ATTEMPTS, scope="read")
    async def attempts(self, run_id: str) -> list[Attempt]:
        """All attempts of a run, oldest first."""
        raise ByRow

    @verb(GET, "/runs/{run_id}/history", "Every change of state of a run", _HISTORY, scope="read", query=(AFTER_NUMBER, _MANY))
    async def history(self, run_id: str, *, after: int = 0, count: int = 1_000) -> list[Entry]:
        """Every change of state of a run, from the beginning or after a revision."""
        raise ByRow

    @verb(GET, "/runs/{run_id}/logs", "Its log lines", _LINES, scope="read", query=(_LINES_OF, _AFTER_LINE, _LAST, COUNT))
    async def lines(
        self,
        run_id: str,
        *,
        attempt: int | None = None,
        after: tuple[int, int] = (0, 0),
        last: int | None = None,
        count: int = 100,
    ) -> list[LogLine]:
        """The log of a run, or of one attempt, in its order, after (attempt, number); with `last`, only its last lines."""
        raise ByRow

    @verb(
        GET, "/runs/{run_id}/steps", "Its completed steps, and their results", _STEPS,
        scope=("read", "work"), query=(AFTER_NUMBER, _MANY),
    )  # fmt: skip
    async def steps(self, run_id: str, *, after: int = 0, count: int = 1_000) -> list[Step]:
        """The completed steps of a run with their results, in their order, after a number."""
        raise ByRow

    @verb(GET, "/runs/{run_id}/why", "What blocks a run", _WHY, scope="read")
    async def why(self, run_id: str) -> list[Reason]:
        """Everything that blocks a run now; empty if a worker could claim it at once."""
        raise ByRow

    @verb(
        POST, "/runs/{run_id}/move", "Give a waiting run another place in its queue", _RUN,
        scope="submit", takes=MoveRun, audit="move run {run_id}",
    )  # fmt: skip
    async def move(
        self,
        run_id: str,
        *,
        place: int | None = None,
        to: Literal["top", "bottom"] | None = None,
        before: str | None = None,
        after: str | None = None,
        by: str | None = None,
    ) -> Run:
        """Give a waiting run another place in its queue: the n-th from 0, the "top" or "bottom", or next to another run."""
        raise ByRow

    async def detail(self, run_id: str) -> RunDetail:
        """A run with its origin, and how many runs are ahead of it."""

    async def status(self, run_id: str) -> Status:
        """The status of a run by its id alone."""


DETAIL = replace(row_of(RunVerbs.get), gives=_DETAIL)
"""The row of one run, read with its origin."""
