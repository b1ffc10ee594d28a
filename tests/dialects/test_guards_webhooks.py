"""Webhooks of the design guards: G13, G21, G22. The receiver is written from the document, with the standard library alone."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.dialects.guards_library import Library, crashed
from tests.dialects.guards_processes import log, processes
from tests.dialects.test_guards_scheduler import done
from tests.harness import Harness
from tests.hub.receivers import Post, Receiver, status
from tests.workers import until
from windlass.dialects.guards import InvalidValueError, Scheduler
from windlass.dialects.guards.notify import EVENTS
from windlass.dialects.guards.webhooks import FORMAT, bodies
from windlass.egress import Egress
from windlass.machine import Snooze
from windlass.store.base import run_sync
from windlass.webhooks import STANDARD, Sender

URL = "https://example.com/hook"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Receivers of this machine may be notified."""
    monkeypatch.setenv("WINDLASS_ALLOW", "127.0.0.0/8")
    monkeypatch.setenv("WINDLASS_PLAIN_HTTP", "true")


@pytest.fixture
def s(h: Harness, loopback: None) -> Library:
    return Library(h)


def sender(h: Harness) -> Sender:
    return Sender(h.engine, h.clock, Egress(allow=["127.0.0.0/8"], plain_http=True), formats=(STANDARD, FORMAT))


async def send(h: Harness, after: int = 0) -> None:
    """Send what is due after so many milliseconds."""
    h.clock.advance(after)
    sending = sender(h)
    while not await sending.tick() or sending.sending:  # noqa: ASYNC110 - no event could be set
        await asyncio.sleep(0.001)


def play(scenario: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scenario

    asyncio.run(bounded())


def events(s: Library, **notice: Any) -> list[str]:
    """The events that are told of a job with every kind of end."""
    s.create_template("story", retry_policy=1)
    for end in ("COMPLETED", "FAILED", "SKIPPED", "returned", "lapsed", "cancelled"):
        job = s.job(webhook_url=URL, **notice)
        if end == "cancelled":
            s.cancel_job(job)
        elif end == "returned":
            s.h.report(run := s.claimed(), Snooze(token=run.token, delay=0))
            s.end(status="COMPLETED")
        elif end == "lapsed":
            crashed(s.h)
            s.h(s.verbs.recover())
            s.advance(seconds=10)
            s.fail()
        else:
            s.end(status=end)
            s.advance(seconds=10)
            if end == "FAILED":
                s.end(status="COMPLETED")
    while s.h(s.h.engine.make_deliveries(FORMAT.content(s.h.engine))):
        pass
    runs = {s.h.get(job.job_id).id for job in s.list_jobs(limit=200)}
    return sorted(delivery.type for run in runs for delivery in s.h(s.h.engine.deliveries_of(run)))


def test_G21_every_execution_that_ends_has_one_event(s: Library) -> None:
    # completed; failed and its retry; skipped; completed at the second offer; lost and failed for good
    assert events(s) == sorted(["job.run.completed"] * 3 + ["job.run.failed"] * 3 + ["job.run.skipped"])


def test_G21_only_the_events_that_the_job_names(s: Library) -> None:
    assert events(s, webhook_events=["job.run.failed"]) == ["job.run.failed"] * 3


def verified(post: Post, secret: str) -> bool:
    """Whether a post has a signature of the Standard Webhooks under a secret."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{post.headers['webhook-id']}.{post.headers['webhook-timestamp']}.".encode() + post.body
    return post.headers["webhook-signature"] == "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def test_G22_the_body_is_the_run_as_the_api_shows_it(s: Library) -> None:
    async def scenario() -> None:
        async with Receiver() as receiver:
            job = s.job(params={"topic": "sea"}, webhook_url=receiver.url)
            s.end(status="FAILED", error="no model", artifacts=["log"])
            retry = s.newest().job_id
            s.advance(seconds=10)
            s.end(status="COMPLETED", artifacts=["story.md"])
            await send(s.h)
            assert [post.headers["x-job-id"] for post in receiver.posts] == [job, retry]
            for post, job_id, event in zip(receiver.posts, (job, retry), ("job.run.failed", "job.run.completed"), strict=True):
                assert json.loads(post.body) == {"event": event} | s.load_jobrun(job_id).to_json()
                assert (post.headers["x-job-event"], post.headers["content-type"]) == (event, "application/json")
                assert "webhook-signature" not in post.headers

    play(scenario())


@pytest.mark.parametrize("failures", range(4))
def test_G21_a_receiver_that_fails_is_asked_three_times_and_never_again(s: Library, failures: int) -> None:
    async def scenario() -> None:
        async with Receiver(*[status(500)] * failures, status(204)) as receiver:
            job = s.job(webhook_url=receiver.url)
            s.end(status="COMPLETED")
            tries = []
            for delay in (0, 999, 251, 1_999, 501, 3_600_000):  # a pause is up to a quarter longer
                await send(s.h, delay)
                tries.append(len(receiver.posts))
            assert tries == [min(count, failures + 1) for count in (1, 1, 2, 2, 3, 3)]
            assert len({post.body for post in receiver.posts}) == len({post.id for post in receiver.posts}) == 1
            (delivery,) = s.h(s.h.engine.deliveries_of(job))
            assert (delivery.status, delivery.tries) == ("failed" if failures >= 3 else "delivered", tries[-1])

    play(scenario())


def test_an_endpoint_of_the_format_is_signed_as_a_standard_one(s: Library) -> None:
    async def scenario() -> None:
        async with Receiver() as receiver:
            webhook = s.h(s.h.engine.add_webhook(receiver.url, format="guards", secret=SECRET))
            s.job()
            s.end(status="SKIPPED")
            await send(s.h)
            (post,) = receiver.posts
            assert (webhook.format, post.headers["x-job-event"], verified(post, SECRET)) == ("guards", "job.run.skipped", True)
            assert not verified(post, "whsec_" + base64.b64encode(b"x" * 24).decode())

    play(scenario())


def test_a_run_that_was_removed_meanwhile_is_told_without_its_members(s: Library) -> None:
    s.job()
    s.end(status="COMPLETED")
    (entry,) = [entry for entry in s.h(s.h.engine.tail()).entries if FORMAT.event(entry)]
    (body,) = s.h(bodies(s.h.engine, [replace(entry, run="017f0000-0000-7000-8000-000000000000")]))
    assert json.loads(body) == {
        "event": "job.run.completed", "run_id": "017f0000-0000-7000-8000-000000000000",
        "job_id": "017f0000-0000-7000-8000-000000000000", "status": "COMPLETED",
    }  # fmt: skip


@pytest.mark.parametrize("url", ["http://example.com/hook", "https://127.0.0.1/hook", "ftp://example.com", "no address", 5])
def test_G21_an_address_that_would_never_be_sent_to_is_refused(tmp_path: Path, url: Any) -> None:
    with Scheduler(tmp_path / "jobs.db") as s:
        s.create_template("story")
        with pytest.raises(InvalidValueError) as refused:
            s.create_job("story", webhook_url=url)
        assert refused.value.member == "webhook_url"
        assert s.list_jobs() == []
    assert FORMAT.events == EVENTS


def test_G13_a_scheduler_sends_the_webhooks_of_what_it_executes_and_recovers(tmp_path: Path, loopback: None) -> None:
    async def scenario() -> None:
        async with Receiver() as receiver:
            await asyncio.to_thread(_work, tmp_path, receiver.url)
            bodies = {post.headers["x-job-id"]: json.loads(post.body) for post in receiver.posts}
            assert sorted(body["event"] for body in bodies.values()) == ["job.run.completed", "job.run.failed"]
            (lost,) = [body for body in bodies.values() if body["event"] == "job.run.failed"]
            assert "recovered" in lost["error"]

    play(scenario())


def _work(folder: Path, url: str) -> None:
    address = str(folder / "jobs.db")
    with Scheduler(address) as s, processes(folder, address) as (process,):
        process.start()
        lost = s.create_job("story", params={"name": "lost", "gate": "never"}, webhook_url=url).job_id
        until(lambda: log(folder) == [["start", "lost"]])
        process.kill()
        engine = s.verbs.engine
        with Scheduler(address) as other:

            @other.handler("story")
            def story(name: str, gate: str | None = None) -> None:
                pass

            other.start()
            job = other.create_job("story", params={"name": "done"}, webhook_url=url).job_id
            done(other, job)
            for run in (lost, job):
                until(lambda run=run: [one for one in run_sync(engine.deliveries_of(run)) if one.status == "delivered"])  # type: ignore[misc]
