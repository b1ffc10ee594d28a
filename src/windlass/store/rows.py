"""Conversions between values of records and columns of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any

import msgspec

from windlass.model import Failure, Listed, Options, Policy, Run, State
from windlass.payload import reader
from windlass.store.base import Row
from windlass.store.columns import LARGE

_encode = msgspec.json.Encoder().encode
_failure = reader(Failure)
_policy = reader(Policy)
_rare = reader(list[Any])

options_of = reader(Options)
"""The options of a job or a schedule, which are stored as JSON."""

_FIELDS = Run.__struct_fields__
_STATE, _POLICY, _ERROR = _FIELDS.index("state"), _FIELDS.index("policy"), _FIELDS.index("error")
_NO_POLICY = Policy()

STATES = {state.value: state for state in State}


def pack(rows: Any) -> str:
    """A set of rows as one JSON text."""
    return _encode(rows).decode()


@lru_cache(maxsize=1024)
def policy_of(text: str) -> Policy:
    """The policy of a run from its JSON text."""
    return _policy(text)


def policy_text(policy: Policy) -> str | None:
    """The JSON text of a policy; None for the default, which is most common."""
    return None if policy == _NO_POLICY else pack(policy)


def error_text(error: Failure | None) -> str | None:
    return None if error is None else pack(error)


def error_of(text: str | None) -> Failure | None:
    return None if text is None else _failure(text)


_TEXTS: dict[str, Callable[[Any], str | None]] = {"policy": policy_text, "error": error_text}


def storing(names: Sequence[str]) -> Callable[[Run], list[Any]]:
    """A function that returns these columns of a run as they are stored."""
    read, texts = attrgetter(*names), [(place, _TEXTS[name]) for place, name in enumerate(names) if name in _TEXTS]

    def stored(run: Run) -> list[Any]:
        row = list(read(run))
        for place, text in texts:
            row[place] = text(row[place])
        return row

    return stored


def split_time(rows: list[Row], columns: int) -> tuple[list[Row], int | None]:
    """Rows of this many columns, and the server's time where it is the column after them."""
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


def claimed_of(row: Row) -> Run:
    """A run from its row, in the order of `{run_claimed}`."""
    *values, rare = row
    if rare is not None:
        return run_of((*values, *_rare(rare)))
    values[_STATE] = STATES[values[_STATE]]
    values[_POLICY] = _NO_POLICY if values[_POLICY] is None else policy_of(values[_POLICY])
    return Run(*values)


def listed_of(row: Row) -> Run:
    """A run from its row, in the order of `{run_within: ...}`: a `Listed` where something was too large to be read."""
    run = run_of(row[: len(_FIELDS)])
    sizes = {name: size for name, size in zip(LARGE, row[len(_FIELDS) :], strict=True) if size is not None}
    return Listed.of(run, sizes) if sizes else run
