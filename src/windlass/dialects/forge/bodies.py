"""The bodies of requests. Unknown members are ignored."""

from __future__ import annotations

import json
from typing import Any, Self

import msgspec
from msgspec import Struct

from windlass.errors import BadInput
from windlass.payload import convert


class JobToCreate(Struct, frozen=True):
    """A job to create."""

    type: str = ""
    params: Any = None
    priority: int | None = None
    max_attempts: int | None = None
    max_runtime_ms: int | None = None
    solver_url: str | None = None
    solver_checksum: str | None = None


class WorkerName(Struct, frozen=True):
    """A worker that says only who it is."""

    worker_id: str = ""


class WorkerToRegister(WorkerName, frozen=True):
    """A worker, and what it can do."""

    name: str | None = None
    cores: float = 1
    ram_gb: float = 1.0
    tags: list[str] = []


class TypesToClaim(WorkerName, frozen=True):
    """A worker that asks for a job of these types."""

    types: list[str] | None = None


class _Lenient(WorkerName, frozen=True):
    """A report, whose text may be any that JSON can carry: what cannot be stored must end its attempt, so it is not refused unread."""

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """The body of these bytes."""
        try:
            return convert(json.loads(body), cls)
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

    reason: str = ""
