"""A handler that is called directly: with its arguments checked, with a context, and without a run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from windlass import Context, Fail, Skip, Snooze
from windlass.app import App
from windlass.app.calling import BadCall, CallFailed, DirectCall
from windlass.errors import BadInput


@pytest.fixture
def app() -> Iterator[App]:
    app = App(":memory:")
    yield app
    app.close()


def test_the_result_is_that_of_the_handler_as_it_would_be_stored(app: App) -> None:
    @app.job()
    def double(numbers: list[int]) -> tuple[int, ...]:
        return tuple(2 * number for number in numbers)

    assert DirectCall(double, {"numbers": [1, 2]}).run() == [2, 4]


def test_a_coroutine_and_a_handler_that_returns_nothing_can_be_called(app: App) -> None:
    @app.job()
    async def nothing(context: Context) -> None:
        assert (context.job, context.attempt) == ("nothing", 1)
        context.progress(0.5)
        context.logger.info("Its log is discarded.")

    assert DirectCall(nothing, {}).run() is None


def test_a_payload_that_does_not_fit_is_refused_before_the_handler_is_called(app: App) -> None:
    @app.job()
    def double(number: int) -> int:
        raise AssertionError(number)

    with pytest.raises(BadCall, match="number") as refused:
        DirectCall(double, {"number": "two"}).run()
    assert "Enqueue" not in str(refused.value)
    with pytest.raises(BadInput):
        DirectCall(double, {"number": float("nan")})


@pytest.mark.parametrize("error", [ValueError("no"), Fail("no", code="full"), Snooze(1), SystemExit(3)])
def test_whatever_else_a_handler_raises_is_a_failure_of_the_call(app: App, error: BaseException) -> None:
    @app.job()
    def fails() -> None:
        raise error

    with pytest.raises(CallFailed, match=r"^fails failed: "):
        DirectCall(fails, {}).run()


def test_a_handler_that_skips_is_a_failure_of_the_call_with_its_reason(app: App) -> None:
    @app.job()
    def skips() -> None:
        raise Skip("There is nothing to do!")

    with pytest.raises(CallFailed, match=r"^skips failed: skip: There is nothing to do! Correct its cause"):
        DirectCall(skips, {}).run()


def test_a_result_that_cannot_be_stored_is_a_failure_of_the_call(app: App) -> None:
    @app.job()
    def odd() -> object:
        return object()

    with pytest.raises(CallFailed, match="bad_output"):
        DirectCall(odd, {}).run()


def test_a_handler_that_looks_can_be_stopped(app: App) -> None:
    began = threading.Event()

    @app.job()
    def endless(context: Context) -> None:
        began.set()
        context.pause(60)

    call = DirectCall(endless, {})
    with ThreadPoolExecutor() as threads:
        result = threads.submit(call.run)
        assert began.wait(30)
        call.ask_to_stop("timeout")
        with pytest.raises(CallFailed):
            result.result(30)


def test_a_command_cannot_be_called(app: App) -> None:
    with pytest.raises(BadInput, match="command"):
        DirectCall(app.command("convert", ["convert"]), {})


def test_steps_of_a_call_without_a_run_are_done_once(app: App) -> None:
    done: list[int] = []

    @app.job()
    def paid(context: Context) -> list[Any]:
        return [context.step("charge", lambda: done.append(7)) for _ in range(2)]

    assert DirectCall(paid, {}).run() == [None, None]
    assert done == [7]
    assert paid() == [None, None]
    assert done == [7, 7]
