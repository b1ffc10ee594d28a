"""G39: every invariant and decision of the document has a unit test, an integration test and an error case through the library, and is
stated in the docs. The unit tests ask the words and the rules alone; the others are here and in the modules beside this one.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, get_args

import pytest

from tests.dialects import (
    test_guards_document,
    test_guards_groups,
    test_guards_jobs,
    test_guards_scheduler,
    test_guards_schedules,
)
from tests.dialects.guards_library import Library
from tests.harness import Harness
from windlass.dialects import guards
from windlass.dialects.guards import InvalidValueError, JobStatus, Scheduler, Settings, is_terminal
from windlass.dialects.guards.records import to_datetime
from windlass.dialects.guards.reports import report_of
from windlass.dialects.guards.rules import backoff, check_position, options_of
from windlass.dialects.guards.words import FINISHED, GROUP_WORDS, WORDS, GroupStatus, JobRunStatus, engine_group_status, standing
from windlass.errors import StoreError
from windlass.machine import UNFINISHED, Succeed
from windlass.model import GroupStatus as EngineGroupStatus
from windlass.model import Options, State, Use
from windlass.worker.lives import is_gone

PAGE = Path(__file__).parents[2] / "docs" / "dialects" / "guards.md"
MODULES = (test_guards_document, test_guards_groups, test_guards_jobs, test_guards_schedules, test_guards_scheduler)


@pytest.fixture
def s(h: Harness) -> Library:
    return Library(h)


# Rules in isolation


def test_only_a_queued_job_is_before_dispatch() -> None:
    assert {state for state in State if WORDS.label(state) == JobStatus.QUEUED} == {State.WAITING, State.SCHEDULED, State.QUEUED}
    assert JobStatus.DISPATCHED not in WORDS.labels.values()
    assert WORDS.label(State.CLAIMED) == JobStatus.RUNNING


def test_a_report_has_the_five_fields_and_no_other() -> None:
    assert set(inspect.signature(report_of).parameters) == {"updates", "run"}
    assert {"finished_at", "status", "exit_code", "error", "artifacts"} == guards.JOBRUN_MUTABLE_FIELDS


def test_one_slot_of_one_resource_is_used_by_every_job() -> None:
    assert options_of(Options(), Settings()).uses == (Use("guards"),)
    assert options_of(Options(uses=(Use("gpu", 2),)), Settings(), ["ollama"]).uses == (Use("guards"), Use("ollama"), Use("gpu", 2))
    assert Settings().capacity == 1


@pytest.mark.parametrize("value", [-1, 1.5, "100", None, True, 2**60])
def test_a_position_is_a_whole_number(value: object) -> None:
    with pytest.raises(InvalidValueError, match="position"):
        check_position(value)


def test_the_params_of_a_schedule_are_its_own(s: Library) -> None:
    params = {"topic": "sea"}
    s.create_schedule("story", "0 * * * *", params=params, name="hourly")
    params["topic"] = "sky"
    assert s.get_schedule("hourly").param_overrides == {"topic": "sea"}


def test_words_of_groups_go_both_ways() -> None:
    assert set(GROUP_WORDS) == set(get_args(EngineGroupStatus))
    assert {engine_group_status(word): word for word in GroupStatus} == dict(GROUP_WORDS)
    assert [word for word in GroupStatus if not is_terminal(word)] == [GroupStatus.RUNNING]


def test_every_outcome_has_two_words_and_an_end_is_known_although_its_word_is_running() -> None:
    for outcome in (*State, "lapsed", "returned"):
        for executed in (True, False):
            job, run = standing(outcome, executed=executed)
            assert job in (JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.CANCELLED)
            assert is_terminal(job) == (outcome not in UNFINISHED)
            assert run is None or is_terminal(job)
    assert (FINISHED, json.dumps(FINISHED), hash(FINISHED)) == (JobStatus.RUNNING, '"RUNNING"', hash(JobStatus.RUNNING))
    assert FINISHED in [JobStatus.DISPATCHED, JobStatus.RUNNING]
    assert [word for word in (JobStatus.RUNNING, "RUNNING", "CANCELLED", None) if is_terminal(word)] == ["CANCELLED"]
    assert standing(State.SKIPPED, executed=False) == (JobStatus.CANCELLED, JobRunStatus.SKIPPED)


def test_G20_only_the_documented_words_are_shown() -> None:
    shown = {standing(outcome, executed=True).job.value for outcome in (*State, "lapsed", "returned")}
    assert shown == {"QUEUED", "RUNNING", "CANCELLED"}
    assert {word.value for word in JobRunStatus} == {"COMPLETED", "FAILED", "SKIPPED"}
    assert JobStatus.DISPATCHED not in shown


@pytest.mark.parametrize("word", ["succeeded", "error", "dispatched", "completed", "DISPATCHED"])
def test_G20_deprecated_words_are_refused(s: Library, word: str) -> None:
    job = s.dispatch_job(s.job()).job_id
    with s.refused("There is no status", InvalidValueError):
        s.update_jobrun(job, status=word)
    for read in (s.list_jobs, s.list_groups):
        with s.refused("There is no status", InvalidValueError):
            read(word)


def test_delays_double_from_10_seconds_on() -> None:
    assert backoff(4) == (10_000, 20_000, 40_000)
    assert backoff(1) == (10_000,)
    assert backoff(999)[-1] == 10_000 << 9
    assert (Settings().executions(3), Settings(count_executions=True).executions(3)) == (4, 3)
    assert [Settings().max_attempts_of(Settings().executions(n)) for n in range(5)] == list(range(5))


def test_a_process_counts_as_gone_only_where_that_is_proven() -> None:
    assert not is_gone("another machine 1 1 1")


def test_times_have_microseconds_and_z(s: Library) -> None:
    assert to_datetime(1_767_225_600_001) == datetime(2026, 1, 1, 0, 0, 0, 1_000, tzinfo=UTC)
    assert s.get_template("story").to_json()["created_at"].endswith(".000000Z")


def test_a_job_remembers_one_execution(s: Library) -> None:
    run = s.dispatch_job(s.job())
    report = report_of({"status": "COMPLETED"}, s.h.get(run.job_id))
    assert report == (JobRunStatus.COMPLETED, Succeed(token=s.h.get(run.job_id).token, output='{"exit_code":0,"artifacts":[]}'))


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    path.write_bytes(b"not a database, but long enough to look like something" * 40)
    with pytest.raises(StoreError), Scheduler(path) as s:
        s.create_template("story")
    assert path.read_bytes().startswith(b"not a database")


def test_a_missing_predecessor_leaves_the_rest_cancelled_and_a_group_is_never_reopened(s: Library) -> None:
    new = s.create_group([{"template_id": "story"}] * 2, sequential=True)
    s.cancel_job(new.job_ids[0])
    assert s.load_job(new.job_ids[1]).reason == "predecessor failed"
    with s.refused("Cannot dispatch"):
        s.dispatch_job(new.job_ids[1])


def test_settings_that_cannot_be_kept_are_refused() -> None:
    for settings in ({"capacity": 0}, {"queue": ""}, {"resources": {"ollama": 0}}, {"max_attempts": -1}):
        with pytest.raises(Exception, match="must be"):
            Settings(**settings)


# The table


class ThreeTests(NamedTuple):
    """The tests of a rule, by their names."""

    unit: str
    integration: str
    error: str


RULES: Mapping[str, ThreeTests] = {
    "INV-001": ThreeTests(
        "test_only_a_queued_job_is_before_dispatch",
        "test_G1_the_documents_example_test_passes",
        "test_G1_an_edit_that_loses_the_race_with_a_worker_is_refused_too",
    ),
    "INV-002": ThreeTests(
        "test_a_report_has_the_five_fields_and_no_other",
        "test_G3_the_five_fields_end_a_run",
        "test_G3_an_immutable_field_of_a_run_is_refused_by_its_name",
    ),
    "INV-003": ThreeTests(
        "test_one_slot_of_one_resource_is_used_by_every_job",
        "test_G25_four_processes_execute_one_at_a_time_and_direct_calls_next",
        "test_G4_a_worker_with_a_running_job_gets_no_second",
    ),
    "INV-004": ThreeTests(
        "test_G34_position_N_is_before_the_first_of_N_or_more",
        "test_G5_a_claim_takes_what_the_documents_sql_selects",
        "test_G32_priorities_are_0_to_100",
    ),
    "INV-005": ThreeTests(
        "test_the_params_of_a_schedule_are_its_own",
        "test_G6_a_schedule_that_changes_leaves_its_jobs_as_they_were",
        "test_other_bad_schedules_are_refused_too",
    ),
    "INV-006": ThreeTests(
        "test_words_of_groups_go_both_ways",
        "test_G7_the_documents_own_function_agrees_on_random_groups",
        "test_a_group_is_cancelled_once",
    ),
    "DEC-001": ThreeTests(
        "test_a_job_remembers_one_execution",
        "test_G9_a_retry_is_a_new_job_that_names_the_failed_one",
        "test_the_same_status_again_changes_nothing_and_another_is_refused",
    ),
    "DEC-002": ThreeTests(
        "test_G36_a_file_has_a_write_ahead_log",
        "test_G36_what_was_created_is_there_after_a_kill",
        "test_a_file_that_is_no_store_is_refused",
    ),
    "DEC-003": ThreeTests(
        "test_G23_changes_of_the_clock_are_handled",
        "test_G38_an_instant_that_was_missed_is_caught_up_once",
        "test_a_bad_expression_is_refused",
    ),
    "DEC-004": ThreeTests(
        "test_G19_direct_calls_are_served_in_the_order_in_which_they_asked",
        "test_G17_while_a_job_runs_a_direct_call_waits_and_is_next",
        "test_a_direct_call_that_does_not_wait_is_refused_while_another_has_the_slot",
    ),
    "DEC-005": ThreeTests(
        "test_G34_position_N_is_before_the_first_of_N_or_more",
        "test_G34_positions_are_hundreds_and_a_job_can_be_put_anywhere",
        "test_a_position_is_a_whole_number",
    ),
    "DEC-006": ThreeTests(
        "test_every_outcome_has_two_words_and_an_end_is_known_although_its_word_is_running",
        "test_lists_have_all_of_large_jobs_and_filter_by_words",
        "test_G20_deprecated_words_are_refused",
    ),
    "DEC-007": ThreeTests(
        "test_delays_double_from_10_seconds_on",
        "test_G11_three_retries_after_10_20_and_40_seconds_and_then_none",
        "test_G12_what_has_not_failed_cannot_be_retried",
    ),
    "DEC-008": ThreeTests(
        "test_a_process_counts_as_gone_only_where_that_is_proven",
        "test_G13_a_scheduler_that_is_killed_with_a_job_running_is_recovered_by_the_next",
        "test_G13_a_job_whose_process_lives_keeps_running",
    ),
    "DEC-009": ThreeTests(
        "test_G21_every_execution_that_ends_has_one_event",
        "test_G21_a_receiver_that_fails_is_asked_three_times_and_never_again",
        "test_G21_an_address_that_would_never_be_sent_to_is_refused",
    ),
    "DEC-010": ThreeTests(
        "test_G23_a_schedule_without_a_zone_is_in_utc_and_another_is_in_its_own",
        "test_G23_a_changed_zone_applies_from_the_next_trigger_on",
        "test_G24_an_unknown_zone_is_refused",
    ),
    "DEC-011": ThreeTests(
        "test_one_slot_of_one_resource_is_used_by_every_job",
        "test_G37_one_slot_by_default_and_limits_by_tag_where_they_are_set",
        "test_settings_that_cannot_be_kept_are_refused",
    ),
    "DEC-012": ThreeTests(
        "test_G26_the_jobs_of_a_sequence_run_one_after_the_other",
        "test_G27_a_final_failure_cancels_the_rest_and_no_earlier",
        "test_a_missing_predecessor_leaves_the_rest_cancelled_and_a_group_is_never_reopened",
    ),
}


def _modules() -> tuple[ModuleType, ...]:
    from tests.dialects import test_guards_rules, test_guards_webhooks

    return (*MODULES, test_guards_rules, test_guards_webhooks)


def _test(name: str) -> Callable[..., None]:
    (test,) = {getattr(module, name) for module in _modules() if hasattr(module, name)}
    function: Callable[..., None] = test
    return function


def test_G39_every_rule_has_its_three_tests_and_is_in_the_docs() -> None:
    text = PAGE.read_text()
    assert list(RULES) == [*(f"INV-{n:03}" for n in range(1, 7)), *(f"DEC-{n:03}" for n in range(1, 13))]
    for rule, tests in RULES.items():
        assert len(set(tests)) == 3, rule
        assert all(callable(_test(name)) for name in tests), rule
        source = inspect.getsource(_test(tests.error))
        assert "refused(" in source or "raises(" in source or "finished_at is None" in source, rule
        assert re.search(rf"^### {rule}", text, re.M), rule
