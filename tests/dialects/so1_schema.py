"""What a client of SO1 reads: the shared schema of its answers, written down from its contract."""

from __future__ import annotations

from typing import Any

import jsonschema_rs

UUID = {"type": "string", "pattern": "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"}
INSTANT = {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?Z$"}
TEXT = {"type": "string"}


def _object(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "required": sorted(required),
        "properties": required | (optional or {}),
        "additionalProperties": False,
    }


JOB = _object(
    {
        "id": UUID,
        "state": {"enum": ["pending", "running", "success", "failed", "cancelled"]},
        "createdAt": INSTANT,
        "logs": {"type": "array", "items": TEXT},
        "metadata": _object({"requestId": UUID, "userId": TEXT, "orgId": TEXT, "action": TEXT, "inputs": {"type": "object"}}),
    },
    {
        "startedAt": INSTANT,
        "completedAt": INSTANT,
        "output": {"not": {"type": "null"}},
        "error": _object({"code": TEXT, "message": TEXT}),
    },
)
STATUS = _object({"requestId": UUID, "job": JOB, "data": JOB})
JOBS = _object({"requestId": UUID, "jobs": {"type": "array", "items": JOB}, "data": {"type": "array", "items": JOB}}, {"cursor": TEXT})
CODES = (
    "UNAUTHORIZED", "FORBIDDEN", "BAD_REQUEST", "VALIDATION_ERROR", "NOT_FOUND", "CONFLICT", "SERVICE_UNAVAILABLE", "INTERNAL_SERVER_ERROR",
)  # fmt: skip
REFUSAL = _object({"requestId": UUID, "error": _object({"code": {"enum": list(CODES)}, "message": TEXT}, {"details": {"type": "object"}})})
SESSION = _object({"requestId": UUID, "session": _object({"userId": TEXT, "orgId": TEXT}, {"email": TEXT})})
HEALTH = _object({"status": {"const": "ok"}, "timestamp": INSTANT})

_VALIDATORS = {id(schema): jsonschema_rs.validator_for(schema) for schema in (STATUS, JOBS, REFUSAL, SESSION, HEALTH)}


def validate(body: Any, schema: dict[str, Any]) -> None:
    """Raise unless a body is as the schema says."""
    _VALIDATORS[id(schema)].validate(body)
