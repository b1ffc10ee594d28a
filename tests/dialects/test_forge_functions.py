"""The functions of the Forge job queue in Python: what its document calls createJob, claimJob, and so on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiers import corners
from windlass import App
from windlass.dialects import forge
from windlass.dialects.forge import Forge, JobStatus, NotAssigned, NotCancellable, WorkerRecord
from windlass.errors import BadInput, NotFound, WrongState


@pytest.fixture(params=corners(["file", "postgres"]))
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.getfixturevalue("emptied_postgres") if request.param == "postgres" else tmp_path / "jobs.db")


@pytest.fixture
def queue(address: str) -> Iterator[Forge]:
    with Forge(address) as queue:
        yield queue


def test_the_functions_of_the_document_open_a_store_by_its_address(address: str) -> None:
    forge.register_worker(address, "w1", name="Worker 01", cores=8, ram_gb=16, tags=["gpu"])
    created = forge.create_job(address, "prodplan", {"horizon": 7}, priority=2)
    assert created.status is JobStatus.PENDING
    job = forge.claim_job(address, "w1", ["prodplan"])
    assert job is not None
    assert (job.id, job.status, job.params, job.attempts) == (created.id, "assigned", '{"horizon":7}', 1)
    assert forge.claim_job(address, "w1") is None
    assert forge.fail_job(address, job.id, "w1", "boom").new_status is JobStatus.PENDING
    assert forge.claim_job(address, "w2") is not None
    assert not forge.submit_result(address, job.id, "w2", "42\n", result_hash="ab").duplicate
    assert forge.submit_result(address, job.id, "w3", "42\n", result_hash="ab").duplicate
    done = forge.get_job(address, job.id)
    assert (done.status, done.result, done.result_hash, done.worker_id) == ("completed", "42\n", "ab", "w2")
    assert [fail["reason"] for fail in json.loads(done.fail_history)] == ["boom"]
    assert forge.list_jobs(address, "completed") == [done]
    other = forge.create_job(address, "prodplan")
    forge.cancel_job(address, other.id)
    assert forge.get_job(address, other.id).fail_reason == "cancelled"
    assert forge.reap_stale_jobs(address) == 0


def test_a_queue_has_them_as_methods_and_also_over_an_app(address: str) -> None:
    with App(address) as app, Forge(app) as queue:
        job = queue.create_job("prodplan")
        assert forge.get_job(queue, job.id) == forge.get_job(app, job.id) == queue.get_job(job.id)
        queue.close()
        assert [run.queue for run in app.runs().runs] == ["forge"]


def test_errors_say_what_happened_and_change_nothing(queue: Forge) -> None:
    job = queue.create_job("prodplan")
    before = queue.get_job(job.id)
    with pytest.raises(NotAssigned, match="is not assigned to the worker 'w1'"):
        queue.submit_result(job.id, "w1", "42")
    with pytest.raises(NotAssigned):
        queue.heartbeat_job(job.id, "w1")
    with pytest.raises(NotFound, match="Ids have 32 hexadecimal digits"):
        queue.get_job("17")
    with pytest.raises(NotCancellable, match="No pending or assigned job"):
        queue.cancel_job("f" * 32)
    with pytest.raises(BadInput, match="There is no status 'lost'"):
        queue.list_jobs("lost")
    with pytest.raises(BadInput, match="max_runtime_ms must be at least 1"):
        queue.create_job("prodplan", max_runtime_ms=0)
    with pytest.raises(BadInput, match="type is required"):
        queue.create_job("")
    assert queue.list_jobs() == [before]
    queue.claim_job("w1")
    queue.submit_result(job.id, "w1", "42")
    with pytest.raises(WrongState, match="has already succeeded"):
        queue.submit_result(job.id, "w1", "43")


def test_heartbeats_begin_a_job_and_stale_ones_are_reaped(queue: Forge) -> None:
    job = queue.create_job("prodplan", max_runtime_ms=1)
    queue.claim_job("w1")
    queue.heartbeat_job(job.id, "w1")
    assert queue.get_job(job.id).status is JobStatus.RUNNING
    assert queue.counts_by_worker() == {"w1": 1}
    while queue.reap_stale_jobs() == 0:
        pass
    assert queue.get_job(job.id).fail_reason == "max_runtime_exceeded"


def test_workers_are_rows_of_the_documents_table(queue: Forge) -> None:
    queue.register_worker("w1", name="Worker 01", cores=8, ram_gb=1.5, tags=["gpu"])
    queue.register_worker("w2")
    one, two = queue.list_workers()
    assert one == WorkerRecord("w1", "Worker 01", 8, 1.5, '["gpu"]', one.registered_at, one.registered_at)
    assert (two.name, two.cores, two.ram_gb, two.tags) == (None, 1, 1.0, "[]")


@pytest.mark.parametrize("amounts", [{"cores": -1}, {"ram_gb": float("nan")}, {"ram_gb": 1e300}])
def test_amounts_that_no_worker_has_are_refused(queue: Forge, amounts: dict[str, float]) -> None:
    with pytest.raises(BadInput, match="must be a number from 0 to"):
        queue.register_worker("w1", **amounts)  # type: ignore[arg-type]
    assert queue.list_workers() == []


def test_the_package_needs_no_web_framework() -> None:
    code = "import sys, windlass.dialects.forge; sys.exit(any(name in sys.modules for name in ('starlette', 'uvicorn', 'windlass.hub')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
