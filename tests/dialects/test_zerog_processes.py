"""0gkit's runner as a process that is killed: what it did not report is executed again, under the same id."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.dialects.zerog_door import ZeroGDoor, read, shared
from tests.tiers import long
from tests.workers import DEADLINE
from windlass.dialects.zerog import JobBackend, JobRecord, JobState
from windlass.faults import VARIABLE

__all__ = ["shared"]  # a fixture

ROOT = Path(__file__).parents[2]


def life(door: ZeroGDoor, name: str, folder: Path, job_id: str, faults: str = "") -> int:
    """How a runner ends that lives until a job has ended."""
    command = [sys.executable, "-m", "tests.dialects.zerog_child", door.address, name, str(folder), job_id]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, VARIABLE: faults}, timeout=DEADLINE, check=False).returncode


def executions(folder: Path) -> list[str]:
    return (folder / "executions").read_text().splitlines()


def enqueued(door: ZeroGDoor, input: Any = None) -> str:
    async def scenario(backend: JobBackend) -> str:
        return await backend.enqueue("resize", input)

    return door(scenario)


def record(door: ZeroGDoor, job_id: str) -> JobRecord:
    async def scenario(backend: JobBackend) -> JobRecord:
        return await read(backend, job_id)

    return door(scenario)


@pytest.mark.parametrize("second", ["r1", pytest.param("r2", marks=long)])
def test_Z5_a_runner_killed_after_the_handler_and_before_complete_executes_it_again(shared: ZeroGDoor, tmp_path: Path, second: str) -> None:
    """Under the same name at once, because its former process is proven gone; under another when the lease is over."""
    job_id = enqueued(shared)
    assert life(shared, "r1", tmp_path, job_id, "report.before_commit=kill") == -signal.SIGKILL
    assert executions(tmp_path) == [f"{job_id} 1"]
    left = record(shared, job_id)
    assert (left.state, left.result) == (JobState.RUNNING, None)
    assert life(shared, second, tmp_path, job_id) == 0
    assert executions(tmp_path) == [f"{job_id} 1", f"{job_id} 2"]
    done = record(shared, job_id)
    assert (done.id, done.state, done.result, done.metadata.attempts) == (job_id, JobState.DONE, second, 2)


def test_Z5_a_runner_killed_after_complete_has_completed(shared: ZeroGDoor, tmp_path: Path) -> None:
    job_id = enqueued(shared)
    assert life(shared, "r1", tmp_path, job_id, "report.after_commit=kill") == -signal.SIGKILL
    assert life(shared, "r2", tmp_path, job_id) == 0
    assert executions(tmp_path) == [f"{job_id} 1"]
    assert record(shared, job_id).result == "r1"


def test_Z22_a_step_that_was_done_before_a_crash_is_not_done_again(shared: ZeroGDoor, tmp_path: Path) -> None:
    job_id = enqueued(shared, {"steps": True})
    assert life(shared, "r1", tmp_path, job_id, "report.before_commit=kill") == -signal.SIGKILL
    assert life(shared, "r1", tmp_path, job_id) == 0
    assert executions(tmp_path) == [f"{job_id} step", f"{job_id} 1", f"{job_id} 2"]


POINTS = ("claim.before_commit", "claim.after_commit", "start.after_commit", "report.after_succeed", "report.after_journal")


@long
@pytest.mark.parametrize("point", POINTS)
def test_Z5_wherever_a_runner_is_killed_the_job_is_done_in_the_end(shared: ZeroGDoor, tmp_path: Path, point: str) -> None:
    job_id = enqueued(shared)
    for _ in range(2):
        life(shared, "r1", tmp_path, job_id, f"{point}=kill")
    assert life(shared, "r1", tmp_path, job_id) == 0
    done = record(shared, job_id)
    assert (done.id, done.state) == (job_id, JobState.DONE)
    assert {line.split()[0] for line in executions(tmp_path)} == {job_id}
