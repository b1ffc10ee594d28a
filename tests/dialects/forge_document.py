"""The Forge job queue as its document has it: its schema, and its statements for claims and the reaper, on `sqlite3`.

Where the document gives no statement, the shortest one that does what it says stands here. It is the other side of a comparison.
"""

from __future__ import annotations

import json
import sqlite3
from typing import Any

SCHEMA = """
CREATE TABLE jobs (
  id              TEXT PRIMARY KEY,
  type            TEXT NOT NULL,
  params          TEXT NOT NULL DEFAULT '{}',
  status          TEXT NOT NULL DEFAULT 'pending'
                    CHECK(status IN ('pending','assigned','running','completed','failed','quarantined')),
  priority        INTEGER NOT NULL DEFAULT 0,
  worker_id       TEXT,
  result          TEXT,
  result_hash     TEXT,
  created_at      INTEGER NOT NULL,
  claimed_at      INTEGER,
  heartbeat_at    INTEGER,
  completed_at    INTEGER,
  attempts        INTEGER NOT NULL DEFAULT 0,
  max_attempts    INTEGER NOT NULL DEFAULT 3,
  max_runtime_ms  INTEGER NOT NULL DEFAULT 300000,
  fail_reason     TEXT,
  fail_history    TEXT NOT NULL DEFAULT '[]',
  solver_url      TEXT,
  solver_checksum TEXT
);
CREATE INDEX idx_jobs_status_priority ON jobs(status, priority DESC, created_at ASC);
CREATE INDEX idx_jobs_worker ON jobs(worker_id, status);
"""

CLAIM = """
SELECT * FROM jobs WHERE status = 'pending' {types} ORDER BY priority DESC, created_at ASC LIMIT 1
"""
ASSIGN = """
UPDATE jobs SET status = 'assigned', worker_id = ?, claimed_at = ?, heartbeat_at = ?, attempts = attempts + 1 WHERE id = ?
"""
RECLAIM = """
UPDATE jobs SET status = 'pending', worker_id = NULL, claimed_at = NULL, heartbeat_at = NULL
WHERE status IN ('assigned', 'running') AND heartbeat_at < ? AND attempts < max_attempts
"""
QUARANTINE = "UPDATE jobs SET status = 'quarantined' WHERE status = 'pending' AND attempts >= max_attempts"
OVERLONG = """
UPDATE jobs SET status = 'quarantined', fail_reason = 'max_runtime_exceeded'
WHERE status IN ('assigned', 'running') AND claimed_at IS NOT NULL AND (? - claimed_at) > max_runtime_ms
"""
LOST = """
UPDATE jobs SET status = 'quarantined', fail_reason = 'heartbeat_timeout'
WHERE status IN ('assigned', 'running') AND heartbeat_at < ? AND attempts >= max_attempts
"""
MEMBERS = ("priority", "max_attempts", "max_runtime_ms", "solver_url", "solver_checksum")


class Document:
    """The hub of the document. Its time is that of the caller, and so are ids."""

    def __init__(self) -> None:
        self.db = sqlite3.connect(":memory:", isolation_level=None)
        self.db.row_factory = sqlite3.Row
        self.db.executescript(SCHEMA)

    def create(self, job: str, now: int, type: str, params: Any = None, **members: Any) -> int:
        columns = {"id": job, "type": type, "created_at": now} | {name: members[name] for name in MEMBERS if name in members}
        if params is not None:
            columns["params"] = json.dumps(params, separators=(",", ":"))
        marks = ", ".join("?" * len(columns))
        self.db.execute(f"INSERT INTO jobs ({', '.join(columns)}) VALUES ({marks})", [*columns.values()])
        return 201

    def claim(self, now: int, worker: str, types: list[str] | None = None) -> tuple[int, str | None]:
        only = f"AND type IN ({', '.join('?' * len(types))})" if types else ""
        row = self.db.execute(CLAIM.format(types=only), types or ()).fetchone()
        if row is None:
            return 204, None
        self.db.execute(ASSIGN, (worker, now, now, row["id"]))
        return 200, row["id"]

    def heartbeat(self, job: str, now: int, worker: str) -> int:
        if (row := self.row(job)) is None:
            return 404
        if row["worker_id"] != worker or row["status"] not in ("assigned", "running"):
            return 409
        self._set(job, status="running", heartbeat_at=now)
        return 204

    def result(self, job: str, now: int, worker: str, result: Any, result_hash: str | None) -> int:
        if (row := self.row(job)) is None:
            return 404
        if row["status"] == "completed":
            return 200 if result_hash is not None and result_hash == row["result_hash"] else 409
        if row["worker_id"] != worker or row["status"] not in ("assigned", "running"):
            return 409
        text = result if isinstance(result, str) else json.dumps(result, separators=(",", ":"))
        self._set(job, status="completed", result=text, result_hash=result_hash, completed_at=now)
        return 200

    def fail(self, job: str, now: int, worker: str, reason: str) -> tuple[int, str | None]:
        if (row := self.row(job)) is None:
            return 404, None
        if row["worker_id"] != worker or row["status"] not in ("assigned", "running"):
            return 409, None
        history = [*json.loads(row["fail_history"]), {"reason": reason, "worker_id": worker, "ts": now}]
        status = "quarantined" if row["attempts"] >= row["max_attempts"] else "pending"
        unheld = {"worker_id": None, "claimed_at": None, "heartbeat_at": None} if status == "pending" else {}
        texts = {"fail_reason": reason, "fail_history": json.dumps(history, separators=(",", ":"), ensure_ascii=False)}
        self._set(job, status=status, **texts, **unheld)
        return 200, status

    def cancel(self, job: str) -> int:
        if (row := self.row(job)) is None or row["status"] not in ("pending", "assigned"):
            return 404
        self._set(job, status="failed", fail_reason="cancelled")
        return 204

    def reap(self, now: int) -> None:
        self.db.execute(RECLAIM, (now - 60_000,))
        self.db.execute(QUARANTINE)
        self.end_overlong(now)

    def end_overlong(self, now: int) -> None:
        """The last statement of the reaper alone."""
        self.db.execute(OVERLONG, (now,))

    def quarantine_lost(self, before: int) -> None:
        """What the list of transitions says of jobs without attempts left, and no statement does."""
        self.db.execute(LOST, (before,))

    def row(self, job: str) -> dict[str, Any] | None:
        row = self.db.execute("SELECT * FROM jobs WHERE id = ?", (job,)).fetchone()
        return None if row is None else dict(row)

    def rows(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.db.execute("SELECT * FROM jobs ORDER BY rowid")]

    def _set(self, job: str, **values: Any) -> None:
        names = ", ".join(f"{name} = ?" for name in values)
        self.db.execute(f"UPDATE jobs SET {names} WHERE id = ?", [*values.values(), job])
