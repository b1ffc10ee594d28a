"""The same machine with everything that decides who is next: moves, groups, limits, direct calls, pauses and queues that age."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test

from tests.invariants import Snapshot, no_worker_has_too_much
from tests.proof.dictionary_model import Bunch, Doc, gate
from tests.proof.test_stateful import (
    AHEAD,
    DAY,
    FAIR,
    MINUTE,
    SETTINGS,
    WORKERS,
    EngineMachine,
    Process,
    opened,
    options,
    payloads,
    picks,
    troubles,
)
from tests.tiers import MANY
from windlass.engine import Outcome
from windlass.errors import OutcomeUnknown, WindlassError
from windlass.machine import Succeed
from windlass.model import Group, Member, NewGroup, NewRun, Options, Rate, Requires, Run, Slot, Use, WorkerInfo
from windlass.store.base import Store, run_sync

HEAVIEST = 2
uses = st.sampled_from(
    [
        (),
        (Use("gpu"),),
        (Use("gpu", HEAVIEST),),
        (Use("disk"), Use("gpu")),
        (Use("disk", HEAVIEST), Use("gpu")),
        (Use("tenant", per="x"),),
        (Use("tenant", per="x"),),
        (Use("gpu"), Use("tenant", per="x")),
        (Use("mail"),),
        (Use("gpu"), Use("mail")),
    ]
)
"""What runs occupy: of one resource, of two, for each tenant, and of one with a rate."""
requires = st.sampled_from([None, None, Requires(cores=1), Requires(cores=2), Requires(cores=3), Requires(("gpu",), cores=2)])
"""What runs use up of their worker: one has four cores, one three, the others one."""
RESOURCES = ("disk", "gpu", "mail", "tenant")
capacities = st.sampled_from([1, 1, 2, 2, 3, 4, 0, None])
rates = st.sampled_from([(), (), (Rate(1, 10_000),), (Rate(2, 5_000), Rate(3, 60_000, 1)), (Rate(3, 1_000, HEAVIEST),)])
slot_leases = st.sampled_from([1_000, 30_000, 10 * MINUTE, DAY])
queues = st.sampled_from(["default", "default", "other", "third"])
scopes = st.sampled_from([("system", ""), ("queue", "default"), ("queue", "other"), ("job", "a"), ("job", "b")])
"""What is paused."""


class OrderMachine(EngineMachine):
    """The engine, and what people and direct callers do to its order."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.calls: list[tuple[str, str]] = []  # direct calls: id and token, most of them gone
        self.group_ids: list[str] = []

    # What of the other machine is different here

    @invariant()
    def holds(self) -> None:
        super().holds()
        no_worker_has_too_much(self.observer.last, (*WORKERS, FAIR))

    def in_order(self, before: Snapshot, worker: WorkerInfo, taken: list[Run], count: int) -> None:
        """The model knows the order; of lanes without limits, the tables show it also."""
        if not any(lane.requires.limited for lane in before.lanes.values()) and not before.pauses:
            super().in_order(before, worker, taken, count)

    def _something_held(self) -> list[tuple[str, str]]:
        if not self.model.ready(FAIR, self.now):
            for scope, name in sorted(self.model.pauses & {("system", ""), ("job", "a")}):
                self._resume(scope, name, None)
                self.holds()
            self._create([NewRun("a", options=Options(queue="free", uses=(), requires=Requires()))], None, None)
            self.holds()
        return super()._something_held()

    def _sweep(self, process: Process, *args: Any, **more: Any) -> None:
        super()._sweep(process, *args, **more)
        self.holds()
        for doc in self._queued():
            open_keys = {key for key, _ in self.model.wants(doc)} - {lacking.key for lacking in self.model.lacks(doc, self.now)}
            parked = self.observer.last.by_id()[doc.id].parked
            assert parked not in open_keys, f"{doc.id} is put aside for {parked!r}, which has room"

    def _queued(self) -> list[Doc]:
        return [doc for doc in self.model.runs.values() if doc.state == "queued"]

    # Limits

    @initialize(jobs=st.tuples(uses, uses), amounts=st.tuples(*[capacities] * 4), rates=rates, worker=st.sampled_from(WORKERS))
    def limit(self, jobs: Any, amounts: Any, rates: tuple[Rate, ...], worker: WorkerInfo) -> None:
        for name, capacity in zip(RESOURCES, amounts, strict=True):
            self._set_resource(name, capacity, rates if name == "mail" else (), MINUTE, None)
        self._define("a", Options(uses=jobs[0]), {}, None)
        self._define("b", Options(uses=jobs[1]), {"x": 0, "z": 0}, None)
        self._register(worker)
        self._create([NewRun("a"), NewRun("b"), NewRun("a", {"x": 1}), NewRun("b")], None, None)

    @rule(job=st.sampled_from(["a", "b"]), given=options, uses=uses, requires=requires, trouble=troubles)
    def define_with_limits(self, job: str, given: Options, uses: tuple[Use, ...], requires: Requires | None, trouble: str | None) -> None:
        more = {"queue": given.queue, "priority": given.priority, "retry_place": given.retry_place}
        self._define(job, Options(uses=uses, requires=requires, **more), {}, trouble)  # type: ignore[arg-type]

    @rule(
        items=st.lists(
            st.tuples(st.sampled_from(["a", "b"]), payloads, st.none() | uses, st.sampled_from([None, None, 5, -1]), requires),
            min_size=1,
            max_size=5,
        ),
    )
    def create_with_limits(self, items: list[Any]) -> None:
        news = [
            NewRun(job, payload, Options(uses=uses, priority=priority, requires=needs)) for job, payload, uses, priority, needs in items
        ]
        self._create(news, None, None)

    @rule(name=st.sampled_from(RESOURCES), capacity=capacities, rates=rates, max_wait=st.sampled_from([0, 1_000, MINUTE]), trouble=troubles)
    def set_resource(self, name: str, capacity: int | None, rates: tuple[Rate, ...], max_wait: int, trouble: str | None) -> None:
        self._set_resource(name, capacity, rates, max_wait, trouble)

    def _set_resource(self, name: str, capacity: int | None, rates: tuple[Rate, ...], max_wait: int, trouble: str | None) -> None:
        verb = self.here.engine.set_resource(name, capacity=capacity, rates=rates, max_wait=max_wait)
        answer = self.ask(verb, "resource", trouble)
        self.judge(answer, lambda: self.model.set_resource(name, capacity, rates, max_wait), trouble, unknown=True)

    # Direct calls

    @rule(
        name=st.sampled_from(["gpu", "gpu", "disk", "tenant"]),
        key=st.sampled_from(["0", "1", "null"]),
        weights=st.lists(st.sampled_from([1, 1, 1, 2, 3]), min_size=1, max_size=3),
        lease=slot_leases,
        trouble=troubles,
    )
    def reserve(self, name: str, key: str, weights: list[int], lease: int, trouble: str | None) -> None:
        """Some call directly, one after the other."""
        for weight in weights:
            self._call_directly(name, key if name == "tenant" else None, weight, lease, trouble)
            self.holds()

    def _call_directly(self, name: str, key: str | None, weight: int, lease: int, trouble: str | None) -> None:
        call = self.clock.new_id(), self.clock.nonce()
        asked = Slot(0, call[0], gate(name, key), call[1], weight, "waiting", None, lease, 0, 0, None)
        self.calls.append(call)
        self._reserve(asked, name, key, trouble)
        if trouble is not None:  # asked again, it is the same
            self._reserve(asked, name, key, None)

    def _reserve(self, asked: Slot, name: str, key: str | None, trouble: str | None) -> None:
        identity = {"slot_id": asked.id, "token": asked.token}
        verb = self.here.engine.reserve(name, key=key, weight=asked.weight, lease=asked.lease, **identity)
        self._told(self.ask(verb, "reserve", trouble), lambda: self.model.reserve(asked, self.now), trouble)

    def _told(self, answer: Any, expect: Any, trouble: str | None) -> None:
        expected = self.judge(answer, expect, trouble, unknown=True)
        assert expected is None or isinstance(answer, OutcomeUnknown) or (answer.id, answer.state) == (expected.id, expected.state)

    @precondition(lambda self: self.calls)
    @rule(
        what=st.sampled_from(["renew", "renew", "release"]),
        number=picks,
        stale=st.sampled_from([False] * 4 + [True]),
        lease=slot_leases,
        trouble=troubles,
    )
    def call(self, what: str, number: int, stale: bool, lease: int, trouble: str | None) -> None:
        """One who calls directly asks whether it is its turn, or is done; perhaps long after its lease, or with a wrong token."""
        slot, token = self._call(number)
        token = "x" * len(token) if stale else token
        if what == "renew":
            answer = self.ask(self.here.engine.renew(slot, token, lease=lease), "renew", trouble)
            self._told(answer, lambda: self.model.renew(slot, token, lease, self.now), trouble)
            if trouble == "drop":  # then it does not know whether it is its turn
                self._told(self.ask(self.here.engine.renew(slot, token)), lambda: self.model.renew(slot, token, 30_000, self.now), None)
        else:
            answer = self.ask(self.here.engine.release(slot, token), "release", trouble)
            expected = self.judge(answer, lambda: self.model.release(slot, token), trouble, unknown=True)
            assert expected is None or isinstance(answer, OutcomeUnknown) or answer == expected

    def _call(self, number: int) -> tuple[str, str]:
        there = [(slot.id, slot.token) for slot in self.model.slots.values()]
        among = there if there and number % 8 else self.calls
        return among[number % len(among)]

    # Pauses and queues

    @rule(scope=scopes, on=st.booleans(), trouble=troubles)
    def pause(self, scope: tuple[Any, str], on: bool, trouble: str | None) -> None:
        if not on:
            self._resume(scope[0], scope[1], trouble)
            return
        answer = self.ask(self.here.engine.pause(*scope, reason="wait"), "pause", trouble)
        self.judge(answer, lambda: self.model.pauses.add(scope), trouble, unknown=True)

    def _resume(self, scope: Any, name: str, trouble: str | None) -> None:
        was = (scope, name) in self.model.pauses
        answer = self.ask(self.here.engine.resume(scope, name), "resume", trouble)
        self.judge(answer, lambda: self.model.pauses.discard((scope, name)), trouble, unknown=True)
        assert isinstance(answer, WindlassError) or answer == was

    @rule(queue=queues, aging=st.sampled_from([None, 1, 1_000, 20_000]), trouble=troubles)
    def age(self, queue: str, aging: int | None, trouble: str | None) -> None:
        answer = self.ask(self.here.engine.set_queue(queue, aging=aging), "queue", trouble)
        self.judge(answer, lambda: self._aged(queue, aging), trouble, unknown=True)

    def _aged(self, queue: str, aging: int | None) -> None:
        self.model.aging.pop(queue, None)
        if aging is not None:
            self.model.aging[queue] = aging

    # Moves

    @rule(
        number=picks,
        queued=st.sampled_from([True, True, True, False]),
        where=st.sampled_from(["top", "bottom", "before", "before", "after", "after", "place"]),
        other=picks,
        trouble=troubles,
    )
    def move(self, number: int, queued: bool, where: str, other: int, trouble: str | None) -> None:
        line = [doc.id for doc in self._queued()] if queued else []
        run = line[number % len(line)] if line else self.pick(number)
        aim: dict[str, Any] = {"to": where}
        if where == "place":
            aim = {"place": other % 5}
        elif where in ("before", "after"):
            aim = {where: line[other % len(line)] if line else self.pick(other)}
        answer = self.ask(self.here.engine.move(run, **aim), "move", trouble)
        self._edited(answer, lambda: self.model.move(run, aim, self.now), trouble, None, unknown=True)

    # Groups

    @rule(
        kind=st.sampled_from(["parallel", "sequential", "graph"]),
        on_failure=st.sampled_from(["stop", "continue", "skip"]),
        jobs=st.lists(st.tuples(st.sampled_from(["a", "a", "b", "c"]), st.sets(st.integers(0, 3))), min_size=1, max_size=4),
        callback=st.sampled_from([None, "a", "b"]),
        trouble=troubles,
    )
    def create_group(self, kind: Any, on_failure: Any, jobs: list[Any], callback: str | None, trouble: str | None) -> None:
        """Members of a graph wait for some of those before them."""
        members = tuple(
            Member(NewRun(job), f"m{index}", tuple(f"m{n}" for n in sorted(waits) if n < index) if kind == "graph" else ())
            for index, (job, waits) in enumerate(jobs)
        )
        new = NewGroup(members, kind, on_failure, None if callback is None else NewRun(callback))
        answer = self.ask(self.here.engine.create_group(new), "create_group", trouble)
        made, ids = self._group_ids(answer)
        expected = self.judge(answer, lambda: self.model.create_group(new, made, ids, self.now), trouble)
        self.stale = False  # what was refused may have left a lane
        self._grouped(answer, expected, ids)

    def _group_ids(self, answer: Any) -> tuple[Group | None, list[str]]:
        if isinstance(answer, WindlassError):
            return None, []
        members = [run.id for run in run_sync(self.here.engine.members(answer.id))]
        return answer, [*members, answer.callback] if answer.callback else members

    def _grouped(self, answer: Any, expected: Bunch | None, ids: list[str]) -> None:
        if expected is None:
            return
        assert (answer.status, answer.total) == ("running", expected.total)
        assert not set(ids) & set(self.ids)
        self.ids += ids
        self.observer.promise(ids)
        self.group_ids.append(answer.id)

    @precondition(lambda self: self.group_ids)
    @rule(what=st.sampled_from(["cancel", "rerun", "rerun"]), number=picks, ended=st.booleans(), trouble=troubles)
    def edit_group(self, what: str, number: int, ended: bool, trouble: str | None) -> None:
        wanted = [group.id for group in self.model.groups.values() if (group.finished_at is not None) == ended]
        among = wanted or self.group_ids
        group = among[-1 - number % len(among)]
        if what == "cancel":
            point = "cancel" if trouble == "drop" else "cancel_group"  # its first batch, and the one that may be repeated
            answer = self.ask(self.here.engine.cancel_group(group, reason="enough"), point, trouble)
            expected = self.judge(answer, lambda: self.model.cancel_group(group, "enough", self.now), trouble)
            self.stale = False
            assert expected is None or answer.status == expected.status
        else:
            answer = self.ask(self.here.engine.rerun_group(group), "create_group", trouble)
            made, ids = self._group_ids(answer)
            self._grouped(answer, self.judge(answer, lambda: self.model.rerun_group(group, made, ids, self.now), trouble), ids)

    # Workers

    @rule(worker=st.sampled_from(WORKERS))
    def register(self, worker: WorkerInfo) -> None:
        self._register(worker)

    def _register(self, worker: WorkerInfo) -> None:
        assert self.ask(self.here.engine.register(worker)) is None
        self.model.workers[worker.name] = (worker, self.now)

    @rule(
        worker=st.sampled_from(WORKERS),
        count=st.sampled_from([1, 2, 8]),
        deed=st.sampled_from(["claim", "claim", "reserve", "lower", "pause"]),
    )
    def claim_meanwhile(self, worker: WorkerInfo, count: int, deed: str) -> None:
        """While a worker has chosen and not yet taken, something else happens: then that counts."""
        self.store.before("claim_within", lambda: self._do_meanwhile(deed))
        answer = self.ask(self.here.engine.claim(worker, count=count))
        ids, token = [run.id for run in answer], answer[0].token if answer else None
        if deed in ("lower", "pause"):  # it is asked anew then
            self._claimed(answer, self.model.claim(worker, count, 30_000, None, token, True, self.now))
        else:
            self._claimed(answer, self.model.claim_in_a_race(worker, 30_000, ids, token, self.now))

    def _do_meanwhile(self, deed: str) -> None:
        engine = self.elsewhere.engine
        if deed == "claim":
            self._do_elsewhere(deed)
        elif deed == "reserve":
            asked = Slot(0, self.clock.new_id(), "gpu", self.clock.nonce(), 1, "waiting", None, MINUTE, 0, 0, None)
            if self.model.supplies["gpu"].capacity != 0:
                run_sync(engine.reserve("gpu", lease=MINUTE, slot_id=asked.id, token=asked.token))
                self.model.reserve(asked, self.now)
        elif deed == "lower":
            run_sync(engine.set_resource("gpu", capacity=1, max_wait=MINUTE))
            self.model.set_resource("gpu", 1, (), MINUTE)
        else:
            run_sync(engine.pause("queue", "default"))
            self.model.pauses.add(("queue", "default"))

    @rule(worker=st.sampled_from(WORKERS), count=st.sampled_from([1, 2, 8]), done=st.booleans())
    def work_off(self, worker: WorkerInfo, count: int, done: bool) -> None:
        """A worker takes what it can get, and perhaps does it."""
        self._claim(worker, count, 30_000, None, None, None)
        self.holds()
        for doc in [doc for doc in self.model.runs.values() if doc.state in ("claimed", "running") and done]:
            self._report(Outcome(doc.id, Succeed(token=doc.token)), None, None)

    # Looking

    @rule(number=picks, worker=st.sampled_from([None, *WORKERS]))
    def explain(self, number: int, worker: WorkerInfo | None) -> None:
        """`why` has nothing to say of exactly those that a worker would get if it asked for one."""
        if worker is not None:
            self._register(worker)
        docs = [doc for doc in self.model.runs.values() if not doc.ended]
        begin = number % len(docs) if docs else 0
        for doc in (docs[begin:] + docs[:begin])[:12]:
            codes = [reason.code for reason in self.ask(self.here.engine.why(doc.id))]
            assert [code for code in codes if code not in AHEAD] == self.model.why(doc.id, self.now)
            assert bool(codes) == (doc.id not in self.model.next_ones(self.now)), f"{doc.id} is held back by {codes}"

    @rule()
    def read_controls(self) -> None:
        engine, model = self.here.engine, self.model
        assert {(pause.scope, pause.name) for pause in self.ask(engine.pauses())} == model.pauses
        assert {queue.name: queue.aging for queue in self.ask(engine.queues())} == model.aging
        live = [(key, weight) for doc in model.runs.values() if doc.lease_until is not None for key, weight in model.wants(doc)]
        for state in self.ask(engine.resources()):
            name = state.resource.name
            mine = [weight for key, weight in live if key.partition("\x1f")[0] == name]
            slots = [slot for slot in model.slots.values() if slot.key.partition("\x1f")[0] == name]
            assert (state.held, state.runs, state.slots) == (sum(mine), len(mine), len(slots))
            assert state.resource.capacity == model.supplies[name].capacity
        assert [slot.id for slot in self.ask(engine.slots())] == list(model.slots)
        listed = [(group.id, group.status) for group in self.ask(engine.groups())]
        assert listed == [(group.id, group.status) for group in reversed(model.groups.values())]

    # The end

    def _everything_ends(self) -> None:
        """Live1: once nothing is paused and there is enough for each, all that can be executed is."""
        for scope, name in sorted(self.model.pauses):
            self._resume(scope, name, None)
        for name, supply in self.model.supplies.items():
            possible = all((rate.burst or rate.count) >= HEAVIEST for rate in supply.rates)
            self._set_resource(name, HEAVIEST, supply.rates if possible else (), supply.max_wait, None)
        self.holds()
        waits = [doc.lease_until for doc in self.model.runs.values() if doc.lease_until is not None]
        # At least a minute, after which a sweep looks for leases that seem to last for too long, because the clock was set back.
        self.clock.advance(max([MINUTE, *(at - self.now for at in (*waits, *(slot.lease_until for slot in self.model.slots.values())))]))
        self._sweep(self.here)
        assert not self.model.slots, "Live2: kept by callers that are gone"
        assert all(doc.lease_until is None for doc in self.model.runs.values()), "Live2: held by workers that are gone"
        rounds = 0
        while unfinished := [doc for doc in self.model.runs.values() if not doc.ended]:
            rounds += 1
            assert rounds <= 2 * len(self.model.runs) + 1, f"Live1: still unfinished: {unfinished}"
            self.clock.advance(max([MINUTE, *(doc.due_at - self.now for doc in unfinished if doc.state == "scheduled")]))
            self._sweep(self.here)
            self._claim(FAIR, 1_000, 30_000, None, None, None)
            self.holds()
            for doc in [doc for doc in self.model.runs.values() if doc.state == "claimed"]:
                self._report(Outcome(doc.id, Succeed(token=doc.token)), None, None)
            self.holds()


@pytest.fixture(params=["memory", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    found = opened(request)
    yield found
    run_sync(found.close())


@pytest.mark.timeout(0 if MANY else 600)
def test_what_is_handed_out_is_what_the_model_says(store: Store, request: pytest.FixtureRequest) -> None:
    EngineMachine.steps = 0
    examples = SETTINGS.max_examples if MANY else 40 if "postgres" in request.node.name else 150
    run_state_machine_as_test(lambda: OrderMachine(store), settings=settings(SETTINGS, max_examples=examples))  # type: ignore[arg-type]
    print(f"{EngineMachine.steps} steps")
