"""G39: every invariant and decision of the scheduler's design guards has a unit test, an integration test and an error case.

The unit tests ask the rule alone (the machine, the gates, the calendar); the integration tests let real workers or whole engines do
what people do; the error cases break the rule and see it refused, with nothing changed. `docs/dialects/guards.md` states each.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import IN_STATE, restarted, unchanged
from tests.harness import BOOM, LEASE, Harness
from tests.workers import Gate, ended, working
from windlass import App, Context, State, defaults, payload
from windlass.cron import upcoming
from windlass.errors import BadInput, LeaseLost, NotEditable, WrongState
from windlass.firing import rule_of
from windlass.limiters import Candidate, Limiter, Need, Selector
from windlass.machine import ENDED, LIVE, MOVES, Cancel, Claim, Fail, Lapse, Patch, Reorder, backoff, step
from windlass.model import Member, NewGroup, NewRun, Options, Policy, Resource, Run, Use
from windlass.store.base import run_sync
from windlass.webhooks import STANDARD

PAGE = Path(__file__).parents[2] / "docs" / "dialects" / "guards.md"
NOW = 1_800_000_000_000


def a_run(state: State = State.QUEUED, **fields: Any) -> Run:
    """A run as the machine sees it."""
    held = {"token": "t" * 22, "worker": "w1", "lease": LEASE, "claimed_at": NOW, "lease_until": NOW + LEASE} if state in LIVE else {}
    given: dict[str, Any] = {"payload": '{"key":"value"}', "max_attempts": 3, "max_runtime": None, "policy": Policy()} | held | fields
    return Run(1, "run-1", 1, state, "mail", "default", 1, 0, 0, due_at=NOW, created_at=NOW, **given)


def chosen(*candidates: Candidate, capacity: int, held: int = 0, count: int = 10) -> list[int]:
    """Which of these runs a claim may take of one resource."""
    choice = Selector(NOW)
    choice.limiters["ollama"] = Limiter("ollama", Resource("ollama", capacity, (), 60_000, 0, 0), held, {}, NOW)
    choice.offer(candidates, count)
    return [candidate.seq for candidate in choice.runs]


def using(seq: int, weight: int = 1) -> Candidate:
    return Candidate(seq, 1, NOW, (Need("ollama", weight),))


def test_G39_every_rule_has_its_three_tests_and_is_stated_in_the_docs() -> None:
    text = PAGE.read_text()
    rules = [f"INV-{n:03}" for n in range(1, 7)] + [f"DEC-{n:03}" for n in range(1, 13)]
    for rule in rules:
        tests = [name for name in dir(globals()[f"Test{rule.replace('-', '')}"]) if name.startswith("test_")]
        assert {name.split("_")[1] for name in tests} == {"unit", "integration", "error"}, rule
        assert re.search(rf"^### {rule}", text, re.M), rule


class TestINV001:
    """What was handed out does not change."""

    @pytest.mark.parametrize("state", sorted({*LIVE, *ENDED}))
    def test_unit_there_is_no_patch_from_where_it_was_handed_out(self, state: State) -> None:
        assert Patch not in MOVES[state]

    def test_integration_a_handler_sees_what_it_was_dispatched_with(self, app: App) -> None:
        gate, seen = Gate(), []

        @app.job()
        def story(ctx: Context, topic: str) -> None:
            gate.block()
            seen.append((topic, payload.decode(run_sync(app.verbs.get(ctx.run)).payload)))

        with working(app):
            handle = story.enqueue(topic="old")
            gate.reached()
            with pytest.raises(NotEditable):
                run_sync(app.verbs.patch(handle.id, payload={"topic": "new"}))
            gate.open()
            ended(handle)
        assert seen == [("old", {"topic": "old"})]

    def test_error_the_refusal_says_what_cannot_be_modified(self, h: Harness) -> None:
        run = IN_STATE[State.RUNNING](h)
        with unchanged(h), pytest.raises(NotEditable, match="Cannot modify payload"):
            h(h.engine.patch(run.id, payload={"key": "new_value"}))


class TestINV002:
    """An attempt is an audit record."""

    def test_unit_a_further_attempt_leaves_the_one_before_as_it_was(self) -> None:
        run = a_run(State.RUNNING, started_at=NOW)
        after = step(run, Fail(token=run.token, error=BOOM, next_id="run-2"), NOW + 5)
        assert (after.attempt, after.current_attempt, after.retry_of) == (2, "run-2", "run-1")
        assert (after.payload, after.created_at, after.job) == (run.payload, run.created_at, run.job)

    def test_integration_closed_attempts_stay_as_they_were_closed(self, h: Harness) -> None:
        h.define("mail", backoff=(0,))
        run_id = h.create()
        h.fail(h.started())
        first = h(h.engine.attempts(run_id))[0]
        h.fail(h.started("w2"))
        h.succeed(h.started("w3"), '"done"')
        attempts = h(h.engine.attempts(run_id))
        assert attempts[0] == first
        assert [attempt.outcome for attempt in attempts] == ["failed", "failed", "succeeded"]

    def test_error_no_field_of_the_record_can_be_edited(self, h: Harness) -> None:
        run = IN_STATE[State.SUCCEEDED](h)
        for field in ("started_at", "worker", "output", "attempt"):
            with unchanged(h), pytest.raises(NotEditable, match=f"Cannot modify {field}"):
                h(h.engine.patch(run.id, **dict[str, Any]({field: 1})))


class TestINV003:
    """A worker executes one at a time, unless it has more slots."""

    def test_unit_a_claim_takes_the_one_slot(self) -> None:
        claim = Claim(grant="t" * 22, worker="w1", lease=LEASE, slot=0)
        assert step(a_run(), claim, NOW).slot == 0

    def test_integration_a_worker_with_one_slot_never_has_two(self, app: App) -> None:
        gate = Gate()

        @app.job()
        def work() -> None:
            gate.block()

        with working(app, slots=1):
            handles = [work.enqueue() for _ in range(3)]
            gate.reached()
            gate.open()
            assert [ended(handle).state for handle in handles] == [State.SUCCEEDED] * 3
        assert gate.limit == 1

    def test_error_a_second_claim_gets_nothing(self, h: Harness) -> None:
        h.create(), h.create()
        h.claimed(slots=1)
        with unchanged(h):
            assert h.claim(slots=1) == []


class TestINV004:
    """Priority, then position, then age."""

    def test_unit_the_machine_orders_by_band_and_position(self) -> None:
        urgent = step(a_run(), Patch(priority=7), NOW)
        assert (urgent.priority_key, urgent.priority) == (-7, 7)
        assert step(a_run(), Reorder(priority_key=-7, position=3), NOW).position == 3

    def test_integration_runs_go_out_in_order_also_after_a_restart(
        self, h: Harness, tmp_path: Path, request: pytest.FixtureRequest
    ) -> None:
        low, middle, high = h.create(), h.create(), h.create(options=Options(priority=9))
        h(h.engine.move(low, after=middle))
        again = restarted(h, tmp_path, request)
        assert [again.claimed().id for _ in range(3)] == [high, middle, low]

    def test_error_what_runs_has_no_place_to_be_moved_to(self, h: Harness) -> None:
        run = IN_STATE[State.RUNNING](h)
        with unchanged(h), pytest.raises(NotEditable, match="position"):
            h(h.engine.move(run.id, to="top"))


class TestINV005:
    """A schedule makes runs and never touches them again."""

    def test_unit_a_run_made_by_a_schedule_has_its_own_payload(self) -> None:
        assert a_run(schedule=1, instant=NOW).payload == '{"key":"value"}'

    def test_integration_editing_and_disabling_leave_what_was_made(self, h: Harness) -> None:
        h(h.engine.schedule("nightly", "mail", every="1h", payload={"to": "ann"}))
        h.sweep(after=3_600_000)
        (made,) = h(h.engine.runs()).runs
        h(h.engine.set_schedule("nightly", payload={"to": "bob"}))
        h(h.engine.set_schedule("nightly", enabled=False))
        assert h.get(made.id) == made

    def test_error_a_schedule_of_an_unknown_zone_changes_nothing(self, h: Harness) -> None:
        h(h.engine.schedule("nightly", "mail", every="1h"))
        before = h(h.engine.get_schedule("nightly"))
        with pytest.raises(BadInput):
            h(h.engine.set_schedule("nightly", zone="Nowhere/City"))
        assert h(h.engine.get_schedule("nightly")) == before


class TestINV006:
    """A group ends when all have ended."""

    def test_unit_a_run_is_no_end_while_it_can_be_tried_again(self) -> None:
        run = a_run(State.RUNNING, grouped=1)
        assert step(run, Fail(token=run.token, error=BOOM, delay=5, next_id="n"), NOW).state not in ENDED

    def test_integration_the_status_comes_with_the_last_end(self, h: Harness) -> None:
        group = h(h.engine.create_group(NewGroup((Member(NewRun("mail")), Member(NewRun("mail"))))))
        h.succeed(h.claimed())
        assert h(h.engine.get_group(group.id)).status == "running"
        h.succeed(h.claimed())
        done = h(h.engine.get_group(group.id))
        assert (done.status, done.succeeded) == ("completed", 2)

    def test_error_an_ended_group_ends_only_once(self, h: Harness) -> None:
        group = h(h.engine.create_group(NewGroup((Member(NewRun("mail")),))))
        run = h.claimed()
        h.succeed(run)
        with unchanged(h):
            h.succeed(run)  # the same report again
        assert h(h.engine.get_group(group.id)).succeeded == 1


class TestDEC001:
    """One execution, one record; a retry is a new one."""

    def test_unit_a_retry_names_the_one_before(self) -> None:
        run = a_run(State.RUNNING)
        second = step(run, Fail(token=run.token, error=BOOM, delay=0, next_id="run-2"), NOW)
        third = step(step(second, Claim(grant="u" * 22, worker="w", lease=1), NOW), Lapse(token="u" * 22, next_id="run-3"), NOW)
        assert (second.retry_of, third.retry_of) == ("run-1", "run-2")

    def test_integration_the_chain_tells_every_execution(self, h: Harness) -> None:
        h.define("mail", backoff=(0,))
        run_id = h.create()
        for _ in range(2):
            h.fail(h.claimed())
        h.succeed(h.claimed())
        attempts = h(h.engine.attempts(run_id))
        assert [attempt.retry_of for attempt in attempts] == [None, attempts[0].id, attempts[1].id]

    def test_error_the_report_of_a_closed_attempt_does_not_reach_the_next(self, h: Harness) -> None:
        h.define("mail", backoff=(0,))
        h.create()
        stale = h.claimed()
        h.fail(stale)
        h.claimed("w2")
        with unchanged(h), pytest.raises(LeaseLost):
            h.succeed(stale)


class TestDEC002:
    """One SQLite file is enough."""

    def test_unit_a_file_is_opened_with_a_write_ahead_log(self, tmp_path: Path) -> None:
        with App(str(tmp_path / "w.db")) as app:
            app.enqueue_many([])
            run_sync(app.verbs.define("mail"))
            assert (tmp_path / "w.db-wal").exists()

    def test_integration_everything_is_there_after_the_process_is_gone(self, tmp_path: Path) -> None:
        with App(str(tmp_path / "w.db")) as app:
            run_sync(app.verbs.define("mail"))
            ids = [run_sync(app.verbs.create([NewRun("mail")]))[0].id for _ in range(3)]
        with App(str(tmp_path / "w.db")) as app:
            assert [run.id for run in run_sync(app.verbs.runs(state="queued")).runs] == ids

    def test_error_a_file_that_is_no_database_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "w.db"
        path.write_bytes(b"not a database, but long enough to look like something" * 40)
        with pytest.raises(Exception, match="database"), App(str(path)) as app:
            run_sync(app.verbs.define("mail"))
        assert path.read_bytes().startswith(b"not a database")


class TestDEC003:
    """Cron is read by a proven library."""

    def test_unit_sunday_is_0_and_days_join_by_or(self, h: Harness) -> None:
        schedule = h(h.engine.schedule("s", "mail", cron="0 3 1 * 0"))
        start = round(datetime(2026, 3, 1, tzinfo=UTC).timestamp() * 1000)
        found = [datetime.fromtimestamp(at / 1000, UTC) for at in upcoming(rule_of(schedule), start, schedule.anchor, 5)]
        assert all(at.day == 1 or at.weekday() == 6 for at in found)
        assert any(at.day != 1 for at in found)

    def test_integration_a_trigger_makes_a_run_of_ours(self, h: Harness) -> None:
        h(h.engine.schedule("s", "mail", cron="* * * * *"))
        h.sweep(after=60_000)
        (run,) = h(h.engine.runs()).runs
        assert (run.job, run.state) == ("mail", State.QUEUED)

    def test_error_what_cron_cannot_say_is_refused(self, h: Harness) -> None:
        with unchanged(h), pytest.raises(BadInput):
            h(h.engine.schedule("s", "mail", cron="61 * * * *"))


class TestDEC004:
    """[current] -> [direct] -> [queue]."""

    def test_unit_a_reservation_counts_as_occupying(self) -> None:
        assert chosen(using(1), capacity=1, held=1) == []
        assert chosen(using(1), capacity=1, held=0) == [1]

    def test_integration_the_direct_call_is_next_and_the_queue_goes_on_after_it(self, h: Harness) -> None:
        h(h.engine.set_resource("ollama", capacity=1))
        h.define("story", uses=(Use("ollama"),))
        first, second = h.create("story"), h.create("story")
        current = h.claimed()
        direct = h(h.engine.reserve("ollama"))
        assert (current.id, direct.state, h.claim()) == (first, "waiting", [])
        h.succeed(current)
        assert h.claim() == []
        direct = h(h.engine.renew(direct.id, direct.token))
        assert direct.state == "held"
        h(h.engine.release(direct.id, direct.token))
        assert h.claimed().id == second
        assert len(h(h.engine.runs()).runs) == 2  # the direct call made none

    def test_error_more_than_there_is_cannot_be_reserved(self, h: Harness) -> None:
        h(h.engine.set_resource("ollama", capacity=1))
        with unchanged(h), pytest.raises(BadInput):
            h(h.engine.reserve("ollama", weight=2))


class TestDEC005:
    """Positions, not only insertion time."""

    def test_unit_a_move_changes_position_and_nothing_else(self) -> None:
        before = a_run()
        after = step(before, Reorder(priority_key=0, position=41), NOW)
        assert (after.position, after.rev, after.payload) == (41, before.rev + 1, before.payload)

    def test_integration_inserting_at_n_moves_the_others_by_one(self, h: Harness) -> None:
        ids = [h.create() for _ in range(5)]
        h(h.engine.move(ids[4], place=1))
        assert [run.id for run in h(h.engine.runs(state="queued")).runs] == [ids[0], ids[4], *ids[1:4]]

    def test_error_a_place_that_is_none_is_refused(self, h: Harness) -> None:
        run_id = h.create()
        with unchanged(h), pytest.raises(BadInput):
            h(h.engine.move(run_id, place=-1))


class TestDEC006:
    """One word for each state, everywhere."""

    def test_unit_states_are_the_documented_words(self) -> None:
        assert set(MOVES) == set(State)

    def test_integration_journal_and_run_say_the_same(self, h: Harness) -> None:
        run_id = h.create()
        h.succeed(h.started())
        assert h(h.engine.history(run_id))[-1].state is h.get(run_id).state is h(h.engine.status(run_id)).state

    def test_error_another_word_is_refused(self, h: Harness) -> None:
        with unchanged(h), pytest.raises(BadInput, match="error"):
            h(h.engine.runs(state="error"))


class TestDEC007:
    """Three attempts by themselves, then only by hand."""

    def test_unit_delays_grow(self) -> None:
        delays = [backoff(a_run(failures=failures), chance=0.0) for failures in range(defaults.ATTEMPTS - 1)]
        assert delays == sorted(set(delays))

    def test_integration_three_failures_then_a_rerun_by_hand(self, h: Harness) -> None:
        h.define("mail", max_attempts=3, backoff=(0,))
        run_id = h.create()
        for _ in range(3):
            h.fail(h.claimed())
        assert h.get(run_id).state is State.FAILED
        assert h.claim() == []
        again = h(h.engine.rerun(run_id))
        assert h.claimed().id == again.id

    def test_error_what_has_not_ended_cannot_be_rerun(self, h: Harness) -> None:
        run_id = h.create()
        with unchanged(h), pytest.raises(WrongState):
            h(h.engine.rerun(run_id))


class TestDEC008:
    """The queue outlives the process."""

    def test_unit_a_lost_worker_leaves_a_reason_and_a_retry(self) -> None:
        run = a_run(State.RUNNING)
        after = step(run, Lapse(token=run.token, next_id="run-2"), NOW)
        assert after.state is State.SCHEDULED
        assert after.error is not None
        assert "recovered" in after.error.message

    def test_integration_queued_runs_keep_their_order_and_lost_ones_are_tried_again(self, h: Harness) -> None:
        h.define("mail", backoff=(0,))
        lost, queued, last = h.create(), h.create(), h.create()
        assert h.claimed().id == lost
        again = h.another()
        again.sweep(after=LEASE + 1)
        assert [run.id for run in again.claim(3)] == [lost, queued, last]

    def test_error_the_lost_worker_is_refused_when_it_comes_back(self, h: Harness) -> None:
        h.define("mail", backoff=(0,))
        h.create()
        lost = h.claimed()
        h.sweep(after=LEASE + 1)
        with unchanged(h), pytest.raises(LeaseLost):
            h.succeed(lost)


class TestDEC009:
    """At least once, three tries, then failed."""

    def _end(self, h: Harness) -> str:
        h(h.engine.add_webhook("https://example.org/hook", states=("succeeded",)))
        run_id = h.create()
        h.succeed(h.claimed())
        h(h.engine.make_deliveries(STANDARD.content(h.engine)))
        return run_id

    def test_unit_an_end_is_one_entry_to_be_told(self, h: Harness) -> None:
        run_id = self._end(h)
        (delivery,) = h(h.engine.deliveries(h(h.engine.webhooks())[0].id)).deliveries
        assert (delivery.run, delivery.status) == (run_id, "pending")

    def test_integration_after_three_tries_it_is_failed_and_can_be_resent(self, h: Harness) -> None:
        self._end(h)
        endpoint = h(h.engine.webhooks())[0].id
        for _ in range(3):
            h.clock.advance(3_600_000)
            (parcel,) = h(h.engine.claim_deliveries(10, LEASE))
            h(h.engine.not_delivered(parcel.delivery.id, parcel.delivery.token or "", "500"))
        (delivery,) = h(h.engine.deliveries(endpoint)).deliveries
        assert (delivery.status, delivery.tries) == ("failed", 3)
        h.clock.advance(3_600_000)
        assert h(h.engine.claim_deliveries(10, LEASE)) == []

    def test_error_an_address_inside_the_network_is_refused(self, h: Harness) -> None:
        with unchanged(h), pytest.raises(BadInput):
            h(h.engine.add_webhook("file:///etc/passwd"))


class TestDEC010:
    """Each schedule has a zone; UTC by default."""

    def _next(self, h: Harness, **words: Any) -> datetime:
        schedule = h(h.engine.schedule("s", "mail", cron="0 3 * * *", **words))
        assert schedule.next_at is not None
        return datetime.fromtimestamp(schedule.next_at / 1000, UTC)

    def test_unit_without_a_zone_it_is_utc(self, h: Harness) -> None:
        assert self._next(h).hour == 3

    def test_integration_another_zone_counts_from_the_next_instant(self, h: Harness) -> None:
        self._next(h)
        h.sweep(after=timedelta(days=1) // timedelta(milliseconds=1))
        (made,) = h(h.engine.runs()).runs
        edited = h(h.engine.set_schedule("s", zone="Asia/Tokyo"))
        assert datetime.fromtimestamp((edited.next_at or 0) / 1000, UTC).hour == 18
        assert h.get(made.id) == made

    def test_error_an_unknown_zone_is_refused(self, h: Harness) -> None:
        with unchanged(h), pytest.raises(BadInput, match="zone"):
            self._next(h, zone="Europe/Pariss")


class TestDEC011:
    """One at a time anywhere, where `global` has a capacity of 1."""

    def test_unit_one_takes_all_there_is(self) -> None:
        assert chosen(using(1), using(2), using(3), capacity=1) == [1]

    def test_integration_never_more_than_one_over_several_workers(self, app: App) -> None:
        run_sync(app.verbs.set_resource("global", capacity=1))
        gate = Gate()
        gate.open()

        @app.job(uses="global")
        def one() -> None:
            gate.block()

        @app.job(uses="global", queue="other")
        def another() -> None:
            gate.block()

        with working(app, name="a", slots=4), working(app, name="b", slots=4):
            handles = [job.enqueue() for _ in range(10) for job in (one, another)]
            assert {ended(handle).state for handle in handles} == {State.SUCCEEDED}
        assert gate.limit == 1

    def test_error_while_one_runs_nobody_else_gets_any(self, h: Harness) -> None:
        h(h.engine.set_resource("global", capacity=1))
        h.define("mail", uses=(Use("global"),))
        h.create(), h.create()
        h.claimed()
        assert h.another().claim(5, "w2") == []


class TestDEC012:
    """In a sequential group nothing follows a failure."""

    def _chain(self, h: Harness) -> str:
        h.define("mail", max_attempts=1)
        return h(h.engine.create_group(NewGroup(tuple(Member(NewRun("mail")) for _ in range(3)), kind="sequential"))).id

    def test_unit_what_waits_can_be_cancelled(self) -> None:
        assert step(a_run(State.WAITING), Cancel(reason="predecessor failed"), NOW).state is State.CANCELLED

    def test_integration_the_rest_is_cancelled_with_the_reason(self, h: Harness) -> None:
        group = self._chain(h)
        h.fail(h.claimed())
        members = h(h.engine.members(group))
        assert [run.state for run in members] == [State.FAILED, State.CANCELLED, State.CANCELLED]
        assert {run.reason for run in members[1:]} == {"predecessor failed"}
        assert h(h.engine.get_group(group)).status == "partial"

    def test_error_another_rule_is_refused(self, h: Harness) -> None:
        members = (Member(NewRun("mail")),)
        with unchanged(h), pytest.raises(BadInput):
            h(h.engine.create_group(NewGroup(members, kind="sequential", on_failure="explode")))  # type: ignore[arg-type]
