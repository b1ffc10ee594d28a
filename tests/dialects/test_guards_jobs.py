"""Jobs and their runs through the library of the design guards: G1-G3, G9-G12, G31, G34, G35, G40, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.dialects.guards_library import DELAYS, Library
from tests.harness import Harness
from windlass.dialects import guards
from windlass.dialects.guards import (
    InvalidOperationError,
    InvalidValueError,
    JobNotFoundError,
    JobRunNotFoundError,
    JobRunStatus,
    JobStatus,
    TemplateNotFoundError,
    is_terminal,
)
from windlass.errors import BadInput, NotFound
from windlass.machine import Snooze, Succeed
from windlass.model import Options


@pytest.fixture
def s(h: Harness) -> Library:
    return Library(h)


# What can be changed


def test_G1_the_params_of_a_queued_job_can_be_changed(s: Library) -> None:
    job = s.job(params={"key": "value"})
    assert s.update_job(job, params={"key": "new", "more": 1}).params == {"key": "new", "more": 1}
    assert s.claimed().payload == '{"key":"new","more":1}'


def test_G1_after_dispatch_params_cannot_be_modified(s: Library) -> None:
    job = s.job(params={"key": "value"})
    s.dispatch_job(job)
    with s.refused("Cannot modify params"):
        s.update_job(job, params={"key": "new"})
    assert s.load_job(job).params == {"key": "value"}


def test_G1_an_edit_that_loses_the_race_with_a_worker_is_refused_too(s: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    job, patch = s.job(params={"key": "value"}), s.h.engine.patch

    async def patch_after_a_claim(*args: Any, **fields: Any) -> Any:
        s.claimed()
        return await patch(*args, **fields)

    monkeypatch.setattr(s.h.engine, "patch", patch_after_a_claim)
    with pytest.raises(InvalidOperationError, match="Cannot modify params"):
        s.update_job(job, params={"key": "new"})
    assert s.load_job(job).params == {"key": "value"}


def test_G1_jobs_that_have_ended_cannot_be_changed_either(s: Library) -> None:
    cancelled, done = s.job(), s.job()
    s.cancel_job(cancelled)
    s.end(status="COMPLETED")
    for job in (cancelled, done):
        with s.refused("Cannot modify params"):
            s.update_job(job, params={})


@pytest.mark.parametrize("updates", [{"priority": 9}, {"position": 100}, {"priority": 9, "params": {}, "position": 1}])
def test_G2_after_dispatch_priority_and_position_cannot_be_modified(s: Library, updates: dict[str, Any]) -> None:
    job = s.job()
    s.job()
    s.dispatch_job(job)
    with s.refused("Cannot modify .*after dispatch"):
        s.update_job(job, **updates)


@pytest.mark.parametrize("member", ["run_id", "job_id", "params_snapshot", "started_at", "template_id", "log_path", "self"])
def test_G3_an_immutable_field_of_a_run_is_refused_by_its_name(s: Library, member: str) -> None:
    job = s.dispatch_job(s.job()).job_id
    with s.refused(f"Cannot modify {member}"):
        s.update_jobrun(job, **{member: "x"}, status="COMPLETED")


def test_G3_the_five_fields_end_a_run(s: Library) -> None:
    assert {"finished_at", "status", "exit_code", "error", "artifacts"} == guards.JOBRUN_MUTABLE_FIELDS
    job = s.dispatch_job(s.job()).job_id
    run = s.update_jobrun(job, status="COMPLETED", exit_code=3, artifacts=["story.md"], finished_at="now", error=None)
    assert (run.status, run.exit_code, run.artifacts, run.error) == (JobRunStatus.COMPLETED, 3, ["story.md"], None)
    assert run.finished_at == s.load_job(job).finished_at != None  # noqa: E711


def test_a_run_that_failed_tells_what_was_reported(s: Library) -> None:
    job = s.dispatch_job(s.job()).job_id
    run = s.update_jobrun(job, status="FAILED", exit_code=7, artifacts=["log"], error="no model")
    assert (run.status, run.exit_code, run.artifacts, run.error) == (JobRunStatus.FAILED, 7, ["log"], "no model")
    assert s.newest().retry_of == job


def test_a_skipped_run_was_executed_and_is_not_retried(s: Library) -> None:
    job = s.dispatch_job(s.job()).job_id
    run = s.update_jobrun(job, status="SKIPPED", error="duplicate")
    assert (run.status, run.error, run.exit_code) == (JobRunStatus.SKIPPED, "duplicate", None)
    loaded = s.load_job(job)
    assert (loaded.status, is_terminal(loaded.status), loaded.reason) == (JobStatus.RUNNING, True, "duplicate")
    assert s.idle()


@pytest.mark.parametrize("word", JobRunStatus)
def test_the_same_status_again_changes_nothing_and_another_is_refused(s: Library, word: str) -> None:
    job = s.dispatch_job(s.job()).job_id
    first, before = s.update_jobrun(job, status=word), s.everything()
    assert s.update_jobrun(job, status=word) == first
    assert s.everything() == before
    for other in set(JobRunStatus) - {word}:
        with s.refused("has ended"):
            s.update_jobrun(job, status=other)


def test_a_run_is_updated_with_the_status_that_ends_it(s: Library) -> None:
    job = s.dispatch_job(s.job()).job_id
    with s.refused("with the status that ends it"):
        s.update_jobrun(job, artifacts=["x"])
    for word, member in (("COMPLETED", "error"), ("SKIPPED", "exit_code"), ("SKIPPED", "artifacts")):
        with s.refused(f"A {word} run has no {member}"):
            s.update_jobrun(job, **{"status": word, member: {"error": "x", "exit_code": 1, "artifacts": []}[member]})


@pytest.mark.parametrize("status", ["COMPLETED", "FAILED"])
@pytest.mark.parametrize("artifacts", [["x" * 2**20], [float("nan")], [object()], "one", {"a": 1}])
def test_artifacts_that_cannot_be_stored_are_refused(s: Library, status: str, artifacts: Any) -> None:
    job = s.dispatch_job(s.job()).job_id
    with s.refused("artifacts", InvalidValueError) as refusal:
        s.update_jobrun(job, status=status, artifacts=artifacts)
    assert refusal.value.member == "artifacts"
    for exit_code in ("1", 2**40, True):
        with s.refused("exit_code", InvalidValueError):
            s.update_jobrun(job, status=status, exit_code=exit_code)
    with s.refused("error", InvalidOperationError):
        s.update_jobrun(job, status=status, error=5)
    s.update_jobrun(job, status=status, artifacts=["x" * 8_000])
    assert s.load_jobrun(job).artifacts == ["x" * 8_000]


def test_a_long_error_is_cut(s: Library) -> None:
    job = s.dispatch_job(s.job()).job_id
    with s.refused("A reason must be a text of 1 to 1,000 characters", InvalidValueError):
        s.update_jobrun(job, status="SKIPPED", error="x" * 1_001)
    assert str(s.update_jobrun(job, status="FAILED", error="x" * 100_000).error).strip("x") == ""


@pytest.mark.parametrize(
    ("output", "exit_code", "artifacts"),
    [
        (None, 0, []),
        ([1, 2], 0, [1, 2]),
        ("text", 0, ["text"]),
        ({"artifacts": [1]}, 0, [1]),
        ({"artifacts": [1], "exit_code": 3}, 3, [1]),
        ({"artifacts": [1], "exit_code": "3"}, 0, [{"artifacts": [1], "exit_code": "3"}]),
        ({"artifacts": "x"}, 0, [{"artifacts": "x"}]),
        ({"artifacts": [1], "more": 2}, 0, [{"artifacts": [1], "more": 2}]),
    ],
)
def test_what_a_handler_returns_are_its_artifacts(s: Library, output: Any, exit_code: int, artifacts: list[Any]) -> None:
    s.job()
    s.h.succeed(run := s.claimed(), None if output is None else json.dumps(output))
    done = s.load_jobrun(run.id)
    assert (done.exit_code, done.artifacts) == (exit_code, artifacts)


def test_a_list_of_very_large_jobs_is_refused_with_the_way_out(s: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.dialects.guards.jobs.LARGEST_LIST", 15_000)
    for _ in range(2):
        s.job(params={"text": "x" * 9_000})
    with pytest.raises(InvalidValueError, match="smaller limit"):
        s.list_jobs()
    assert len(s.list_jobs(limit=1)[0].params["text"]) == 9_000


def test_a_run_that_its_worker_ends_meanwhile_is_not_ended_twice(s: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    s.job()
    run, report = s.claimed(), s.h.engine.report

    async def report_second(run_id: str, late: Any, **how: Any) -> Any:
        await report(run_id, Succeed(token=run.token, output='["own"]'))
        return await report(run_id, late, **how)

    monkeypatch.setattr(s.h.engine, "report", report_second)
    with pytest.raises(InvalidOperationError, match="ended meanwhile"):
        s.update_jobrun(run.id, status="FAILED")
    assert s.load_jobrun(run.id).artifacts == ["own"]


# One job, one run


def test_G9_a_job_has_one_run_at_most_and_shares_its_id(s: Library) -> None:
    job = s.job()
    assert s.list_jobruns(job_id=job) == []
    with pytest.raises(JobRunNotFoundError, match="has no run"):
        s.load_jobrun(job)
    s.claimed()
    (run,) = s.list_jobruns(job_id=job)
    assert (run.run_id, run.job_id, run.status, run.finished_at) == (job, job, None, None)
    s.update_jobrun(run.run_id, status="COMPLETED")
    assert [run.status for run in s.list_jobruns(job_id=job)] == [JobRunStatus.COMPLETED]


def test_G9_a_retry_is_a_new_job_that_names_the_failed_one(s: Library) -> None:
    first = s.job(params={"topic": "sea"}, priority=3)
    assert s.fail() == first
    second = s.newest()
    assert (second.retry_of, second.status, second.params, second.priority) == (first, JobStatus.QUEUED, {"topic": "sea"}, 3)
    assert second.job_id != first
    old, run = s.load_job(first), s.load_jobrun(first)
    assert (old.status.value, is_terminal(old.status), run.status) == ("RUNNING", True, JobRunStatus.FAILED)
    assert s.list_jobruns(job_id=second.job_id) == []


def test_G10_the_number_of_retries_is_the_length_of_the_chain(s: Library) -> None:
    first = s.job()
    for delay in DELAYS:
        s.fail()
        s.advance(seconds=delay)
    job, chain = s.newest(), []
    while job.retry_of is not None:
        job = s.load_job(job.retry_of)
        chain.append(job.job_id)
    assert (len(chain), chain[-1]) == (3, first)


def test_G11_three_retries_after_10_20_and_40_seconds_and_then_none(s: Library) -> None:
    s.job()
    for delay in DELAYS:
        s.fail()
        s.advance(seconds=delay - 0.001)
        assert s.idle()
        s.advance(seconds=0.001)
    last = s.fail()
    s.advance(hours=24)
    assert s.idle()
    assert s.words() == [("RUNNING", True)] * 4
    assert [run.status for run in s.list_jobruns()] == [JobRunStatus.FAILED] * 4
    assert s.newest().job_id == last


def test_G11_the_document_can_be_read_the_other_way(h: Harness) -> None:
    s = Library(h, count_executions=True)
    assert s.get_template("story").retry_policy.max_attempts == 3
    s.job()
    for delay in (10, 20):
        s.fail()
        s.advance(seconds=delay)
    s.fail()
    assert s.words() == [("RUNNING", True)] * 3


def test_G11_a_retry_goes_to_the_tail(s: Library) -> None:
    first, other = s.job(), s.job()
    s.advance(seconds=1)
    s.fail()
    s.advance(seconds=10)
    assert [s.load_job(job).position for job in (other, s.newest().job_id)] == [100, 200]
    assert s.newest().retry_of == first


def test_G12_a_failed_run_can_be_retried_by_hand_after_the_limit(s: Library) -> None:
    s.create_template("once", retry_policy={"max_attempts": 0})
    job = s.job("once", params={"topic": "sea"})
    s.fail()
    again = s.retry_run(job)
    assert (again.retry_of, again.status, again.params) == (job, JobStatus.QUEUED, {"topic": "sea"})
    assert s.fail() == again.job_id
    assert s.retry_run(again.job_id).retry_of == again.job_id


def test_G12_also_while_an_automatic_retry_is_planned_and_then_beside_it(s: Library) -> None:
    job = s.job()
    s.fail()
    again = s.retry_run(job)
    assert [one.retry_of for one in s.list_jobs("QUEUED")] == [job, job]
    assert s.claimed().id == again.job_id


def test_G12_what_has_not_failed_cannot_be_retried(s: Library) -> None:
    queued, running, done = s.job(), s.job(priority=1), s.job(priority=2)
    s.end(status="COMPLETED")
    s.claimed()
    for job, match in ((running, "is RUNNING"), (done, "is COMPLETED")):
        with s.refused(match):
            s.retry_run(job)
    with s.refused("has no run", JobRunNotFoundError):
        s.retry_run(queued)


def test_a_job_that_was_given_back_is_cancelled_and_comes_again(s: Library) -> None:
    job = s.job()
    s.h.report(run := s.claimed(), Snooze(token=run.token, delay=0))
    old, new = s.load_job(job), s.newest()
    assert (old.status, is_terminal(old.status), s.list_jobruns(job_id=job)[0].status) == (JobStatus.CANCELLED, True, None)
    assert (new.status, new.retry_of) == (JobStatus.QUEUED, job)


def test_G31_a_queued_job_is_cancelled_and_never_executed(s: Library) -> None:
    job = s.cancel_job(s.job(), reason="not needed")
    assert (job.status, is_terminal(job.status), job.reason) == (JobStatus.CANCELLED, True, "not needed")
    assert (s.list_jobruns(job_id=job.job_id), s.idle()) == ([], True)


def test_G31_a_planned_retry_can_be_cancelled_and_what_runs_or_has_ended_cannot(s: Library) -> None:
    first = s.job()
    s.fail()
    retry = s.newest().job_id
    assert s.cancel_job(retry).status is JobStatus.CANCELLED
    running = s.job()
    s.claimed()
    for job in (first, retry, running):
        with s.refused("Cannot cancel job"):
            s.cancel_job(job)


# Positions


def test_G34_positions_are_hundreds_and_a_job_can_be_put_anywhere(s: Library) -> None:
    jobs = [s.job() for _ in range(4)]
    assert [s.load_job(job).position for job in jobs] == [100, 200, 300, 400]
    assert s.update_job(jobs[3], position=200).position == 200
    assert [s.load_job(job).position for job in jobs] == [100, 300, 400, 200]
    assert s.update_job(jobs[0], position=10_000).position == 400
    assert s.update_job(jobs[0], position=0).position == 100
    urgent = s.create_job("story", priority=1)
    assert (urgent.position, s.load_job(jobs[0]).position) == (100, 100)
    assert s.create_job("story", position=150).position == 200
    assert s.claimed().id == urgent.job_id
    assert s.load_job(urgent.job_id).position is None


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 700)), max_size=6))
def test_G34_position_N_is_before_the_first_of_N_or_more(h: Harness, moves: list[tuple[int, int]]) -> None:
    s = Library(h)
    for left in s.list_jobs("QUEUED", limit=200):
        s.cancel_job(left.job_id)
    expected = [s.job() for _ in range(5)]
    for index, position in moves:
        job = expected[index]
        before = [other for place, other in enumerate(expected) if 100 * (place + 1) < position and other != job]
        behind = [other for other in expected if other not in before and other != job]
        s.update_job(job, position=position)
        expected = [*before, job, *behind]
        assert sorted(expected, key=lambda job: s.load_job(job).position or 0) == expected


def test_G34_a_job_that_is_taken_while_it_is_read_is_not_shown_queued_without_a_position(
    s: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, ahead = s.job(), s.h.engine.ahead

    async def ahead_after_a_claim(run_id: str) -> int | None:
        s.claimed()
        return await ahead(run_id)

    monkeypatch.setattr(s.h.engine, "ahead", ahead_after_a_claim)
    loaded = s.load_job(job)
    assert (loaded.status, loaded.position, loaded.started_at is None) == (JobStatus.RUNNING, None, False)


def test_G34_a_position_while_neighbours_are_taken_away(s: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    s.job()
    last, move = s.job(), s.h.engine.move
    taken: list[str] = []

    async def move_after_a_claim(*args: Any, **aim: Any) -> Any:
        if not taken:
            taken.append(s.claimed().id)
        return await move(*args, **aim)

    monkeypatch.setattr(s.h.engine, "move", move_after_a_claim)
    assert s.update_job(last, position=100).position == 100


def test_G32_a_priority_reorders_and_unknown_jobs_are_not_found(s: Library) -> None:
    first, second = s.job(), s.job()
    assert s.update_job(second, priority=7).priority == 7
    assert [s.end(status="COMPLETED").job_id for _ in range(2)] == [second, first]
    with s.refused("There is no job", JobNotFoundError):
        s.update_job("017f0000-0000-7000-8000-000000000000", priority=1)


# Snapshots


def test_G35_editing_a_template_changes_new_jobs_only(s: Library) -> None:
    s.create_template("long", job_type="story", default_params={"length": 3, "topic": "sea"}, description="a long one")
    old = s.create_job("long", params={"topic": "sky"})
    assert (old.params, old.job_type, old.template_id) == ({"length": 3, "topic": "sky"}, "story", "long")
    s.update_template("long", default_params={"length": 9}, retry_policy={"max_attempts": 1}, job_type="novel")
    assert s.load_job(old.job_id) == old
    new = s.create_job("long")
    assert (new.params, new.job_type) == ({"length": 9}, "novel")
    template = s.get_template("long")
    assert (template.retry_policy.max_attempts, template.description, template.name) == (1, "a long one", "long")
    assert {one.template_id for one in s.list_templates()} == {"long", "mail", "story"}


def test_G35_a_definition_of_windlass_is_a_template_and_its_jobs_follow_the_same_rules(s: Library) -> None:
    s.h.define("report", {"of": "May"}, max_attempts=2)
    s.h(s.h.engine.set_resource("gpu", capacity=1))
    assert s.get_template("report").retry_policy.max_attempts == 1
    job = s.create_job("report")
    run = s.h.get(job.job_id)
    assert (run.queue, run.max_attempts, run.policy.backoff, run.policy.retry_place) == ("guards", 2, (10_000,), "tail")
    s.claimed()
    s.job()
    assert s.idle()  # it uses the resource, too
    s.h.define("slow", backoff=(1_000,))
    assert s.h.get(s.job("slow")).policy.backoff == (1_000,)


def test_the_definition_of_a_job_of_another_queue_is_used_and_not_changed(s: Library) -> None:
    s.h.define("report", {"of": "May"})
    before = s.h(s.h.engine.find_job("report"))
    for change in (s.create_template, s.update_template):
        with s.refused("The job report is defined for the queue default, not for guards", InvalidOperationError):
            change("report", default_params={"of": "June"})
    assert s.h(s.h.engine.find_job("report")) == before
    s.create_template("june", job_type="report", default_params={"of": "June"})
    assert s.load_job(s.job("june")).params == {"of": "June"}


def test_G40_an_edit_for_the_retry_leaves_the_params_of_the_ended_job(s: Library) -> None:
    first = s.job(params={"key": "old"})
    s.fail()
    retry = s.newest().job_id
    assert s.update_job(retry, params={"key": "new"}).params == {"key": "new"}
    assert s.load_job(first).params == s.load_jobrun(first).params_snapshot == {"key": "old"}
    with s.refused("Cannot modify params"):
        s.update_job(first, params={"key": "x"})
    assert s.retry_run(first).params == {"key": "old"}
    s.advance(seconds=10)
    assert sorted(s.claimed().payload for _ in range(1)) == ['{"key":"old"}']


# What is refused


BAD_JOBS: dict[str, dict[str, Any]] = {
    "params": {"params": [1]},
    "priority": {"priority": -1},
    "position": {"position": -100},
    "webhook_events": {"webhook_url": "https://example.com/hook", "webhook_events": ["job.run.started"]},
}


@pytest.mark.parametrize("member", BAD_JOBS)
def test_a_job_with_a_bad_member_is_refused_by_its_name(s: Library, member: str) -> None:
    with s.refused(member.removeprefix("webhook_").rstrip("s"), InvalidValueError) as refusal:
        s.create_job("story", **BAD_JOBS[member])
    assert refusal.value.member == member


@pytest.mark.parametrize("params", [{"x": float("nan")}, {"x": object()}, {"x": "y" * 300_000}, {1: 2}])
def test_params_that_cannot_be_stored_are_refused(s: Library, params: Any) -> None:
    with s.refused("params", InvalidValueError):
        s.create_job("story", params=params)


@pytest.mark.parametrize("value", [-1, 101, 1.5, "1", None, True])
def test_G32_priorities_are_0_to_100(s: Library, value: Any) -> None:
    job = s.job(priority=100)
    with s.refused("priority must be a whole number from 0 to 100"):
        s.update_job(job, priority=value)


def _of_no_scheduler(job: str) -> object:
    guards.use(None)
    return guards.load_job(job)


BAD: dict[str, tuple[type[Exception], Callable[[Library, str], object]]] = {
    "there is no template": (TemplateNotFoundError, lambda s, job: s.create_job("novel")),
    "There is no template 5": (TemplateNotFoundError, lambda s, job: s.create_job(5)),  # type: ignore[arg-type]
    "There is no template 'x": (TemplateNotFoundError, lambda s, job: s.update_template("x", description="y")),
    "There is no job": (JobNotFoundError, lambda s, job: s.load_job("017f0000-0000-7000-8000-000000000000")),
    "There is no job 'no id!'": (JobNotFoundError, lambda s, job: s.update_job("no id!", params={})),
    "There is no run": (JobRunNotFoundError, lambda s, job: s.load_jobrun("none")),
    "Cannot modify status": (InvalidOperationError, lambda s, job: s.update_job(job, status="CANCELLED")),
    "Cannot modify job_id, retry_of": (InvalidOperationError, lambda s, job: s.update_job(job, retry_of="x", job_id="y", params={})),
    "nothing to modify": (InvalidOperationError, lambda s, job: s.update_job(job)),
    "There is no status 'DISPATCHED'": (InvalidValueError, lambda s, job: s.list_jobs("DISPATCHED")),
    "There is no status 'succeeded'": (InvalidValueError, lambda s, job: s.list_jobs("succeeded")),
    "limit must be": (InvalidValueError, lambda s, job: s.list_jobs(limit=201)),
    "There is no resource 'ollama'": (InvalidValueError, lambda s, job: s.create_template("x", resources=["ollama"])),
    "A retry policy has no retries": (InvalidValueError, lambda s, job: s.create_template("x", retry_policy={"retries": 1})),
    "A retry policy has no 1": (InvalidValueError, lambda s, job: s.update_template("story", retry_policy={1: 1})),
    "is not the id": (InvalidValueError, lambda s, job: s.create_template("x", name="y")),
    "template_id must be": (InvalidValueError, lambda s, job: s.create_template()),
    "Cannot modify name of a template": (InvalidOperationError, lambda s, job: s.update_template("story", name="x")),
    "default_params must be an object": (InvalidValueError, lambda s, job: s.update_template("story", default_params=3)),
    "default_params must be an object, not null": (InvalidValueError, lambda s, job: s.update_template("story", default_params=None)),
    "params must be an object, not null": (InvalidValueError, lambda s, job: s.update_job(job, params=None, priority=5)),
    "reason must be": (InvalidValueError, lambda s, job: s.cancel_job(job, reason=5)),  # type: ignore[arg-type]
    "webhook_events must be a list": (InvalidValueError, lambda s, job: s.create_job("story", webhook_url="x", webhook_events="y")),
    "resources must be a list": (InvalidValueError, lambda s, job: s.create_template("x", resources="ollama")),
    "description must be": (InvalidValueError, lambda s, job: s.create_template("x", description=5)),  # type: ignore[arg-type]
    "There is no group": (NotFound, lambda s, job: s.compute_group_status("no id!")),
    "without a webhook_url": (InvalidValueError, lambda s, job: s.create_job("story", webhook_events=["job.run.failed"])),
    "There is no handler for 'story'": (InvalidOperationError, lambda s, job: s.execute_direct("story")),
    r"There is no handler for \['": (InvalidOperationError, lambda s, job: s.execute_direct(["story"])),  # type: ignore[arg-type]
    "timeout is -1": (InvalidValueError, lambda s, job: s.stop(timeout=-1)),
    "No scheduler is in use": (InvalidOperationError, lambda s, job: _of_no_scheduler(job)),
}  # fmt: skip


@pytest.mark.parametrize("match", BAD)
def test_bad_requests_raise_the_documents_errors_and_change_nothing(s: Library, match: str) -> None:
    kind, call = BAD[match]
    job = s.job()
    with s.refused(f"(?i){match}", kind):
        call(s, job)


def test_jobs_of_other_queues_can_be_read_and_nothing_else(s: Library) -> None:
    other = s.h.create("mail")
    assert (s.load_job(other).status, s.load_job(other).template_id) == (JobStatus.QUEUED, "mail")
    assert s.list_jobs() == []
    for call in (s.cancel_job, s.dispatch_job, lambda job: s.update_job(job, params={})):
        with s.refused("in the queue guards", JobNotFoundError):
            call(other)
    s.h.claimed()
    for end in (s.retry_run, lambda job: s.update_jobrun(job, status="COMPLETED")):
        with s.refused("There is no run", JobRunNotFoundError):
            end(other)


def test_errors_are_errors_of_windlass_and_take_a_message_alone() -> None:
    for kind in (InvalidOperationError, JobNotFoundError, JobRunNotFoundError, TemplateNotFoundError, guards.ReservationConflictError):
        assert str(kind("It is so.")).startswith("It is so. ")
    assert issubclass(InvalidValueError, BadInput)
    assert issubclass(JobNotFoundError, NotFound)


def test_lists_have_all_of_large_jobs_and_filter_by_words(s: Library) -> None:
    large = s.job(params={"text": "x" * 9_000})
    s.end(status="COMPLETED")
    cancelled, queued = s.cancel_job(s.job()).job_id, s.job()
    by_word = {word: [job.job_id for job in s.list_jobs(word)] for word in ("QUEUED", "RUNNING", "CANCELLED")}
    assert by_word == {"QUEUED": [queued], "RUNNING": [large], "CANCELLED": [cancelled]}
    assert len(s.list_jobs("RUNNING")[0].params["text"]) == 9_000
    assert [job.job_id for job in s.list_jobs(limit=2)] == [queued, cancelled]
    assert [run.job_id for run in s.list_jobruns(status="COMPLETED")] == [large]
    assert s.list_jobruns(status="FAILED") == []


def test_any_run_is_shown_as_its_newest_job_and_the_run_of_that(s: Library) -> None:
    first, other = s.job(params={"topic": "sea"}), s.h.create("mail")
    s.fail()
    retry = s.newest()
    shown, native = s.h(guards.show(s.h.engine, [s.h.get(first), s.h.get(other)]))
    assert shown == retry.to_json() | {"run": None}
    assert (native["template_id"], native["status"], native["position"]) == ("mail", "QUEUED", 100)
    s.advance(seconds=10)
    s.end(status="COMPLETED")
    (shown,) = s.h(guards.show(s.h.engine, [s.h.get(first)]))
    assert shown == s.load_job(retry.job_id).to_json() | {"run": s.load_jobrun(retry.job_id).to_json()}


def test_records_are_sent_in_the_documents_spelling(s: Library) -> None:
    job = s.create_job("story", params={"topic": "sea"})
    sent = job.to_json()
    assert list(sent) == [
        "job_id", "job_type", "status", "params", "priority", "position", "template_id", "schedule_id", "group_id", "sequence_number",
        "retry_of", "created_at", "queued_at", "started_at", "finished_at", "reason",
    ]  # fmt: skip
    assert (type(sent["status"]), sent["status"]) == (str, "QUEUED")
    assert sent["created_at"] == job.created_at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    assert s.get_template("story").to_json()["retry_policy"] == {"max_attempts": 3}
    assert s.h.get(job.job_id).policy.backoff == Options(backoff=(10_000, 20_000, 40_000)).backoff
