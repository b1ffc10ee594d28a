"""An agent written from the Forge document alone, with the standard library alone: a program that real hubs are tested with.

Its environment is the document's. Every result that it sends has a word of its own, and what the hub answered to it is appended to the
file that ANSWERS names, so that a test can compare what was accepted with what is stored.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

HUB, NODE, SECRET = os.environ["HUB_URL"].removesuffix("/"), os.environ["NODE_ID"], os.environ["FORGE_INGEST_SECRET"]
TYPES = json.loads(os.environ.get("WORKER_TYPES", "[]"))
POLL = int(os.environ.get("JOB_POLL_INTERVAL_MS", "5000")) / 1000
CACHE = os.environ.get("SOLVER_CACHE_DIR") or tempfile.mkdtemp()
ANSWERS = os.environ.get("ANSWERS", os.devnull)
HEARTBEAT, PATIENCE = 10, 30

stopping = threading.Event()


def post(path: str, body: Any) -> tuple[int, Any]:
    """The status and the body of an answer; (0, None) when there is none."""
    headers = {"authorization": f"Bearer {SECRET}", "content-type": "application/json"}
    request = urllib.request.Request(HUB + path, json.dumps(body).encode(), headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        return error.code, None
    except (OSError, ValueError):
        return 0, None


def note(*words: object) -> None:
    """Append a line in one write, so that no kill leaves half of it."""
    fd = os.open(ANSWERS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, (" ".join(map(str, words)) + "\n").encode())
    os.close(fd)


def solver_of(job: dict[str, Any]) -> str:
    """The path of the job's program, from the cache or from its address; ValueError with the reason if it cannot be had."""
    checksum = job["solver_checksum"]
    path = os.path.join(CACHE, checksum or hashlib.sha256(job["solver_url"].encode()).hexdigest())
    if not os.path.exists(path):
        try:
            with urllib.request.urlopen(job["solver_url"], timeout=10) as answer:
                content = answer.read()
        except urllib.error.HTTPError as error:
            raise ValueError(f"download failed: HTTP {error.code}") from None
        if checksum and hashlib.sha256(content).hexdigest() != checksum:
            raise ValueError("solver_checksum_mismatch")
        part = f"{path}.{secrets.token_hex(4)}"
        with open(part, "wb") as file:
            file.write(content)
        os.chmod(part, stat.S_IRWXU)
        os.replace(part, path)
    return path


@contextmanager
def heartbeats(job_id: str) -> Iterator[None]:
    """A heartbeat every ten seconds, whatever the hub answers."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(HEARTBEAT):
            post(f"/api/jobs/{job_id}/heartbeat", {"worker_id": NODE})

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


def output_of(job: dict[str, Any]) -> str:
    """Standard output of the job's program; ValueError with the reason if it fails."""
    environment = {**os.environ, "JOB_ID": job["id"], "JOB_TYPE": job["type"], "JOB_PARAMS": job["params"]}
    command = [solver_of(job), "--params", job["params"]]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=job["max_runtime_ms"] / 1000, check=False)
    except subprocess.TimeoutExpired:
        raise ValueError("exit code 143: ") from None
    if done.returncode:
        raise ValueError(f"exit code {done.returncode}: {done.stderr[:500]}")
    return done.stdout


def execute(job: dict[str, Any]) -> None:
    own, path = secrets.token_hex(8), f"/api/jobs/{job['id']}"
    try:
        output = ""
        if job["solver_url"]:
            post(f"{path}/heartbeat", {"worker_id": NODE})
            with heartbeats(job["id"]):
                output = output_of(job)
    except ValueError as reason:
        status, _ = post(f"{path}/fail", {"worker_id": NODE, "reason": str(reason)})
        note("fail", job["id"], own, status)
        return
    result = json.dumps({"own": own, "output": output})
    hash_of_it = hashlib.sha256(result.encode()).hexdigest()
    status, answer = post(f"{path}/result", {"worker_id": NODE, "result": result, "result_hash": hash_of_it})
    note("result", job["id"], own, status, (answer or {}).get("duplicate"))


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    about = {"cores": int(os.environ.get("WORKER_CORES", "1")), "ram_gb": 1, "tags": json.loads(os.environ.get("WORKER_TAGS", "[]"))}
    post("/api/workers/register", {"worker_id": NODE, "name": os.environ.get("NODE_NAME", NODE), **about})
    claim = {"worker_id": NODE, "types": TYPES} if TYPES else {"worker_id": NODE}
    while not stopping.is_set():
        status, job = post("/api/jobs/claim", claim)
        if status != 200:
            stopping.wait(POLL)
            continue
        thread = threading.Thread(target=execute, args=(job,), daemon=True)
        thread.start()
        while thread.is_alive() and not stopping.is_set():
            thread.join(0.05)
        thread.join(PATIENCE)


if __name__ == "__main__":
    main()
    sys.exit(0)
