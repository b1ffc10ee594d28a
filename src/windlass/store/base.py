"""The seam: a store runs a batch of named statements, all or nothing, in order. That is all it can do."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from windlass.errors import NeedsLoop

T = TypeVar("T")

Value = str | int | None
Row = tuple[Any, ...]


class Statement(NamedTuple):
    """A statement of `queries.sql` by name, with the values it binds. A set travels as one JSON text."""

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
