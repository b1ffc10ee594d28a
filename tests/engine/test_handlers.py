"""A definition's handler: several jobs that the same code executes, each with options, limits and pauses of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance import unchanged
from tests.harness import Harness, folder_for, open_store, token
from windlass.clock import ManualClock
from windlass.engine import Engine
from windlass.errors import BadInput, Forbidden
from windlass.machine import Refuse
from windlass.model import Failure, NewRun, Options, Policy, Principal, Requires, Run, Schedule, State, Use, WorkerInfo
from windlass.needs import needs_of
from windlass.store.base import run_sync
from windlass.store.records import needs_text
from windlass.store.rows import policy_text

STORY = {"type": "object", "properties": {"topic": {"type": "string"}}, "required": ["topic"], "additionalProperties": False}


@pytest.fixture(params=["memory", "postgres"])
def h(request: pytest.FixtureRequest) -> Iterator[Harness]:
    clock = ManualClock()
    harness = Harness(open_store(request.param, folder_for(request.param, request), request, clock), clock)
    yield harness
    run_sync(harness.store.close())


def define(h: Harness, name: str, handler: str | None = None, **options: Any) -> None:
    h(h.engine.define(name, handler=handler, options=Options(**options)))


def jobs_of(runs: list[Run]) -> list[tuple[str, str]]:
    return [(run.job, run.handler) for run in runs]


# Claims


def test_a_worker_takes_the_runs_of_every_job_that_has_its_handler(h: Harness) -> None:
    define(h, "story")
    define(h, "daily-story", "story")
    define(h, "weekly", "other")
    for job in ("story", "daily-story", "weekly"):
        h.create(job)
    assert h.claim(10, jobs=("daily-story", "weekly")) == []  # names of jobs, and of no handlers
    assert jobs_of(h.claim(10, jobs=("story",))) == [("story", "story"), ("daily-story", "story")]
    assert jobs_of(h.claim(10, jobs=None)) == [("weekly", "other")]


def test_K40_runs_keep_the_handler_with_which_they_were_created(h: Harness) -> None:
    define(h, "daily", "story")
    first = h.create("daily")
    define(h, "daily", "research")
    second = h.create("daily")
    define(h, "daily")
    third = h.create("daily")
    assert [h.get(run_id).handler for run_id in (first, second, third)] == ["story", "research", "daily"]
    for handler, run_id in (("story", first), ("research", second), ("daily", third)):
        assert [run.id for run in h.claim(10, jobs=(handler,))] == [run_id]


def test_runs_that_waited_for_a_definition_are_called_like_their_job(h: Harness) -> None:
    (early,) = h(h.engine.create([NewRun("daily")], undefined="wait"))
    define(h, "daily", "story")
    assert h.get(early.id).handler == "daily"
    assert h.claim(10, jobs=("story",)) == []
    assert [run.id for run in h.claim(10, jobs=("daily",))] == [early.id]


def test_a_run_keeps_its_handler_when_it_is_retried_patched_and_rerun(h: Harness) -> None:
    define(h, "daily", "story", max_attempts=2, requires=Requires(tags=("gpu",)))
    run_id = h.create("daily")
    h.fail(h.claimed(jobs=("story",), tags=("gpu",)), delay=0)
    h(h.engine.patch(run_id, queue="fast", priority=3))
    define(h, "daily", "research")
    run = h.claimed(jobs=("story",), tags=("gpu",), queues=("fast",))
    assert (run.id, run.handler) == (run_id, "story")
    h.fail(run)
    again = h(h.engine.rerun(run_id)).id
    assert h.claim(1, jobs=("research",), tags=("gpu",)) == []
    assert h.claimed(jobs=("story",), tags=("gpu",)).id == again


def test_a_rerun_keeps_its_handler_also_when_its_lane_was_removed(h: Harness) -> None:
    define(h, "daily", "story")
    run_id = h.create("daily")
    h.succeed(h.claimed())
    for lane in h(h.engine.all_lanes()):
        h(h.engine.drop_lane(lane.id))
    define(h, "daily", "research")
    again = h(h.engine.rerun(run_id)).id
    assert h.get(again).handler == "story"
    assert h.claim(1, jobs=("research",)) == []
    assert h.claimed(jobs=("story",)).id == again


def test_options_of_a_run_leave_its_handler(h: Harness) -> None:
    define(h, "daily", "story")
    h.create("daily", options=Options(max_attempts=7, requires=Requires(cores=2)))
    assert jobs_of(h.claim(1, jobs=("story",), cores=4)) == [("daily", "story")]


def test_pauses_and_limits_stay_with_the_definition(h: Harness) -> None:
    define(h, "story")
    define(h, "daily", "story", uses=(Use("press"),))
    h(h.engine.set_resource("press", capacity=1))
    for job in ("story", "daily", "daily", "story"):
        h.create(job)
    h(h.engine.pause("job", "story"))
    assert jobs_of(h.claim(10, jobs=("story",))) == [("daily", "story")]
    h(h.engine.resume("job", "story"))
    h(h.engine.pause("job", "daily"))
    assert jobs_of(h.claim(10, jobs=("story",))) == [("story", "story"), ("story", "story")]


def test_runs_of_a_schedule_have_the_handler_of_their_job(h: Harness) -> None:
    define(h, "daily", "story")
    schedule: Schedule = h(h.engine.schedule("dawn", "daily", every="1h"))
    h.sweep(after=schedule.next_at - h.clock.now() if schedule.next_at else 0)
    assert jobs_of(h.claim(1, jobs=("story",))) == [("daily", "story")]


# What it costs


def test_a_job_that_is_called_like_its_handler_is_stored_as_before(h: Harness) -> None:
    assert needs_text(needs_of(Options())) == ""
    assert policy_text(Policy()) is None
    define(h, "mail", "mail")
    h.create("mail")
    (lane,) = h(h.engine.all_lanes())
    assert (needs_text(lane.requires), lane.handler) == ("", "mail")


# Reasons and findings


def test_why_names_the_handler_that_no_worker_has(h: Harness) -> None:
    define(h, "daily", "story")
    run_id = h.create("daily")
    h(h.engine.register(WorkerInfo("w1", jobs=("daily",))))
    (reason,) = h(h.engine.why(run_id))
    assert (reason.code, reason.data["job"], reason.data["handler"]) == ("no_worker", "daily", "story")
    assert reason.text.endswith("; no worker has the handler 'story'.")
    h(h.engine.register(WorkerInfo("w2", jobs=("story",), queues=("other",))))
    (reason,) = h(h.engine.why(run_id))
    assert "no worker has the handler" not in reason.text
    h(h.engine.register(WorkerInfo("w3", jobs=("story",))))
    assert h(h.engine.why(run_id)) == []


def test_K23_the_doctor_names_the_handler_that_no_worker_has(h: Harness) -> None:
    define(h, "daily", "story")
    h.create("daily")
    h(h.engine.schedule("dawn", "daily", every="1h"))
    h(h.engine.register(WorkerInfo("w1", jobs=("daily",))))
    findings = {finding.code: finding for finding in h(h.engine.doctor())}
    assert "whose app has the handler 'story'" in findings["no_worker"].todo
    assert findings["no_worker"].data["handler"] == "story"
    assert "schedule_without_worker" in findings
    h(h.engine.register(WorkerInfo("w1", jobs=("story",))))
    assert {"no_worker", "schedule_without_worker"}.isdisjoint(finding.code for finding in h(h.engine.doctor()))


# Payloads


def test_payloads_are_checked_by_the_schema_of_the_definition_and_by_the_code_of_the_handler(h: Harness) -> None:
    h(h.engine.define("daily", handler="story", payload={"topic": "news"}, schema=STORY))
    h(h.engine.register(WorkerInfo("w1", jobs=("daily",)), schemas={"daily": "of-no-consequence"}))
    h.create("daily")
    with unchanged(h), pytest.raises(BadInput, match="does not fit the job 'daily'"):
        h.create("daily", {"topic": 7})
    h(h.engine.register(WorkerInfo("w2", jobs=("story",))))  # code that has sent no schema may accept it
    h.create("daily", {"topic": 7})


def test_a_payload_that_one_worker_refuses_is_offered_to_others_that_have_the_handler(h: Harness) -> None:
    define(h, "daily", "story")
    h.create("daily")
    h(h.engine.register(WorkerInfo("w1", jobs=("story",)), schemas={"story": "old"}))
    refuse = Refuse(error=Failure("bad_payload", "it does not fit"), schema="old")
    run = h.claimed(jobs=("story",))
    h(h.engine.register(WorkerInfo("w2", jobs=("story",)), schemas={"story": "new"}))
    assert h.report(run, Refuse(token=token(run), error=refuse.error, schema="old")).state is State.SCHEDULED
    h.sweep(after=60_000)
    h(h.engine.register(WorkerInfo("w2", jobs=("story",)), schemas={"story": "old"}))
    run = h.claimed(jobs=("story",))
    assert h.report(run, Refuse(token=token(run), error=refuse.error, schema="old")).state is State.FAILED


# Untrusted principals


def small(h: Harness, name: str = "shop") -> Engine:
    return h.engine.on_behalf_of(Principal(name, trusted=False))


def test_an_untrusted_principal_names_only_handlers_of_its_own_jobs(h: Harness) -> None:
    define(h, "charge", uses=(Use("bank"),))
    h(small(h, "other").define("theirs"))
    h(h.engine.create([NewRun("undefined")], undefined="wait"))
    for handler in ("charge", "theirs", "undefined", "nowhere"):
        with unchanged(h), pytest.raises(Forbidden, match=f"cannot have the handler '{handler}': no code of 'shop'"):
            h(small(h).define("mine", handler=handler))
    h(small(h).define("own"))
    assert h(small(h).define("mine", handler="own")).handler == "own"
    assert h(small(h).define("mine", handler="own")).handler == "own"  # again
    assert h(small(h).define("mine", handler="mine")).handler == "mine"


def test_a_handler_that_became_another_owners_is_not_given_other_options(h: Harness) -> None:
    h(small(h).define("charge"))
    h(small(h).define("mine", handler="charge", options=Options(uses=(Use("bank"),))))
    h(h.engine.on_behalf_of(Principal("ops", trusted=True)).define("charge", options=Options(max_attempts=3)))  # takes it over
    with unchanged(h), pytest.raises(Forbidden, match="cannot have the handler 'charge'"):
        h(small(h).define("mine", handler="charge"))


def test_code_may_repeat_the_definition_of_another_owner_with_its_handler_and_change_nothing(h: Harness) -> None:
    define(h, "story")
    define(h, "daily", "story")
    assert h(small(h).define("daily", handler="story")).handler == "story"
    with pytest.raises(Forbidden, match="The job 'daily' was made by a person or another program"):
        h(small(h).define("daily", handler="story", options=Options(max_attempts=9)))
    with pytest.raises(Forbidden, match="The job 'daily' was made by a person or another program"):
        h(small(h).define("daily"))
