"""What all records stand on: a store, and whoever acts through it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from windlass.model import Failure, Limits, Listed, Policy, Run, State
from windlass.store.base import Row, Statement, Store, Value
from windlass.store.columns import LARGE

_encode = msgspec.json.Encoder().encode
_failure = msgspec.json.Decoder(Failure).decode
_FIELDS = Run.__struct_fields__
_STATE, _POLICY, _ERROR = _FIELDS.index("state"), _FIELDS.index("policy"), _FIELDS.index("error")
_NO_POLICY = Policy()

STATES = {state.value: state for state in State}


NOBODYS = ("read", "claim", "lanes", "placeholder")
"""Batches that nobody asks for by themselves."""


class Act(NamedTuple):
    """What somebody does, as the audit remembers it."""

    who: str
    what: str
    subject: str
    at: int


def pack(rows: Any) -> str:
    """A set as one JSON text."""
    return _encode(rows).decode()


@lru_cache(maxsize=1024)
def policy_of(text: str) -> Policy:
    """The policy a run keeps as JSON."""
    return msgspec.json.decode(text, type=Policy)


def policy_text(policy: Policy) -> str | None:
    """None for the default, which is most."""
    return None if policy == _NO_POLICY else pack(policy)


def error_text(error: Failure | None) -> str | None:
    return None if error is None else pack(error)


def error_of(text: str | None) -> Failure | None:
    return None if text is None else _failure(text)


_TEXTS: dict[str, Callable[[Any], str | None]] = {"policy": policy_text, "error": error_text}


def storing(names: Sequence[str]) -> Callable[[Run], list[Any]]:
    """A function that gives these columns of a run as they are stored."""
    read, texts = attrgetter(*names), [(place, _TEXTS[name]) for place, name in enumerate(names) if name in _TEXTS]

    def stored(run: Run) -> list[Any]:
        row = list(read(run))
        for place, text in texts:
            row[place] = text(row[place])
        return row

    return stored


def split_time(rows: list[Row], columns: int) -> tuple[list[Row], int | None]:
    """Rows of so many columns, and the server's time where it stands behind them."""
    if not rows or len(rows[0]) == columns:
        return rows, None
    return [row[:columns] for row in rows], rows[0][columns]


def run_of(row: Row) -> Run:
    """A run from its row, in the order of `{run}`."""
    values = list(row)
    values[_STATE] = STATES[values[_STATE]]
    values[_POLICY] = _NO_POLICY if values[_POLICY] is None else policy_of(values[_POLICY])
    if values[_ERROR] is not None:
        values[_ERROR] = _failure(values[_ERROR])
    return Run(*values)


def listed_of(row: Row) -> Run:
    """A run from its row, in the order of `{run_within: ...}`: a `Listed` where something was too large to be read."""
    run = run_of(row[: len(_FIELDS)])
    sizes = {name: size for name, size in zip(LARGE, row[len(_FIELDS) :], strict=True) if size is not None}
    return Listed.of(run, sizes) if sizes else run


class Rows:
    """Batches of named statements over any store. With an act, the first batch that writes also leaves its entry in the audit."""

    def __init__(self, store: Store, act: Act | None = None, most: int = Limits().batch) -> None:
        self.store, self._act, self._most = store, act, most

    async def _batch(self, verb: str, *statements: Statement) -> list[list[Row]]:
        if self._act is None or verb in NOBODYS:
            return await self.store.batch(verb, statements)
        answers = await self.store.batch(verb, (*statements, Statement("add_audit", self._act._asdict())))
        self._act = None
        return answers[:-1]

    async def _read(self, name: str, /, **values: Value) -> list[Row]:
        return (await self.store.batch("read", (Statement(name, values),)))[0]
