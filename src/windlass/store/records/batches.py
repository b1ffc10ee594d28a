"""What all records share: a store, and the audited action that is performed through it."""

from __future__ import annotations

from typing import NamedTuple

from windlass.store.base import Row, Statement, Store, Value

UNAUDITED = ("read", "claim", "lanes", "placeholder")
"""Batches that are no audited action by themselves."""


class Act(NamedTuple):
    """An audited action, as the audit log records it."""

    actor: str
    what: str
    subject: str
    at: int


class Batches:
    """Batches of named statements over any store. With an act, the first batch that writes also adds the audit entry."""

    def __init__(self, store: Store, act: Act | None, limit: int) -> None:
        self.store, self._act, self.limit = store, act, limit

    async def batch(self, verb: str, *statements: Statement) -> list[list[Row]]:
        """The rows of each statement; all of them are executed, or none."""
        if self._act is None or verb in UNAUDITED:
            return await self.store.batch(verb, statements)
        answers = await self.store.batch(verb, (*statements, Statement("add_audit", self._act._asdict())))
        self._act = None
        return answers[:-1]

    async def read(self, name: str, /, **values: Value) -> list[Row]:
        """The rows of one statement that reads."""
        return (await self.store.batch("read", (Statement(name, values),)))[0]


class Rows:
    """Records of one kind: each method is one batch, without any rule of its own."""

    def __init__(self, batches: Batches) -> None:
        self._batch, self._read, self._limit = batches.batch, batches.read, batches.limit
