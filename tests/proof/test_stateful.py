"""The real engine beside a plain-dictionary model: any order of verbs, stale tokens, lost answers, races and crashes, on both stores.

After every step the tables are read whole: the invariants hold, and the model says the same. At the end time passes with one fair
worker, and everything that can be executed is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test
from msgspec.structs import asdict, replace

from tests.invariants import CLEAR, Observer, Snapshot, clear, in_order, lane_is_open, nothing_changed, with_tables
from tests.kill_child import InTransaction
from tests.proof.dictionary_model import LIVE, Doc, Model, Refused, able
from tests.tiers import MANY
from windlass.clock import ManualClock
from windlass.engine import Engine, Outcome, Watch
from windlass.errors import OutcomeUnknown, StoreBusy, WindlassError, WrongState
from windlass.faults import FAULTS
from windlass.machine import Fail, Refuse, Report, Requeue, Skip, Snooze, Succeed
from windlass.model import Created, Failure, Key, NewRun, Options, Receipt, Requires, Run, State, WorkerInfo
from windlass.store.base import Row, Statement, Store, run_sync
from windlass.store.records import Held

MINUTE, DAY = 60_000, 24 * 3600 * 1000
WORKERS = (
    WorkerInfo("many", slots=8, cores=4),
    WorkerInfo("solo", slots=1),
    WorkerInfo("lonely", queues=("default",), slots=1, tags=("gpu",)),
    WorkerInfo("picky", queues=("other",), jobs=("a",), slots=4),
    WorkerInfo("gpu", tags=("big", "gpu"), slots=4, cores=3),
)
FAIR = WorkerInfo("fair", slots=1_000, tags=("gpu",), cores=1_000)
JOBS = ("a", "b", "c")
AHEAD = ("behind", "kept", "refused")
"""The reasons that are other runs, and the one that only comes with others."""

picks = st.integers(0, 40)
"""Which of several, counted from the newest."""
seldom = [None] * 7
troubles = st.sampled_from([*seldom, "busy", "drop"])
"""A commit that fails, or one that succeeds without its answer."""
deeds = st.sampled_from(
    [*seldom, "beat", "start", "succeed", "fail", "cancel", "claim", "patch", "define", "create", "prune", "drop lanes"]
)
"""What somebody else does between this verb's reading and its writing."""
leases = st.sampled_from([30_000, 30_000, 10_000, 1_000, 2 * MINUTE])
options = st.builds(
    Options,
    queue=st.sampled_from([None, None, "other"]),
    priority=st.sampled_from([None, None, 5, -1]),
    max_attempts=st.sampled_from([None, 1, 2]),
    max_runtime=st.sampled_from([None, None, 20_000]),
    backoff=st.sampled_from([None, (0,), (1_000, 5_000)]),
    backoff_base=st.sampled_from([None, 500]),
    on_exhausted=st.sampled_from([None, "quarantined"]),
    retry_place=st.sampled_from([None, "tail"]),
    max_requeues=st.sampled_from([None, None, 0, 1]),
    grace=st.sampled_from([None, 0, 2_000]),
    requires=st.sampled_from([None, None, Requires(("gpu",))]),
)
payloads = st.sampled_from([None, {"x": 1}, {"y": "é"}, [1]])
keys = st.builds(
    lambda name, ttl, compare: Key(name, ttl, on_duplicate="compare" if compare else "return"),
    st.sampled_from(["k0", "k1"]),
    st.sampled_from(["unfinished", "unfinished", 5_000, "forever"]),
    st.booleans(),
)
items = st.tuples(
    st.sampled_from(["a", "a", "a", "b", "b", "b", "c"]),
    payloads,
    st.just(Options()) | options,
    st.sampled_from([None, None, None, -50, 900, 20_000]),
    st.sampled_from([False, False, True]).flatmap(lambda some: keys if some else st.none()),
    st.sampled_from([None, None, {"user": "ann"}]),
)
waits = st.sampled_from([(), (), (), (0,), (0, 1), (5,)])
ends = st.sampled_from(["success", "any"])
failures = st.sampled_from([Failure("boom", "it broke"), Failure("bang", "it broke", "in two")])
reports: st.SearchStrategy[Report] = st.one_of(
    st.builds(
        Succeed,
        output=st.sampled_from([None, "1", '"x"']),
        output_hash=st.sampled_from([None, None, "h1"]),
        key=st.sampled_from([None, None, "k1"]),
    ),
    st.builds(Fail, error=failures, retry=st.sampled_from([True, True, True, False]), delay=st.sampled_from([None, None, 0, 3_000])),
    st.builds(Snooze, delay=st.sampled_from([0, 4_000])),
    st.builds(Requeue, begun=st.sampled_from([True, True, False])),
    st.builds(Skip, reason=st.sampled_from(["duplicate", "holiday"])),
    st.builds(Refuse, error=st.just(Failure("bad_payload", "it does not fit")), schema=st.sampled_from(["old", "older"])),
)


class Between:
    """A store that lets something happen just before a batch with a certain statement in it, once."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._statement, self._deed = "", _nothing

    def before(self, statement: str, deed: Callable[[], None]) -> None:
        self._statement, self._deed = statement, deed

    def forget(self) -> None:
        self._statement, self._deed = "", _nothing

    async def batch(self, verb: str, statements: Sequence[Statement]) -> list[list[Row]]:
        if any(name == self._statement for name, _ in statements):
            deed = self._deed
            self.forget()
            deed()
        return await self.store.batch(verb, statements)

    async def close(self) -> None:
        await self.store.close()


def _nothing() -> None: ...


class Process:
    """An engine with what only its own process remembers. When a watch calls something over is said a second time, from all its looks."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.engine, self.watch, self.prune_at = Engine(store, clock), Watch(clock), 0
        self.watch._forget_at = 2**62
        self.looks, self.clock, self.unsettled = [(clock.monotonic(), clock.now())], clock, False
        self.seen: dict[Any, int] = {}

    def look(self) -> None:
        (before, wall), ticks = self.looks[-1], self.clock.monotonic()
        self.looks.append((ticks, self.clock.now()))
        self.unsettled |= abs(self.clock.now() - wall - (ticks - before)) > 1_000

    def over(self, what: Any, start: int, length: int, lease: int) -> bool | None:
        (ticks, wall), care = self.looks[-1], min(length, lease)
        if start <= wall + 1_000 and start + length > wall:
            return False
        pairs = list(itertools.pairwise(self.looks))
        jumps = [then[0] for at, then in pairs if abs(then[1] - at[1] - (then[0] - at[0])) > 1_000]
        began = ticks - (wall - start)
        if began <= ticks + 1_000 and (not jumps or began > jumps[-1]):
            return self._watched(began + length - care, lease) >= care or None
        return self._watched(self.seen.setdefault((what, start, length), ticks), lease) >= length or None

    def _watched(self, begin: int, lease: int) -> int:
        parts = [(end - max(at, begin), end - at) for (at, _), (end, _) in itertools.pairwise(self.looks) if end > begin]
        return sum(part if whole <= 5_000 else min(part, lease // 16 + 1) for part, whole in parts)


class EngineMachine(RuleBasedStateMachine):
    """Two processes on one store, a handful of workers, and a model of what all this must come to."""

    steps = 0

    def __init__(self, store: Store) -> None:
        super().__init__()
        clear(store)
        self.clock, self.model = ManualClock(), Model()
        self.store, self.observer = Between(store), Observer(store)
        self.here, self.elsewhere = Process(self.store, self.clock), Process(self.store, self.clock)
        self.asked = self.here
        self.model.bounds = lambda _: run_sync(self.asked.engine.parts.ground.bounds())
        self.ids: list[str] = []
        self.tokens: list[tuple[str, str]] = []  # every one there ever was: most are stale
        self.told: list[Outcome] = []
        self.nonces: list[tuple[WorkerInfo, str]] = []
        self.renewed: dict[str, int] = {}  # by run: until which tick its worker was promised to be left alone
        self.cursor: str | None = None
        self.tailed: dict[str, int] = {}
        self.stale = self.whole = False

    # How a verb is asked, and its answer judged

    @property
    def now(self) -> int:
        return self.clock.now()

    def ask(
        self,
        verb: Coroutine[Any, Any, Any],
        point: str = "",
        trouble: str | None = None,
        deed: str | None = None,
        statement: str = "",
        subject: str | None = None,
    ) -> Any:
        """What the engine answered, or the error it raised, when there was trouble at its commit or a deed just before its write."""
        self.whole, self.asked = False, self.here
        if deed is not None:
            self.store.before(statement, lambda: self.do(deed, subject))
        elif trouble is not None:
            FAULTS.arm(f"{point}.before_commit=raise:busy@1" if trouble == "busy" else f"{point}.after_commit=drop@1")
        try:
            return run_sync(verb)
        except WindlassError as error:
            return error
        finally:
            FAULTS.arm("")
            self.store.forget()

    def judge(self, answer: Any, expect: Callable[[], Any], trouble: str | None = None, *, unknown: bool = False) -> Any:
        """The model's answer, which the engine's must equal; None when nothing was to be done.

        A commit that failed has done nothing. One without an answer has done everything; the verbs that can ask the store what
        became of it must not say "unknown".
        """
        if isinstance(answer, StoreBusy):
            assert trouble == "busy"
            return None
        expected, refused = self._expected(expect)
        if refused:
            assert type(answer) in refused or (unknown and isinstance(answer, OutcomeUnknown)), f"{answer!r}, not {refused}"
            self.stale = True
            return None
        if unknown and trouble == "drop" and isinstance(answer, OutcomeUnknown):
            return expected
        assert not isinstance(answer, WindlassError), f"{answer!r}, not {expected}"
        return expected

    def _expected(self, expect: Callable[[], Any]) -> tuple[Any, tuple[type[WindlassError], ...]]:
        try:
            return expect(), ()
        except Refused as refused:
            return None, refused.kinds

    @invariant()
    def holds(self) -> None:
        """Everything that must hold after every step."""
        EngineMachine.steps += 1
        before = self.observer.last
        after = self.observer.look(self.now)
        self.model.compare(after, self.now)
        if self.stale:
            nothing_changed(before, after)
        self.stale, self.whole = False, True

    # Picking

    def pick(self, number: int) -> str:
        """A run, perhaps one that retention has removed."""
        return self.ids[-1 - number % len(self.ids)]

    def held(self, number: int, stale: bool = False) -> tuple[str, str]:
        """A run with a token: the right one of a run that is held, for which one is claimed if need be, or any that ever was."""
        right = [(doc.id, doc.token or "") for doc in self.model.runs.values() if doc.state in LIVE]
        if not right and not (stale and self.tokens):
            right = self._something_held()
        among = self.tokens if stale else right
        return among[-1 - number % len(among)]

    def _something_held(self) -> list[tuple[str, str]]:
        if not self.model.ready(FAIR, self.now):
            self._create([NewRun("a")], None, None)
            self.holds()
        self._claim(FAIR, 2, 30_000, None, None, None)
        self.holds()
        return [(doc.id, doc.token or "") for doc in self.model.runs.values() if doc.state in LIVE]

    def seq(self, run: str) -> int:
        found = self.observer.last.by_id().get(run)
        return found.seq if found else 999_999

    # What somebody else does in between

    def do(self, deed: str, subject: str | None) -> None:
        doc = self.model.runs.get(subject or "")
        if deed in ("claim", "define", "create", "prune", "drop lanes"):
            self._do_elsewhere(deed)
        elif doc is not None:
            self._do_to(deed, doc)

    def _do_elsewhere(self, deed: str) -> None:
        engine, now, self.asked = self.elsewhere.engine, self.now, self.elsewhere
        if deed == "claim":
            taken = run_sync(engine.claim(WORKERS[0], lease=30_000))
            self._claimed(taken, self.model.claim(WORKERS[0], 1, 30_000, None, taken[0].token if taken else None, True, now))
        elif deed == "define":
            run_sync(engine.define("a", options=Options(priority=7)))
            self.model.define("a", Options(priority=7), {})
        elif deed == "create":
            new = NewRun("b", {"x": 1}, key=Key("k0"))
            made = run_sync(engine.create([new]))
            assert made == self.model.create([new], made, now)
            self._made(made)
        elif deed == "drop lanes":
            used = {abs(run.lane) for run in self.observer.last.runs.values()}  # a rerun must find the lane that its run had
            for lane in run_sync(engine.all_lanes()):
                if lane.id not in used:
                    with suppress(WrongState):  # used just now
                        run_sync(engine.drop_lane(lane.id))
        else:
            assert run_sync(engine.prune()) == self.model.prune(now)
        self.asked = self.here

    def _do_to(self, deed: str, doc: Doc) -> None:
        engine, now, token = self.elsewhere.engine, self.now, doc.token or ""
        if deed == "cancel" and not doc.ended:
            assert run_sync(engine.cancel(doc.id)).state == self.model.cancel(doc.id, None, now)
        elif deed == "patch" and doc.state in ("waiting", "scheduled", "queued"):
            assert run_sync(engine.patch(doc.id, priority=3)).state == self.model.patch(doc.id, {"priority": 3}, now)
        elif deed == "beat" and doc.state in LIVE:
            assert run_sync(engine.beat([Held(self.seq(doc.id), token)], lease=3 * MINUTE)) == [self._beaten(doc.id, token, 3 * MINUTE)]
        elif deed == "start" and doc.state == "claimed":
            run_sync(engine.start(doc.id, token))
            self.model.start(doc.id, token, now)
        elif deed in ("succeed", "fail") and doc.state in ("claimed", "running"):
            report = (
                Succeed(token=token, output="1") if deed == "succeed" else Fail(token=token, error=Failure("boom", "it broke"), delay=0)
            )
            assert run_sync(engine.report(doc.id, report)) == Receipt(doc.id, State(self.model.report(doc.id, report, now)[0]))

    # Definitions and creation

    @initialize(first=options, second=options)
    def begin(self, first: Options, second: Options) -> None:
        self._define("a", first, {}, None)
        self._define("b", second, {"x": 0, "z": 0}, None)
        self._create([NewRun("a"), NewRun("b"), NewRun("a", {"x": 1})], None, None)

    def _define(self, name: str, given: Options, payload: dict[str, Any], trouble: str | None) -> None:
        answer = self.ask(self.here.engine.define(name, payload=payload, options=given), "define", trouble)
        self.judge(answer, lambda: self.model.define(name, given, payload), trouble, unknown=True)

    @rule(
        job=st.sampled_from(["a", "b"]),
        key=st.none() | keys,
        waits=waits,
        after_end=ends,
        behind=st.lists(ends, max_size=2),
        joined=st.booleans(),
        trouble=troubles,
        deed=deeds,
    )
    def create(
        self,
        job: str,
        key: Key | None,
        waits: tuple[int, ...],
        after_end: Any,
        behind: list[Any],
        joined: bool,
        trouble: str | None,
        deed: str | None,
    ) -> None:
        """A run, and a chain of others that wait for it one behind the other."""
        self._create([NewRun(job, key=key, after=self._after(waits), after_end=after_end)], trouble, deed, joined)
        for end in behind:
            self.holds()
            self._create([NewRun(job, after=self._after((0,)), after_end=end)], None, None)

    @rule(items=st.lists(items, min_size=1, max_size=4), waits=waits, after_end=ends, trouble=troubles, deed=deeds)
    def create_many(self, items: list[Any], waits: tuple[int, ...], after_end: Any, trouble: str | None, deed: str | None) -> None:
        after = self._after(waits)
        news = [
            NewRun(
                job, payload, given, None if offset is None else self.now + offset, key, after if index == 0 else (), after_end, meta=meta
            )
            for index, (job, payload, given, offset, key, meta) in enumerate(items)
        ]
        self._create(news, trouble, deed)

    def _after(self, waits: tuple[int, ...]) -> tuple[str, ...]:
        return tuple(self.pick(number) for number in waits)

    async def _join(self, news: list[NewRun]) -> list[Created]:
        """The same as a part of a caller's transaction: what becomes of it is settled after the commit."""
        created = await self.here.engine.on(InTransaction(self.store)).create(news)
        await self.here.engine.settle()
        return created

    def _create(self, news: list[NewRun], trouble: str | None, deed: str | None, joined: bool = False) -> None:
        trouble = trouble if deed is None else None
        subject = next((run for new in news for run in new.after), None)
        verb = self._join(news) if joined else self.here.engine.create(news)
        answer = self.ask(verb, "create", trouble, deed, "create", subject)
        made = None if isinstance(answer, WindlassError) else answer
        expected = self.judge(answer, lambda: self.model.create(news, made, self.now), trouble)
        if expected is not None:
            assert answer == expected
            self._made(answer)
        self.stale = False  # what was refused may have left a lane

    def _made(self, answers: Sequence[Created]) -> None:
        new = [answer.id for answer in answers if answer.created]
        assert not set(new) & set(self.ids)
        self.ids += new
        self.observer.promise(new)

    def _rerun(self, run: str, attempt: int | None, trouble: str | None) -> None:
        answer = self.ask(self._rerun_of(run, attempt), "create", trouble)
        made = None if isinstance(answer, WindlassError) else answer
        expected = self.judge(answer, lambda: self.model.rerun(run, attempt, made, self.now), trouble)
        if expected is not None:
            assert answer == expected
            self._made([answer])

    def _rerun_of(self, run: str, attempt: int | None) -> Coroutine[Any, Any, Created]:
        """The run, or one attempt: by its own id where it has one that is not the run's."""
        doc = self.model.runs.get(run)
        if doc is None or attempt is None or not 1 < attempt <= doc.attempt:
            return self.here.engine.rerun(run, attempt=attempt)
        return self.here.engine.rerun(doc.ids[attempt - 1])

    # Workers

    @rule(
        worker=st.sampled_from(WORKERS),
        count=st.sampled_from([1, 1, 2, 3, 8]),
        lease=leases,
        trouble=troubles,
        deed=st.sampled_from([*seldom, "claim"]),
    )
    def claim(self, worker: WorkerInfo, count: int, lease: int, trouble: str | None, deed: str | None) -> None:
        self._claim(worker, count, lease, None, trouble, deed)

    @rule(
        worker=st.sampled_from(WORKERS),
        count=st.sampled_from([1, 2, 8]),
        lease=leases,
        trouble=troubles,
        deed=st.sampled_from([*seldom, "claim", "again"]),
    )
    def claim_by_nonce(self, worker: WorkerInfo, count: int, lease: int, trouble: str | None, deed: str | None) -> None:
        nonce = self.clock.nonce()
        self._claim(worker, count, lease, nonce, trouble, deed)
        self.nonces.append((worker, nonce))

    @precondition(lambda self: self.nonces)
    @rule(number=picks, worker=st.none() | st.sampled_from(WORKERS), count=st.sampled_from([1, 3]))
    def claim_again(self, number: int, worker: WorkerInfo | None, count: int) -> None:
        """The answer was lost, so the same claim is asked again; by its worker, or by one that has no right to it."""
        first, nonce = self.nonces[-1 - number % len(self.nonces)]
        if nonce in self.model.nonces or nonce not in self.observer.tokens:  # after ten minutes it may be forgotten, and must not be used
            self._claim(worker or first, count, 30_000, nonce, None, None)

    def _claim(self, worker: WorkerInfo, count: int, lease: int, nonce: str | None, trouble: str | None, deed: str | None) -> None:
        trouble = trouble if deed is None else None
        known, saw = nonce in self.model.nonces, bool(self.model.ready(worker, self.now))
        before: Snapshot | None = self.observer.last
        if deed == "again" and nonce is not None:
            self.store.before("claim", lambda: self._claim_at_once(worker, count, lease, nonce))
            deed = None
            before = None
        verb = self.here.engine.claim(worker, count=count, lease=lease, nonce=nonce)
        answer = self.ask(verb, "claim", trouble, deed, "claim")
        token = nonce or (answer[0].token if isinstance(answer, list) and answer else None)
        expected = self.judge(answer, lambda: self.model.claim(worker, count, lease, nonce, token, saw, self.now), trouble)
        if expected is None:
            return
        self._claimed(answer, expected)
        if before and saw and not known and deed is None:
            self.in_order(before, worker, answer, 1 if worker.slots == 1 else count)

    def in_order(self, before: Snapshot, worker: WorkerInfo, taken: list[Run], count: int) -> None:
        """S14, as the tables alone show it."""
        in_order(before, [run.id for run in taken], lambda lane: lane_is_open(lane, asdict(worker)), count)

    def _claim_at_once(self, worker: WorkerInfo, count: int, lease: int, nonce: str | None) -> None:
        taken = run_sync(self.elsewhere.engine.claim(worker, count=count, lease=lease, nonce=nonce))
        self._claimed(taken, self.model.claim(worker, count, lease, nonce, nonce, bool(taken), self.now))

    def _claimed(self, runs: Sequence[Run], expected: list[str]) -> None:
        assert [run.id for run in runs] == expected
        for run in runs:
            assert run.token is not None
            if (run.id, run.token) not in self.tokens:
                self.tokens.append((run.id, run.token))
                self.renewed[run.id] = self.clock.monotonic() + (run.lease or 0)

    @rule(
        what=st.sampled_from(["start", "start many", "log"]),
        number=picks,
        stale=st.sampled_from([False, False, True]),
        first=st.integers(1, 3),
        trouble=troubles,
    )
    def work(self, what: str, number: int, stale: bool, first: int, trouble: str | None) -> None:
        item = self.held(number, stale)
        if what == "start many":
            self._start_many([item, self.held(number + 1, not stale), item], trouble)
        elif what == "start":
            answer = self.ask(self.here.engine.start(*item), "start", trouble)
            self.judge(answer, lambda: self.model.start(*item, self.now), trouble, unknown=True)
        else:
            lines = [(first, f"line {first} of {item[1]}"), (first + 1, "more")]
            answer = self.ask(self.here.engine.log(*item, lines), "log", trouble)
            self.judge(answer, lambda: self.model.log(*item, lines), trouble, unknown=True)

    def _start_many(self, items: list[tuple[str, str]], trouble: str | None) -> None:
        holds = {Held(self.seq(run), token): (run, token) for run, token in items}
        answer = self.ask(self.here.engine.start_many([Held(self.seq(run), token) for run, token in items]), "start", trouble)
        expected = self.judge(answer, lambda: self.model.start_many(items, self.now), trouble, unknown=True)
        assert expected is None or isinstance(answer, OutcomeUnknown) or {holds[item] for item in answer} == expected

    @rule(
        numbers=st.lists(st.tuples(picks, st.booleans()), min_size=1, max_size=3),
        lease=leases,
        texts=st.lists(st.sampled_from([None, "0.5", '{"done": 1}']), min_size=3, max_size=3),
        trouble=troubles,
    )
    def beat(self, numbers: list[tuple[int, bool]], lease: int, texts: list[str | None], trouble: str | None) -> None:
        items = [self.held(number, stale) for number, stale in numbers]
        holds = [Held(self.seq(run), token) for run, token in items]
        told = {item: text for item, text in zip(holds, texts, strict=False) if text is not None}
        answer = self.ask(self.here.engine.beat(holds, lease=lease, progress=told), "beat", trouble)
        expected = self.judge(
            answer,
            lambda: [self._beaten(*item, lease, told.get(held)) for item, held in zip(items, holds, strict=True)],
            trouble,
            unknown=True,
        )
        assert expected is None or answer == expected or isinstance(answer, OutcomeUnknown)

    def _beaten(self, run: str, token: str, lease: int, progress: str | None = None) -> str:
        answer = self.model.beat(run, token, lease, self.now, progress)
        if answer != "lost":
            self.renewed[run] = max(self.renewed[run], self.clock.monotonic() + lease)
        return answer

    @rule(
        number=picks,
        stale=st.sampled_from([False, False, False, True]),
        report=reports,
        back=st.sampled_from([0, 0, 0, 0, 5_000]),
        trouble=troubles,
        deed=deeds,
    )
    def report(self, number: int, stale: bool, report: Report, back: int, trouble: str | None, deed: str | None) -> None:
        if back:
            self._set_clock(-back)
        run, token = self.held(number, stale)
        self._report(Outcome(run, replace(report, token=token)), trouble, deed)

    @precondition(lambda self: self.told)
    @rule(number=picks, trouble=troubles)
    def report_again(self, number: int, trouble: str | None) -> None:
        """A report that was made before, word for word: the answer was lost, or somebody sent it twice."""
        self._report(self.told[-1 - number % len(self.told)], trouble, None)

    def _report(self, outcome: Outcome, trouble: str | None, deed: str | None) -> None:
        trouble = trouble if deed is None else None
        statement = "succeed" if isinstance(outcome.report, Succeed) else "write_back"
        answer = self.ask(self.here.engine.report(outcome.run, outcome.report), "report", trouble, deed, statement, outcome.run)
        expected = self.judge(answer, lambda: self._reported(outcome), trouble)
        self.stale = self.stale and deed is None and not self._confirmed(outcome)
        if expected is not None:
            assert (answer.run, answer.state.value) == (outcome.run, expected[0])
            assert answer.repeated == expected[1] or trouble == "drop"

    def _reported(self, outcome: Outcome) -> tuple[str, bool]:
        self.told.append(outcome)
        return self.model.report(outcome.run, outcome.report, self.now)

    def _confirmed(self, outcome: Outcome) -> bool:
        """Whether a refused report has just ended a run that was being cancelled."""
        before = self.observer.last.by_id().get(outcome.run)
        return before is not None and before.state is State.CANCELLING and self.model.runs[outcome.run].ended

    @rule(items=st.lists(st.tuples(picks, st.sampled_from([False, False, True]), reports), min_size=1, max_size=4), trouble=troubles)
    def report_many(self, items: list[tuple[int, bool, Report]], trouble: str | None) -> None:
        picked = [(*self.held(number, stale), report) for number, stale, report in items]
        outcomes = [Outcome(run, replace(report, token=token)) for run, token, report in picked]
        answers = self.ask(self.here.engine.report_many(outcomes), "report", trouble)
        if isinstance(answers, StoreBusy):
            assert trouble == "busy"
            return
        for outcome, answer in zip(outcomes, answers, strict=True):
            expected = self.judge(answer, lambda outcome=outcome: self._reported(outcome), trouble)  # type: ignore[misc]
            assert expected is None or (answer.state.value, answer.repeated or trouble == "drop") == (
                expected[0],
                expected[1] or trouble == "drop",
            )
        self.stale = False

    # People

    @rule(
        what=st.sampled_from(["cancel", "cancel", "skip", "rerun"]),
        number=picks,
        reason=st.sampled_from([None, "changed my mind"]),
        attempt=st.sampled_from([None, None, 1, 2, 3]),
        trouble=troubles,
        deed=deeds,
    )
    def edit(self, what: str, number: int, reason: str | None, attempt: int | None, trouble: str | None, deed: str | None) -> None:
        run, trouble = self.pick(number), trouble if deed is None else None
        if what == "cancel":
            self._cancel(run, reason, trouble, deed)
        elif what == "skip":
            self._skip(run, trouble, deed)
        else:
            self._rerun(run, attempt, trouble)

    def _cancel(self, run: str, reason: str | None, trouble: str | None, deed: str | None) -> None:
        answer = self.ask(self.here.engine.cancel(run, reason=reason), "cancel", trouble, deed, "write_back", run)
        self._edited(answer, lambda: self.model.cancel(run, reason, self.now), trouble, deed)

    def _skip(self, run: str, trouble: str | None, deed: str | None) -> None:
        answer = self.ask(self.here.engine.skip(run, reason="not today"), "skip", trouble, deed, "write_back", run)
        self._edited(answer, lambda: self.model.skip(run, "not today", self.now), trouble, deed)

    @rule(
        number=picks,
        given=st.fixed_dictionaries(
            {},
            optional={
                "payload": st.sampled_from([{"p": 1}, [2]]),
                "priority": st.sampled_from([9, 0, -2]),
                "max_attempts": st.sampled_from([1, 2, 5]),
                "queue": st.sampled_from(["default", "other", "third"]),
                "due_at": st.sampled_from([-1_000, 0, 2_500]),
            },
        ).filter(bool),
        trouble=troubles,
        deed=deeds,
    )
    def patch(self, number: int, given: dict[str, Any], trouble: str | None, deed: str | None) -> None:
        run, trouble = self.pick(number), trouble if deed is None else None
        fields = {**given, "due_at": self.now + given["due_at"]} if "due_at" in given else given
        answer = self.ask(self.here.engine.patch(run, **fields), "patch", trouble, deed, "patch", run)
        self._edited(answer, lambda: self.model.patch(run, fields, self.now), trouble, deed, unknown=True)

    def _edited(self, answer: Any, expect: Callable[[], str], trouble: str | None, deed: str | None, *, unknown: bool = False) -> None:
        expected = self.judge(answer, expect, trouble, unknown=unknown)
        self.stale = self.stale and deed is None
        assert expected is None or isinstance(answer, OutcomeUnknown) or answer.state.value == expected

    # Time

    @rule(
        what=st.sampled_from(["sweep", "sweep", "watched sweep", "dispatch"]),
        ms=st.sampled_from([0, 1_000, 31_000, 31_000]),
        number=picks,
        trouble=st.sampled_from([*seldom, "drop"]),
        deed=st.sampled_from([None, None, "cancel", "patch"]),
    )
    def sweep(self, what: str, ms: int, number: int, trouble: str | None, deed: str | None) -> None:
        self.clock.advance(ms)
        if what == "dispatch":
            self._dispatch(trouble if deed is None else None, deed, number)
        else:
            self._sweep(self.here, what == "watched sweep", trouble)

    @rule(
        ticks=st.sampled_from([3, 9]),
        alive=st.booleans(),
        then=st.sampled_from([None, "jump", "pause"]),
        trouble=st.sampled_from([*seldom, "drop"]),
    )
    def watch_over(self, ticks: int, alive: bool, then: str | None, trouble: str | None) -> None:
        """Time passes while a process sweeps regularly and workers may renew; then the clock is set, or the process sleeps."""
        for _ in range(ticks):
            if alive:
                self._renew(10_000)
            self.clock.advance(4_000)
            self._sweep(self.here, True, trouble)
            self.holds()
        if then is not None:
            self._set_clock(2 * MINUTE + 1) if then == "jump" else self.clock.advance(2 * MINUTE + 1)
            self._sweep(self.here, True)

    def _renew(self, lease: int) -> None:
        held = [(doc.id, doc.token or "") for doc in self.model.runs.values() if doc.state in LIVE]
        answer = self.ask(self.here.engine.beat([Held(self.seq(run), token) for run, token in held], lease=lease))
        assert answer == [self._beaten(run, token, lease) for run, token in held]

    @rule(number=picks, renewed=st.booleans(), deed=st.sampled_from(["beat", "start", "succeed", "fail", "cancel"]))
    def meddle(self, number: int, renewed: bool, deed: str) -> None:
        """Something happens to a run just while a sweep takes it for lost, or finds that it is not."""
        doc = self.model.runs[self.held(number)[0]]
        if renewed:
            self._renew(3 * MINUTE)
            self.holds()
        self.clock.advance(max(0, ((doc.lease_check_at if renewed else doc.lease_until) or 0) - self.now))
        self._sweep(self.here, False, None, deed, doc.id)

    @rule(number=picks, report=reports)
    def rise_from_the_dead(self, number: int, report: Report) -> None:
        """A worker sleeps past its lease, takes the same run again under its old name, and then the old handler goes on."""
        run, token = self.held(number)
        doc = self.model.runs[run]
        worker = next((worker for worker in WORKERS if worker.name == doc.worker), FAIR)
        for _ in range(2):  # the lease, then the delay before the next try
            self.clock.advance(max(doc.lease_until or 0, doc.due_at, self.now + 1) - self.now)
            self._sweep(self.here)
            self.holds()
        self._claim(worker, 8, 30_000, None, None, None)
        self.holds()
        self.judge(self.ask(self.here.engine.start(run, token)), lambda: self.model.start(run, token, self.now))
        self.holds()
        assert self.ask(self.here.engine.beat([Held(self.seq(run), token)])) == [self._beaten(run, token, 30_000)]
        self.holds()
        self._report(Outcome(run, replace(report, token=token)), None, None)

    def _sweep(
        self, process: Process, watched: bool = False, trouble: str | None = None, deed: str | None = None, subject: str = ""
    ) -> None:
        over = process.over if watched else lambda what, start, length, lease: start + length <= self.now
        if watched:
            process.look()
        if self.clock.monotonic() >= process.prune_at or (watched and process.unsettled):
            self.model.look_sooner(self.now, 1_000)
            process.unsettled = process.unsettled and not watched
        verdicts = self.model.verdicts(self.now, over)
        statement = "postpone_check" if isinstance(verdicts.get(subject, (0, 0, ""))[2], int) else "write_back"
        answer = self.ask(process.engine.sweep(process.watch if watched else None), "lapse", trouble, deed, statement, subject)
        lapsed = self.model.carry_out(verdicts, self.now)
        if watched:
            self._left_alone(verdicts, lapsed)
        self.model.lapse_slots(self.now, over)
        dispatched = self.model.dispatch(self.now)
        pruned = 0
        if self.clock.monotonic() >= process.prune_at:
            pruned, process.prune_at = self.model.prune(self.now), self.clock.monotonic() + MINUTE
        assert (answer.lapsed, answer.dispatched, answer.pruned) == (0 if trouble else len(lapsed), dispatched, pruned)
        waits = [doc.due_at for doc in self.model.runs.values() if doc.state == "scheduled" and doc.drawn is None]
        waits += [doc.lease_check_at for doc in self.model.runs.values() if doc.lease_check_at is not None]
        # What was due before and still is, it may not touch yet: it would come back at once for ever.
        assert 0 <= answer.back_in <= min([1_000, *(at - self.now for at in waits if at > self.now)])

    def _left_alone(self, verdicts: Any, lapsed: list[str]) -> None:
        """S10: a resident sweep lapses no lease before it has itself seen it unrenewed for its length."""
        for run in lapsed:
            if verdicts[run][2] == "lapse":
                assert self.clock.monotonic() >= self.renewed[run], f"S10: {run} was reaped while its worker was promised its lease"

    def _dispatch(self, trouble: str | None, deed: str | None, number: int) -> None:
        answer = self.ask(self.here.engine.dispatch(), "dispatch", trouble, deed, "dispatch", self.pick(number))
        expected = self.judge(answer, lambda: self.model.dispatch(self.now), trouble)
        assert expected is None or answer == (0 if trouble == "drop" else expected) or deed is not None

    @rule(ms=st.sampled_from([1, 500, 1_000, 5_000, 5_000, 31_000, 31_000, 61_000, 11 * MINUTE, 8 * DAY, 31 * DAY]))
    def advance(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule(
        what=st.sampled_from(["jump", "jump", "switch", "crash", "prune", "register", "define"]),
        ms=st.sampled_from([-2 * 3600 * 1000, -5_000, 2_500, 2 * MINUTE, DAY]),
        worker=st.sampled_from(WORKERS),
        job=st.sampled_from(JOBS),
        given=options,
        payload=st.sampled_from([{}, {"x": 2}]),
        trouble=troubles,
    )
    def happen(
        self, what: str, ms: int, worker: WorkerInfo, job: str, given: Options, payload: dict[str, Any], trouble: str | None
    ) -> None:
        if what == "jump":
            self._set_clock(ms)
        elif what == "switch":  # the next verbs are asked of the other process, which knows nothing of the first
            self.here, self.elsewhere = self.elsewhere, self.here
        elif what == "crash":  # the process is gone with all it remembered; another takes its place
            self.here = Process(self.store, self.clock)
        elif what == "prune":
            self.clock.advance(max(0, ms) * 8)
            assert self.ask(self.here.engine.prune()) == self.model.prune(self.now)
        elif what == "register":
            assert self.ask(self.here.engine.register(worker)) is None
            self.model.workers[worker.name] = (worker, self.now)
        else:
            self._define(job, given, payload, trouble)

    def _set_clock(self, ms: int) -> None:
        """Somebody sets the clock. A watch looks often: two jumps between two looks it could not tell from none."""
        self.clock.jump(ms)
        for process in (self.here, self.elsewhere):
            process.watch.look()
            process.look()

    # Looking

    @rule(
        what=st.sampled_from(["tail", "page", "page", "queue", "one"]),
        number=picks,
        job=st.sampled_from([None, None, "a", "b"]),
        queue=st.sampled_from([None, "default", "other"]),
        state=st.sampled_from([None, *State]),
        states=st.sets(st.sampled_from(State), min_size=1),
        count=st.sampled_from([1, 2, 100]),
    )
    def look(self, what: str, number: int, job: str | None, queue: str | None, state: State | None, states: set[State], count: int) -> None:
        if what == "tail":
            self._read_tail(count)
        elif what == "page":
            self._page(job, queue, state, count)
        elif what == "queue":
            queue = queue or "other"
            assert self._listed(count, queue=queue, states=states) == self.model.in_queue(queue, states)
        else:
            self._look_at_one(self.pick(number))

    def _read_tail(self, count: int) -> int:
        """A4: a reader that keeps its cursor sees every entry of a run once, in order, with none left out."""
        page = self.ask(self.here.engine.tail(self.cursor, count=count))
        for entry in page.entries:
            assert entry.rev == self.tailed.get(entry.run, 0) + 1, f"A4: {entry} after revision {self.tailed.get(entry.run)}"
            self.tailed[entry.run] = entry.rev
        self.cursor = page.cursor
        return len(page.entries)

    def _page(self, job: str | None, queue: str | None, state: State | None, count: int) -> None:
        queue = queue if state is State.QUEUED or job is None else None
        job = job if state in (None, State.QUEUED) or state not in (State.WAITING, State.SCHEDULED, *map(State, LIVE)) else None
        assert self._listed(count, job=job, queue=queue, state=state) == self.model.listed(job, queue, state)

    def _listed(self, count: int, **filters: Any) -> list[str]:
        """The ids of a list, from its first page to its last."""
        found, cursor = [], None
        while True:
            page = self.ask(self.here.engine.runs(**filters, cursor=cursor, count=count))
            found += [run.id for run in page.runs]
            cursor = page.cursor
            if cursor is None:
                return found

    def _look_at_one(self, run: str) -> None:
        """History, attempts, log and the reasons why it does not run, by the run's id."""
        engine = self.here.engine
        answer = self.ask(engine.why(run))
        expected = self.judge(answer, lambda: self.model.why(run, self.now))
        if expected is None:
            return
        codes = [reason.code for reason in answer]
        assert [code for code in codes if code not in AHEAD] == expected
        assert bool(codes) == (run not in self.model.next_ones(self.now)), f"{run} is held back by {codes}"
        doc = self.model.runs[run]
        history = self.ask(engine.history(run))
        assert [(entry.rev, entry.move, entry.state.value) for entry in history] == [
            (n, *entry[:2]) for n, entry in enumerate(doc.entries, 1)
        ]
        attempts = self.ask(engine.attempts(run))
        assert [item.n for item in attempts] == list(range(1, doc.attempt + 1))
        assert [item.outcome for item in attempts] == [*(item[0] for item in doc.closed), doc.state]
        assert [item.id for item in attempts] == doc.ids
        own = self.observer.last.by_id()[run].payload
        payloads = [msgspec.json.decode(own if item.payload is None else item.payload) for item in attempts]
        assert payloads == [*(item[-1] for item in doc.closed), doc.payload]
        assert [self.ask(engine.get(item.id)).id for item in attempts] == [run] * len(attempts)
        lines = self.ask(engine.lines(run))
        assert [((line.attempt, line.n), line.text) for line in lines] == sorted(doc.lines.items())

    # The end

    def teardown(self) -> None:
        FAULTS.arm("")
        if self.whole:
            self._everything_ends()
            while self._read_tail(100) or self._read_tail(100):
                pass
            journal = {self.observer.last.runs[seq].id: len(entries) for seq, entries in self.observer.last.journal.items()}
            assert {run: self.tailed.get(run, 0) for run in journal} == journal, "A4: the tail has left something out"

    def _everything_ends(self) -> None:
        """Live2: what dead workers hold is taken back. Live1: what can be executed is, as soon as a worker asks."""
        self.clock.advance(max([1, *(doc.lease_until - self.now for doc in self.model.runs.values() if doc.lease_until is not None)]))
        self._sweep(self.here)
        self.holds()
        assert not [doc for doc in self.model.runs.values() if doc.state in LIVE], "Live2: held by workers that are gone"
        rounds = 0
        while unfinished := [doc for doc in self.model.runs.values() if not doc.ended]:
            rounds += 1
            assert rounds <= len(self.model.runs) + 1, f"Live1: still unfinished: {unfinished}"
            self.clock.advance(max([1, *(doc.due_at - self.now for doc in unfinished if doc.state == "scheduled")]))
            self._sweep(self.here)
            self.holds()
            ready = sum(doc.state == "queued" and able(FAIR, doc) for doc in self.model.runs.values())
            self._claim(FAIR, 1_000, 30_000, None, None, None)
            mine = [(doc.id, doc.token) for doc in self.model.runs.values() if doc.state == "claimed"]
            assert len(mine) == ready
            for run, token in mine:
                self._report(Outcome(run, Succeed(token=token)), None, None)
            self.holds()


SETTINGS = settings(
    max_examples=2_000 if MANY else 110,
    stateful_step_count=100 if MANY else 50,
    deadline=None,
    print_blob=True,
    derandomize=not MANY,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


@pytest.fixture(params=["memory", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    found = opened(request)
    yield found
    run_sync(found.close())


def opened(request: pytest.FixtureRequest) -> Store:
    """A store that can be read whole, and emptied."""
    if request.param == "memory":
        from windlass.store.sqlite import BlockingSqlite

        return BlockingSqlite(":memory:", ManualClock(), queries=with_tables("sqlite", **CLEAR))
    from windlass.store.postgres import BlockingPostgres

    return BlockingPostgres(request.getfixturevalue("postgres_url"), ManualClock(), queries=with_tables("postgres", **CLEAR))


@pytest.mark.timeout(0 if MANY else 300)
def test_the_engine_does_what_the_model_says(store: Store) -> None:
    EngineMachine.steps = 0
    run_state_machine_as_test(lambda: EngineMachine(store), settings=SETTINGS)  # type: ignore[arg-type]
    print(f"{EngineMachine.steps} steps")  # a promise that was tried how often? `pytest -rP` tells
