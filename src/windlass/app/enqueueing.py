"""Enqueueing: stores the runs that code requests, alone, together, or in a transaction."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from itertools import islice
from typing import TYPE_CHECKING, Any

from windlass import payload
from windlass.app.handles import H
from windlass.app.options import (
    RunOptions,
    Uses,
    new_run,
)
from windlass.app.registry import Registry
from windlass.clock import Clock
from windlass.config.addresses import located, shown
from windlass.errors import BadInput
from windlass.model import Created, Group, Limits, NewGroup, NewRun

if TYPE_CHECKING:
    from windlass.api.verbs import Verbs

BESIDE = 200  # bytes of a creation in a request, beside its payload

_SHARING = {
    "postgres": "Give a psycopg 3 connection to this very database; SQLAlchemy, with postgresql+psycopg, has it as "
    "connection.connection.driver_connection. Or enqueue after your own commit.",
    "sqlite": "No connection to a SQLite file can be shared: two SQLite libraries on one file break each other's locks. "
    "Use app.transaction(), or enqueue after your own commit.",
    "hub": "Through a hub no run can be part of a transaction of yours. Enqueue after your own commit.",
}
"""What to do instead, when runs cannot be enqueued on the given connection."""


class Block:
    """A transaction block: it collects runs that are stored at its end, or has the caller's connection, to which they go at once."""

    def __init__(self, engine: Verbs | None) -> None:
        self.engine, self.open = engine, True  # a task that is started in the block may outlive it
        self.news: list[NewRun] = []
        self.handles: list[Any] = []


class Enqueueing(Registry):
    """Runs of an app's jobs."""

    def __init__(
        self,
        store: str | os.PathLike[str] | None = None,
        *,
        clock: Clock | None = None,
        limits: Limits | None = None,
        uses: Uses | None = None,
    ) -> None:
        super().__init__(store, clock=clock, limits=limits, uses=uses)
        self._within: ContextVar[Block | None] = ContextVar("windlass_transaction", default=None)

    async def _enqueued(self, handle: Callable[..., H], news: Sequence[NewRun], connection: Any = None) -> list[H]:
        """Handles of these runs, which are stored now or, inside a transaction block, at its end."""
        reads = {name: self._reader(name) for name in {new.job for new in news}}
        block = self._collecting() if connection is None else None
        if block is None:
            created = await self._stored(news, connection)
            return [handle(self, new.job, reads[new.job], answer.id, answer.created) for new, answer in zip(news, created, strict=True)]
        handles = [handle(self, new.job, reads[new.job]) for new in news]
        block.news += news
        block.handles += handles
        return handles

    def _reader(self, job: str) -> Callable[[str | None], Any] | None:
        return self.jobs[job].read if job in self.jobs else None

    def _collecting(self) -> Block | None:
        """The current transaction block, if there is one."""
        block = self._within.get()
        return block if block is not None and block.open and block.engine is None else None

    async def _stored(self, news: Sequence[NewRun], connection: Any) -> list[Created]:
        await self._define(self.verbs, {new.job for new in news} - self._defined)
        return await self._storing(connection).create(news)

    def _storing(self, connection: Any) -> Verbs:
        """The engine that stores new runs: on the caller's connection, if there is one."""
        block = self._within.get()
        if connection is not None:
            return self._on(connection)
        return block.engine if block is not None and block.open and block.engine is not None else self.verbs

    async def store_group(self, new: NewGroup, connection: Any) -> Group:
        """Store a group with all its runs, or nothing."""
        if connection is None and self._collecting() is not None:
            raise BadInput(
                "A group cannot wait for the end of a transaction's block.",
                hint="Enqueue it after the block; it is stored whole or not at all anyway.",
            )
        await self._define(self.verbs, {member.run.job for member in new.members} | ({new.callback.job} if new.callback else set()))
        return await self._storing(connection).create_group(new)

    async def _end(self, block: Block) -> None:
        """Store the runs of a block, or leave them to the enclosing block."""
        if not block.news:
            return
        if (around := self._collecting()) is not None:
            around.news += block.news
            around.handles += block.handles
            return
        for handle, answer in zip(block.handles, await self._stored(block.news, None), strict=True):
            handle.known(answer.id, created=answer.created)

    @contextlib.contextmanager
    def _block(self, connection: Any) -> Iterator[Block]:
        block = Block(None if connection is None else self._on(connection))
        before = self._within.set(block)
        try:
            yield block
        finally:
            block.open = False
            self._within.reset(before)

    def _on(self, connection: Any) -> Verbs:
        """The engine on the caller's own connection."""
        if self._under_test:  # a store in memory cannot take part in it
            return self.verbs
        if located(self.address).kind != "postgres" or not _of_psycopg(connection):
            raise BadInput(
                f"Runs in {shown(self.address)} cannot be enqueued on a {type(connection).__module__}.{type(connection).__qualname__}.",
                hint=_SHARING[located(self.address).kind],
            )
        if self._blocking and hasattr(connection, "__aenter__"):
            raise BadInput("An async connection cannot be used by App.", hint="Use AsyncApp, or a blocking connection.")
        from windlass.store.postgres import BorrowedPostgres

        return self.engine.on(BorrowedPostgres(connection))

    def _slices(self, news: Iterable[NewRun]) -> Iterator[list[NewRun]]:
        remaining = iter(news)
        while slice_ := list(islice(remaining, self.limits.create)):
            yield from self._parcels(slice_) if located(self.address).kind == "hub" else (slice_,)

    def _parcels(self, news: list[NewRun]) -> Iterator[list[NewRun]]:
        """The same in slices that each fit into one request to a hub."""
        from windlass.client.port import parcels

        for some in parcels(news, self._size):
            yield list(some)

    def _size(self, new: NewRun) -> int:
        """About how many bytes a creation takes of a request."""
        meta = 0 if new.meta is None else len(payload.encode(new.meta, limit=self.limits.meta, what="meta").encode())
        return BESIDE + meta + len(payload.encode(new.payload, limit=self.limits.payload).encode())

    def _by_name(self, job: str, payload: Any, options: RunOptions) -> NewRun:
        known = self.jobs.get(job)
        if known is None or known.signature is None:
            return new_run(job, payload, options, self.clock.now())
        payload = known.signature.payload((), payload if payload is not None else {})
        return new_run(job, payload, options, self.clock.now(), checked=True)


def _of_psycopg(connection: Any) -> bool:
    return any(base.__module__.partition(".")[0] == "psycopg" for base in type(connection).__mro__)
