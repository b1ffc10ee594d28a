"""0gkit's runner: a worker over a backend, in the words of its document."""

from __future__ import annotations

import asyncio
import statistics
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pydantic
import pytest
from msgspec import Struct

from tests.dialects.zerog_door import ZeroGDoor, in_state, quick, read, shared, started, still, until, zerog
from windlass.clock import SystemClock
from windlass.dialects.zerog import (
    AbortError,
    BackendUnreachable,
    InvalidValue,
    JobBackend,
    JobContext,
    JobDefinition,
    JobRunner,
    JobState,
    jobs,
)
from windlass.errors import BadInput
from windlass.model import State
from windlass.worker import Skip, Snooze

__all__ = ["quick", "shared", "still", "zerog"]  # fixtures

CLOCK = SystemClock()
Handler = Callable[[JobContext], Any]


class Gate:
    """Where handlers wait until the test lets them go on."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.inside = self.most = 0
        self.came: list[str] = []

    async def __call__(self, context: JobContext) -> str:
        self.came.append(context.job_id)
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self.open.wait()
        finally:
            self.inside -= 1
        return "through"

    async def reached(self, number: int = 1) -> None:
        async def there() -> bool:
            return len(self.came) >= number

        await until(there)


async def obey(context: JobContext) -> None:
    """A handler that wires up its signal."""
    await context.signal.wait()
    assert context.signal.aborted
    context.signal.raise_if_aborted()


def obey_on_thread(context: JobContext) -> None:
    """The same as a plain function."""
    while not context.signal.aborted:
        threading.Event().wait(0.005)
    context.signal.raise_if_aborted()


async def _is_over(backend: JobBackend, job_id: str) -> bool:
    return (await backend.engine.get(job_id)).state is State.CANCELLED


def definition(handler: Handler, **options: Any) -> JobDefinition:
    return jobs.define(name="resize", handler=handler, **options)


async def failing(context: JobContext) -> None:
    raise ValueError(f"no gas {context.attempt}")


def test_Z1_a_job_from_its_enqueue_to_its_result(zerog: ZeroGDoor) -> None:
    contexts = list[JobContext]()

    async def work(context: JobContext) -> dict[str, Any]:
        contexts.append(context)
        assert not context.signal.aborted
        assert context.metadata == (await read(context.signer, context.job_id)).metadata
        return {"width": context.input["width"] // 2}

    async def scenario(backend: JobBackend) -> None:
        resize = definition(work)
        runner = JobRunner(backend=backend, signer=backend).register(resize)
        assert runner.has_definition("resize")
        assert not runner.has_definition("mail")
        job_id = await runner.enqueue(resize, {"width": 128})
        assert (await read(backend, job_id)).metadata.attempts == 0
        await runner.start()
        done = await runner.wait_for(job_id)
        assert (done.state, done.result, done.metadata.attempts, done.error) == (JobState.DONE, {"width": 64}, 1, None)
        assert done == await runner.status(job_id)
        (context,) = contexts
        assert (context.job_id, context.attempt, context.signer) == (job_id, 1, backend)
        assert context.metadata.started_at == done.metadata.started_at
        await runner.stop(drain=False)

    zerog(scenario)


def test_Z1_plain_functions_run_on_threads(quick: ZeroGDoor) -> None:
    def work(context: JobContext) -> str:
        return threading.current_thread().name

    async def scenario(backend: JobBackend) -> None:
        runner = JobRunner(backend=backend).register(definition(work))
        await runner.start()
        record = await runner.wait_for(await runner.enqueue("resize"))
        assert record.result != threading.current_thread().name
        await runner.stop()

    quick(scenario)


def test_Z4_a_job_that_always_fails_is_tried_three_times(zerog: ZeroGDoor) -> None:
    async def scenario(backend: JobBackend) -> None:
        runner = JobRunner(backend=backend).register(definition(failing, backoff_ms=lambda n: 1))
        job_id = await runner.enqueue("resize")
        await runner.start()
        failed = await runner.wait_for(job_id)
        assert (failed.id, failed.state, failed.error, failed.metadata.attempts) == (job_id, JobState.FAILED, "no gas 3", 3)
        assert failed.metadata.last_error == "no gas 3"
        await runner.stop()

    zerog(scenario)


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_Z4_a_handler_that_asks_its_process_to_end_has_failed_and_the_runner_goes_on(quick: ZeroGDoor, kind: str) -> None:
    def plain(context: JobContext) -> int:
        return int(context.input["n"]) or sys.exit("no input")

    async def work(context: JobContext) -> int:
        return plain(context)

    async def scenario(backend: JobBackend) -> None:
        job = definition(plain if kind == "plain" else work, max_attempts=1)
        runner = JobRunner(backend=backend).register(job)
        await runner.start()
        records = [await runner.wait_for(await runner.enqueue(job, {"n": n})) for n in (0, 7)]
        assert [(record.state, record.result, record.error) for record in records] == [("failed", None, "no input"), ("done", 7, None)]
        await runner.stop()

    quick(scenario)


def test_Z3_a_job_that_waits_for_its_retry_is_queued(still: ZeroGDoor) -> None:
    async def scenario(backend: JobBackend) -> None:
        runner = JobRunner(backend=backend).register(definition(failing))
        job_id = await runner.enqueue("resize")
        await runner.start()

        async def failed_once() -> bool:
            return (await read(backend, job_id)).metadata.last_error == "no gas 1"

        await until(failed_once)
        waiting = await read(backend, job_id)
        assert (waiting.state, waiting.metadata.started_at, waiting.metadata.attempts) == (JobState.QUEUED, None, 1)
        await runner.stop()

    still(scenario)


def test_Z6_cancelling_a_running_job_raises_its_signal(zerog: ZeroGDoor) -> None:
    async def scenario(backend: JobBackend) -> None:
        for handler in (obey, obey_on_thread):
            runner = JobRunner(backend=backend).register(definition(handler))
            job_id = await runner.enqueue("resize")
            await runner.start()
            await started(backend, job_id)
            await backend.cancel(job_id)
            cancelled = await runner.wait_for(job_id)
            assert cancelled.state is JobState.CANCELLED

            await until(partial(_is_over, backend, job_id))
            assert await runner.status(job_id) == cancelled
            await runner.stop(drain=False)

    zerog(scenario)


def test_Z6_a_handler_that_returns_although_its_job_is_cancelled_changes_nothing(quick: ZeroGDoor) -> None:
    async def work(context: JobContext) -> str:
        await context.signal.wait()
        return "done nevertheless"

    async def scenario(backend: JobBackend) -> None:
        runner = JobRunner(backend=backend).register(definition(work))
        job_id = await runner.enqueue("resize")
        await runner.start()
        await started(backend, job_id)
        await backend.cancel(job_id)
        cancelled = await runner.wait_for(job_id)
        await runner.stop(drain=False)
        assert (await read(backend, job_id)) == cancelled
        assert cancelled.result is None

    quick(scenario)


def test_Z7_delays_of_the_definition_are_honoured(still: ZeroGDoor) -> None:
    async def scenario(backend: JobBackend) -> None:
        asked = list[int]()

        def delay(n: int) -> float:
            asked.append(n)
            return 1_234.0 * n

        runner = JobRunner(backend=backend).register(definition(failing, backoff_ms=delay))
        job_id = await runner.enqueue("resize")
        await runner.start()
        for n in (1, 2):

            async def waits() -> bool:
                run = await backend.engine.get(job_id)
                return run.state is State.SCHEDULED and run.failures == n  # noqa: B023

            await until(waits)
            run = await backend.engine.get(job_id)
            assert run.due_at - backend.clock.now() == 1_234 * n
            still.advance(1_234 * n)
        assert (await runner.wait_for(job_id)).state is JobState.FAILED
        assert asked[:2] == [1, 2]
        await runner.stop()

    still(scenario)


def test_Z8_jobs_that_fail_together_wait_for_different_times_within_the_bounds(still: ZeroGDoor) -> None:
    async def scenario(backend: JobBackend) -> None:
        runner = JobRunner(backend=backend).register(definition(failing))
        ids = [await runner.enqueue("resize") for _ in range(60)]
        await runner.start(concurrency=60)

        async def all_wait() -> bool:
            return all(run.state is State.SCHEDULED for run in await backend.engine.get_many(ids))

        await until(all_wait)
        delays = [run.due_at - backend.clock.now() for run in await backend.engine.get_many(ids)]
        assert all(500 <= delay <= 1_000 for delay in delays)
        assert len(set(delays)) > 40
        assert 650 < statistics.mean(delays) < 850
        await runner.stop()

    still(scenario)


# Stopping


def test_Z9_a_drain_finishes_what_runs_claims_nothing_more_and_closes_the_backend(shared: ZeroGDoor) -> None:
    async def scenario(backend: JobBackend) -> None:
        gate, runner = Gate(), JobRunner(backend=backend)
        runner.register(definition(gate))
        first, second = await runner.enqueue("resize"), await runner.enqueue("resize")
        await runner.start()
        await gate.reached()
        stopping = asyncio.create_task(runner.stop(timeout_ms=30_000))
        await asyncio.sleep(0.05)
        assert not stopping.done()
        gate.open.set()
        await stopping
        with pytest.raises(BackendUnreachable, match="closed"):
            await backend.status(first)
        with pytest.raises(BackendUnreachable, match="stopped"):
            await runner.start()
        other = shared.backend()
        assert (await read(other, first)).result == "through"
        assert (await read(other, second)).state is JobState.QUEUED
        assert gate.came == [first]
        await other.close()
        await runner.stop()  # again

    shared(scenario)


def test_Z9_what_a_drain_cannot_finish_is_queued_again(shared: ZeroGDoor) -> None:
    async def scenario(backend: JobBackend) -> None:
        gate = Gate()
        runner = JobRunner(backend=backend).register(definition(gate))
        job_id = await runner.enqueue("resize")
        await runner.start()
        await gate.reached()
        begun = CLOCK.monotonic()
        await runner.stop(timeout_ms=600)
        assert CLOCK.monotonic() - begun < 2_000
        other = shared.backend()
        again = await in_state(other, job_id, JobState.QUEUED)
        assert (again.error, again.metadata.last_error) == (None, None)
        await other.close()

    shared(scenario)


@pytest.mark.parametrize("handler", [obey, obey_on_thread])
def test_Z10_a_stop_without_drain_aborts_and_the_rejection_is_the_end(zerog: ZeroGDoor, handler: Handler) -> None:
    async def scenario(backend: JobBackend) -> None:
        runner = JobRunner(backend=backend).register(definition(handler))
        job_id = await runner.enqueue("resize")
        await runner.start()
        await started(backend, job_id)
        await runner.stop(drain=False)
        failed = await read(backend, job_id)
        assert (failed.state, failed.error, failed.metadata.attempts) == (JobState.FAILED, "The job was aborted: abort", 1)

    zerog(scenario)


def test_Z10_a_handler_may_end_in_its_own_way(quick: ZeroGDoor) -> None:
    async def scenario(backend: JobBackend) -> None:
        async def reject(context: JobContext) -> None:
            await context.signal.wait()
            raise RuntimeError("I have cleaned up")

        async def finish(context: JobContext) -> str:
            await context.signal.wait()
            await asyncio.sleep(0.05)  # nothing has been raised in it
            return "finished"

        runner = JobRunner(backend=backend).register(jobs.define(name="reject", handler=reject), jobs.define(name="finish", handler=finish))
        rejected, finished = await runner.enqueue("reject"), await runner.enqueue("finish")
        await runner.start(concurrency=2)
        for job_id in (rejected, finished):
            await started(backend, job_id)
        await asyncio.sleep(0.05)
        await runner.stop(drain=False)
        assert (await read(backend, rejected)).error == "I have cleaned up"
        assert (await read(backend, finished)).result == "finished"

    quick(scenario)


def test_Z10_a_handler_without_a_signal_is_cancelled_after_a_while(quick: ZeroGDoor) -> None:
    async def scenario(backend: JobBackend) -> None:
        gate = Gate()
        runner = JobRunner(backend=backend).register(definition(gate))
        job_id = await runner.enqueue("resize")
        await runner.start()
        await gate.reached()
        await runner.stop(drain=False, timeout_ms=1_000)
        failed = await in_state(backend, job_id, JobState.FAILED)
        assert (failed.error, gate.inside) == ("The worker was stopped and the handler aborted.", 0)

    quick(scenario)


@pytest.mark.parametrize("drain", [True, False])
def test_Z11_a_failure_after_a_stop_is_not_retried(shared: ZeroGDoor, drain: bool) -> None:
    async def scenario(backend: JobBackend) -> None:
        gate = Gate()

        async def work(context: JobContext) -> None:
            await asyncio.shield(asyncio.ensure_future(gate(context)))
            raise ValueError("no gas")

        runner = JobRunner(backend=backend).register(definition(work))
        job_id = await runner.enqueue("resize")
        await runner.start()
        await gate.reached()
        stopping = asyncio.create_task(runner.stop(drain=drain))
        await asyncio.sleep(0.02)
        gate.open.set()
        await stopping
        other = shared.backend()
        failed = await read(other, job_id)
        assert (failed.state, failed.error, failed.metadata.attempts) == (JobState.FAILED, "no gas", 1)
        await other.close()

    shared(scenario)


@pytest.mark.parametrize("drain", [True, False])
def test_Z12_a_stop_returns_in_time_although_handlers_hang(zerog: ZeroGDoor, drain: bool) -> None:
    async def scenario(backend: JobBackend) -> None:
        over, came = threading.Event(), list[str]()

        async def hang(context: JobContext) -> None:
            came.append(context.job_id)
            while not over.is_set():
                try:
                    await asyncio.sleep(0.01)
                except asyncio.CancelledError:
                    came.append("cancelled")

        def hang_on_thread(context: JobContext) -> None:
            came.append(context.job_id)
            over.wait(20)

        runner = JobRunner(backend=backend).register(
            jobs.define(name="async", handler=hang), jobs.define(name="thread", handler=hang_on_thread)
        )
        ids = {await runner.enqueue("async"), await runner.enqueue("thread")}
        await runner.start(concurrency=2)

        async def both() -> bool:
            return ids <= set(came)

        await until(both)
        begun = CLOCK.monotonic()
        await runner.stop(drain=drain, timeout_ms=500)
        assert 400 <= CLOCK.monotonic() - begun < 1_500
        over.set()
        await runner.stop(drain=drain)

    zerog(scenario)


def test_Z12_a_stop_returns_in_time_although_the_store_does_not_answer(quick: ZeroGDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(backend: JobBackend) -> None:
        runner = JobRunner(backend=backend)
        await runner.start()
        monkeypatch.setattr(backend, "leave", lambda user, close: asyncio.Event().wait())
        async with asyncio.timeout(10):
            await runner.stop(timeout_ms=200)

    quick(scenario)


def test_Z12_a_stop_may_be_made_stricter(shared: ZeroGDoor) -> None:
    async def scenario(backend: JobBackend) -> None:
        runner = JobRunner(backend=backend).register(definition(obey))
        job_id = await runner.enqueue("resize")
        await runner.start()
        await started(backend, job_id)
        draining = asyncio.create_task(runner.stop(timeout_ms=60_000))
        await asyncio.sleep(0.02)
        await runner.stop(drain=False)
        await draining
        other = shared.backend()
        assert (await read(other, job_id)).error == "The job was aborted: abort"
        await other.close()

    shared(scenario)


def test_a_runner_that_was_never_started_can_be_stopped(quick: ZeroGDoor) -> None:
    async def scenario(backend: JobBackend) -> None:
        runner = JobRunner(backend=backend)
        await runner.stop(drain=False)
        assert await backend.status("unknown") is None
        await runner.stop()
        with pytest.raises(BackendUnreachable):
            await backend.status("unknown")

    quick(scenario)


def test_a_runner_that_is_stopped_while_it_starts_does_not_begin(zerog: ZeroGDoor) -> None:
    async def scenario(backend: JobBackend) -> None:
        gate = Gate()
        runner = JobRunner(backend=backend).register(definition(gate))
        await runner.enqueue("resize")
        starting = asyncio.create_task(runner.start())
        await asyncio.sleep(0)
        await runner.stop(drain=False)
        with pytest.raises(BackendUnreachable, match="stopped before it began"):
            await starting
        assert gate.came == []

    zerog(scenario)


def test_a_runner_that_was_aborted_does_not_keep_the_backend_open(quick: ZeroGDoor) -> None:
    async def scenario(backend: JobBackend) -> None:
        runners = [JobRunner(backend=backend) for _ in range(2)]
        for runner in runners:
            await runner.start()
        await runners[0].stop(drain=False)
        assert await backend.status("unknown") is None
        await runners[1].stop()
        with pytest.raises(BackendUnreachable):
            await backend.status("unknown")

    quick(scenario)


# Definitions


class Image(Struct):
    url: str
    width: int = 64


@dataclass
class Thumbnail:
    path: str


class Model(pydantic.BaseModel):
    url: str


def check_url(values: Any) -> None:
    if not isinstance(values["url"], str):
        raise AssertionError("url is no text")


def parsed(values: Any) -> Image:
    return Image(values["url"].upper())


INPUTS: list[tuple[Any, Any]] = [
    (Image, Image("a")), (Thumbnail, None), (Model, Model(url="a")), (dict[str, str], {"url": "a"}), (Image | None, Image("a")),
    (check_url, {"url": "a"}), (parsed, Image("A")), (None, {"url": "a"}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value"), INPUTS, ids=lambda one: getattr(one, "__name__", str(one))[:40])
def test_Z16_the_handler_gets_the_input_as_its_definition_says(quick: ZeroGDoor, kind: Any, value: Any) -> None:
    async def scenario(backend: JobBackend) -> None:
        inputs = list[Any]()

        async def work(context: JobContext) -> None:
            inputs.append(context.input)

        resize = definition(work, input=kind)
        runner = JobRunner(backend=backend).register(resize)
        await runner.start()
        if value is None:
            with pytest.raises(InvalidValue):
                await runner.enqueue(resize, {"url": "a"})
        else:
            done = await runner.wait_for(await runner.enqueue(resize, {"url": "a"}))
            assert (done.state, done.input, inputs) == (JobState.DONE, {"url": "a"}, [value])
        for wrong in ({}, {"url": 7}, 7, ["a"]):
            if kind is not None and not (kind == dict[str, str] and wrong == {}):
                with pytest.raises(TypeError, match="'resize'"):
                    await runner.enqueue(resize, wrong)
        assert len(inputs) <= 1
        await runner.stop()

    quick(scenario)


@pytest.mark.parametrize("output", [Image, Model, check_url, list[int]], ids=lambda one: getattr(one, "__name__", "list"))
def test_Z16_an_output_that_is_not_what_the_job_returns_is_a_failure(quick: ZeroGDoor, output: Any) -> None:
    async def work(context: JobContext) -> Any:
        return {"url": 7} if context.attempt < 3 else {"url": "a"} if output != list[int] else [1, 2]

    async def scenario(backend: JobBackend) -> None:
        runner = JobRunner(backend=backend).register(definition(work, output=output, backoff_ms=lambda n: 0))
        await runner.start()
        done = await runner.wait_for(await runner.enqueue("resize"))
        assert (done.state, done.metadata.attempts) == (JobState.DONE, 3)
        assert done.metadata.last_error is not None
        assert "does not return that" in done.metadata.last_error
        await runner.stop()

    quick(scenario)


@pytest.mark.parametrize("value", [object(), float("nan"), "x" * 2_000_000], ids=["object", "nan", "large"])
def test_Z16_an_output_that_is_no_json_is_a_failure(zerog: ZeroGDoor, value: Any) -> None:
    async def work(context: JobContext) -> Any:
        return value

    async def scenario(backend: JobBackend) -> None:
        runner = JobRunner(backend=backend).register(definition(work, max_attempts=1))
        await runner.start()
        failed = await runner.wait_for(await runner.enqueue("resize"))
        assert (failed.state, failed.result) == (JobState.FAILED, None)
        assert failed.error is not None
        assert len(failed.error) < 1_000
        await runner.stop()

    zerog(scenario)


def test_Z16_a_stored_input_that_does_not_fit_fails_at_once(quick: ZeroGDoor) -> None:
    async def scenario(backend: JobBackend) -> None:
        runner = JobRunner(backend=backend).register(definition(obey, input=Image))
        job_id = await backend.enqueue("resize", {"size": 7})  # by another program
        await runner.start()
        failed = await runner.wait_for(job_id)
        assert (failed.state, failed.metadata.attempts) == (JobState.FAILED, 1)
        await runner.stop()

    quick(scenario)


def test_Z17_a_job_without_a_definition_fails_at_once(zerog: ZeroGDoor) -> None:
    async def scenario(backend: JobBackend) -> None:
        runner = JobRunner(backend=backend)
        job_id = await backend.enqueue("mail")
        await runner.start()
        failed = await runner.wait_for(job_id)
        assert (failed.state, failed.metadata.attempts) == (JobState.FAILED, 1)
        assert failed.error is not None
        assert "'mail'" in failed.error
        with pytest.raises(BadInput, match="no job 'mail'"):
            await runner.enqueue("mail")
        await runner.stop()

    zerog(scenario)


def test_Z18_waiting_for_a_job_that_does_not_end_or_does_not_exist(quick: ZeroGDoor) -> None:
    async def scenario(backend: JobBackend) -> None:
        runner = JobRunner(backend=backend)
        for job_id in (await backend.enqueue("resize"), "no-such-job", "00000000-0000-7000-8000-000000000000"):
            begun = CLOCK.monotonic()
            with pytest.raises(BackendUnreachable) as refused:
                await runner.wait_for(job_id, timeout_ms=80, poll_ms=10)
            assert refused.value.code == "JOBS_BACKEND_UNREACHABLE"
            assert 79 <= CLOCK.monotonic() - begun < 5_000
        assert await runner.status("no-such-job") is None

    quick(scenario)


@pytest.mark.parametrize("job", [None, 5, ["resize"], "resise"], ids=str)
def test_a_job_that_the_runner_does_not_have_is_refused_and_nothing_is_stored(quick: ZeroGDoor, job: Any) -> None:
    async def scenario(backend: JobBackend) -> None:
        with pytest.raises(BadInput, match="This runner has no job"):
            await JobRunner(backend=backend).register(jobs.define(name="resize", handler=len)).enqueue(job, {})
        assert await backend.claim("w1") is None

    quick(scenario)


def test_Z19_two_runners_on_one_backend_never_disagree(shared: ZeroGDoor) -> None:
    calls = list[tuple[str, int, int]]()

    def counting(runner: int) -> JobDefinition:
        async def work(context: JobContext) -> int:
            calls.append((context.job_id, context.attempt, runner))
            await asyncio.sleep(0.001)
            if context.attempt == 1 and context.input % 3 == 0:
                raise ValueError("no gas")
            return runner

        return definition(work, backoff_ms=lambda n: 0)

    async def scenario(backend: JobBackend) -> None:
        other = shared.backend()
        runners = [JobRunner(backend=one).register(counting(n)) for n, one in enumerate((backend, backend, other))]
        ids = [await runners[n % 3].enqueue("resize", n) for n in range(60)]
        await asyncio.gather(*(runner.start(concurrency=4) for runner in runners))
        for job_id in ids:
            records = await asyncio.gather(*(runner.wait_for(job_id) for runner in runners))
            assert records[0] == records[1] == records[2]
            last = max(call for call in calls if call[0] == job_id)
            assert (records[0].state, records[0].metadata.attempts, records[0].result) == (JobState.DONE, last[1], last[2])
        assert len(set(calls)) == len(calls) == 80
        await runners[0].stop()
        assert (await read(backend, ids[0])).state is JobState.DONE  # the backend is there for the other runner
        await runners[1].stop()
        with pytest.raises(BackendUnreachable):
            await backend.status(ids[0])
        await runners[2].stop()

    shared(scenario)


def test_Z20_a_runner_answers_an_enqueue_with_the_id_alone(quick: ZeroGDoor) -> None:
    async def scenario(backend: JobBackend) -> None:
        job_id = await JobRunner(backend=backend).enqueue(definition(obey), {"url": "a"})
        assert isinstance(job_id, str)
        assert (await read(backend, job_id)).id == job_id

    quick(scenario)


@pytest.mark.parametrize("concurrency", [1, 3])
def test_Z21_concurrency_is_the_number_of_handlers_and_a_second_start_adds_none(zerog: ZeroGDoor, concurrency: int) -> None:
    async def scenario(backend: JobBackend) -> None:
        gate = Gate()
        runner = JobRunner(backend=backend).register(definition(gate))
        ids = [await runner.enqueue("resize") for _ in range(5)]
        await asyncio.gather(runner.start(concurrency=concurrency), runner.start(concurrency=5))
        await runner.start(concurrency=5)
        await gate.reached(concurrency)
        await asyncio.sleep(0.1)
        assert (gate.inside, gate.came) == (concurrency, ids[:concurrency])
        gate.open.set()
        for job_id in ids:
            await runner.wait_for(job_id)
        assert gate.most == concurrency
        await runner.stop()

    zerog(scenario)


@pytest.mark.parametrize("concurrency", [0, -1, "4", 1.5, True, 10**9])
def test_a_concurrency_that_is_none_is_refused(quick: ZeroGDoor, concurrency: Any) -> None:
    async def scenario(backend: JobBackend) -> None:
        with pytest.raises(BadInput, match="concurrency"):
            await JobRunner(backend=backend).start(concurrency=concurrency)

    quick(scenario)


@pytest.mark.parametrize(
    "wrong", [{"lease_ms": 0}, {"lease_ms": "30"}, {"lease_ms": 10**12}, {"name": ""}, {"name": 5}, {"backend": None}], ids=str
)
def test_a_runner_that_could_not_work_is_not_made(quick: ZeroGDoor, wrong: dict[str, Any]) -> None:
    async def scenario(backend: JobBackend) -> None:
        with pytest.raises(BadInput):
            JobRunner(**({"backend": backend} | wrong))

    quick(scenario)


def test_the_outcomes_of_windlass_work_too(quick: ZeroGDoor) -> None:
    async def work(context: JobContext) -> str:
        if context.input == "skip":
            raise Skip("a duplicate")
        if context.attempt == 1:
            raise Snooze(0.01)
        return "later"

    async def scenario(backend: JobBackend) -> None:
        runner = JobRunner(backend=backend).register(definition(work, max_attempts=1))
        await runner.start()
        done = await runner.wait_for(await runner.enqueue("resize"))
        assert (done.result, done.metadata.attempts, done.metadata.last_error) == ("later", 2, None)
        skipped = await runner.wait_for(await runner.enqueue("resize", "skip"))
        assert (skipped.state, skipped.error) == (JobState.CANCELLED, None)
        await runner.stop()

    quick(scenario)


def test_a_runner_that_cannot_open_its_store_says_so() -> None:
    async def scenario(backend: JobBackend) -> None:
        with pytest.raises(BackendUnreachable):
            await JobRunner(backend=backend).start()

    ZeroGDoor("/nowhere/at/all/jobs.db")(scenario)


def test_the_signal_of_a_job_that_goes_on_is_not_raised(quick: ZeroGDoor) -> None:
    async def work(context: JobContext) -> str:
        context.signal.raise_if_aborted()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(context.signal.wait(), 0.01)
        return str(context.signal.reason)

    async def scenario(backend: JobBackend) -> None:
        runner = JobRunner(backend=backend).register(definition(work))
        await runner.start()
        assert (await runner.wait_for(await runner.enqueue("resize"))).result == "None"
        await runner.stop()
        assert not issubclass(AbortError, asyncio.CancelledError)

    quick(scenario)


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_Z22_steps_that_are_done_are_skipped_and_the_failed_one_is_repeated(zerog: ZeroGDoor, kind: str) -> None:
    calls = list[str]()

    def step(name: str) -> str:
        calls.append(name)
        if name == "ship" and calls.count("ship") == 1:
            raise ValueError("no carrier")
        return f"{name} done"

    async def in_loop(context: JobContext) -> list[str]:
        results = [await context.step(name, step, name) for name in ("charge", "ship", "mail")]
        assert await context.steps() == dict(zip(("charge", "ship", "mail"), results, strict=True))
        return results

    def on_thread(context: JobContext) -> list[str]:
        results: list[str] = [context.step(name, step, name) for name in ("charge", "ship", "mail")]
        assert context.steps() == dict(zip(("charge", "ship", "mail"), results, strict=True))
        return results

    async def scenario(backend: JobBackend) -> None:
        runner = JobRunner(backend=backend).register(definition(in_loop if kind == "async" else on_thread, backoff_ms=lambda n: 1))
        await runner.start()
        done = await runner.wait_for(await runner.enqueue("resize"))
        assert (done.result, done.metadata.attempts) == (["charge done", "ship done", "mail done"], 2)
        assert calls == ["charge", "ship", "ship", "mail"]
        await runner.stop()

    zerog(scenario)
