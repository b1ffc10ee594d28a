"""The store interface: a store runs a batch of named statements, all or nothing, in order, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from windlass.clock import Clock
from windlass.errors import NeedsLoop, SchemaMismatch, WrongProcess

T = TypeVar("T")

Value = str | int | None
Row = tuple[Any, ...]
Runs = Collection[str | int]
"""Some runs, by id or by seq."""


class Statement(NamedTuple):
    """A statement in `queries/` by name, with the values it binds. A set is passed as one JSON text."""

    name: str
    values: Mapping[str, Value] = {}


class Store(Protocol):
    """The database."""

    async def batch(self, verb: str, statements: Sequence[Statement]) -> list[list[Row]]:
        """Run all statements in order, or none; one list of rows for each.

        A batch that only reads takes no write lock. Raises Conflict when a unique key is taken, StoreBusy,
        StoreFull, StoreUnreachable when nothing was written, and OutcomeUnknown when the commit may have happened.
        """

    async def close(self) -> None:
        """Close every connection; a second call does nothing."""


QUEUES, WORKERS, SLOTS = "queue:", "worker:", "slot:"
ALL_QUEUES = "queue:*"
"""The topic of a waiter for every queue."""
SWEEP = "sweep"
"""The topic for something that is due so soon that sweepers should check."""
JOURNAL = "journal"
"""The topic that every store publishes after a batch that adds to the journal, coalesced for some milliseconds. It is waited for
separately, by `journal_topics`, so that only consumers of the journal are woken by it."""
LOOK_EVERY = 0.05
"""Seconds between two polls without hints."""


def queue_topic(name: str) -> str:
    """The topic of a queue that may have runs."""
    return QUEUES + name


def worker_topic(name: str) -> str:
    """The topic of a request to a worker."""
    return WORKERS + name


def slot_topic(resource: str) -> str:
    """The topic of a released resource that direct calls may wait for."""
    return SLOTS + resource


def journal_topics(reader: str) -> frozenset[str]:
    """The topics of a consumer of the journal. Its own name among them keeps hints for it that come while it reads."""
    return frozenset((JOURNAL, f"{JOURNAL}:{reader}"))


@runtime_checkable
class Hints(Protocol):
    """Wake-ups for waiters. A lost hint costs only time."""

    def wake(self, topics: Collection[str]) -> None:
        """Wake the waiters for these topics; to be called after the commit. Raises nothing: a lost hint costs only time.

        A mapping may name the runs that are ready in a queue, by id or seq. Then at first only as many waiters are woken as there are
        runs, and more later, until the runs are reported as `taken`.
        """

    def taken(self, runs: Runs) -> None:
        """No further waiters need be woken for these runs. Raises nothing."""

    async def wait(self, topics: Collection[str], timeout: float) -> set[str]:
        """The topics with a hint, as soon as there are any; none after this many seconds.

        A topic that matches `queue:*` is returned as it was published. Where a hint may have been missed, as at the first wait
        for these topics, all of them are returned at once. Hints published between two waits for the same topics are
        kept for the second.
        """


@runtime_checkable
class TransactionHints(Protocol):
    """A store that writes into a caller's transaction, so that its hints are sent with the caller's commit."""

    async def notify(self, topics: Collection[str]) -> None:
        """Wake the waiters for these topics as soon as the caller commits. Raises nothing."""


class NoHints:
    """Without hints, waiters poll."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def wake(self, topics: Collection[str]) -> None:
        pass

    def taken(self, runs: Runs) -> None:
        pass

    async def wait(self, topics: Collection[str], timeout: float) -> set[str]:
        await self._clock.sleep(min(timeout, LOOK_EVERY))
        return set()


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends; blocking stores never do."""
    try:
        coroutine.send(None)
    except StopIteration as finished:
        value: T = finished.value
        return value
    coroutine.close()
    raise NeedsLoop(
        "This store suspends, so it cannot be driven from a plain call.",
        hint="Use the async classes inside an event loop, or open a blocking store.",
    )


def check_process(opened_by: int) -> None:
    """Refuse a store that another process has opened."""
    if os.getpid() != opened_by:
        raise WrongProcess(
            f"This store was opened by process {opened_by} and carried into process {os.getpid()} by a fork.",
            hint="Open a store of its own in each process, and start processes by spawn.",
        )


def refuse_older(version: int, newest: int, where: str) -> None:
    """Refuse a schema that lacks steps of this version."""
    if version < newest:
        raise SchemaMismatch(f"{where} has schema version {version}; this windlass needs {newest}.", hint="Run `windlass migrate`.")


def refuse_newer(version: int, known: int, where: str) -> None:
    """Refuse a schema with steps that this version does not have."""
    if version > known:
        raise SchemaMismatch(
            f"{where} has schema version {version}; this windlass knows only {known}.",
            hint="Upgrade windlass here to the version that has migrated the store.",
        )
