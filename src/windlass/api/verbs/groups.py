"""Groups of runs, and the results of predecessors."""

from __future__ import annotations

from typing import Literal, Protocol

from windlass.api.gives import one, paged
from windlass.api.requests import CancelGroup, CreateGroup
from windlass.api.rows import COUNT, GET, IDEMPOTENCY_KEY, POST, ByRow, Param, verb
from windlass.api.views import GROUP, RESULT, RUN
from windlass.model import Group, GroupStatus, NewGroup, Result, Run

_GROUP = one(GROUP)
_PAGE = paged("GroupPage", "Some groups, and after which the next page begins.", lambda group: group.id, groups=GROUP)
_MEMBERS = paged("RunPage", "Some runs, and the cursor of the next page.", lambda run: run.id, runs=RUN)
_RESULTS = paged("Results", "Results of runs, and after which the next page begins.", lambda result: result.id, results=RESULT)
_BEHIND = Param("cursor", word="after")
_STATUS = Param("status", GroupStatus | None)


class GroupVerbs(Protocol):
    """Groups."""

    @verb(
        POST, "/groups", "Create a group of runs, all or none", _GROUP,
        scope="submit", takes=CreateGroup, query=(IDEMPOTENCY_KEY,), status=202,
    )  # fmt: skip
    async def create_group(self, new: NewGroup, *, undefined: Literal["refuse", "wait"] = "refuse") -> Group:
        """Store a group with all its runs, or nothing."""
        raise ByRow

    @verb(GET, "/groups", "Groups, newest first", _PAGE, scope="read", query=(_STATUS, _BEHIND, COUNT))
    async def groups(self, *, status: GroupStatus | None = None, after: str | None = None, count: int = 100) -> list[Group]:
        """Groups, newest first, all or those of a status, after a given one."""
        raise ByRow

    @verb(GET, "/groups/{group_id}", "One group", _GROUP, scope="read")
    async def get_group(self, group_id: str) -> Group:
        """The group with this id."""
        raise ByRow

    @verb(
        GET, "/groups/{group_id}/runs", "The runs of a group, in the order in which they were added", _MEMBERS,
        scope="read", query=(_BEHIND, COUNT),
    )  # fmt: skip
    async def members(self, group_id: str, *, after: str | None = None, count: int = 100) -> list[Run]:
        """The runs of a group in the order in which they were added, after a given one."""
        raise ByRow

    @verb(
        POST, "/groups/{group_id}/cancel", "Cancel the unfinished runs of a group", _GROUP,
        scope="submit", takes=CancelGroup | None, audit="cancel group {group_id}",
    )  # fmt: skip
    async def cancel_group(self, group_id: str, *, reason: str | None = None, by: str | None = None) -> Group:
        """Cancel all members that have not ended."""
        raise ByRow

    @verb(
        POST, "/groups/{group_id}/rerun", "Rerun it as a new group", _GROUP,
        scope="submit", query=(IDEMPOTENCY_KEY,), status=202, audit="rerun group {group_id}",
    )  # fmt: skip
    async def rerun_group(self, group_id: str) -> Group:
        """Create a new group from an ended one: the same runs and dependencies, with fresh limits of attempts."""
        raise ByRow

    @verb(GET, "/runs/{run_id}/results", "The results of its predecessors", _RESULTS, scope=("read", "work"), query=(_BEHIND, COUNT))
    async def results(self, run_id: str, *, after: str | None = None, count: int = 100) -> list[Result]:
        """The results of a run's predecessors, or, for the callback of a group, of all members."""
        raise ByRow
