"""What `windlass.testing` gives to the tests of those who use windlass: an app in memory, a clock that is moved, and assertions."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from windlass import App, AsyncApp, Context, Fail, Job, Snooze, State, Use, current
from windlass.clock import ManualClock
from windlass.errors import BadInput, LimitReached, UnknownJob
from windlass.store.base import run_sync
from windlass.testing import InMemory, fixture, in_memory
from windlass.testing.apps import AsyncInMemory

pytest_plugins = ["pytester"]

app = App("this/folder/does/not/exist/windlass.db")
async_app = AsyncApp("this/folder/does/not/exist/windlass.db")
REQUEST: ContextVar[str] = ContextVar("REQUEST", default="none")
done: list[Any] = []


@app.job(name="mail")
def mail(to: str, copies: int = 1) -> str:
    done.append(("mail", to))
    return to * copies


@app.job(name="welcome")
async def welcome(context: Context, name: str) -> None:
    done.append(("welcome", name))
    mail.options(delay=60, queue="slow").enqueue(f"{name}@example.org", copies=context.attempt)


@app.job(name="flaky", max_attempts=3)
def flaky(context: Context) -> int:
    if context.attempt < 3:
        raise ValueError("not yet")
    return context.attempt


@app.job(name="pick", tags=["gpu"], cores=64, memory=10_000)
def pick() -> None:
    pass


@app.job(name="apart", kind="process")
def apart() -> str:
    mail.enqueue("from apart")
    return threading.current_thread().name


@app.job(name="endless")
def endless() -> None:
    endless.enqueue()


@app.job(name="hopeless", max_attempts=1000)
def hopeless() -> None:
    raise ValueError("never")


count_words = app.command("count words", [sys.executable, "-c", "import json, sys; print(len(json.load(sys.stdin)['text'].split()))"])


@async_app.job(name="mail")
async def async_mail(to: str) -> str:
    done.append(threading.current_thread())
    await asyncio.sleep(0)
    return to


@async_app.job(name="plain")
def plain_mail(to: str) -> str:
    return to


queue = fixture(app)


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    done.clear()


# Swapping


def test_the_block_is_in_memory_and_everything_is_as_before_afterwards(tmp_path: Path) -> None:
    own_clock = ManualClock()
    shop = App(tmp_path / "shop.db", clock=own_clock)
    order = shop.job(name="order")(lambda: None)
    with shop:
        order.enqueue()
        engine, limits = shop.engine, shop.limits
        clock = ManualClock(ms=5_000_000)
        with in_memory(shop, clock=clock) as memory:
            assert memory.clock is clock is shop.clock
            assert not shop.runs().runs
            assert not memory.enqueued()
            order.enqueue()
            order.enqueue()
            assert len(memory.enqueued()) == 2
        assert (shop.engine, shop.limits, shop.clock) == (engine, limits, own_clock)
        assert len(shop.runs().runs) == 1
        order.enqueue()  # defined already, as far as this process knows
        assert len(shop.runs().runs) == 2


def test_everything_is_as_before_after_an_error_too(tmp_path: Path) -> None:
    shop = App(tmp_path / "shop.db")
    order = shop.job(name="order")(lambda: None)
    with pytest.raises(BadInput), in_memory(shop):
        order.options(delay=-1).enqueue()
    assert shop.address == str(tmp_path / "shop.db")
    assert list(tmp_path.iterdir()) == []


def test_a_block_within_a_block_is_empty_and_the_outer_one_is_kept(queue: InMemory) -> None:
    mail.enqueue("outer")
    with in_memory(app) as inner:
        assert inner.enqueued() == []
        mail.enqueue("inner")
        assert [item.payload for item in inner.enqueued()] == [{"to": "inner"}]
    assert [item.payload for item in queue.enqueued()] == [{"to": "outer"}]


def test_what_is_tested_may_close_the_app(queue: InMemory) -> None:
    with app:
        mail.enqueue("ann")
    queue.assert_enqueued(mail, "ann")


def test_code_with_an_app_of_its_own_address_does_not_touch_it() -> None:
    with in_memory(app) as memory:
        mail.enqueue("ann")
        assert memory.drain()[0].output == '"ann"'
    assert not Path("this").exists()


def test_a_connection_of_the_callers_own_is_not_looked_at(queue: InMemory) -> None:
    connection = object()
    with app.transaction(connection):
        mail.enqueue("ann")
    app.enqueue_one(mail.new("bob"), connection=connection)
    with app.transaction():
        mail.enqueue("eve")
    assert [run.output for run in queue.drain()] == ['"ann"', '"bob"', '"eve"']


# Draining


def test_drain_does_what_is_due_in_order_and_tells_what_ended(queue: InMemory) -> None:
    mail.enqueue("second")
    mail.options(priority=5).enqueue("first")
    welcome.enqueue("ann")
    ended = queue.drain()
    assert [(run.job, run.state, run.output) for run in ended] == [
        ("mail", State.SUCCEEDED, '"first"'),
        ("mail", State.SUCCEEDED, '"second"'),
        ("welcome", State.SUCCEEDED, None),
    ]
    assert done == [("mail", "first"), ("mail", "second"), ("welcome", "ann")]
    assert queue.drain() == []


def test_what_is_scheduled_waits_for_the_clock(queue: InMemory) -> None:
    welcome.enqueue("ann")
    queue.drain()
    queue.clock.advance(59_999)
    assert queue.drain() == []
    queue.clock.advance(1)
    assert [run.output for run in queue.drain()] == ['"ann@example.org"']


def test_drain_scheduled_moves_the_clock_until_nothing_is_left(queue: InMemory) -> None:
    began = queue.clock.now()
    welcome.enqueue("ann")
    mail.options(at=datetime(2030, 1, 1, tzinfo=UTC)).enqueue("late")
    mail.options(delay=3600).enqueue("soon")
    assert [run.output for run in queue.drain(scheduled=True)] == [None, '"ann@example.org"', '"soon"', '"late"']
    assert queue.clock.now() == datetime(2030, 1, 1, tzinfo=UTC).timestamp() * 1000 > began
    assert len(app.runs().runs) == 4  # nothing was pruned on the way


def test_retries_are_part_of_what_is_scheduled(queue: InMemory) -> None:
    handle = flaky.enqueue()
    assert queue.drain() == []
    queue.assert_enqueued(flaky)
    (run,) = queue.drain(scheduled=True)
    assert (run.state, run.attempt, handle.wait(1)) == (State.SUCCEEDED, 3, 3)


def test_failures_and_followers_are_told_too(queue: InMemory) -> None:
    never = hopeless.options(max_attempts=1).enqueue()
    mail.options(after=never).enqueue("ann")
    mail.options(after=never, after_end="any").enqueue("bob")
    ended = queue.drain()
    assert [(run.job, run.state) for run in ended] == [
        ("hopeless", State.FAILED), ("mail", State.CANCELLED), ("mail", State.SUCCEEDED),
    ]  # fmt: skip
    assert ended[0].error is not None
    assert ended[0].error.message == "never"


def test_snooze_and_fail_work_as_ever(queue: InMemory) -> None:
    @app.job(name="later")
    def later(context: Context) -> str | Snooze:
        return "now" if context.attempt > 1 else Snooze(10)

    @app.job(name="given up")
    def given_up() -> None:
        raise Fail("enough", retry=False)

    try:
        later.enqueue()
        given_up.enqueue()
        assert [(run.job, run.state) for run in queue.drain()] == [("given up", State.FAILED)]
        queue.clock.advance(10_000)
        assert [run.output for run in queue.drain()] == ['"now"']
    finally:
        del app.jobs["later"], app.jobs["given up"]


def test_what_ended_before_is_not_told_again(queue: InMemory) -> None:
    mail.enqueue("ann").cancel()
    mail.enqueue("bob")
    assert [run.output for run in queue.drain()] == ['"bob"']


def test_requirements_are_met(queue: InMemory) -> None:
    pick.enqueue()
    mail.options(tags=["rare"], queue="elsewhere").enqueue("ann")
    assert len(queue.drain()) == 2


def test_a_process_is_a_function_here_and_a_command_a_command(queue: InMemory) -> None:
    handle = apart.enqueue()
    count_words.enqueue(text="to be or not")
    assert [run.output for run in queue.drain()] == ['"MainThread"', "4", '"from apart"']
    assert handle.wait(1) == "MainThread"


def test_plain_functions_run_on_the_tests_own_thread_and_see_its_context(queue: InMemory) -> None:
    seen: list[Any] = []

    def look() -> None:
        seen.extend([threading.current_thread(), REQUEST.get(), current().job, asyncio.run(asyncio.sleep(0, "ran"))])
        REQUEST.set("changed")

    app.job(name="look")(look).enqueue()
    before = REQUEST.set("a test")
    try:
        queue.drain()
        assert seen == [threading.current_thread(), "a test", "look", "ran"]
        assert REQUEST.get() == "a test"
        with pytest.raises(LookupError):
            current()
    finally:
        REQUEST.reset(before)
        del app.jobs["look"]


def test_logs_and_progress_are_kept(queue: InMemory) -> None:
    @app.job(name="chatty")
    def chatty(context: Context) -> None:
        context.logger.info("hello")
        context.progress(0.5, "half")

    try:
        handle = chatty.enqueue()
        queue.drain()
        assert [line.text for line in handle.logs()] == ["INFO hello"]
    finally:
        del app.jobs["chatty"]


@pytest.mark.parametrize(("job", "scheduled"), [(endless, False), (hopeless, True)], ids=lambda item: getattr(item, "name", str(item)))
def test_what_never_ends_is_stopped_with_an_explanation(queue: InMemory, job: Job[[], None], scheduled: bool) -> None:
    job.enqueue()
    with pytest.raises(LimitReached, match=rf"(?s)stopped after 20 executions; still enqueued: 1 of {job.name}.*limit="):
        queue.drain(scheduled=scheduled, limit=20)


def test_as_many_as_allowed_is_not_too_many(queue: InMemory) -> None:
    app.enqueue_many(mail.new("x") for _ in range(5))
    assert len(queue.drain(limit=5)) == 5


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, pytest.fail.Exception])
def test_what_speaks_to_the_test_ends_the_drain(queue: InMemory, interrupt: type[BaseException]) -> None:
    def broken() -> None:
        raise interrupt("stop")

    app.job(name="broken", backoff=[0])(broken).enqueue()
    mail.enqueue("ann")
    try:
        with pytest.raises(interrupt, match="stop"):
            queue.drain()
        assert done == []
    finally:
        del app.jobs["broken"]


def test_system_exit_is_the_attempts_own_end(queue: InMemory) -> None:
    app.job(name="leaves", max_attempts=1)(lambda: sys.exit(3)).enqueue()
    try:
        assert [run.state for run in queue.drain()] == [State.FAILED]
    finally:
        del app.jobs["leaves"]


def test_no_thread_is_left(queue: InMemory) -> None:
    before = set(threading.enumerate())
    mail.enqueue("ann")
    welcome.enqueue("ann")
    queue.drain(scheduled=True)
    for thread in set(threading.enumerate()) - before:
        thread.join(30)
    assert set(threading.enumerate()) <= before


# Asserting


def test_enqueued_lists_what_nobody_has_begun(queue: InMemory) -> None:
    handle = mail.enqueue("a", copies=2)
    mail.options(delay=5).enqueue("b")
    mail.options(after=handle).enqueue("c")
    flaky.enqueue()
    assert [(item.job, item.payload, item.run.state) for item in queue.enqueued()] == [
        ("mail", {"to": "a", "copies": 2}, State.QUEUED),
        ("mail", {"to": "b"}, State.SCHEDULED),
        ("mail", {"to": "c"}, State.WAITING),
        ("flaky", {}, State.QUEUED),
    ]
    assert [item.job for item in queue.enqueued(flaky)] == ["flaky"]
    assert len(queue.enqueued("mail")) == 3
    handle.cancel()
    assert [item.job for item in queue.enqueued()] == ["mail", "flaky"]  # and the one that waited for it


def test_enqueued_lists_more_than_a_page(queue: InMemory) -> None:
    app.enqueue_many(mail.new(str(n)) for n in range(2_500))
    assert [item.payload["to"] for item in queue.enqueued()] == [str(n) for n in range(2_500)]


def test_assert_enqueued_takes_some_of_the_arguments(queue: InMemory) -> None:
    mail.enqueue("ann", 2)
    mail.enqueue("ann", 3)
    cases: list[tuple[tuple[Any, ...], dict[str, Any], int]] = [
        ((), {}, 2), (("ann",), {}, 2), ((), {"to": "ann"}, 2), ((), {"copies": 3}, 1), (("ann", 2), {}, 1), (("bob",), {}, 0),
        (("ann",), {"copies": 4}, 0),
    ]  # fmt: skip
    for arguments, named, count in cases:
        queue.assert_enqueued(mail, *arguments, count=count, **named)
        queue.assert_enqueued("mail", *arguments, count=count, **named)
        if count:
            queue.assert_enqueued(mail, *arguments, **named)
            with pytest.raises(AssertionError, match="where there should be none"):
                queue.refute_enqueued(mail, *arguments, **named)
        else:
            queue.refute_enqueued(mail, *arguments, **named)
            with pytest.raises(AssertionError, match="No run of 'mail'"):
                queue.assert_enqueued(mail, *arguments, **named)


def test_a_context_is_no_argument(queue: InMemory) -> None:
    welcome.enqueue("ann")
    queue.assert_enqueued(welcome, "ann")
    queue.refute_enqueued(welcome, "bob")


def test_an_argument_the_job_does_not_have_is_a_mistake_of_the_test(queue: InMemory) -> None:
    with pytest.raises(TypeError, match="too"):
        queue.refute_enqueued(mail, too="ann")
    with pytest.raises(TypeError, match="too many positional arguments"):
        queue.assert_enqueued(mail, "ann", 2, 3)


def test_options_are_asserted_through_the_job(queue: InMemory) -> None:
    mail.options(queue="slow", delay=60, priority=3, timeout=5, max_attempts=7, backoff=[1, 2]).enqueue("ann")
    queue.assert_enqueued(mail.options(queue="slow"), "ann")
    queue.assert_enqueued(mail.options(delay=60, priority=3, timeout=5, max_attempts=7, backoff=[1, 2]))
    for other in (mail.options(queue="fast"), mail.options(delay=61), mail.options(timeout=6), mail.options(backoff=[1])):
        queue.refute_enqueued(other)
    with pytest.raises(BadInput, match="cannot be asserted"):
        queue.assert_enqueued(mail.options(key="k"))


def test_meta_is_asserted_as_a_whole(queue: InMemory) -> None:
    mail.options(meta={"user": "ann", "n": 1}).enqueue("ann")
    queue.assert_enqueued(mail.options(meta={"n": 1, "user": "ann"}), "ann")
    queue.refute_enqueued(mail.options(meta={"user": "ann"}))
    queue.refute_enqueued(mail.options(meta={}))


def test_the_message_lists_what_there_is_instead(queue: InMemory) -> None:
    mail.enqueue("done")
    queue.drain()
    mail.enqueue("ann")
    mail.options(delay=60, queue="slow", priority=2).enqueue("bob")
    with pytest.raises(AssertionError) as caught:
        queue.assert_enqueued(mail.options(delay=5), "eve", count=2)
    assert str(caught.value).splitlines() == [
        """No run of 'mail' with {"to":"eve"}, due 2026-01-01 00:00:05.000+00:00 is enqueued, not 2.""",
        "Enqueued are:",
        """  mail {"to":"ann"} (queued, queue default, priority 0)""",
        """  mail {"to":"bob"} (scheduled, due 2026-01-01 00:01:00.000+00:00, queue slow, priority 2)""",
        "Ended have: 1 mail succeeded.",
    ]


def test_the_message_says_that_there_is_nothing_and_does_not_list_thousands(queue: InMemory) -> None:
    with pytest.raises(AssertionError, match="Nothing is enqueued"):
        queue.assert_enqueued(mail)
    app.enqueue_many(mail.new(str(n)) for n in range(100))
    with pytest.raises(AssertionError) as caught:
        queue.assert_enqueued(mail, "nobody")
    assert str(caught.value).splitlines()[-1] == "  and 80 more"


def test_jobs_of_other_programs_are_defined_by_name(queue: InMemory) -> None:
    with pytest.raises(UnknownJob):
        app.enqueue("elsewhere", {"n": 1})
    queue.define("elsewhere", "and there")
    app.enqueue("elsewhere", {"n": 1, "m": 2})
    app.enqueue("and there", [1, 2])
    mail.enqueue("ann")
    queue.assert_enqueued("elsewhere", n=1)
    queue.assert_enqueued("elsewhere", {"m": 2})
    queue.assert_enqueued("and there", [1, 2])
    queue.refute_enqueued("and there", [1])
    assert [run.job for run in queue.drain(scheduled=True)] == ["mail"]  # the others are left to whom they belong
    queue.assert_enqueued("elsewhere")


def test_a_commands_payload_is_asserted_by_name(queue: InMemory) -> None:
    count_words.enqueue(text="to be", language="en")
    queue.assert_enqueued(count_words, text="to be")
    queue.refute_enqueued(count_words, text="not to be")


# AsyncApp


def test_an_async_app_is_drained_in_its_own_loop() -> None:
    async def main() -> None:
        with in_memory(async_app) as queue:
            handle = await async_mail.enqueue("ann")
            await plain_mail.options(delay=5).enqueue("bob")
            queue.assert_enqueued(async_mail, to="ann", count=1)
            assert [run.output for run in await queue.drain()] == ['"ann"']
            assert await handle.wait(1) == "ann"
            queue.assert_enqueued(plain_mail.options(delay=5))
            assert [run.output for run in await queue.drain(scheduled=True)] == ['"bob"']
        assert async_app.address.endswith("windlass.db")

    asyncio.run(main())
    assert done == [threading.current_thread()]


def test_an_interrupt_ends_an_async_drain() -> None:
    async def broken() -> None:
        pytest.fail("stop")

    async def main() -> None:
        with in_memory(async_app) as queue:
            job: Any = async_app.job(name="broken", backoff=[0])(broken)
            await job.enqueue()
            await async_mail.enqueue("ann")
            await queue.drain()

    try:
        with pytest.raises(pytest.fail.Exception, match="stop"):
            asyncio.run(main())
        assert done == []
    finally:
        del async_app.jobs["broken"]


def test_a_plain_app_is_drained_from_within_a_loop() -> None:
    async def main() -> list[str | None]:
        with in_memory(app) as queue:
            mail.enqueue("ann")
            welcome.enqueue("bob")
            return [run.output for run in queue.drain()]

    assert asyncio.run(main()) == ['"ann"', None]


# The fixture


def test_the_fixture_is_named_as_the_variable(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        shop="""
        from windlass import App
        app = App("shop.db")
        @app.job()
        def order(item: str) -> str:
            return item
        """,
        conftest="""
        from shop import app
        from windlass.testing import fixture
        orders = fixture(app)
        """,
        test_shop="""
        from shop import order
        def test_one(orders):
            order.enqueue("tea")
            orders.assert_enqueued(order, item="tea")
            assert [run.output for run in orders.drain()] == ['"tea"']
        def test_two(orders):
            orders.refute_enqueued(order)
        def test_three(orders):
            order.enqueue("tea")
            orders.assert_enqueued(order, item="milk")
        """,
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(['*AssertionError: No run of \'order\' with {"item":"milk"} is enqueued.*'])
    assert "def assert_enqueued" not in result.stdout.str()
    assert not (pytester.path / "shop.db").exists()


def test_importing_the_testing_module_does_not_import_pytest(pytester: pytest.Pytester) -> None:
    done = pytester.runpython_c("import sys, windlass.testing; assert 'pytest' not in sys.modules")
    assert done.ret == 0


# Limits and schedules


@pytest.fixture
def shop() -> App:
    return App("this/folder/does/not/exist/windlass.db")


def test_the_clock_moves_on_to_the_next_opening_of_a_rate(shop: App) -> None:
    shop.resource("api", rates="5/second")

    @shop.job(name="call", uses="api")
    def call() -> None: ...

    with in_memory(shop) as queue:
        began = queue.clock.now()
        shop.enqueue_many(call.new() for _ in range(20))
        assert len(queue.drain(scheduled=True)) == 20
        assert 3_000 <= queue.clock.now() - began <= 3_100


def test_the_clock_moves_on_to_the_next_opening_of_a_rate_by_key(shop: App) -> None:
    shop.resource("bank", rates="1/minute")

    @shop.job(name="pay", uses=Use("bank", per="customer"))
    def pay(customer: str) -> None: ...

    with in_memory(shop) as queue:
        began = queue.clock.now()
        shop.enqueue_many(pay.new(name) for name in ("ann", "ann", "bob", "ann"))
        assert len(queue.drain(scheduled=True)) == 4
        assert 120_000 <= queue.clock.now() - began <= 120_100


def test_the_clock_moves_on_to_the_end_of_a_direct_call_that_nobody_renews(shop: App) -> None:
    shop.resource("gpu", capacity=1)

    @shop.job(name="train", uses="gpu")
    def train() -> None: ...

    with in_memory(shop) as queue:
        began = queue.clock.now()
        train.enqueue()
        assert run_sync(shop.engine.reserve("gpu", lease=45_000)).token
        assert len(queue.drain(scheduled=True)) == 1
        assert queue.clock.now() - began >= 45_000


@pytest.mark.parametrize("scheduled", [True, False])
def test_a_drain_that_stops_says_what_holds_each_run_back(scheduled: bool, shop: App) -> None:
    @shop.job(name="mail", queue="slow")
    def mail() -> None: ...

    @shop.cron("* * * * *")
    @shop.job(name="tick")
    def tick() -> None: ...

    with in_memory(shop) as queue:
        run_sync(shop.engine.pause("queue", "slow", reason="the server moves"))
        runs = [mail.enqueue(), mail.enqueue()]
        began = queue.clock.now()
        with pytest.raises(LimitReached) as caught:
            queue.drain(scheduled=scheduled)
        assert queue.clock.now() == began  # no clock opens it, and a schedule is not waited for
        for run in runs:
            assert re.search(rf"mail {run.id}: .*'slow' is paused: the server moves\.", caught.value.message)
        assert "worker" not in str(caught.value)
        assert "never ends" not in caught.value.hint


def test_a_rate_that_a_drain_does_not_wait_for_is_named(shop: App) -> None:
    shop.resource("api", rates="5/second")

    @shop.job(name="call", uses="api")
    def call() -> None: ...

    with in_memory(shop) as queue:
        shop.enqueue_many(call.new() for _ in range(7))
        with pytest.raises(LimitReached, match=r"(?s)after 5 executions; still enqueued: 2 of call\..*The rate of 'api'.*scheduled=True"):
            queue.drain()


@pytest.mark.parametrize("kind", [App, AsyncApp])
def test_schedules_of_the_code_fire_when_the_clock_comes_to_their_instants(kind: Any) -> None:
    made = kind("this/folder/does/not/exist/windlass.db")

    async def nightly() -> None: ...

    async def often() -> None: ...

    made.cron("0 3 * * *")(made.job(name="nightly")(nightly))
    made.every("10m")(made.job(name="often")(often))
    with in_memory(made) as queue:
        assert _drained(queue) == []
        queue.clock.advance(10 * 60_000)
        assert _drained(queue) == ["often"]
        queue.clock.advance(int(2.9 * 3_600_000))
        assert sorted(_drained(queue)) == ["nightly", "often"]  # one for all that were missed, as its schedule says
    with in_memory(made) as queue:
        assert _drained(queue) == []


def test_schedules_fire_on_the_way_to_what_a_drain_waits_for(shop: App) -> None:
    @shop.every("10m")
    @shop.job(name="often")
    def often() -> None: ...

    with in_memory(shop) as queue:
        often.options(delay=35 * 60).enqueue()
        ended = queue.drain(scheduled=True)
        assert [run.instant is not None for run in ended] == [True, True, True, False]
        assert queue.drain(scheduled=True) == []  # schedules have no end, so they alone are not waited for

        @shop.every("1h", key="late")
        @shop.job(name="late")
        def late() -> None: ...

        queue.drain()
        queue.clock.advance(3_600_000)
        assert "late" in _drained(queue)


def _drained(queue: Any, **how: Any) -> list[str]:
    ended = asyncio.run(queue.drain(**how)) if isinstance(queue, AsyncInMemory) else queue.drain(**how)
    return [run.job for run in ended]
