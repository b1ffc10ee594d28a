"""SO1's verbs in Python: on the caller's thread, over an app or an address, and as coroutines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.dialects.so1_door import TRIGGER, So1
from tests.harness import Harness
from windlass import App
from windlass.cli import main
from windlass.dialects import show, so1
from windlass.dialects.so1 import JobState, NotValid, OrgJobs, Session, Settings
from windlass.errors import BadInput, DuplicateKey, Forbidden, NotFound, WrongState
from windlass.model import Options
from windlass.store.base import run_sync


@pytest.fixture
def store(tmp_path: Path) -> str:
    """The address of a store with one job."""
    address = str(tmp_path / "jobs.db")
    with App(address) as app:
        run_sync(app.engine.define(TRIGGER, options=Options(max_attempts=5)))
    return address


def test_functions_open_a_store_by_its_address_and_close_it(store: str) -> None:
    job = so1.create_job(store, TRIGGER, {"repo": "a/b"}, idempotency_key="k")
    assert (job.state, job.metadata.user_id, job.metadata.org_id, job.metadata.inputs) == (
        JobState.PENDING,
        "local",
        "default",
        {"repo": "a/b"},
    )
    assert so1.create_job(store, TRIGGER, {"repo": "a/b"}, idempotency_key="k") == job
    with pytest.raises(DuplicateKey):
        so1.create_job(store, TRIGGER, {"repo": "b/b"}, idempotency_key="k")
    assert so1.get_job(store, job.id) == job
    assert so1.list_jobs(store).jobs == [job]
    cancelled = so1.cancel_job(store, job.id)
    assert cancelled.state is JobState.CANCELLED
    assert so1.list_jobs(store, state="cancelled", limit=1).jobs == [cancelled]
    assert so1.list_jobs(store, state="pending").jobs == []


def test_a_facade_is_of_one_user_of_one_organisation(store: str) -> None:
    with App(store) as app, so1.So1(app, user="ann", org="acme", settings=Settings(keep={TRIGGER: ("repo",)})) as ann:
        job = ann.create_job(TRIGGER, {"repo": "a/b", "token": "secret"})
        assert (job.metadata.user_id, job.metadata.org_id, job.metadata.inputs) == ("ann", "acme", {"repo": "a/b"})
        with pytest.raises(Forbidden):
            so1.So1(app, user="eve", org="evil").get_job(job.id)
        assert so1.get_job(ann, job.id) == job
        assert run_sync(app.engine.get(job.id)).max_attempts == 1  # the app is not closed
    with pytest.raises(BadInput):
        so1.So1(store, org="")


def test_bad_arguments_are_refused_by_name(store: str) -> None:
    calls: dict[str, Callable[[], object]] = {
        "action": lambda: so1.create_job(store, "none"),
        "inputs": lambda: so1.create_job(store, TRIGGER, {"a": {1, 2}}, idempotency_key="k"),
        "Idempotency-Key": lambda: so1.create_job(store, TRIGGER, idempotency_key=""),
        "state": lambda: so1.list_jobs(store, state="none"),
        "limit": lambda: so1.list_jobs(store, limit=201),
        "cursor": lambda: so1.list_jobs(store, cursor="x"),
    }
    for member, call in calls.items():
        with pytest.raises(NotValid) as refused:
            call()
        assert refused.value.member == member
    with pytest.raises(NotFound):
        so1.get_job(store, "none of this form!")
    assert so1.list_jobs(store).jobs == []


def test_the_same_verbs_are_coroutines(store: str) -> None:
    with App(store) as app:
        jobs = OrgJobs(app.engine, Session("ann", "acme"))

        async def use() -> Any:
            job = await jobs.create_job(TRIGGER)
            await jobs.cancel_job(job.id)
            return await jobs.get_job(job.id)

        assert asyncio.run(use()).state == "cancelled"


def test_a_cancel_that_comes_after_the_end_is_refused(h: Harness) -> None:
    door = So1(h)
    job_id, run = door.running()
    jobs = OrgJobs(h.engine, Session("ann", "acme"), act=lambda _: ended_first())

    def ended_first() -> Any:
        h.succeed(run, "1")  # between the look and the act
        return h.engine

    with pytest.raises(WrongState, match="has ended: success"):
        h(jobs.cancel_job(job_id))
    door.close()


def test_any_run_is_shown_in_these_words(h: Harness) -> None:
    door = So1(h)
    job_id, run = door.running({"repo": "a/b"})
    h.succeed(run, '{"url":"x"}')
    elsewhere = h.create()
    first, other = h(show("so1", h.engine, [h.get(job_id), h.get(elsewhere)]))
    assert first == door.job(job_id)
    assert (other["state"], other["metadata"]["orgId"], "output" in other) == ("pending", "", False)
    door.close()


def test_the_command_line_shows_runs_in_these_words(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    job = so1.create_job(store, TRIGGER, {"repo": "a/b"})
    assert main(["--store", store, "--json", "show", job.id, "--as", "so1"]) == 0
    assert json.loads(capsys.readouterr().out)["metadata"]["inputs"] == {"repo": "a/b"}
    assert main(["--store", store, "--json", "dialects"]) == 0
    words = {one["name"]: one["states"] for one in json.loads(capsys.readouterr().out)["dialects"]}
    assert words["so1"]["quarantined"] == "failed"
