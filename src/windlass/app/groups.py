"""Groups of an application: runs with rules for their order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from windlass.app.handles import block, looks
from windlass.errors import BadInput
from windlass.model import Group, GroupKind, Member, NewGroup, NewRun, OnFailure, Run
from windlass.store.base import run_sync

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


class _Draft:
    """A group that is not stored yet."""

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


class GroupDraft(_Draft):
    """A group that is not stored yet, for synchronous code."""

    def enqueue(self, *, connection: Any = None) -> GroupHandle:
        """Store the group with all its runs, or nothing."""
        return GroupHandle(self._home, run_sync(self._home.store_group(self._new(), connection)))


class AsyncGroupDraft(_Draft):
    """A group that is not stored yet, for coroutines."""

    async def enqueue(self, *, connection: Any = None) -> AsyncGroupHandle:
        """Store the group with all its runs, or nothing."""
        return AsyncGroupHandle(self._home, await self._home.store_group(self._new(), connection))


class _GroupHandle:
    """Shared by both handles: the group as it was last read."""

    __slots__ = ("_home", "record")

    def __init__(self, home: GroupApp, record: Group) -> None:
        self._home, self.record = home, record

    @property
    def id(self) -> str:
        """The group's id."""
        return self.record.id

    async def _status(self) -> Group:
        self.record = await self._home.verbs.get_group(self.id)
        return self.record

    async def _members(self) -> list[Run]:
        engine, runs = self._home.verbs, list[Run]()
        while more := await engine.members(self.id, after=runs[-1].id if runs else None, count=engine.limits.page):
            runs += more
        return runs

    async def _wait(self, timeout: float | None, pause: Callable[[float], Awaitable[None]]) -> Group:
        async for _ in looks(self._home.verbs.clock, pause, timeout, lambda: f"Group {self.id} is still running"):
            if (await self._status()).finished_at is not None:
                break
        return self.record

    def __repr__(self) -> str:
        return f"<group {self.id} of {self.record.total} runs>"


class GroupHandle(_GroupHandle):
    """A group, for synchronous code."""

    __slots__ = ()

    def status(self) -> Group:
        """Its current status, and how many of its runs have ended in which state."""
        return run_sync(self._status())

    def wait(self, timeout: float | None = None) -> Group:
        """The group when all its runs have ended, in whatever state; TimeoutError when it takes longer."""
        return run_sync(self._wait(timeout, block))

    def members(self) -> list[Run]:
        """Its current runs, in the order in which they were added."""
        return run_sync(self._members())

    def cancel(self, reason: str | None = None) -> Group:
        """Cancel those of its runs that have not ended."""
        return run_sync(self._home.verbs.cancel_group(self.id, reason=reason))

    def rerun(self) -> GroupHandle:
        """A new group with the same runs, once this one has ended."""
        return GroupHandle(self._home, run_sync(self._home.verbs.rerun_group(self.id)))


class AsyncGroupHandle(_GroupHandle):
    """A group, for coroutines."""

    __slots__ = ()

    async def status(self) -> Group:
        """Its current status, and how many of its runs have ended in which state."""
        return await self._status()

    async def wait(self, timeout: float | None = None) -> Group:
        """The group when all its runs have ended, in whatever state; TimeoutError when it takes longer."""
        return await self._wait(timeout, asyncio.sleep)

    async def members(self) -> list[Run]:
        """Its current runs, in the order in which they were added."""
        return await self._members()

    async def cancel(self, reason: str | None = None) -> Group:
        """Cancel those of its runs that have not ended."""
        return await self._home.verbs.cancel_group(self.id, reason=reason)

    async def rerun(self) -> AsyncGroupHandle:
        """A new group with the same runs, once this one has ended."""
        return AsyncGroupHandle(self._home, await self._home.verbs.rerun_group(self.id))
