"""0gkit's webhooks, to a receiver that is written from its contract with `hmac` alone."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.dialects.zerog_door import ZeroGDoor, quick, read, shared, still, until, zerog
from tests.hub.receivers import Answer, Post, Receiver, status
from windlass.dialects.zerog import JobBackend, JobContext, JobRunner, JobState, WebhookConfig, jobs
from windlass.dialects.zerog.sending import registered
from windlass.dialects.zerog.webhooks import FORMAT, LIMIT
from windlass.errors import BadInput, EgressRefused
from windlass.faults import VARIABLE
from windlass.model import Delivery, Entry, State, Webhook

__all__ = ["quick", "shared", "still", "zerog"]  # fixtures

SECRET = "a secret of both sides"
ROOT = Path(__file__).parents[2]


class SignedReceiver(Receiver):
    """A receiver that verifies each request as the contract says."""

    def __init__(self, *answers: Answer, secret: str = SECRET) -> None:
        super().__init__(*answers)
        self.secret = secret

    def config(self, **how: Any) -> WebhookConfig:
        return WebhookConfig(self.url, self.secret, allow=("127.0.0.0/8",), plain_http=True, **how)

    def verified(self) -> list[Post]:
        """All requests, each of which was signed over the very bytes that came."""
        for post in self.posts:
            digest = hmac.new(self.secret.encode(), post.body, sha256).hexdigest()
            assert post.headers["x-0gkit-signature"] == f"sha256={digest}"
            assert hmac.new(self.secret.encode(), post.body + b" ", sha256).hexdigest() != digest
            assert post.headers["content-type"] == "application/json"
            assert post.headers["x-0gkit-event"] == "state-change"
            assert post.headers["x-0gkit-job-id"] == post.json["jobId"]
        return self.posts

    def changes(self) -> list[tuple[str, str, str]]:
        return [(post.json["jobId"], post.json["previousState"], post.json["newState"]) for post in self.verified()]


async def came(receiver: SignedReceiver, count: int) -> None:
    async def there() -> bool:
        return len(receiver.posts) >= count

    await until(there)


def scene(door: ZeroGDoor, scenario: Callable[[JobBackend, SignedReceiver], Coroutine[Any, Any, None]], *answers: Answer) -> None:
    """A backend and a receiver with a script."""

    async def both(backend: JobBackend) -> None:
        async with SignedReceiver(*answers) as receiver:
            await scenario(backend, receiver)

    door(both)


async def work(context: JobContext) -> Any:
    """Fails as often as its input says."""
    if context.attempt <= context.input.get("fails", 0):
        raise ValueError(f"no gas {context.attempt}")
    return context.input.get("result")


RESIZE = jobs.define(name="resize", handler=work, backoff_ms=lambda n: 1)


def test_Z13_each_completion_and_each_failure_is_told_with_a_signature(zerog: ZeroGDoor) -> None:
    async def scenario(backend: JobBackend, receiver: SignedReceiver) -> None:
        runner = JobRunner(backend=backend, webhook=receiver.config()).register(RESIZE)
        await runner.start()
        done = await runner.wait_for(await runner.enqueue(RESIZE, {"fails": 1, "result": {"width": 64}}))
        await came(receiver, 2)
        failed = await runner.wait_for(await runner.enqueue(RESIZE, {"fails": 3}))
        await came(receiver, 5)
        await runner.stop()
        assert receiver.changes() == [
            (done.id, "running", "queued"), (done.id, "running", "done"),
            (failed.id, "running", "queued"), (failed.id, "running", "queued"), (failed.id, "running", "failed"),
        ]  # fmt: skip
        again, end, *_, last = (post.json for post in receiver.posts)
        ts = again.pop("ts")
        assert again == {"jobId": done.id, "jobName": "resize", "previousState": "running", "newState": "queued", "error": "no gas 1"}
        del again["error"]
        assert end == again | {"newState": "done", "result": {"width": 64}, "ts": done.metadata.finished_at}
        assert ts <= end["ts"]
        assert (last["error"], last["ts"]) == ("no gas 3", failed.metadata.finished_at)

    scene(zerog, scenario)


def test_Z13_an_enqueue_a_claim_and_a_cancel_are_not_told(quick: ZeroGDoor) -> None:
    async def obey(context: JobContext) -> None:
        await context.signal.wait()

    async def scenario(backend: JobBackend, receiver: SignedReceiver) -> None:
        runner = JobRunner(backend=backend, webhook=receiver.config()).register(RESIZE, jobs.define(name="obey", handler=obey))
        queued = await backend.enqueue("resize", {})
        await runner.start(concurrency=2)
        await runner.wait_for(queued)
        running = await runner.enqueue("obey")

        async def is_running() -> bool:
            return (await read(backend, running)).state is JobState.RUNNING

        await until(is_running)
        await backend.cancel(running)
        last = await runner.enqueue("resize")
        await runner.wait_for(last)
        await came(receiver, 2)
        await runner.stop()
        assert receiver.changes() == [(queued, "running", "done"), (last, "running", "done")]

    scene(quick, scenario)


def test_Z13_a_change_is_stored_before_it_is_told(zerog: ZeroGDoor) -> None:
    async def scenario(backend: JobBackend, receiver: SignedReceiver) -> None:
        states = []

        async def look(writer: asyncio.StreamWriter) -> None:
            states.append((await read(backend, receiver.posts[-1].json["jobId"])).state)
            await status(200)(writer)

        receiver.script = [look]
        runner = JobRunner(backend=backend, webhook=receiver.config()).register(RESIZE)
        await runner.start()
        for _ in range(3):
            await runner.enqueue("resize")
        await came(receiver, 3)
        await runner.stop()
        assert states == [JobState.DONE] * 3

    scene(zerog, scenario)


def test_Z13_what_ends_just_before_a_stop_is_sent_before_it_returns(zerog: ZeroGDoor) -> None:
    async def answer_late(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.1)
        await status(200)(writer)

    async def scenario(backend: JobBackend, receiver: SignedReceiver) -> None:
        runner = JobRunner(backend=backend, webhook=receiver.config()).register(RESIZE)
        ids = [await runner.enqueue("resize") for _ in range(9)]
        await runner.start(concurrency=9)
        for job_id in ids:
            await runner.wait_for(job_id)
        await runner.stop(drain=False)
        assert Counter(receiver.changes()) == {(job_id, "running", "done"): 1 for job_id in ids}
        for job_id in ids:
            assert [delivery.status for delivery in await backend.engine.deliveries_of(job_id)] == ["delivered"]

    scene(zerog, scenario, answer_late)


def test_Z13_what_another_process_has_done_is_told_by_the_next_runner(shared: ZeroGDoor) -> None:
    """As after a crash between `complete` and the webhook: it is made from the journal."""

    async def scenario(backend: JobBackend, receiver: SignedReceiver) -> None:
        await registered(backend.engine, backend.queue, receiver.config())
        job_id = await backend.enqueue("resize")
        await backend.claim("w1")
        await backend.complete(job_id, 7)
        runner = JobRunner(backend=backend, webhook=receiver.config())
        await runner.start()
        await came(receiver, 1)
        await runner.stop()
        assert receiver.changes() == [(job_id, "running", "done")]
        assert receiver.posts[0].json["result"] == 7

    scene(shared, scenario)


def test_Z13_a_runner_that_is_killed_between_complete_and_the_webhook_loses_none(shared: ZeroGDoor, tmp_path: Path) -> None:
    async def life(receiver: SignedReceiver, job_id: str, faults: str = "") -> int:
        command = [sys.executable, "-m", "tests.dialects.zerog_child", shared.address, "r1", str(tmp_path), job_id, receiver.url]
        process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env={**os.environ, VARIABLE: faults})
        return await process.wait()

    async def scenario(backend: JobBackend, receiver: SignedReceiver) -> None:
        job_id = await backend.enqueue("resize")
        assert await life(receiver, job_id, "report.after_commit=kill") == -signal.SIGKILL
        assert (await read(backend, job_id)).state is JobState.DONE
        assert receiver.posts == []
        assert await life(receiver, job_id) == 0
        assert receiver.changes() == [(job_id, "running", "done")]

    scene(shared, scenario)


def test_without_a_secret_there_is_no_signature() -> None:
    """As for an address that a run names."""
    delivery = Delivery(1, "d", "w", "run", 3, "state-change", "pending", 0, None, None, None, None, 7, None)
    assert FORMAT.headers(delivery, b"{}", (), 7) == {
        "content-type": "application/json",
        "x-0gkit-job-id": "run",
        "x-0gkit-event": "state-change",
    }


@pytest.mark.parametrize("failures", [0, 1, 2, 3])
def test_Z15_three_tries_with_one_body_and_the_job_is_what_it_is(zerog: ZeroGDoor, failures: int) -> None:
    async def scenario(backend: JobBackend, receiver: SignedReceiver) -> None:
        runner = JobRunner(backend=backend, webhook=receiver.config()).register(RESIZE)
        await runner.start()
        done = await runner.wait_for(await runner.enqueue(RESIZE, {"result": "é"}))
        tries = min(failures + 1, 3)
        await came(receiver, tries)
        await asyncio.sleep(1.2 if failures == 3 else 0.05)  # no fourth comes
        posts = receiver.verified()
        assert [post.json["jobId"] for post in posts] == [done.id] * tries
        assert len({(post.body, post.headers["x-0gkit-signature"]) for post in posts}) == 1
        assert await runner.status(done.id) == done
        await runner.stop()
        assert len(receiver.posts) == tries

    scene(zerog, scenario, *[status(500)] * failures, status(204))


@pytest.mark.parametrize("retries", [0, 1, 4])
def test_Z15_the_number_of_retries_is_a_setting(quick: ZeroGDoor, retries: int) -> None:
    config = WebhookConfig("https://example.com", "s", retries)
    assert config.delays == (250, 500, 1_000, 2_000)[:retries]
    assert FORMAT.delays == (250, 500) == WebhookConfig("https://example.com", "s").delays
    if retries > 1:
        return

    async def scenario(backend: JobBackend, receiver: SignedReceiver) -> None:
        runner = JobRunner(backend=backend, webhook=receiver.config(retries=retries)).register(RESIZE)
        await runner.start()
        await runner.wait_for(await runner.enqueue("resize"))
        await came(receiver, retries + 1)
        await asyncio.sleep(0.7)
        assert len(receiver.posts) == retries + 1
        await runner.stop()

    scene(quick, scenario, status(503))


def test_Z19_two_runners_with_one_address_tell_each_change_once(shared: ZeroGDoor) -> None:
    async def scenario(backend: JobBackend, receiver: SignedReceiver) -> None:
        other = shared.backend()
        runners = [JobRunner(backend=one, webhook=receiver.config()).register(RESIZE) for one in (backend, backend, other)]
        await asyncio.gather(*(runner.start(concurrency=2) for runner in runners))
        endpoints = await _endpoints(backend)
        assert [(one.url, one.format, one.queues, one.jobs) for one in endpoints] == [(receiver.url, "zerog", ("zerog",), None)]
        ids = [await runners[n % 3].enqueue(RESIZE, {"fails": n % 2}) for n in range(12)]
        for job_id in ids:
            await runners[0].wait_for(job_id)
        await came(receiver, 18)
        await asyncio.gather(*(runner.stop() for runner in runners))
        assert Counter(receiver.changes()) == {
            **{(job_id, "running", "done"): 1 for job_id in ids},
            **{(job_id, "running", "queued"): 1 for job_id in ids[1::2]},
        }

    scene(shared, scenario)


async def _endpoints(backend: JobBackend) -> list[Webhook]:
    return await backend.engine.webhooks()


def test_the_same_address_is_the_same_endpoint_whenever_it_is_registered(zerog: ZeroGDoor) -> None:
    async def scenario(backend: JobBackend, receiver: SignedReceiver) -> None:
        first, *_ = [await registered(backend.engine, "zerog", receiver.config()) for _ in range(3)]
        assert await _endpoints(backend) == [first]
        await asyncio.gather(*(registered(backend.engine, "zerog", receiver.config()) for _ in range(5)))
        assert await _endpoints(backend) == [first]
        await registered(backend.engine, "media", receiver.config())  # of another queue
        await backend.engine.add_webhook(receiver.url)  # of another format
        assert len(await _endpoints(backend)) == 3
        assert await registered(backend.engine, "zerog", receiver.config()) == first

    scene(zerog, scenario)


def test_runners_that_start_together_store_one_endpoint(shared: ZeroGDoor) -> None:
    async def scenario(backend: JobBackend, receiver: SignedReceiver) -> None:
        others = [shared.backend() for _ in range(4)]
        await asyncio.gather(*(registered(one.engine, "zerog", receiver.config()) for one in (backend, *others)))
        assert len(await _endpoints(backend)) == 1
        for other in others:
            await other.close()

    scene(shared, scenario)


def test_another_secret_or_number_of_retries_replaces_the_former(quick: ZeroGDoor) -> None:
    async def scenario(backend: JobBackend, receiver: SignedReceiver) -> None:
        before = await registered(backend.engine, "zerog", receiver.config())
        receiver.secret = "another"
        after = await registered(backend.engine, "zerog", receiver.config(retries=0))
        assert (after.id, after.delays, [secret.key for secret in after.secrets]) == (before.id, (), ["another"])
        runner = JobRunner(backend=backend, webhook=receiver.config(retries=0)).register(RESIZE)
        await runner.start()
        await runner.enqueue("resize")
        await came(receiver, 1)
        await runner.stop()
        assert len(receiver.verified()) == 1

    scene(quick, scenario)


def test_an_endpoint_that_was_disabled_stays_so(quick: ZeroGDoor) -> None:
    async def scenario(backend: JobBackend, receiver: SignedReceiver) -> None:
        endpoint = await registered(backend.engine, "zerog", receiver.config())
        await backend.engine.set_webhook(endpoint.id, enabled=False)
        runner = JobRunner(backend=backend, webhook=receiver.config()).register(RESIZE)
        await runner.start()
        await runner.wait_for(await runner.enqueue("resize"))
        await runner.stop(drain=False)
        assert not (await _endpoints(backend))[0].enabled
        assert receiver.posts == []

    scene(quick, scenario)


@pytest.mark.parametrize("allowed", [{"allow": ("127.0.0.0/8",)}, {"plain_http": True}, {}])
def test_an_address_that_must_not_be_told_is_refused_at_the_start(quick: ZeroGDoor, allowed: dict[str, Any]) -> None:
    async def scenario(backend: JobBackend, receiver: SignedReceiver) -> None:
        runner = JobRunner(backend=backend, webhook=WebhookConfig(receiver.url, SECRET, **allowed)).register(RESIZE)
        with pytest.raises(EgressRefused):
            await runner.start()
        assert await _endpoints(backend) == []

    scene(quick, scenario)


@pytest.mark.parametrize("wrong", [{"retries": -1}, {"retries": 100}, {"retries": "2"}])
def test_a_number_of_retries_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="retries"):
        WebhookConfig("https://example.com", "s", **wrong)


@pytest.mark.parametrize("secret", [None, 5, b"secret"])
def test_a_secret_that_is_no_text_is_refused_at_once(secret: Any) -> None:
    with pytest.raises(BadInput, match="secret must be str"):
        WebhookConfig("https://example.com", secret)


@pytest.mark.parametrize("secret", ["", "x" * 300, "a\nb"])
def test_a_secret_that_is_none_is_refused(quick: ZeroGDoor, secret: str) -> None:
    async def scenario(backend: JobBackend, receiver: SignedReceiver) -> None:
        receiver.secret = secret
        with pytest.raises(BadInput, match="secret"):
            await JobRunner(backend=backend, webhook=receiver.config()).start()
        assert await _endpoints(backend) == []

    scene(quick, scenario)


def test_a_secret_is_not_shown() -> None:
    assert "hidden" not in repr(WebhookConfig("https://example.com", "hidden"))


def test_a_result_that_is_too_long_is_left_out(quick: ZeroGDoor) -> None:
    async def scenario(backend: JobBackend, receiver: SignedReceiver) -> None:
        runner = JobRunner(backend=backend, webhook=receiver.config()).register(RESIZE)
        await runner.start()
        await runner.wait_for(await runner.enqueue(RESIZE, {"result": "x" * LIMIT}))
        await came(receiver, 1)
        await runner.stop()
        (post,) = receiver.verified()
        assert "result" not in post.json
        assert post.json["newState"] == "done"

    scene(quick, scenario)


TOLD = [
    ("succeed", State.RUNNING, State.SUCCEEDED),
    ("succeed", State.CLAIMED, State.SUCCEEDED),
    ("fail", State.RUNNING, State.FAILED),
    ("fail", State.RUNNING, State.SCHEDULED),
    ("fail", State.CLAIMED, State.QUEUED),
    ("lapse", State.CLAIMED, State.SCHEDULED),
    ("lapse", State.RUNNING, State.QUARANTINED),
    ("expire", State.RUNNING, State.FAILED),
    ("refuse", State.CLAIMED, State.FAILED),
]
NOT_TOLD = [
    ("create", None, State.QUEUED),
    ("create", None, State.SUCCEEDED),
    ("claim", State.QUEUED, State.CLAIMED),
    ("start", State.CLAIMED, State.RUNNING),
    ("snooze", State.RUNNING, State.SCHEDULED),
    ("requeue", State.RUNNING, State.QUEUED),
    ("refuse", State.CLAIMED, State.SCHEDULED),
    ("skip", State.RUNNING, State.SKIPPED),
    ("cancel", State.QUEUED, State.CANCELLED),
    ("cancel", State.RUNNING, State.CANCELLING),
    ("confirm", State.CANCELLING, State.CANCELLED),
    ("lapse", State.CANCELLING, State.CANCELLED),
]


@pytest.mark.parametrize(("move", "before", "after"), [*TOLD, *NOT_TOLD])
def test_Z13_executions_that_ended_are_told_and_nothing_else(move: str, before: State | None, after: State) -> None:
    entry = Entry("run", 3, 7, move, after, 1, "w1", None, "resize", "zerog", before)
    assert FORMAT.event(entry) == ("state-change" if (move, before, after) in TOLD else None)


def test_bodies_of_runs_that_are_gone_are_told_without_their_result(still: ZeroGDoor) -> None:
    async def scenario(backend: JobBackend) -> None:
        entry = Entry("gone", 3, 7, "succeed", State.SUCCEEDED, 1, "w1", None, "resize", "zerog", State.RUNNING)
        (body,) = await FORMAT.bodies(backend.engine, [entry])
        assert json.loads(body) == {"jobId": "gone", "jobName": "resize", "previousState": "running", "newState": "done", "ts": 7}

    still(scenario)
