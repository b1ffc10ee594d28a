"""Steps of handlers: done once per run, whatever happens to the attempts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker import step_app
from tests.worker.test_worker import AGES, TRANSIENT, Ports, app, error, ports, stored  # noqa: F401 - fixtures
from tests.workers import Gate, ended, until, working
from windlass import App, Context, State
from windlass.engine import Engine
from windlass.errors import BadInput, LeaseLost, OutcomeUnknown, StoreError, StoreUnreachable, TooLarge
from windlass.machine import Fail as FailReport
from windlass.model import Failure, Limits, Run, Step
from windlass.store.base import run_sync
from windlass.testing import in_memory
from windlass.worker import Worker, steps


def test_in_every_kind_of_handler_a_step_is_done_once_and_returns_the_same_to_every_attempt(tmp_path: Path) -> None:
    jobs = (step_app.in_thread, step_app.in_loop, step_app.in_process, step_app.loop_in_process)
    receipt = {"amount": 5, "pair": [1, 2]}
    with step_app.app, working(step_app.app, slots=4):
        handles = [(job.enqueue(str(tmp_path / job.name)), tmp_path / job.name) for job in jobs]
        for handle, ledger in handles:
            run = ended(handle)
            assert (run.state, run.attempt) == (State.SUCCEEDED, 3), run.error
            assert handle.result == [receipt, receipt, {"charge": receipt}]
            assert ledger.read_text() == "5\n"


def once(stored: App, handler: Callable[..., Any], **options: Any) -> Run:  # noqa: F811
    """The run of a handler with three attempts, when it has ended."""
    job = stored.job(name="once", max_attempts=3, backoff=(0,), **options)(handler)
    with working(stored):
        return ended(job.enqueue())


def test_an_exception_stores_nothing_and_propagates(stored: App) -> None:  # noqa: F811
    calls = Counter[str]()

    def charge() -> int:
        calls["charge"] += 1
        if calls["charge"] < 3:
            raise ValueError("declined")
        return 7

    def pays(ctx: Context) -> Any:
        with pytest.raises(ValueError, match="declined"):
            ctx.step("charge", charge)
        assert ctx.steps() == {}
        if ctx.attempt == 1:
            raise RuntimeError
        return ctx.step("charge", charge)

    run = once(stored, pays)
    assert (run.state, run.output, calls["charge"]) == (State.SUCCEEDED, "7", 3)


def test_tasks_that_call_a_step_at_once_call_its_function_once(stored: App) -> None:  # noqa: F811
    calls = Counter[str]()

    async def charge() -> int:
        calls["charge"] += 1
        await asyncio.sleep(0)
        return calls["charge"]

    async def pays(ctx: Context) -> Any:
        return await asyncio.gather(*(ctx.step("charge", charge) for _ in range(10)))

    assert once(stored, pays).output == str([1] * 10).replace(" ", "")


def test_threads_that_call_a_step_at_once_call_its_function_once(app: App) -> None:  # noqa: F811
    calls, gate = Counter[str](), Gate()

    def charge() -> int:
        calls["charge"] += 1
        gate.block()
        return calls["charge"]

    def pays(ctx: Context) -> Any:
        with ThreadPoolExecutor(4) as threads:
            futures = [threads.submit(ctx.step, "charge", charge) for _ in range(4)]
            gate.reached()
            gate.open()
            return [future.result() for future in futures]

    assert once(app, pays).output == "[1,1,1,1]"


def test_a_step_whose_task_is_cancelled_is_done_by_the_next(app: App) -> None:  # noqa: F811
    async def pays(ctx: Context) -> Any:
        first = asyncio.create_task(ctx.step("charge", asyncio.Event().wait))
        await asyncio.sleep(0)
        second = asyncio.create_task(ctx.step("charge", lambda: "second"))
        third = asyncio.create_task(ctx.step("charge", lambda: "third"))
        await asyncio.sleep(0)
        second.cancel()
        first.cancel()
        return await third

    assert once(app, pays).output == '"third"'


def test_a_step_cannot_be_called_within_itself(app: App) -> None:  # noqa: F811
    async def pays(ctx: Context) -> Any:
        async def again() -> Any:
            inner = await ctx.step("inner", lambda: 1)
            with pytest.raises(BadInput, match="within itself"):
                await ctx.step("charge", lambda: 2)
            return inner

        return await ctx.step("charge", again)

    assert once(app, pays).output == "1"


def test_a_rerun_begins_without_steps(stored: App) -> None:  # noqa: F811
    calls = Counter[str]()

    def charge() -> int:
        calls["charge"] += 1
        return calls["charge"]

    @stored.job(name="pays")
    def pays(ctx: Context) -> Any:
        return ctx.step("charge", charge)

    with working(stored):
        handle = pays.enqueue()
        ended(handle)
        again = handle.rerun()
        ended(again)
        assert (handle.result, again.result) == (1, 2)
    assert [step.value for step in run_sync(stored.verbs.steps(handle.id))] == [1]


BAD: dict[str, tuple[str, Any, type[Exception], str]] = {
    "no key": ("", 1, BadInput, "key"),
    "a long key": ("x" * 129, 1, BadInput, "128"),
    "not JSON": ("charge", {1, 2}, BadInput, "'charge'.* is a set"),
    "too large": ("charge", "x" * 65_535, TooLarge, "65,536"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_stored_is_refused_with_what_to_do(case: str, app: App) -> None:  # noqa: F811
    key, result, kind, text = BAD[case]
    called = []

    def charge() -> Any:
        called.append(1)
        return result

    def pays(ctx: Context) -> None:
        with pytest.raises(kind, match=text):
            ctx.step(key, charge)
        assert ctx.steps() == {}

    assert once(app, pays).state is State.SUCCEEDED
    assert bool(called) is (key == "charge")


def test_a_step_beyond_the_limit_is_refused_before_it_is_done(app: App, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(steps, "LIMITS", Limits(steps=2))
    called: list[int] = []

    def pays(ctx: Context) -> Any:
        ctx.step("1", lambda: 1)
        ctx.step("2", lambda: 2)
        with pytest.raises(TooLarge, match="several runs"):
            ctx.step("3", lambda: called.append(3))
        return ctx.step("2", lambda: called.append(2))

    run = once(app, pays)
    assert (run.state, run.output, called) == (State.SUCCEEDED, "2", [])


# The store


def watched(ports: Ports, worker: Worker, **errors: list[Exception]) -> None:  # noqa: F811
    ports.watch(worker)
    for verb, some in errors.items():
        ports.loop.fail(verb, *some)


def test_a_run_without_steps_reads_none_and_one_with_steps_reads_once_per_later_attempt(app: App, ports: Ports) -> None:  # noqa: F811
    @app.job(name="plain", max_attempts=3, backoff=(0,))
    async def plain(ctx: Context) -> None:
        if ctx.attempt < 3:
            raise RuntimeError

    @app.job(name="many", max_attempts=3, backoff=(0,))
    async def many(ctx: Context) -> int:
        for n in range(150):
            assert await ctx.step(f"{n}", lambda n=n: n * ctx.attempt) == n
        if ctx.attempt < 2:
            raise RuntimeError
        return len(await ctx.steps())

    with working(app, prepare=lambda worker: watched(ports, worker)):
        ended(plain.enqueue())
        assert ports.loop.calls["steps"] == 0
        assert ended(many.enqueue()).output == "150"
    assert ports.loop.calls["store_step"] == 150
    assert ports.loop.calls["steps"] == 2  # two pages, for the second attempt


@pytest.mark.parametrize("kind", TRANSIENT, ids=lambda kind: kind.__name__)
def test_a_store_that_is_away_for_a_while_costs_nothing(kind: type[StoreError], stored: App, ports: Ports) -> None:  # noqa: F811
    calls = Counter[str]()

    def charge() -> int:
        calls["charge"] += 1
        return calls["charge"]

    @stored.job(name="pays", max_attempts=2, backoff=(0,))
    def pays(ctx: Context) -> Any:
        result = ctx.step("charge", charge)
        if ctx.attempt == 1:
            raise RuntimeError
        return result

    away: list[Exception] = [error(kind), error(kind)]
    with working(stored, prepare=lambda worker: watched(ports, worker, store_step=away, steps=away)):
        run = ended(pays.enqueue())
    assert (run.state, run.attempt, run.output, calls["charge"]) == (State.SUCCEEDED, 2, "1", 1)


def test_a_result_that_was_stored_although_nobody_knows_is_kept(stored: App, ports: Ports) -> None:  # noqa: F811
    def prepare(worker: Worker) -> None:
        ports.watch(worker)
        ports.loop.fail("store_step", error(OutcomeUnknown), error(OutcomeUnknown), late=True)

    @stored.job(name="pays")
    def pays(ctx: Context) -> Any:
        return ctx.step("charge", lambda: 7)

    with working(stored, prepare=prepare):
        handle = pays.enqueue()
        assert ended(handle).output == "7"
    assert [step.value for step in run_sync(stored.verbs.steps(handle.id))] == [7]


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_a_handler_that_has_lost_its_lease_gets_leaselost_begins_no_further_step_and_is_stopped(kind: str, stored: App) -> None:  # noqa: F811
    seen: list[str] = []

    def end(ctx: Context, key: str) -> None:
        """End the run meanwhile, as another worker would."""
        seen.append(key)
        run_sync(stored.engine.report(ctx.run, FailReport(token=ctx.token, error=Failure("gone", "gone"))))

    def pays(ctx: Context) -> None:
        for key in ("charge", "ship"):
            with pytest.raises(LeaseLost):
                ctx.step(key, end, ctx, key)
        until(lambda: ctx.cancelled)
        seen.append(ctx.why or "")

    async def pays_async(ctx: Context) -> None:
        try:  # the worker may stop it before the second step, too
            for key in ("charge", "ship"):
                with pytest.raises(LeaseLost):
                    await ctx.step(key, end, ctx, key)
            await asyncio.Event().wait()
        finally:
            seen.append(ctx.why or "")

    job = stored.job(name="pays", max_attempts=1)(pays if kind == "thread" else pays_async)
    with working(stored, lease=AGES):
        handle = job.enqueue()
        until(lambda: len(seen) == 2)
    assert seen == ["charge", "lost"]
    assert run_sync(stored.verbs.steps(handle.id)) == []


async def _away(*arguments: Any, **named: Any) -> Any:
    raise error(StoreUnreachable)


def test_a_result_is_not_stored_any_more_once_the_lease_is_lost(stored: App, ports: Ports) -> None:  # noqa: F811
    seen: list[Any] = []

    def prepare(worker: Worker) -> None:
        ports.watch(worker)
        ports.loop.instead("store_step", _away)
        ports.heartbeat.instead("beat", _away)

    @stored.job(name="pays", max_attempts=1)
    def pays(ctx: Context) -> None:
        with pytest.raises(LeaseLost, match="idempotency key"):
            ctx.step("charge", lambda: 7)
        seen.append(ctx.why)

    with working(stored, lease=0.5, prepare=prepare):
        handle = pays.enqueue()
        until(lambda: seen)
    assert seen == ["lost"]
    assert run_sync(stored.verbs.steps(handle.id)) == []


def test_a_handler_that_is_to_stop_does_not_wait_for_the_steps_of_earlier_attempts(app: App, ports: Ports) -> None:  # noqa: F811
    def prepare(worker: Worker) -> None:
        ports.watch(worker)
        ports.loop.instead("steps", _away)

    @app.job(name="pays", max_attempts=2, backoff=(0,))
    def pays(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise RuntimeError
        with pytest.raises(StoreUnreachable, match="before the handler was to stop"):
            ctx.step("charge", lambda: 7)
        seen.append(ctx.why)

    seen: list[Any] = []
    with working(app, lease=AGES, prepare=prepare):
        handle = pays.enqueue()
        until(lambda: ports.loop.calls["steps"])
        handle.cancel()
        assert ended(handle).state is State.CANCELLED
    assert seen == ["cancel"]


def test_a_coroutine_that_is_cancelled_while_a_result_is_stored_stops_after_that(stored: App, ports: Ports) -> None:  # noqa: F811
    gate, calls = Gate(), Counter[str]()

    def prepare(worker: Worker) -> None:
        ports.watch(worker)
        port: Any = ports.loop._port

        async def slow(*arguments: Any, **named: Any) -> Step:
            await gate.ignore("store")
            step: Step = await port.store_step(*arguments, **named)
            return step

        ports.loop.instead("store_step", slow)

    @stored.job(name="pays")
    async def pays(ctx: Context) -> None:
        calls["charge"] += await ctx.step("charge", lambda: 1)

    with working(stored, prepare=prepare):
        handle = pays.enqueue()
        gate.reached()
        handle.cancel()
        until(lambda: "stop" in str(ports.heartbeat.answers["beat"]))
        gate.open()
        assert ended(handle).state is State.CANCELLED
    assert [step.key for step in run_sync(stored.verbs.steps(handle.id))] == ["charge"]
    assert calls == {}


# Random lives

Fate = Literal["fine", "in the step", "before the store", "after the store", "after the step"]
FATES: tuple[Fate, ...] = ("fine", "in the step", "before the store", "after the store", "after the step")
KEYS = ("charge", "pack", "ship")


class Crash(Exception):
    pass


@settings(deadline=None)
@given(st.lists(st.sampled_from(FATES), max_size=20), st.lists(st.permutations(KEYS), min_size=1, max_size=5))
def test_whatever_crashes_a_stored_result_stays_and_its_function_is_not_called_again(fates: list[Fate], orders: list[list[str]]) -> None:
    coming, results, calls = iter(fates), dict[str, int](), Counter[str]()
    app = App(":memory:")  # noqa: F811

    @app.job(name="pays", max_attempts=50, backoff=(0,))
    def pays(ctx: Context) -> Any:
        for key in orders[ctx.attempt % len(orders)]:
            fate: Fate = next(coming, "fine")

            def work(key: str = key, fate: Fate = fate) -> int:
                assert key not in {step.key for step in run_sync(app.engine.steps(ctx.run))}
                calls[key] += 1
                crash.fate = fate
                if fate == "in the step":
                    raise Crash
                return calls[key]

            result = ctx.step(key, work)
            assert results.setdefault(key, result) == result
            if fate == "after the step":
                raise Crash
        return ctx.steps()

    class Crashing:
        """The engine's verb, in a process that dies before or after it."""

        fate: Fate = "fine"

        def __init__(self, engine: Engine) -> None:
            self._store = engine.store_step

        async def __call__(self, run: str, token: str, key: str, output: str, **named: Any) -> Step:
            if self.fate == "before the store":
                raise Crash
            step = await self._store(run, token, key, output, **named)
            results.setdefault(key, step.value)
            if self.fate == "after the store":
                raise Crash
            return step

    with in_memory(app) as queue:
        crash = app.engine.__dict__["store_step"] = Crashing(app.engine)
        handle = pays.enqueue()
        (run,) = queue.drain(scheduled=True)
        assert run.state is State.SUCCEEDED, run.error
        handle.refresh()
        assert {step.key: step.value for step in run_sync(app.engine.steps(run.id))} == results == handle.result
