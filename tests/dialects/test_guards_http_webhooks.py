"""The webhooks of jobs, as a receiver that was written from the contract with the standard library alone gets them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

from tests.dialects.guards_door import KEY, RUN, STORY, GuardsDoor
from tests.harness import LEASE, Harness
from tests.hub.test_webhook_sender import sent
from windlass.model import SCOPES

LOCAL: dict[str, Any] = {"allow": ("127.0.0.0/8",), "plain_http": True}
EVENTS = {"COMPLETED": "job.run.completed", "FAILED": "job.run.failed", "SKIPPED": "job.run.skipped"}


class Post(NamedTuple):
    """A delivery as it came."""

    job_id: str
    event: str
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        return dict(json.loads(self.body))


class Receiver(ThreadingHTTPServer):
    """Answers 500 so many times for each job, then 204, and keeps what it got."""

    daemon_threads = True

    def __init__(self, failures: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), Reception)
        self.failures, self.posts, self.wrong = failures, list[Post](), list[str]()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook?token=secret"

    def bodies(self, job_id: str) -> list[bytes]:
        return [post.body for post in self.posts if post.job_id == job_id]


class Reception(BaseHTTPRequestHandler):
    """Holds every delivery to the contract."""

    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        post = Post(self.headers["X-Job-ID"], self.headers["X-Job-Event"], body)
        run = post.json
        event = run.pop("event", None)
        if event != post.event or EVENTS.get(run["status"]) != event or run["job_id"] != post.job_id or run.keys() != RUN:
            self.server.wrong.append(body.decode())
        self.server.posts.append(post)
        self.send_response(500 if len(self.server.bodies(post.job_id)) <= self.server.failures else 204)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver
        receiver.shutdown()
        assert receiver.wrong == []


@pytest.fixture
def guards(h: Harness) -> Iterator[GuardsDoor]:
    door = GuardsDoor(h, hub=LOCAL)
    door.template("once", retry_policy={"max_attempts": 0})
    yield door
    door.close()


def deliver(guards: GuardsDoor) -> None:
    """Let the hub send what is due."""
    guards._runner.run(sent(guards.hub.sender))


def webhooks(guards: GuardsDoor, job: str) -> list[dict[str, Any]]:
    answer = guards.done("GET", f"/jobs/{job}/webhooks")
    assert answer["total"] == len(answer["webhooks"])
    return list(answer["webhooks"])


@pytest.mark.parametrize("failures", [0, 1, 2, 3])
def test_G21_a_delivery_is_tried_three_times_at_growing_distance_and_then_never_again(
    guards: GuardsDoor, receiver: Receiver, failures: int
) -> None:
    receiver.failures = failures
    job = guards.create(webhook_url=receiver.url)
    guards.succeed()
    times = []
    for _ in range(8_000 // 250):
        before = len(receiver.posts)
        deliver(guards)
        times += [guards.h.clock.now()] * (len(receiver.posts) - before)
        guards.h.clock.advance(250)
    assert len(times) == min(3, failures + 1)
    gaps = [after - before for before, after in pairwise(times)]
    assert all(least <= gap <= least + least // 2 for gap, least in zip(gaps, (1_000, 2_000), strict=False)), gaps
    (delivery,) = webhooks(guards, job)
    assert (delivery["status"], delivery["tries"]) == ("failed" if failures == 3 else "delivered", len(times))
    assert (delivery["last_status"], delivery["next_try_at"]) == (500 if failures == 3 else 204, None)
    assert (delivery["error"] is not None) == (failures == 3)
    assert "secret" not in json.dumps(delivery)
    guards.h.clock.advance(24 * 3_600_000)
    deliver(guards)
    assert len(receiver.posts) == len(times)


@pytest.mark.parametrize("failures", [0, 2, 3])
def test_G22_every_try_has_the_body_that_the_api_shows(guards: GuardsDoor, receiver: Receiver, failures: int) -> None:
    receiver.failures = failures
    jobs = {"COMPLETED": guards.create("once", webhook_url=receiver.url)}
    guards.succeed({"artifacts": ["stories/1.md"], "exit_code": 0})
    jobs["FAILED"] = guards.create("once", webhook_url=receiver.url)
    guards.fail()
    jobs["SKIPPED"] = guards.create("once", webhook_url=receiver.url)
    guards.skip("duplicate")
    for _ in range(3):
        deliver(guards)
        guards.h.clock.advance(10_000)
    for status, job in jobs.items():
        bodies = receiver.bodies(job)
        assert len(bodies) == min(3, failures + 1)
        assert len(set(bodies)) == 1
        assert json.loads(bodies[0]) == {"event": EVENTS[status], **guards.done("GET", f"/api/job-runs/{job}")}
    assert {(post.job_id, post.event) for post in receiver.posts} == {(job, EVENTS[status]) for status, job in jobs.items()}


def test_G21_every_execution_that_ends_is_told_also_one_that_is_tried_again_or_lost(guards: GuardsDoor, receiver: Receiver) -> None:
    guards.create(webhook_url=receiver.url)
    ids = [guards.fail()]
    guards.h.sweep(60_000)
    ids.append(guards.start().current_attempt)
    guards.h.sweep(LEASE + 1)
    guards.h.sweep(60_000)
    ids.append(guards.succeed())
    deliver(guards)
    posts = {post.job_id: post for post in receiver.posts}
    assert len(receiver.posts) == len(posts) == 3
    assert [posts[job].event for job in ids] == ["job.run.failed", "job.run.failed", "job.run.completed"]
    for job, post in posts.items():
        assert post.json == {"event": post.event, **guards.done("GET", f"/api/job-runs/{job}")}
        assert [delivery["event"] for delivery in webhooks(guards, job)] == [post.event]


def test_only_the_events_that_a_job_names_are_sent_and_a_retry_by_hand_keeps_them(guards: GuardsDoor, receiver: Receiver) -> None:
    guards.create("once", webhook_url=receiver.url, webhook_events=["job.run.failed"])
    failed = guards.fail()
    retry = guards.done("POST", f"/api/job-runs/{failed}/retry", status=201)["job_id"]
    guards.fail()
    again = guards.done("POST", f"/api/job-runs/{retry}/retry", status=201)["job_id"]
    guards.succeed()
    deliver(guards)
    assert sorted(post.job_id for post in receiver.posts) == sorted([failed, retry])
    assert webhooks(guards, again) == []


def test_a_job_that_is_cancelled_or_has_no_address_is_not_told(guards: GuardsDoor, receiver: Receiver) -> None:
    job, other = guards.create(webhook_url=receiver.url), guards.create()
    guards.done("DELETE", f"/jobs/{job}")
    assert guards.succeed() == other
    deliver(guards)
    assert (receiver.posts, webhooks(guards, job), webhooks(guards, other)) == ([], [], [])


def test_members_of_a_group_and_jobs_of_a_template_are_told_too(guards: GuardsDoor, receiver: Receiver) -> None:
    group = {"jobs": [{"template_id": STORY, "webhook_url": receiver.url}, {"template_id": STORY}]}
    ids = guards.done("POST", "/api/job-groups", group, 201)["job_ids"]
    job = guards.done("POST", "/api/jobs", {"template_id": STORY, "webhook_url": receiver.url}, 201)["job_id"]
    for _ in range(3):
        guards.succeed()
    deliver(guards)
    assert {post.job_id for post in receiver.posts} == {ids[0], job}


def test_G30_old_routes_name_events_by_the_old_words(guards: GuardsDoor, receiver: Receiver) -> None:
    body = {"topic": "sea", "webhook_url": receiver.url, "webhook_events": ["succeeded"]}
    job = guards.done("POST", "/jobs/story/trigger", body, 202)["job_id"]
    assert guards.job(job)["params"] == {"topic": "sea"}
    batch = {"jobs": [{"type": STORY}, {"type": STORY}], "webhook_url": receiver.url}
    ids = guards.done("POST", "/jobs/batch/trigger", batch, 202)["job_ids"]
    guards.done("POST", "/jobs/story/trigger", {"webhook_events": ["failed"]}, 202)
    for _ in range(4):
        guards.succeed()
    deliver(guards)
    assert {post.job_id for post in receiver.posts} == {job, *ids}
    assert {post.event for post in receiver.posts} == {"job.run.completed"}


@pytest.mark.parametrize(
    ("url", "setting"),
    [
        ("http://shop.example/hook", "plain_http"), ("https://127.0.0.1/hook", "allow"), ("https://10.0.0.1/", "allow"),
        ("https://[::1]/", "allow"), ("no address", ""), ("", ""), ("ftp://shop.example/", ""), ("https://a:b@shop.example/", ""),
    ],
)  # fmt: skip
def test_an_address_that_would_never_be_sent_to_is_refused_at_the_creation(h: Harness, url: str, setting: str) -> None:
    door = GuardsDoor(h)
    creations: list[tuple[str, dict[str, Any]]] = [
        ("/jobs", {"type": STORY}), ("/api/jobs", {"template_id": STORY}), ("/jobs/story/trigger", {}),
        ("/jobs/batch/trigger", {"jobs": [{"type": STORY}]}),
    ]  # fmt: skip
    for path, body in creations:
        answer = door.post(path, body | {"webhook_url": url})
        assert answer.status == 422, answer
        (violation,) = answer.json["detail"]
        assert violation["loc"] == ["body", "webhook_url"]
        assert setting in violation["msg"]
    member = {"template_id": STORY, "webhook_url": url}
    assert door.refused("POST", "/api/job-groups", {"jobs": [member]}) == (422, [("body", "webhook_url")])
    assert door.done("GET", "/jobs")["total"] == 0
    door.close()


def test_an_event_that_there_is_not_is_refused(guards: GuardsDoor) -> None:
    url = "https://shop.example/"
    for events in (["succeeded"], ["job.run.completed", "nothing"], [""]):
        body = {"type": STORY, "webhook_url": url, "webhook_events": events}
        assert guards.refused("POST", "/jobs", body) == (422, [("body", "webhook_events")])
    assert guards.refused("POST", "/jobs/story/trigger", {"webhook_url": url, "webhook_events": ["x"]}) == (
        422,
        [("body", "webhook_events")],
    )
    assert guards.refused("POST", "/jobs", {"type": STORY, "webhook_events": ["job.run.failed"]}) == (422, [("body", "webhook_events")])


@pytest.mark.parametrize("scope", SCOPES)
def test_a_small_token_may_name_only_the_hosts_that_the_hub_names(h: Harness, scope: str) -> None:
    door = GuardsDoor(h, hub={"notify": ("shop.example",)})
    _, secret = h(h.engine.create_token("small", (scope,)))
    expected = {"submit": (201, 403), "admin": (201, 201)}.get(scope, (403, 403))
    for headers, statuses in (({"authorization": f"Bearer {secret}"}, expected), ({"x-api-key": KEY}, (201, 201))):
        door.headers = headers
        urls = ("https://shop.example/", "https://other.example/")
        assert tuple(door.post("/jobs", {"type": STORY, "webhook_url": url}).status for url in urls) == statuses
    door.close()
