"""Groups of an application: runs with rules for their order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from windlass.app.handles import pauses
from windlass.errors import BadInput
from windlass.model import Group, GroupKind, Member, NewGroup, NewRun, OnFailure, Run

if TYPE_CHECKING:
    from windlass.api.verbs import Verbs


class GroupApp(Protocol):
    """Where groups are stored: an app."""

    @property
    def verbs(self) -> Verbs: ...

    async def store_group(self, new: NewGroup, connection: Any) -> Group: ...


def new_group(kind: GroupKind, runs: Iterable[NewRun], name: str | None, on_failure: OnFailure, callback: NewRun | None) -> NewGroup:
    """A group of runs without dependencies."""
    return NewGroup(tuple(map(Member, runs)), kind, on_failure, callback, name)


class BaseDraft:
    """What both drafts of a group share."""

    def __init__(self, home: GroupApp, name: str | None, on_failure: OnFailure, callback: NewRun | None) -> None:
        self._home, self._name, self._on_failure, self._callback = home, name, on_failure, callback
        self._members: list[Member] = []

    def add(self, run: NewRun, *, after: Iterable[str] = (), name: str | None = None) -> str:
        """Add a run made by `job.new(...)`, which may wait for earlier members; returns the name by which others wait for it."""
        if isinstance(after, str):
            raise BadInput(f"after must be a list of names, not {after!r:.80}.", hint="Write after=[name].")
        member = Member(run, name or f"#{len(self._members) + 1}", tuple(after))
        self._members.append(member)
        return str(member.name)

    def _new(self) -> NewGroup:
        return NewGroup(tuple(self._members), "graph", self._on_failure, self._callback, self._name)


class AsyncGroupDraft(BaseDraft):
    """A group that is not stored yet, for coroutines."""

    async def enqueue(self, *, connection: Any = None) -> AsyncGroupHandle:
        """Store the group with all its runs, or nothing."""
        return AsyncGroupHandle(self._home, await self._home.store_group(self._new(), connection))


class BaseGroupHandle:
    """What both handles of a group share: the group as it was last read."""

    __slots__ = ("_home", "record")

    def __init__(self, home: GroupApp, record: Group) -> None:
        self._home, self.record = home, record

    @property
    def id(self) -> str:
        """The group's id."""
        return self.record.id

    def __repr__(self) -> str:
        return f"<group {self.id} of {self.record.total} runs>"


class AsyncGroupHandle(BaseGroupHandle):
    """A group, for coroutines."""

    __slots__ = ()

    async def status(self) -> Group:
        """Its current status, and how many of its runs have ended in which state."""
        self.record = await self._home.verbs.get_group(self.id)
        return self.record

    async def wait(self, timeout: float | None = None) -> Group:
        """The group when all its runs have ended, in whatever state; TimeoutError when it takes longer."""
        for pause in pauses(self._home.verbs.clock, timeout, lambda: f"Group {self.id} is still running"):
            if (await self.status()).finished_at is not None:
                break
            await asyncio.sleep(pause)
        return self.record

    async def members(self) -> list[Run]:
        """Its current runs, in the order in which they were added."""
        verbs, runs = self._home.verbs, list[Run]()
        while more := await verbs.members(self.id, after=runs[-1].id if runs else None, count=verbs.limits.page):
            runs += more
        return runs

    async def cancel(self, reason: str | None = None) -> Group:
        """Cancel those of its runs that have not ended."""
        return await self._home.verbs.cancel_group(self.id, reason=reason)

    async def rerun(self) -> AsyncGroupHandle:
        """A new group with the same runs, once this one has ended."""
        return AsyncGroupHandle(self._home, await self._home.verbs.rerun_group(self.id))
