"""The tests that every port of a worker must pass, as plain functions. A new port's own test file is a few lines:

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
    def test_my_port(case):
        asyncio.run(conform(case, my_ports))

where `my_ports()` is an async context manager that returns `Ports`: an engine without runs, ports that lead to it, and a way to
advance its clock.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from windlass.answers import Outcome
from windlass.clock import SystemClock
from windlass.engine import Engine
from windlass.errors import BadInput, Cancelled, LeaseLost, NotFound, TooLarge, WindlassError, WrongState
from windlass.machine import Fail, Refuse, Requeue, Skip, Snooze, Succeed
from windlass.model import LIFE_TAG, Failure, Life, NewRun, Options, Receipt, Requires, Run, Solver, State, WorkerInfo
from windlass.store.base import ALL_QUEUES, queue_topic, worker_topic
from windlass.store.records import Held
from windlass.testing.stores import TEXTS, refused
from windlass.worker import Port

MANY = WorkerInfo("many", slots=1_000)
LEASE = 30_000
BOOM = Failure("boom", "it broke", "line 1\nline 2")
NONCES = SystemClock().nonce


class Ports:
    """An engine, ports that lead to it, and its clock."""

    def __init__(self, engine: Engine, another: Callable[[], Port], pass_time: Callable[[int], None]) -> None:
        self.engine, self.another, self.pass_time = engine, another, pass_time
        self.port = another()

    async def create(self, count: int = 1, job: str = "job", payload: Any = None, **options: Any) -> list[str]:
        """This many runs of a job; returns their ids."""
        await self.engine.define(job, options=Options(**options))
        return [created.id for created in await self.engine.create([NewRun(job, payload) for _ in range(count)])]

    async def claim(self, count: int = 1, worker: WorkerInfo = MANY, lease: int = LEASE) -> list[Run]:
        """A claim under a new token."""
        return await self.port.claim(worker, count=count, lease=lease, token=NONCES())

    async def claimed(self, **options: Any) -> Run:
        """One claimed run."""
        await self.create(**options)
        (run,) = await self.claim()
        return run


Case = Callable[[Ports], Awaitable[None]]
CASES: list[Case] = []


def _case(function: Case) -> Case:
    CASES.append(function)
    return function


async def conform(case: Case, open_ports: Callable[[], AbstractAsyncContextManager[Ports]]) -> None:
    """Run one case on new ports."""
    async with open_ports() as ports:
        await case(ports)


def held(run: Run) -> Held:
    return Held(run.seq, run.token or "")


def succeeded(run: Run, output: str | None = None) -> Outcome:
    return Outcome(run.id, Succeed(token=run.token, output=output), run.seq)


def failed(run: Run, **how: Any) -> Outcome:
    return Outcome(run.id, Fail(token=run.token, error=BOOM, **how), run.seq)


def ends(answers: list[Receipt | WindlassError]) -> list[Any]:
    """The state of each result, or the kind of each refusal."""
    return [answer.state if isinstance(answer, Receipt) else type(answer) for answer in answers]


# Claims


@_case
async def a_claim_takes_no_more_than_asked_in_the_order_of_the_queue(ports: Ports) -> None:
    ids = await ports.create(5)
    first, rest = await ports.claim(2), await ports.claim(10)
    assert [run.id for run in first] == ids[:2]
    assert [run.id for run in rest] == ids[2:]
    assert await ports.claim(10) == []
    for run in (*first, *rest):
        assert (run.state, run.worker, run.attempt, run.lease) == (State.CLAIMED, "many", 1, LEASE)


@_case
async def a_claim_brings_the_run_as_it_is_stored(ports: Ports) -> None:
    for text in TEXTS:
        await ports.create(payload={"text": text, "numbers": [1, -2.5, 2**62, None, True]}, timeout=5_000, max_attempts=7)
    runs = await ports.claim(len(TEXTS))
    assert runs == [await ports.engine.get(run.id) for run in runs]


@_case
async def a_claim_asked_again_under_its_token_gives_the_same_runs(ports: Ports) -> None:
    await ports.create(5)
    token = NONCES()
    runs = await ports.port.claim(MANY, count=3, lease=LEASE, token=token)
    again = await ports.another().recover(MANY, token)
    assert sorted(run.id for run in again) == sorted(run.id for run in runs)
    await ports.port.report_many([succeeded(runs[0])])
    assert {run.id for run in await ports.port.recover(MANY, token)} == {run.id for run in runs[1:]}
    assert await ports.port.recover(MANY, NONCES()) == []
    assert await ports.port.recover(WorkerInfo("another"), token) == []


@_case
async def concurrent_claims_get_distinct_runs(ports: Ports) -> None:
    ids = await ports.create(60)
    answers = await asyncio.gather(
        *(ports.another().claim(WorkerInfo(f"w{n}", slots=10), count=2, lease=LEASE, token=NONCES()) for n in range(50))
    )
    got = Counter(run.id for runs in answers for run in runs)
    assert got == Counter(ids)


@_case
async def a_worker_with_one_slot_gets_one_run_at_a_time(ports: Ports) -> None:
    await ports.create(2)
    one = WorkerInfo("one")
    (run,) = await ports.claim(5, one)
    assert await ports.claim(5, one) == []
    await ports.port.report_many([succeeded(run)])
    assert len(await ports.claim(5, one)) == 1


@_case
async def a_worker_is_not_offered_what_it_cannot_do(ports: Ports) -> None:
    await ports.create(job="elsewhere", queue="far")
    await ports.create(job="heavy", requires=Requires(("gpu",), 4, 1024))
    await ports.create(job="plain")
    assert [run.job for run in await ports.claim(9, WorkerInfo("a", queues=("default",), slots=9))] == ["plain"]
    assert await ports.claim(9, WorkerInfo("b", queues=("default",), tags=("gpu",), cores=2, memory=4096, slots=9)) == []
    assert await ports.claim(9, WorkerInfo("c", jobs=("plain",), tags=("gpu",), cores=8, memory=4096, slots=9)) == []
    assert [
        run.job for run in await ports.claim(9, WorkerInfo("d", queues=("default",), tags=("gpu",), cores=8, memory=4096, slots=9))
    ] == ["heavy"]
    assert [run.queue for run in (await ports.engine.runs(state="queued")).runs] == ["far"]


@_case
async def a_worker_gets_the_runs_of_every_job_that_has_its_handler(ports: Ports) -> None:
    await ports.create(job="story")
    await ports.engine.define("daily", handler="story")
    await ports.engine.create([NewRun("daily")])
    assert await ports.claim(9, WorkerInfo("a", jobs=("daily",), slots=9)) == []
    runs = await ports.claim(9, WorkerInfo("b", jobs=("story",), slots=9))
    assert [(run.job, run.handler) for run in runs] == [("story", "story"), ("daily", "story")]


@_case
async def a_worker_that_names_jobs_gets_programs_of_others_only_if_it_takes_any(ports: Ports) -> None:
    program = Solver("https://files.example/solve", "a" * 64)
    await ports.create(job="named", solver=program)
    await ports.create(job="other", solver=program)
    names = WorkerInfo("a", jobs=("named",), tags=("solver",), slots=9)
    assert [run.job for run in await ports.claim(9, names)] == ["named"]
    await ports.port.register(WorkerInfo("b", jobs=("named",), tags=("solver",), slots=9, programs=True))
    (worker,) = await ports.engine.workers()
    assert [run.job for run in await ports.claim(9, worker.info)] == ["other"]


@_case
async def what_makes_no_sense_is_refused_and_changes_nothing(ports: Ports) -> None:
    (run_id,) = await ports.create()
    before = await ports.engine.get(run_id)
    wrong: tuple[dict[str, Any], ...] = (
        {"count": 0},
        {"count": 100_000},
        {"lease": 0},
        {"lease": 2**60},
        {"token": "short"},
        {"token": "no token at all!"},
    )
    for how in wrong:
        request: dict[str, Any] = {"count": 1, "lease": LEASE, "token": NONCES()} | how
        with refused(BadInput):
            await ports.port.claim(MANY, **request)
    for worker in (WorkerInfo(""), WorkerInfo("a\nb"), WorkerInfo("w", slots=0), WorkerInfo("w", queues=("",))):
        with refused(BadInput):
            await ports.port.claim(worker, count=1, lease=LEASE, token=NONCES())
        with refused(BadInput):
            await ports.port.register(worker)
    assert await ports.engine.get(run_id) == before


# Holding


@_case
async def a_beat_extends_the_lease_and_brings_the_progress(ports: Ports) -> None:
    run = await ports.claimed()
    ports.pass_time(LEASE - 1_000)
    assert await ports.port.beat([held(run)], lease=LEASE, progress={held(run): '{"fraction":0.5}'}) == ["ok"]
    now = await ports.engine.get(run.id)
    assert (now.lease_until or 0) - (run.lease_until or 0) >= LEASE - 1_000
    assert now.progress == '{"fraction":0.5}'


@_case
async def beats_are_answered_one_by_one(ports: Ports) -> None:
    await ports.create(3)
    fine, cancelled, ended = await ports.claim(3)
    await ports.engine.cancel(cancelled.id)
    await ports.port.report_many([succeeded(ended)])
    stranger = Held(fine.seq, NONCES())
    assert await ports.port.beat([held(cancelled), held(ended), stranger, held(fine)], lease=LEASE) == ["stop", "lost", "lost", "ok"]
    assert await ports.port.beat([], lease=LEASE) == []


@_case
async def a_start_counts_once_and_only_for_what_is_held(ports: Ports) -> None:
    await ports.create(2)
    first, second = await ports.claim(2)
    stranger = Held(second.seq, NONCES())
    assert await ports.port.start_many([held(first), stranger]) == {held(first)}
    begun = (await ports.engine.get(first.id)).started_at
    ports.pass_time(10)
    assert await ports.port.start_many([held(first)]) == {held(first)}
    assert (await ports.engine.get(first.id)).started_at == begun is not None
    assert (await ports.engine.get(second.id)).state is State.CLAIMED


@_case
async def lines_are_kept_once_and_in_order(ports: Ports) -> None:
    run = await ports.claimed()
    lines = [(n, text or "-") for n, text in enumerate((text[:5_000] for text in TEXTS), 1)]
    await ports.port.log(run.id, run.token or "", lines[3:], seq=run.seq)
    await ports.port.log(run.id, run.token or "", lines[:5], seq=run.seq)
    assert [(line.n, line.text) for line in await ports.engine.lines(run.id)] == lines
    with refused(LeaseLost):
        await ports.port.log(run.id, NONCES(), [(99, "stranger")], seq=run.seq)
    await ports.port.report_many([succeeded(run)])
    with refused(LeaseLost):
        await ports.port.log(run.id, run.token or "", [(100, "late")], seq=run.seq)
    assert len(await ports.engine.lines(run.id)) == len(lines)


@_case
async def the_result_of_a_step_is_stored_once_under_the_lease(ports: Ports) -> None:
    run = await ports.claimed(backoff=(0,), max_attempts=3)
    token, port, texts = run.token or "", ports.port, [f'"{text[:5_000]}"' for text in ("", "漢字 🪝", "x" * 5_000, "\\u2028")]
    stored = [await port.store_step(run.id, token, f"step {n}", text, seq=run.seq) for n, text in enumerate(texts)]
    assert [(step.key, step.output, step.n) for step in stored] == [(f"step {n}", text, n + 1) for n, text in enumerate(texts)]
    assert await ports.another().store_step(run.id, token, "step 0", '"another"', seq=run.seq) == stored[0]
    assert await ports.engine.steps(run.id) == stored
    assert [(step.key, step.value, step.at, step.n) for step in await port.steps(run.id)] == [
        (step.key, step.value, step.at, step.n) for step in stored
    ]
    assert [step.n for step in await port.steps(run.id, after=1, count=2)] == [2, 3]
    for stranger in (NONCES(), token.swapcase()):
        with refused(LeaseLost):
            await port.store_step(run.id, stranger, "stranger", "1", seq=run.seq)
    await port.report_many([failed(run)])
    with refused(LeaseLost):
        await port.store_step(run.id, token, "late", "1", seq=run.seq)
    (again,) = await ports.claim()
    assert (again.id, again.attempt) == (run.id, 2)
    later = await port.store_step(run.id, again.token or "", "later", "null", seq=run.seq)
    assert await ports.engine.steps(run.id) == [*stored, later]
    assert [step.key for step in await port.steps(run.id)] == [step.key for step in (*stored, later)]
    await port.report_many([succeeded(again)])
    with refused(LeaseLost):
        await port.store_step(run.id, again.token or "", "after the end", "1", seq=run.seq)
    assert await ports.engine.steps(run.id) == [*stored, later]


@_case
async def a_step_that_cannot_be_stored_changes_nothing(ports: Ports) -> None:
    run = await ports.claimed()
    token, port = run.token or "", ports.port
    await port.store_step(run.id, token, "x" * 128, f'"{"y" * (64 * 1024 - 2)}"', seq=run.seq)
    for key, output in (("", "1"), ("x" * 129, "1"), ("a\nb", "1"), ("a", '"\0"'), ("a", f'"{"y" * 64 * 1024}"')):
        with refused(BadInput):
            await port.store_step(run.id, token, key, output, seq=run.seq)
    with refused(NotFound):
        await port.store_step("nobody", token, "a", "1")
    with refused(NotFound):
        await port.steps("nobody")
    assert [step.key for step in await ports.engine.steps(run.id)] == ["x" * 128]


@_case
async def a_step_beyond_the_limit_is_refused(ports: Ports) -> None:
    run = await ports.claimed()
    token, port, limit = run.token or "", ports.port, ports.engine.limits.steps
    await asyncio.gather(*(ports.engine.store_step(run.id, token, f"{n}", "1", seq=run.seq) for n in range(limit - 1)))
    last = await port.store_step(run.id, token, "last", "1", seq=run.seq)
    assert last.n == limit
    with refused(TooLarge):
        await port.store_step(run.id, token, "one more", "1", seq=run.seq)
    assert await port.store_step(run.id, token, "last", "2", seq=run.seq) == last
    assert len(await port.steps(run.id)) == limit


# Reports


@_case
async def an_output_comes_back_as_it_was_reported(ports: Ports) -> None:
    outputs = [None, "null", '"\\u2028"', '{"a":[1,2.5,-3]}', *(f'"{text}"' for text in ("漢字 🪝", "x" * 500_000))]
    await ports.create(len(outputs))
    runs = await ports.claim(len(outputs))
    answers = await ports.port.report_many([succeeded(run, output) for run, output in zip(runs, outputs, strict=True)])
    assert ends(answers) == [State.SUCCEEDED] * len(outputs)
    assert [(await ports.engine.get(run.id)).output for run in runs] == outputs


@_case
async def what_a_call_may_bring_can_be_large(ports: Ports) -> None:
    await ports.create(12)
    runs = await ports.claim(12)
    lines = [(n, "x" * 8_000) for n in range(1, 1_001)]
    await ports.port.log(runs[0].id, runs[0].token or "", lines, seq=runs[0].seq)
    answers = await ports.port.report_many([succeeded(run, f'"{"y" * 1_000_000}"') for run in runs])
    assert ends(answers) == [State.SUCCEEDED] * 12
    assert [line.n for line in await ports.engine.lines(runs[0].id, count=1_000)] == [n for n, _ in lines]


@_case
async def the_same_report_again_gets_the_same_answer(ports: Ports) -> None:
    await ports.create(4, backoff=(0,))
    runs = await ports.claim(4)
    reports = [
        succeeded(runs[0], "1"),
        failed(runs[1]),
        failed(runs[2], retry=False),
        Outcome(runs[3].id, Requeue(token=runs[3].token), runs[3].seq),
    ]
    first = await ports.port.report_many(reports)
    assert ends(first) == [State.SUCCEEDED, State.QUEUED, State.FAILED, State.QUEUED]
    before = [await ports.engine.get(run.id) for run in runs]
    again = await ports.another().report_many(reports)
    assert ends(again) == ends(first)
    assert all(isinstance(answer, Receipt) and answer.repeated for answer in again)
    assert [await ports.engine.get(run.id) for run in runs] == before
    assert ends(await ports.port.report_many([succeeded(runs[0], "2")])) == [WrongState]


@_case
async def a_success_is_known_by_the_key_of_its_result(ports: Ports) -> None:
    run = await ports.claimed()
    first, other = (Outcome(run.id, Succeed(token=run.token, output=output, key="result-1"), run.seq) for output in ("1", "2"))
    assert ends(await ports.port.report_many([first])) == [State.SUCCEEDED]
    (again,) = await ports.another().report_many([other])
    assert isinstance(again, Receipt)
    assert again.repeated
    stored = await ports.engine.get(run.id)
    assert (stored.output, stored.output_key) == ("1", "result-1")


@_case
async def one_report_that_is_refused_does_not_harm_the_others(ports: Ports) -> None:
    await ports.create(4)
    cancelled, fine, bad, stranger = await ports.claim(4)
    await ports.engine.cancel(cancelled.id)
    nobody = Outcome(ports.engine.clock.new_id(), Succeed(token=NONCES()))
    forged = Outcome(stranger.id, Succeed(token=NONCES()), stranger.seq)
    answers = await ports.port.report_many([succeeded(cancelled), succeeded(bad, "\0"), nobody, forged, succeeded(fine)])
    assert ends(answers) == [Cancelled, BadInput, NotFound, LeaseLost, State.SUCCEEDED]
    assert all(answer.message and answer.hint for answer in answers if isinstance(answer, WindlassError))
    assert [(await ports.engine.get(run.id)).state for run in (cancelled, bad, stranger)] == [
        State.CANCELLED,
        State.CLAIMED,
        State.CLAIMED,
    ]


@_case
async def failures_are_retried_as_the_report_says(ports: Ports) -> None:
    run = await ports.claimed(max_attempts=2)
    assert ends(await ports.port.report_many([failed(run, delay=5_000)])) == [State.SCHEDULED]
    planned = await ports.engine.get(run.id)
    assert (planned.failures, planned.attempt, planned.error) == (1, 2, BOOM)
    ports.pass_time(5_000)
    await ports.engine.sweep()
    (again,) = await ports.claim()
    assert (again.id, again.token != run.token) == (run.id, True)
    assert ends(await ports.port.report_many([failed(again)])) == [State.FAILED]
    assert ends(await ports.port.report_many([Outcome(run.id, Snooze(token=run.token, delay=1), run.seq)])) == [LeaseLost]


@_case
async def what_is_requeued_or_snoozed_counts_no_failure(ports: Ports) -> None:
    run = await ports.claimed()
    assert ends(await ports.port.report_many([Outcome(run.id, Requeue(token=run.token), run.seq)])) == [State.QUEUED]
    (again,) = await ports.claim()
    assert ends(await ports.port.report_many([Outcome(again.id, Snooze(token=again.token, delay=60_000), again.seq)])) == [State.SCHEDULED]
    now = await ports.engine.get(run.id)
    assert (now.failures, now.requeues, now.attempt) == (0, 2, 3)


@_case
async def a_run_is_skipped_with_its_reason_and_is_not_tried_again(ports: Ports) -> None:
    run = await ports.claimed()
    skip = [Outcome(run.id, Skip(token=run.token, reason="duplicate"), run.seq)]
    assert ends(await ports.port.report_many(skip)) == [State.SKIPPED]
    now = await ports.engine.get(run.id)
    assert (now.reason, now.failures, now.error, now.output) == ("duplicate", 0, None, None)
    (again,) = await ports.another().report_many(skip)
    assert isinstance(again, Receipt)
    assert (again.state, again.repeated) == (State.SKIPPED, True)
    assert ends(await ports.port.report_many([Outcome(run.id, Skip(token=run.token, reason="late"), run.seq)])) == [WrongState]
    assert await ports.claim() == []


@_case
async def what_is_requeued_without_having_begun_is_as_it_was(ports: Ports) -> None:
    run = await ports.claimed(max_requeues=0)
    requeued = [Outcome(run.id, Requeue(token=run.token, begun=False), run.seq)]
    assert ends(await ports.port.report_many(requeued)) == [State.QUEUED]
    assert ends(await ports.port.report_many(requeued)) == [State.QUEUED]
    now = await ports.engine.get(run.id)
    assert (now.failures, now.requeues, now.attempt, now.token) == (0, 0, 1, None)
    (again,) = await ports.claim()
    assert again.id == run.id


@_case
async def a_late_worker_is_refused_and_nothing_of_it_is_stored(ports: Ports) -> None:
    late = await ports.claimed(backoff=(0,))
    ports.pass_time(LEASE + 1_000)
    await ports.engine.sweep()
    (new,) = await ports.claim(1, WorkerInfo("new"))
    assert new.id == late.id
    before = await ports.engine.get(new.id)
    assert await ports.port.beat([held(late)], lease=LEASE, progress={held(late): "1"}) == ["lost"]
    assert await ports.port.start_many([held(late)]) == set()
    with refused(LeaseLost):
        await ports.port.log(late.id, late.token or "", [(1, "late")], seq=late.seq)
    assert ends(await ports.port.report_many([succeeded(late, '"late"'), failed(late)])) == [LeaseLost, LeaseLost]
    assert await ports.engine.get(new.id) == before
    assert await ports.engine.lines(new.id) == []
    assert ends(await ports.port.report_many([succeeded(new, '"new"')])) == [State.SUCCEEDED]
    assert [attempt.outcome for attempt in await ports.engine.attempts(new.id)] == ["lapsed", "succeeded"]


# Hints


async def _quiet(ports: Ports, topics: frozenset[str]) -> None:
    """Consume the hints so far, and the initial answer."""
    while await ports.port.wait(topics, 0.05):
        pass


async def _hears(ports: Ports, topics: frozenset[str], *expected: str) -> bool:
    """Whether there is a hint for one of these; a port without hints must let its worker poll soon."""
    clock = SystemClock()
    while True:
        begin = clock.monotonic()
        woken = await ports.port.wait(topics, 20)
        if woken.intersection(expected):
            return True
        if not woken:
            return clock.monotonic() - begin < 1_000


@_case
async def a_wait_hears_of_new_runs_and_of_cancels(ports: Ports) -> None:
    mine = frozenset({queue_topic("default"), worker_topic("many")})
    run = await ports.claimed()
    await _quiet(ports, mine)
    await ports.create()
    assert await _hears(ports, mine, queue_topic("default"))
    await ports.engine.cancel(run.id)
    assert await _hears(ports, mine, worker_topic("many"))


@_case
async def what_is_said_between_two_waits_is_kept_for_the_second(ports: Ports) -> None:
    mine = frozenset({ALL_QUEUES, worker_topic("many")})
    await _quiet(ports, mine)
    await ports.create()
    await asyncio.sleep(0.2)
    assert await _hears(ports, mine, queue_topic("default"), ALL_QUEUES)


@_case
async def a_wait_for_nothing_ends(ports: Ports) -> None:
    mine = frozenset({queue_topic("empty"), worker_topic("many")})
    for _ in range(50):  # where a hint may have been missed, the wait returns all topics at once
        if await ports.port.wait(mine, 0.05) == set():
            return
    raise AssertionError("it is never quiet")


# Payloads that do not fit


def refused_by(run: Run, schema: str) -> Outcome:
    return Outcome(run.id, Refuse(token=run.token, error=Failure("bad_payload", "It does not fit."), schema=schema), run.seq)


@_case
async def a_payload_that_a_worker_refuses_is_offered_to_workers_with_other_code(ports: Ports) -> None:
    await ports.port.register(WorkerInfo("many", slots=9), about={"host": "here"}, schemas={"job": "old"})
    await ports.port.register(WorkerInfo("newer", slots=9), about={"host": "here"}, schemas={"job": "new"})
    run = await ports.claimed()
    report = refused_by(run, "old")
    assert ends(await ports.port.report_many([report])) == [State.SCHEDULED]
    now = await ports.engine.get(run.id)
    assert (now.failures, now.requeues, now.attempt, now.due_at > ports.engine.clock.now()) == (0, 0, 2, True)
    (again,) = await ports.port.report_many([report])
    assert isinstance(again, Receipt)
    assert (again.state, again.repeated) == (State.SCHEDULED, True)
    ports.pass_time(30_000)
    await ports.engine.sweep()
    (run,) = await ports.claim(1, WorkerInfo("newer", slots=9))
    assert ends(await ports.port.report_many([succeeded(run)])) == [State.SUCCEEDED]


@_case
async def a_payload_that_all_live_workers_refuse_fails_at_once(ports: Ports) -> None:
    for name in ("many", "other"):
        await ports.port.register(WorkerInfo(name, slots=9), about={"host": "here"}, schemas={"job": "old"})
    run = await ports.claimed()
    report = refused_by(run, "old")
    assert ends(await ports.port.report_many([report, report])) == [State.FAILED, State.FAILED]
    error = (await ports.engine.get(run.id)).error
    assert error is not None
    assert (error.code, error.message) == ("bad_payload", "It does not fit.")


# Workers


@_case
async def a_worker_that_registers_again_is_one_worker(ports: Ports) -> None:
    await ports.port.register(WorkerInfo("w", queues=("a",), slots=2), about={"host": "here", "pid": 7})
    await ports.port.register(WorkerInfo("w", queues=("b", "c"), tags=("gpu",), slots=3))
    await ports.port.worker_metrics("w", {"cpu": 12.5, "memory": 1024})
    (seen,) = await ports.engine.workers()
    assert seen.info == WorkerInfo("w", queues=("b", "c"), tags=("gpu",), slots=3)
    assert seen.about == {"host": "here", "pid": 7}
    assert seen.metrics == {"cpu": 12.5, "memory": 1024}


@_case
async def a_process_that_has_ended_loses_what_it_holds_and_no_other_of_its_name_does(ports: Ports) -> None:
    gone, alive = Life("a" * LIFE_TAG, "somewhere 1"), Life("b" * LIFE_TAG, "somewhere 2")
    assert await ports.port.begin_life(MANY.name, gone) == []  # the worker is not registered
    await ports.port.register(MANY)
    assert await ports.port.begin_life(MANY.name, gone) == [gone]
    assert await ports.another().begin_life(MANY.name, alive) == [gone, alive]
    assert (await ports.engine.lives(MANY.name), await ports.engine.lives("other")) == ([gone, alive], [])
    ids = await ports.create(4)
    for worker, life in ((MANY, gone), (MANY, alive), (MANY, None), (WorkerInfo("other", slots=9), gone)):
        await ports.port.claim(worker, count=1, lease=LEASE, token=(life.tag if life else "") + NONCES())
    assert await ports.port.end_lives(MANY.name, [gone.tag]) == 1
    assert await ports.port.end_lives(MANY.name, [gone.tag]) == 0
    first, *others = [await ports.engine.get(run_id) for run_id in ids]
    assert (first.state, first.attempt, first.failures, first.token) == (State.SCHEDULED, 2, 1, None)
    assert {run.state for run in others} == {State.CLAIMED}
    assert [entry.move for entry in await ports.engine.history(first.id)] == ["create", "claim", "lapse"]
    assert await ports.port.begin_life(MANY.name, alive) == [alive]


@_case
async def what_a_process_tells_of_itself_is_bounded(ports: Ports) -> None:
    await ports.port.register(MANY)
    run = await ports.claimed()
    for tag in ("", "short", "x" * (LIFE_TAG + 1), "no tag !"):
        with refused(BadInput):
            await ports.port.begin_life(MANY.name, Life(tag, "somewhere"))
        with refused(BadInput):
            await ports.port.end_lives(MANY.name, [tag])
    with refused(BadInput):
        await ports.port.begin_life(MANY.name, Life("a" * LIFE_TAG, "x" * 1_000))
    lives = [Life(f"{n:0{LIFE_TAG}}", "somewhere") for n in range(20)]
    for life in lives:
        ports.pass_time(1)
        await ports.port.begin_life(MANY.name, life)
    assert await ports.port.begin_life(MANY.name, lives[-1]) == lives[4:]
    assert (await ports.engine.get(run.id)).state is State.CLAIMED


@_case
async def what_became_of_the_runs_before_is_read_page_by_page(ports: Ports) -> None:
    first = await ports.create(3)
    for run in await ports.claim(3):
        await ports.port.report_many([succeeded(run, f'"{run.id}"') if run.id != first[1] else failed(run, retry=False)])
    (last,) = await ports.engine.create([NewRun("job", after=tuple(first), after_end="any")])
    page = await ports.port.results(last.id)
    assert {result.id: (result.state, result.value) for result in page} == {
        run: (State.FAILED, None) if run == first[1] else (State.SUCCEEDED, run) for run in first
    }
    assert await ports.port.results(last.id, count=2) == page[:2]
    assert await ports.port.results(last.id, after=page[1].id) == page[2:]
    assert await ports.port.results(first[0]) == []
    with refused(NotFound):
        await ports.port.results("nobody")
