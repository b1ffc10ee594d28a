"""Agents as processes of their own: `windlass work --dialect forge`, and one written from the document alone."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.dialects.agents import SHELL, program
from tests.dialects.forge_hub_stub import SECRET, ForgeHub
from tests.dialects.real_hub import RealHub
from tests.workers import DEADLINE, until

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
OURS, HUB = ("windlass", "work", "--dialect", "forge"), ("windlass", "hub", "--dialect", "forge")
SMALL = ("tests.dialects.forge_small_agent",)
LOOPBACK = {"WINDLASS_SOLVER_ALLOW": "127.0.0.0/8", "WINDLASS_SOLVER_PLAIN_HTTP": "true"}


@contextmanager
def process(words: tuple[str, ...], environment: dict[str, str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program of Python, killed at the end of the block if it still runs."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("WINDLASS_")}
    path = {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-m", *words], env=inherited | path | environment, cwd=folder) as child:
        try:
            yield child
        finally:
            child.kill()


def environment(url: str, folder: Path, node: str = "node-1", **variables: str) -> dict[str, str]:
    usual = {
        "HUB_URL": url, "NODE_ID": node, "FORGE_INGEST_SECRET": SECRET, "WORKER_ENABLED": "true", "JOB_POLL_INTERVAL_MS": "100",
        "PUSH_INTERVAL_MS": "3600000", "SOLVER_CACHE_DIR": str(folder / "cache"),
    }  # fmt: skip
    return usual | LOOPBACK | variables


@pytest.fixture
def stub() -> Iterator[ForgeHub]:
    hub = ForgeHub()
    yield hub
    hub.stop()


def done(hub: ForgeHub, job_id: str, status: str) -> dict[str, Any]:
    return until(lambda: row if (row := hub.job(job_id))["status"] == status else None)


def begun(folder: Path) -> bool:
    return (folder / "begun").exists()


# windlass work --dialect forge


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_F25_at_a_signal_the_job_ends_within_30_seconds_and_no_other_is_claimed(stub: ForgeHub, tmp_path: Path, number: int) -> None:
    content = SHELL + f"touch {tmp_path}/begun\nsleep 8\necho done\n".encode()
    first, second = stub.add("prodplan", priority=1, **program(stub, content)), stub.add("anything")
    with process(OURS, environment(stub.url, tmp_path), tmp_path) as agent:
        until(lambda: begun(tmp_path))
        agent.send_signal(number)
        assert agent.wait(DEADLINE) == 0
    assert stub.job(first)["result"] == "done\n"
    assert stub.job(second)["status"] == "pending"


def test_F25_a_job_that_does_not_end_in_time_is_reported_as_a_failure(stub: ForgeHub, tmp_path: Path) -> None:
    job = stub.add("prodplan", **program(stub, SHELL + f"touch {tmp_path}/begun\nsleep 300\n".encode()))
    with process(OURS, environment(stub.url, tmp_path, WINDLASS_GRACE="4s"), tmp_path) as agent:
        until(lambda: begun(tmp_path))
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(DEADLINE) == 0
    row = stub.job(job)
    assert (row["status"], row["fail_reason"]) == ("pending", "The worker stopped before the job had ended.")


def test_F25_a_job_has_all_of_its_30_seconds(stub: ForgeHub, tmp_path: Path) -> None:
    content = SHELL + f"touch {tmp_path}/begun\nsleep 28\necho done\n".encode()
    job = stub.add("prodplan", **program(stub, content))
    with process(OURS, environment(stub.url, tmp_path), tmp_path) as agent:
        until(lambda: begun(tmp_path))
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(DEADLINE) == 0
    assert stub.job(job)["result"] == "done\n"


def test_F23_heartbeats_are_ten_seconds_apart(stub: ForgeHub, tmp_path: Path) -> None:
    job = stub.add("prodplan", **program(stub, SHELL + b"sleep 23\n"))
    with process(OURS, environment(stub.url, tmp_path), tmp_path):
        done(stub, job, "completed")
    times = [asked.at for asked in stub.asked("/heartbeat")]
    assert [round((at - times[0]) / 10) for at in times] == [0, 1, 2]


def test_F32_an_agent_that_was_killed_claims_at_once_and_its_job_waits_for_the_reaper(stub: ForgeHub, tmp_path: Path) -> None:
    content = (
        SHELL + f"echo x >>{tmp_path}/runs\ntouch {tmp_path}/begun\n[ $(wc -l <{tmp_path}/runs) = 1 ] && sleep 300\necho $$\n".encode()
    )
    lost, other = stub.add("prodplan", priority=1, **program(stub, content)), stub.add("anything")
    with process(OURS, environment(stub.url, tmp_path), tmp_path) as agent:
        until(lambda: begun(tmp_path))
        agent.kill()
    with process(OURS, environment(stub.url, tmp_path), tmp_path):
        done(stub, other, "completed")
        assert stub.job(lost)["status"] == "running"
        stub.later(61_000)
        assert done(stub, lost, "completed")["attempts"] == 2
    assert (tmp_path / "runs").read_text() == "x\nx\n"


def test_F22_a_hub_that_is_away_for_a_while_disturbs_no_job(stub: ForgeHub, tmp_path: Path) -> None:
    job = stub.add("prodplan", **program(stub, SHELL + f"touch {tmp_path}/begun\nsleep 12\necho done\n".encode()))
    with process(OURS, environment(stub.url, tmp_path), tmp_path):
        until(lambda: begun(tmp_path))
        with stub.gone():
            time.sleep(14)  # the program ends meanwhile
        row = done(stub, job, "completed")
    assert (row["result"], row["attempts"]) == ("done\n", 1)


# The agent written from the document


def test_the_small_agent_does_what_the_document_says(stub: ForgeHub, tmp_path: Path) -> None:
    good = stub.add("prodplan", '{"n":1}', **program(stub, SHELL + b'echo "$2"\n'))
    bad = stub.add("prodplan", max_attempts=1, **program(stub, SHELL + b"echo no >&2; exit 3\n", "bad"))
    (tmp_path / "cache").mkdir()
    with process(SMALL, environment(stub.url, tmp_path), tmp_path) as agent:
        assert json.loads(done(stub, good, "completed")["result"])["output"] == '{"n":1}\n'
        assert done(stub, bad, "quarantined")["fail_reason"] == "exit code 3: no\n"
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(DEADLINE) == 0


ROUNDS = int(1_000 * float(os.environ.get("TORTURE", "1")))


def test_of_1000_jobs_each_ends_once_although_four_agents_are_killed_at_random(stub: ForgeHub, tmp_path: Path) -> None:
    chance, hub = random.Random(4), RealHub(tmp_path / "hub.db")
    slow = program(stub, SHELL + b"sleep 3; echo $JOB_ID\n", "slow")
    quick = program(stub, SHELL + b"sleep 0.02; echo $JOB_ID\n")
    jobs = [hub.add("prodplan", max_attempts=100, **(slow if n == 0 else quick if n % 2 else {})) for n in range(ROUNDS)]
    (tmp_path / "cache").mkdir()
    kills = 0
    with ExitStack() as stack:
        agents = [stack.enter_context(small_agent(hub.url, tmp_path, n)) for n in range(4)]
        hub.done(jobs[0], "running")
        hub.take_away(jobs[0])  # at least this job is taken from an agent that goes on and reports it
        while _unfinished(hub):
            kills += 1
            n = chance.randrange(4)
            agents[n].kill()
            agents[n].wait(DEADLINE)
            agents[n] = stack.enter_context(small_agent(hub.url, tmp_path, n))
            time.sleep(chance.uniform(0.05, 1.0))
            if kills % 8 == 0:  # what was lost with its agent is had again, and what is not lost is taken from its agent
                hub.reap_after(61_000)
    rows = [hub.job(job) for job in jobs]
    ends = {[entry["move"] for entry in hub.native(f"runs/{uuid.UUID(job)}/history")["events"]].count("succeed") for job in jobs}
    hub.http.close()
    hub.stop()
    assert kills >= 10
    assert {row["status"] for row in rows} == {"completed"}
    assert ends == {1}
    assert max(row["attempts"] for row in rows) > 1
    _compare(rows, tmp_path / "answers")


def small_agent(url: str, folder: Path, n: int) -> AbstractContextManager[subprocess.Popen[bytes]]:
    return process(SMALL, environment(url, folder, f"agent-{n}", ANSWERS=str(folder / "answers")), folder)


def _unfinished(hub: RealHub) -> bool:
    return any(hub.http.get("api/jobs", params={"status": status, "limit": 1}).json() for status in ("pending", "assigned", "running"))


def _compare(rows: list[dict[str, Any]], answers: Path) -> None:
    """What is stored was sent by the worker that had the job, and nothing of one that had lost it."""
    stored = {row["id"]: json.loads(row["result"]) for row in rows}
    lines = [line.split() for line in answers.read_text().splitlines() if line.startswith("result ")]
    assert any(line[3] == "409" for line in lines)
    for _, job, own, status, duplicate in lines:
        assert (stored[job]["own"] == own) is (status == "200"), (job, own, status, duplicate)
    for row in rows:
        assert stored[row["id"]]["output"] in ("", f"{row['id']}\n")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_F22_a_hub_that_was_killed_and_is_back_within_a_minute_disturbs_no_job(stub: ForgeHub, tmp_path: Path, number: int) -> None:
    content = SHELL + f"touch {tmp_path}/begun\nsleep 25\necho done\n".encode()
    variables = {"SQLITE_PATH": str(tmp_path / "forge.sqlite"), "PORT": str(_free_port()), "HUB_MODE": "true"}
    url = f"http://127.0.0.1:{variables['PORT']}"
    hub = environment(url, tmp_path) | variables
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {SECRET}"}) as http, process(HUB, hub, tmp_path) as first:
        until(lambda: _answers(http))
        job = http.post("/api/jobs", json={"type": "prodplan", **program(stub, content)}).json()["id"]
        with process(OURS, environment(url, tmp_path), tmp_path):
            until(lambda: begun(tmp_path))
            first.send_signal(number)
            first.wait(DEADLINE)
            time.sleep(15)
            with process(HUB, hub, tmp_path):
                until(lambda: _answers(http))
                row = until(lambda: row if (row := http.get(f"/api/jobs/{job}").json())["status"] == "completed" else None)
    assert (row["result"], row["attempts"], row["fail_history"]) == ("done\n", 1, "[]")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(http: httpx.Client) -> bool:
    try:
        return bool(http.get("/api/health").json()["mode"] == "hub")
    except httpx.TransportError:
        return False
