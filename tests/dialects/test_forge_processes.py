"""Agents as processes of their own: `windlass work --dialect forge`, and one written from the document alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.dialects.agents import SHELL, program
from tests.dialects.forge_hub_stub import SECRET, ForgeHub
from tests.workers import DEADLINE, until

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
OURS, SMALL = ("windlass", "work", "--dialect", "forge"), ("tests.dialects.forge_small_agent",)
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
