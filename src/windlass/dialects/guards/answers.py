"""What the tables share: rows, and the form of answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from windlass.api.gives import Gives
from windlass.api.rows import Verb
from windlass.dialects.guards.records import Record

OBJECT = dict[str, Any]
"""A body of any members: each verb checks its own."""
_JSON = Gives(None)


def row(name: str, method: str, path: str, summary: str, scope: Any, *, status: int = 200, **more: Any) -> Verb:
    """A row of a table."""
    return Verb(name, method, path, summary, _JSON, scope, status=int(status), **more)


def sent(record: Record) -> dict[str, Any]:
    """A record as it is sent."""
    return record.to_json()


def listed(name: str, records: Sequence[Record]) -> dict[str, Any]:
    """Records as they are sent, and how many."""
    return {name: [sent(record) for record in records], "total": len(records)}
