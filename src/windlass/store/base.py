"""The seam: a store runs a batch of named statements, all or nothing, in order. That is all it can do."""

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
    """A statement in `queries/` by name, with the values it binds. A set travels as one JSON text."""

    name: str
    values: Mapping[str, Value] = {}


class Store(Protocol):
    """Where the truth is kept."""

    async def batch(self, verb: str, statements: Sequence[Statement]) -> list[list[Row]]:
        """Run all statements in order, or none; one list of rows for each.

        A batch that only reads takes no write lock. Raises Conflict when a unique key is taken, StoreBusy,
        StoreFull, StoreUnreachable when nothing was written, and OutcomeUnknown when the commit may have happened.
        """

    async def close(self) -> None:
        """Let go of every connection; a second call does nothing."""


QUEUES, WORKERS, SLOTS = "queue:", "worker:", "slot:"
ALL_QUEUES = "queue:*"
"""What a waiter names to hear of every queue."""
SWEEP = "sweep"
"""What is said when something falls due so soon that sweepers should look."""
JOURNAL = "journal"
"""What every store says by itself after a batch that adds to the journal, joined for some milliseconds. It is waited for apart from all
else, by `journal_topics`, so that only those who read the journal are woken by it."""
LOOK_EVERY = 0.05
"""Seconds between two looks where no hint can be heard."""


def queue_topic(name: str) -> str:
    """What is said when a queue may have work."""
    return QUEUES + name


def worker_topic(name: str) -> str:
    """What is said when something is asked of a worker."""
    return WORKERS + name


def slot_topic(resource: str) -> str:
    """What is said when something was let go of that direct calls may wait for."""
    return SLOTS + resource


def journal_topics(reader: str) -> frozenset[str]:
    """What a reader of the journal waits for. With a name of its own among them, what is said while it reads is kept for it."""
    return frozenset((JOURNAL, f"{JOURNAL}:{reader}"))


@runtime_checkable
class Hints(Protocol):
    """How those who wait learn that it is worth looking. Nothing depends on it but time."""

    def wake(self, topics: Collection[str]) -> None:
        """Tell those who wait for one of these topics; to be called after the commit. Raises nothing: a lost hint costs only time.

        A mapping may say which runs are ready in a queue, by id or seq. Then no more need be told at first than there are runs, and
        the others later, as long as nobody says that these are `taken`.
        """

    def taken(self, runs: Runs) -> None:
        """Nobody else need be told of these runs. Raises nothing."""

    async def wait(self, topics: Collection[str], timeout: float) -> set[str]:
        """The topics heard, as soon as there are any; none after so many seconds.

        A topic heard through `queue:*` is named as it was sent. Where something may have been missed, as at the first wait
        for these topics, the answer is at once all that was asked for. What is said between two waits for the same topics is
        kept for the second.
        """


@runtime_checkable
class Joined(Protocol):
    """A store that writes into a caller's transaction, so that its hints must wait for the caller's commit."""

    async def notify(self, topics: Collection[str]) -> None:
        """Tell those who wait for one of these topics as soon as the caller commits. Raises nothing."""


class NoHints:
    """Where nothing can be heard, those who wait look again soon."""

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
    """Refuse to use in one process what another one has opened."""
    if os.getpid() != opened_by:
        raise WrongProcess(
            f"This store was opened by process {opened_by} and carried into process {os.getpid()} by a fork.",
            hint="Open a store of its own in each process, and start processes by spawn.",
        )


def refuse_older(found: int, wanted: int, where: str) -> None:
    """Refuse a schema that lacks steps this version needs."""
    if found < wanted:
        raise SchemaMismatch(f"{where} has schema version {found}; this windlass needs {wanted}.", hint="Run `windlass migrate`.")


def refuse_newer(found: int, known: int, where: str) -> None:
    """Refuse a schema that has steps this version does not know."""
    if found > known:
        raise SchemaMismatch(
            f"{where} has schema version {found}; this windlass knows only {known}.",
            hint="Upgrade windlass here to the version that has migrated the store.",
        )
