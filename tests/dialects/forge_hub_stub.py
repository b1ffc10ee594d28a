"""A hub written from the Forge document alone, with the standard library alone: what the agent is tested against first.

It can be told to fail: to answer with any status, to answer late, to lose its answers, and to be gone for a while.
"""

from __future__ import annotations

import json
import socket
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, NamedTuple

SECRET = "forge-secret"
HEARTBEAT_LIMIT = 60_000
SCHEMA = """
CREATE TABLE jobs (
  id TEXT PRIMARY KEY, type TEXT NOT NULL, params TEXT NOT NULL DEFAULT '{}',
  status TEXT NOT NULL DEFAULT 'pending' CHECK(status IN ('pending','assigned','running','completed','failed','quarantined')),
  priority INTEGER NOT NULL DEFAULT 0, worker_id TEXT, result TEXT, result_hash TEXT, created_at INTEGER NOT NULL, claimed_at INTEGER,
  heartbeat_at INTEGER, completed_at INTEGER, attempts INTEGER NOT NULL DEFAULT 0, max_attempts INTEGER NOT NULL DEFAULT 3,
  max_runtime_ms INTEGER NOT NULL DEFAULT 300000, fail_reason TEXT, fail_history TEXT NOT NULL DEFAULT '[]', solver_url TEXT,
  solver_checksum TEXT
);
CREATE TABLE workers (
  id TEXT PRIMARY KEY, name TEXT, cores INTEGER NOT NULL DEFAULT 1, ram_gb REAL NOT NULL DEFAULT 1.0, tags TEXT NOT NULL DEFAULT '[]',
  last_heartbeat INTEGER
);
"""
REAPER = (
    """UPDATE jobs SET status = 'pending', worker_id = NULL, claimed_at = NULL, heartbeat_at = NULL
       WHERE status IN ('assigned', 'running') AND heartbeat_at < :stale AND attempts < max_attempts""",
    "UPDATE jobs SET status = 'quarantined' WHERE status IN ('assigned', 'running') AND heartbeat_at < :stale",
    """UPDATE jobs SET status = 'quarantined', fail_reason = 'max_runtime_exceeded'
       WHERE status IN ('assigned', 'running') AND :now - claimed_at > max_runtime_ms""",
)

Row = dict[str, Any]
Lost = Literal["lost"]
"""The request is carried out, and the connection closed without an answer."""


class Asked(NamedTuple):
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    at: float


class Answer(NamedTuple):
    status: int
    body: Any = None


UNKNOWN, NOT_YOURS = Answer(404, {"error": "not found"}), Answer(409, {"error": "job not assigned to this worker"})


class ForgeHub:
    """The document's hub at a path of a free port of this machine."""

    def __init__(self, *, secret: str | None = SECRET, prefix: str = "") -> None:
        self.secret, self.prefix = secret, prefix
        self.requests: list[Asked] = []
        self.faults: dict[str, list[int | Lost]] = {}  # by the end of a path: how the next requests to it are answered
        self.delays: dict[str, float] = {}  # by the end of a path: seconds before the answer
        self.files: dict[str, bytes | int] = {}  # under /files: content, or the status instead
        self.snapshots: list[Any] = []
        self._db = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._db.row_factory = sqlite3.Row
        self._db.executescript(SCHEMA)
        self._lock, self._ahead, self.port = threading.RLock(), 0, 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.prefix}"

    # Time, and being there

    def now(self) -> int:
        return round(time.time() * 1000) + self._ahead

    def later(self, ms: int) -> None:
        """Let time pass, and have the reaper look."""
        self._ahead += ms
        self.reap()

    def start(self) -> None:
        self._open = set[socket.socket]()
        self._server = _Server(("127.0.0.1", self.port), _handler(self))
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Be gone: no connection stays, and no new one is taken."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for connection in self._open.copy():
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def gone(self) -> Iterator[None]:
        self.stop()
        try:
            yield
        finally:
            self.start()

    def fail(self, path: str, *statuses: int | Lost) -> None:
        """Answer the next requests to a path so, one by one."""
        self.faults[path] = list(statuses)

    # What tests look at

    def asked(self, path: str) -> list[Asked]:
        """The requests to a path that ends so."""
        return [asked for asked in self.requests.copy() if asked.path.endswith(path)]

    def job(self, job_id: str) -> Row:
        with self._lock:
            return dict(self._db.execute("SELECT * FROM jobs WHERE id = ?", (job_id,)).fetchone())

    def worker(self, worker_id: str) -> Row | None:
        with self._lock:
            row = self._db.execute("SELECT * FROM workers WHERE id = ?", (worker_id,)).fetchone()
            return None if row is None else dict(row)

    def add(self, type: str, params: Any = None, **fields: Any) -> str:
        """Enqueue a job; params are stored as JSON text, a text as it is."""
        text = params if isinstance(params, str) else json.dumps({} if params is None else params, separators=(",", ":"))
        row = {"id": uuid.uuid4().hex, "type": type, "params": text, "created_at": self.now(), **fields}
        columns, marks = ", ".join(row), ", ".join("?" * len(row))
        with self._lock:
            self._db.execute(f"INSERT INTO jobs ({columns}) VALUES ({marks})", tuple(row.values()))
        return str(row["id"])

    def reap(self) -> None:
        """The document's reaper, with the end of a job whose last heartbeat is too old."""
        now = self.now()
        with self._lock:
            for statement in REAPER:
                self._db.execute(statement, {"now": now, "stale": now - HEARTBEAT_LIMIT})

    def take_over(self, job_id: str, worker: str) -> None:
        """Another worker has the job now."""
        with self._lock:
            self._db.execute("UPDATE jobs SET worker_id = ?, attempts = attempts + 1 WHERE id = ?", (worker, job_id))

    # The routes

    def answer(self, method: str, path: str, body: Any) -> Answer:
        match [method, *path.strip("/").split("/")]:
            case ["POST", "api", "workers", "register"]:
                return self._register(body)
            case ["POST", "api", "jobs", "claim"]:
                return self._claim(body)
            case ["POST", "api", "jobs"]:
                fields = {name: value for name, value in body.items() if name not in ("type", "params")}
                return Answer(201, {"id": self.add(body["type"], body.get("params"), **fields), "status": "pending"})
            case ["GET", "api", "jobs", job_id]:
                return Answer(200, self.job(job_id))
            case ["POST", "api", "jobs", job_id, ("heartbeat" | "result" | "fail") as verb]:
                return self._of_owner(job_id, verb, body)
            case ["POST", "api", "ingest", _]:
                self.snapshots.append(body)
                return Answer(204)
            case ["POST", "api", "ingest", _, "batch"]:
                self.snapshots += body
                return Answer(204)
            case _:
                return UNKNOWN

    def _register(self, body: Row) -> Answer:
        self._db.execute(
            "INSERT INTO workers VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT(id) DO UPDATE SET name = coalesce(excluded.name, name),"
            " cores = excluded.cores, ram_gb = excluded.ram_gb, tags = excluded.tags, last_heartbeat = excluded.last_heartbeat",
            (body["worker_id"], body.get("name"), body["cores"], body["ram_gb"], json.dumps(body["tags"]), self.now()),
        )
        return Answer(204)

    def _claim(self, body: Row) -> Answer:
        types, now = body.get("types") or [], self.now()
        only = f"AND type IN ({', '.join('?' * len(types))})" if types else ""
        row = self._db.execute(
            f"SELECT id FROM jobs WHERE status = 'pending' {only} ORDER BY priority DESC, created_at LIMIT 1",
            types,
        ).fetchone()
        if row is None:
            return Answer(204)
        self._db.execute(
            "UPDATE jobs SET status = 'assigned', worker_id = ?, claimed_at = ?, heartbeat_at = ?, attempts = attempts + 1 WHERE id = ?",
            (body["worker_id"], now, now, row["id"]),
        )
        return Answer(200, self.job(row["id"]))

    def _of_owner(self, job_id: str, verb: str, body: Row) -> Answer:
        row = self._db.execute("SELECT * FROM jobs WHERE id = ?", (job_id,)).fetchone()
        if row is None:
            return UNKNOWN
        if verb == "result" and row["status"] == "completed" and body.get("result_hash") == row["result_hash"]:
            return Answer(200, {"ok": True, "duplicate": True})
        if row["worker_id"] != body["worker_id"] or row["status"] not in ("assigned", "running"):
            return NOT_YOURS
        answer: Answer = getattr(self, f"_{verb}")(row, body)
        return answer

    def _heartbeat(self, row: Row, body: Row) -> Answer:
        self._db.execute("UPDATE jobs SET status = 'running', heartbeat_at = ? WHERE id = ?", (self.now(), row["id"]))
        return Answer(204)

    def _result(self, row: Row, body: Row) -> Answer:
        result = body["result"] if isinstance(body["result"], str) else json.dumps(body["result"], separators=(",", ":"))
        self._db.execute(
            "UPDATE jobs SET status = 'completed', result = ?, result_hash = ?, completed_at = ? WHERE id = ?",
            (result, body.get("result_hash"), self.now(), row["id"]),
        )
        return Answer(200, {"ok": True, "duplicate": False})

    def _fail(self, row: Row, body: Row) -> Answer:
        status = "quarantined" if row["attempts"] >= row["max_attempts"] else "pending"
        failure = {"reason": body["reason"], "worker_id": body["worker_id"], "ts": self.now()}
        history = json.dumps([*json.loads(row["fail_history"]), failure])
        self._db.execute(
            "UPDATE jobs SET status = ?, worker_id = NULL, fail_reason = ?, fail_history = ? WHERE id = ?",
            (status, body["reason"], history, row["id"]),
        )
        return Answer(200, {"ok": True, "newStatus": status})

    def handle(self, asked: Asked) -> Answer | Lost:
        """The answer to a request, with the faults that were asked for."""
        path = asked.path.removeprefix(self.prefix)
        if path.startswith("/files/"):
            content = self.files.get(path.removeprefix("/files/"), 404)
            return Answer(content) if isinstance(content, int) else Answer(200, content)
        if self.secret is not None and asked.headers.get("authorization") != f"Bearer {self.secret}":
            return Answer(401, {"error": "unauthorized"})
        time.sleep(next((seconds for end, seconds in self.delays.items() if path.endswith(end)), 0))
        faults = next((faults for end, faults in self.faults.items() if path.endswith(end)), [])
        fault = faults.pop(0) if faults else None
        if isinstance(fault, int):
            return Answer(fault, {"error": "as the test asked for"})
        with self._lock:
            answer = self.answer(asked.method, path, asked.body)
        return "lost" if fault == "lost" else answer


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, *_: Any) -> None: ...  # a client that went away


def _handler(hub: ForgeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            hub._open.add(self.request)
            super().setup()

        def finish(self) -> None:
            hub._open.discard(self.request)
            super().finish()

        def _serve(self) -> None:
            text = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(self.command, self.path, headers, json.loads(text) if text else None, time.monotonic())
            hub.requests.append(asked)
            answer = hub.handle(asked)
            if answer == "lost":
                self.close_connection = True
                return
            body = answer.body if isinstance(answer.body, bytes) else b"" if answer.body is None else json.dumps(answer.body).encode()
            self.send_response(answer.status)
            if answer.status != 204:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = _serve

        def log_message(self, *_: Any) -> None: ...

    return Handler
