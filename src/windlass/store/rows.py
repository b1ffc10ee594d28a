"""What all records stand on: a store, and whoever acts through it."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from windlass.store.base import Row, Statement, Store, Value

_encode = msgspec.json.Encoder().encode


class Act(NamedTuple):
    """What somebody does, as the audit remembers it."""

    who: str
    what: str
    subject: str
    at: int


def pack(rows: Any) -> str:
    """A set as one JSON text."""
    return _encode(rows).decode()


class Rows:
    """Batches of named statements over any store. With an act, the first batch that writes also leaves its entry in the audit."""

    def __init__(self, store: Store, act: Act | None = None) -> None:
        self.store, self._act = store, act

    async def _batch(self, verb: str, *statements: Statement) -> list[list[Row]]:
        if self._act is None or verb in ("read", "claim"):
            return await self.store.batch(verb, statements)
        answers = await self.store.batch(verb, (*statements, Statement("add_audit", self._act._asdict())))
        self._act = None
        return answers[:-1]

    async def _read(self, name: str, /, **values: Value) -> list[Row]:
        return (await self.store.batch("read", (Statement(name, values),)))[0]
