"""The bodies of requests. Unknown members are ignored, and null is a member that is not there."""

from __future__ import annotations

import json
from typing import Any, Self

import msgspec
from msgspec import Struct

from windlass.errors import BadInput, TooLarge
from windlass.payload import convert

BRACKETS = 2**20
"""More than a result of the largest size has: a body with more is not read, because each could be a list of its own."""

Number = int | float | None
"""A whole number, which some programs write as 3.0."""


class JobToCreate(Struct, frozen=True):
    """A job to create."""

    type: str | None = None
    params: Any = None
    priority: Number = None
    max_attempts: Number = None
    max_runtime_ms: Number = None
    solver_url: str | None = None
    solver_checksum: str | None = None


class WorkerName(Struct, frozen=True):
    """A worker that says only who it is."""

    worker_id: str | None = None


class WorkerToRegister(WorkerName, frozen=True):
    """A worker, and what it can do."""

    name: str | None = None
    cores: float | None = None
    ram_gb: float | None = None
    tags: list[str] | None = None


class TypesToClaim(WorkerName, frozen=True):
    """A worker that asks for a job of these types."""

    types: list[str] | None = None


class _Lenient(WorkerName, frozen=True):
    """A report, with whatever JSON can carry: agents ignore a refusal, so what cannot be stored must end its attempt instead."""

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """The body of these bytes."""
        if body.count(b"[") + body.count(b"{") > BRACKETS:
            raise TooLarge(f"The body has more than {BRACKETS:,} lists and objects.", hint="Report less.")
        try:
            return convert(_with_texts(json.loads(body)), cls)
        except msgspec.ValidationError as error:
            raise BadInput(f"The body cannot be read: {error}.", hint="Correct it.") from None
        except (ValueError, RecursionError) as error:
            raise BadInput(f"The body is not JSON: {error}.", hint="Send one JSON object, encoded as UTF-8.") from None


class ResultToStore(_Lenient, frozen=True):
    """A result."""

    result: Any = None
    result_hash: str | None = None


class FailureToStore(_Lenient, frozen=True):
    """A failure."""

    reason: str | None = None


def _with_texts(body: Any) -> Any:
    """A report whose texts are texts: any other value becomes its JSON, as a column of texts would have it."""
    if not isinstance(body, dict):
        return body
    others = {name: json.dumps(body[name]) for name in ("reason", "result_hash") if not isinstance(body.get(name), str | None)}
    return body | others


def whole(number: Number, name: str) -> int | None:
    """A number that must be whole."""
    if number is None or number == int(number):
        return None if number is None else int(number)
    raise BadInput(f"{name} must be a whole number, not {number}.", hint="Leave it out for the usual one.")
