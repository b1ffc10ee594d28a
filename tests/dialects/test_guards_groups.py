"""Groups through the library of the design guards: G7, G8, G26-G28, and the document's own `compute_group_status`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.dialects.guards_document import BLOCKS, namespace
from tests.dialects.guards_library import DELAYS, Library
from tests.harness import Harness
from windlass.dialects.guards import GroupStatus, InvalidValueError, JobGroup, JobStatus, is_terminal
from windlass.dialects.guards import TemplateNotFoundError as NoTemplate
from windlass.errors import NotFound
from windlass.model import Member, NewGroup, NewRun, Options

STORY = {"template_id": "story"}


@pytest.fixture
def s(h: Harness) -> Library:
    return Library(h)


def group(s: Library, count: int = 3, **arguments: Any) -> JobGroup:
    return s.create_group([STORY] * count, **arguments)


def statuses(s: Library, group: JobGroup) -> list[JobStatus]:
    return [s.load_job(job).status for job in s.load_group(group.group_id).job_ids]


def test_G7_a_group_runs_until_all_of_its_jobs_have_ended(s: Library) -> None:
    new = group(s, 2, name="night")
    assert (new.status, new.name, new.started_at, new.finished_at) == (GroupStatus.RUNNING, "night", None, None)
    jobs = [s.load_job(job) for job in new.job_ids]
    assert [(job.group_id, job.sequence_number) for job in jobs] == [(new.group_id, 0), (new.group_id, 1)]
    s.advance(seconds=1)
    s.end(status="COMPLETED")
    assert s.compute_group_status(new) == GroupStatus.RUNNING
    s.end(status="COMPLETED")
    ended = s.load_group(new.group_id)
    assert (ended.status, s.compute_group_status(ended)) == (GroupStatus.COMPLETED, GroupStatus.COMPLETED)
    assert (ended.started_at, ended.finished_at) == (s.load_job(new.job_ids[0]).started_at, s.load_job(new.job_ids[1]).finished_at)


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        (("COMPLETED", "COMPLETED"), GroupStatus.COMPLETED),
        (("COMPLETED", "FAILED"), GroupStatus.PARTIAL),
        (("FAILED", "FAILED"), GroupStatus.PARTIAL),
        (("COMPLETED", "CANCELLED"), GroupStatus.PARTIAL),
        (("CANCELLED", "CANCELLED"), GroupStatus.CANCELLED),
    ],
)
def test_G8_the_end_of_a_group_follows_from_those_of_its_jobs(s: Library, ends: tuple[str, ...], status: GroupStatus) -> None:
    s.create_template("story", retry_policy=0)
    new = group(s, 2)
    for job, end in zip(new.job_ids, ends, strict=True):
        if end == "CANCELLED":
            s.cancel_job(job)
        else:
            s.end(status=end)
    assert s.compute_group_status(new) == status
    assert [one.group_id for one in s.list_groups(status)] == [new.group_id]
    assert [one.status for one in s.list_groups()] == [status]


def test_G26_the_jobs_of_a_sequence_run_one_after_the_other(s: Library) -> None:
    new = group(s, sequential=True)
    for job in new.job_ids:
        assert s.claimed().id == job
        assert s.idle()
        s.update_jobrun(job, status="COMPLETED")
    assert s.compute_group_status(new) == GroupStatus.COMPLETED


def test_G27_a_final_failure_cancels_the_rest_and_no_earlier(s: Library) -> None:
    new = group(s, sequential=True)
    for delay in DELAYS:
        s.fail()
        assert [is_terminal(status) for status in statuses(s, new)] == [False, False, False]
        s.advance(seconds=delay)
    last = s.fail()
    ended = s.load_group(new.group_id)
    assert (ended.status, ended.job_ids[0]) == (GroupStatus.PARTIAL, last)
    for job in ended.job_ids[1:]:
        loaded = s.load_job(job)
        assert (loaded.status, loaded.reason, s.list_jobruns(job_id=job)) == (JobStatus.CANCELLED, "predecessor failed", [])


def test_G28_a_retry_that_succeeds_leaves_the_group_completed(s: Library) -> None:
    new = group(s, 2, sequential=True)
    s.fail()
    s.advance(seconds=10)
    assert s.load_group(new.group_id).job_ids != new.job_ids
    s.end(status="COMPLETED")
    s.end(status="COMPLETED")
    assert s.compute_group_status(new.group_id) == GroupStatus.COMPLETED


def test_a_group_is_cancelled_once(s: Library) -> None:
    new = group(s, sequential=True)
    ended = s.cancel_group(new.group_id, reason="not needed")
    assert (ended.status, statuses(s, new)) == (GroupStatus.CANCELLED, [JobStatus.CANCELLED] * 3)
    with s.refused("has ended"):
        s.cancel_group(new.group_id)


def test_a_group_with_a_bad_job_is_not_created(s: Library) -> None:
    bad: dict[str, tuple[Any, type[Exception]]] = {
        "There is no template": ({"template_id": "novel"}, NoTemplate),
        "template_id": ({"params": {}}, InvalidValueError),
        "as 5": (5, InvalidValueError),
        "has no position": (STORY | {"position": 100}, InvalidValueError),
        "priority": (STORY | {"priority": -1}, InvalidValueError),
    }
    for match, (job, kind) in bad.items():
        with s.refused(match, kind):
            s.create_group([STORY, job])
    with s.refused("at least one", InvalidValueError):
        s.create_group([])
    for jobs in (5, None, "story", STORY):
        with s.refused("jobs must be a list", InvalidValueError):
            s.create_group(jobs)  # type: ignore[arg-type]
    with s.refused("sequential must be true or false", InvalidValueError):
        s.create_group([STORY], sequential="false")  # type: ignore[arg-type]
    for unknown in ("no id!", "017f0000-0000-7000-8000-000000000000"):
        with s.refused("There is no group", NotFound):
            s.load_group(unknown)


def test_groups_of_other_queues_are_not_in_the_list(s: Library) -> None:
    s.h(s.h.engine.create_group(NewGroup((Member(NewRun("mail")),))))
    own = group(s, 1)
    assert [one.group_id for one in s.list_groups()] == [own.group_id]


@pytest.mark.parametrize("queues", [("mail",), ("guards", "mail")])
def test_groups_with_jobs_of_other_queues_can_be_read_and_nothing_else(s: Library, queues: tuple[str, ...]) -> None:
    new = NewGroup(tuple([Member(NewRun("mail", options=Options(queue=queue))) for queue in queues]))
    other = s.h(s.h.engine.create_group(new, undefined="wait"))
    assert s.load_group(other.id).status == GroupStatus.RUNNING
    with s.refused("in the queue guards", NotFound):
        s.cancel_group(other.id)
    assert {s.load_job(job).status for job in s.load_group(other.id).job_ids} == {JobStatus.QUEUED}


def test_a_list_of_groups_reads_so_many_jobs_and_no_more(s: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.dialects.guards.verbs.MAX_MEMBERS", 5)
    groups = [group(s, 2).group_id for _ in range(4)]
    assert [one.group_id for one in s.list_groups()] == groups[:1:-1]


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.sampled_from(["fail", "COMPLETED", "SKIPPED", "cancel", "wait"]), max_size=12), sequential=st.booleans())
def test_G7_the_documents_own_function_agrees_on_random_groups(h: Harness, steps: list[str], sequential: bool) -> None:
    s = Library(h)
    s.create_template("brief", retry_policy=1)
    new = s.create_group([{"template_id": "brief"}] * 3, sequential=sequential)
    theirs = namespace(s, BLOCKS["INV-006"])["compute_group_status"]
    for step in steps:
        group = s.load_group(new.group_id)
        mine = s.compute_group_status(group)
        # The document's function leaves out which end it is.
        assert theirs(group) == (mine if mine is GroupStatus.RUNNING else None)
        assert group.status == mine
        if step == "wait":
            s.advance(seconds=10)
        elif step == "cancel":
            waiting = [job for job in group.job_ids if s.load_job(job).status == JobStatus.QUEUED]
            s.cancel_job(waiting[-1]) if waiting else None
        elif runs := s.h.claim(queues=("guards",)):
            s.fail_run(runs[0]) if step == "fail" else s.update_jobrun(runs[0].current_attempt, status=step)
    if s.compute_group_status(new) is GroupStatus.RUNNING:
        s.cancel_group(new.group_id)
