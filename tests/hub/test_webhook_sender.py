"""Webhooks on the wire: signed by the standard, sent at least once under one id, whatever receivers do and whenever a sender dies."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from email.utils import formatdate
from functools import partial
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

import httpx
import pytest
from standardwebhooks import Webhook as Library
from standardwebhooks.webhooks import WebhookVerificationError

from tests import kill_child
from tests.cli.test_cli import World
from tests.conformance import IN_STATE, SHARED
from tests.engine.test_webhooks import DAY, LEASE, MINUTE, URL, add, claim, counts, end, make, memory, no_faults, read, refuse, take, told
from tests.forkserver import ForkServer
from tests.harness import Harness
from tests.hub.receivers import Answer, Post, Receiver, drip, hang, huge, reset, status
from tests.tiers import long
from windlass import webhooks
from windlass.clock import ManualClock, SystemClock
from windlass.defaults import SECRET_OVERLAP
from windlass.egress import Egress
from windlass.engine import Engine
from windlass.faults import FAULTS
from windlass.hub import Hub, HubApp, HubSettings
from windlass.machine import ENDED
from windlass.model import NewRun, State, Webhook
from windlass.store.base import run_sync
from windlass.store.postgres import AsyncPostgres
from windlass.store.records import fault_points
from windlass.store.sqlite import AsyncSqlite
from windlass.webhooks import Sender

__all__ = ["memory", "no_faults"]  # fixtures


# Signatures


def test_the_vector_of_the_standard() -> None:
    signature = webhooks.sign("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def by_openssl(secret: str, post: Post) -> bool:
    """The standard read once more, by a program that has nothing of ours."""
    key = base64.b64decode(secret.removeprefix("whsec_")).hex()
    signed = f"{post.id}.{post.headers['webhook-timestamp']}.".encode() + post.body
    command = ["openssl", "dgst", "-sha256", "-mac", "HMAC", "-macopt", f"hexkey:{key}", "-binary"]
    digest = base64.b64encode(subprocess.run(command, input=signed, capture_output=True, check=True).stdout).decode()
    return f"v1,{digest}" in post.headers["webhook-signature"].split(" ")


def by_library(secret: str, post: Post) -> bool:
    try:
        return bool(Library(secret).verify(post.body, post.headers) == post.json)
    except WebhookVerificationError:
        return False


VERIFIERS = (by_openssl, by_library)


def sender(h: Harness, **how: Any) -> Sender:
    return Sender(h.engine, h.clock, Egress(allow=["127.0.0.0/8"], plain_http=True), **how)


async def sent(sending: Sender) -> None:
    """Send until nothing is due."""
    while not await sending.tick() or sending.sending:  # noqa: ASYNC110 - nobody could set an event
        await asyncio.sleep(0.001)


def play(scenario: Awaitable[None], seconds: float = 120) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(seconds):
            await scenario

    asyncio.run(bounded())


def test_Z14_the_signature_is_of_the_very_bytes(h: Harness) -> None:
    async def scenario() -> None:
        async with Receiver() as receiver:
            webhook, other = add(h, receiver.url), add(h)
            h(h.engine.set_webhook(other.id, enabled=False))
            end(h)
            await sent(sender(h))
            (post,) = receiver.posts
            altered = post._replace(body=post.body.replace(b"cancelled", b"succeeded"))
            renamed = post._replace(headers=post.headers | {"webhook-id": "other"})
            for verify in VERIFIERS:
                assert verify(webhook.secrets[0].key, post)
                assert not verify(other.secrets[0].key, post)
                assert not verify(webhook.secrets[0].key, altered)
                assert not verify(webhook.secrets[0].key, renamed)
            assert "." not in post.id
            assert post.headers["content-type"] == "application/json"

    h.clock.jump(int(time.time() * 1000) - h.clock.now())  # the library looks at the machine's clock
    play(scenario())


def test_secrets_rotate_with_an_overlap(memory: Harness) -> None:
    h = memory

    async def scenario() -> None:
        async with Receiver() as receiver:
            old = add(h, receiver.url)
            new = h(h.engine.rotate_webhook(old.id))
            first, second = old.secrets[0].key, new.secrets[0].key
            end(h)
            await sent(sender(h))
            h.clock.advance(SECRET_OVERLAP)
            end(h)
            await sent(sender(h))
            both, one = receiver.posts
            assert [by_openssl(secret, both) for secret in (first, second)] == [True, True]
            assert [by_openssl(secret, one) for secret in (first, second)] == [False, True]
            assert both.headers["webhook-signature"].count("v1,") == 2
            assert one.headers["webhook-signature"].count("v1,") == 1

    play(scenario())


# The sender, and receivers of every kind


def test_Z13_what_is_told_is_stored_and_repeats_are_known(h: Harness) -> None:
    async def scenario() -> None:
        stored: list[State] = []

        async def look(writer: asyncio.StreamWriter) -> None:
            stored.append(h.get(receiver.posts[-1].change[0]).state)
            await status(500)(writer)

        async with Receiver(look, look, status(204)) as receiver:
            webhook = add(h, receiver.url)
            (run,) = end(h)
            for _ in range(3):
                await sent(sender(h))
                h.clock.advance(2 * MINUTE)
            assert stored == [State.CANCELLED] * 2
            assert [post.change for post in receiver.posts] == [(run, "cancelled")] * 3
            assert len(set(receiver.ids)) == len({post.body for post in receiver.posts}) == 1
            assert receiver.ids[0] == told(h, webhook)[0].id
            stamps = [int(post.headers["webhook-timestamp"]) for post in receiver.posts]
            assert stamps == sorted(set(stamps)), "each try has its own time"
            assert counts(h, webhook) == {"delivered": 1}

    play(scenario())


@pytest.mark.parametrize("state", [state for state in State if state in ENDED])
def test_A6_a_receiver_is_told_of_every_end(h: Harness, state: State) -> None:
    async def scenario() -> None:
        async with Receiver() as receiver:
            webhook = add(h, receiver.url)
            run = IN_STATE[state](h)
            await sent(sender(h))
            assert [post.change for post in receiver.posts] == [(run.id, state.value)]
            (delivery,) = told(h, webhook)
            assert (delivery.status, delivery.rev, delivery.type) == ("delivered", run.rev, f"run.{state.value}")

    play(scenario())


def test_Z15_three_posts_and_the_run_is_unaffected(h: Harness) -> None:
    async def scenario() -> None:
        async with Receiver(status(500, b"out of order")) as receiver:
            webhook = add(h, receiver.url)
            (run,) = end(h)
            before = h.get(run)
            for _ in range(6):
                await sent(sender(h))
                h.clock.advance(10 * MINUTE)
            assert len(receiver.posts) == 3
            (delivery,) = told(h, webhook)
            assert (delivery.status, delivery.answer, delivery.error) == ("failed", 500, "It answered 500: out of order")
            assert h.get(run) == before

    play(scenario())


W1: dict[str, tuple[Answer, str, int | None]] = {
    "500": (status(500, b"broken"), "It answered 500: broken", 500),
    "404": (status(404), "It answered 404.", 404),
    "302": (status(302, location="http://127.0.0.1:9/"), "It answered 302.", 302),
    "304": (status(304), "It answered 304.", 304),
    "hang": (hang, "took longer", None),
    "drip": (drip, "took longer", None),
    "reset": (reset, "Cannot speak to", None),
    "rubbish": (lambda writer: _write(writer, b"\x00\xff no HTTP\r\n\r\n"), "Cannot speak to", None),
    "half": (lambda writer: _write(writer, b"HTTP/1.1 200 OK\r\ncontent-le"), "Cannot speak to", None),
}


async def _write(writer: asyncio.StreamWriter, text: bytes) -> None:
    writer.write(text)
    await writer.drain()


@pytest.mark.parametrize("case", W1)
def test_W1_a_bad_receiver_costs_a_try(memory: Harness, case: str) -> None:
    h, (answer, said, code) = memory, W1[case]

    async def scenario() -> None:
        async with Receiver(answer, status(200)) as receiver:
            webhook = add(h, receiver.url)
            end(h)
            await sent(sender(h, timeout=0.3))
            (delivery,) = told(h, webhook)
            assert (delivery.status, delivery.tries, delivery.answer) == ("pending", 1, code)
            assert said in (delivery.error or "")
            h.clock.advance(MINUTE)
            await sent(sender(h))
            assert len(receiver.posts) == 2, "and a redirect is not followed"
            assert counts(h, webhook) == {"delivered": 1}

    play(scenario())


@pytest.mark.parametrize("after", ["30", "date"])
def test_W1_retry_after_is_honoured(memory: Harness, after: str) -> None:
    h = memory

    async def scenario() -> None:
        said = formatdate(h.clock.now() / 1000 + 30, usegmt=True) if after == "date" else after
        async with Receiver(status(429, retry_after=said), status(200)) as receiver:
            add(h, receiver.url)
            end(h)
            await sent(sender(h))
            for wait, posts in ((29_999, 1), (1, 2)):
                h.clock.advance(wait)
                await sent(sender(h))
                assert len(receiver.posts) == posts

    play(scenario())


@pytest.mark.parametrize("after", ["soon", "-5", "1e9", "", "٣", "Mon, 99 Foo", "9" * 400])
def test_W1_a_strange_retry_after_is_no_obstacle(memory: Harness, after: str) -> None:
    h = memory

    async def scenario() -> None:
        async with Receiver(status(503, retry_after=after), status(200)) as receiver:
            add(h, receiver.url)
            end(h)
            await sent(sender(h))
            h.clock.advance(DAY)
            await sent(sender(h))
            assert len(receiver.posts) == 2

    play(scenario())


def test_W1_410_ends_it(memory: Harness) -> None:
    h = memory

    async def scenario() -> None:
        async with Receiver(status(410)) as receiver:
            webhook = add(h, receiver.url)
            end(h, 3)
            await sent(sender(h, each=1))
            h.clock.advance(DAY)
            await sent(sender(h))
            assert len(receiver.posts) == 1
            assert not read(h, webhook).enabled

    play(scenario())


@pytest.mark.parametrize("code", [200, 500])
def test_W5_of_a_huge_answer_only_the_beginning_is_read(memory: Harness, code: int) -> None:
    h = memory

    async def scenario() -> None:
        async with Receiver(huge(code)) as receiver:
            webhook = add(h, receiver.url, delays=())
            end(h)
            await sent(sender(h))
            (delivery,) = told(h, webhook)
            assert delivery.status == ("delivered" if code == 200 else "failed")
            assert len(delivery.error or "") < 600
            assert len(receiver.posts) == 1

    play(scenario())


def test_W5_many_headers_are_no_answer(memory: Harness) -> None:
    h = memory

    async def scenario() -> None:
        async with Receiver(lambda writer: _write(writer, b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1_000_000)) as receiver:
            webhook = add(h, receiver.url, delays=())
            end(h)
            await sent(sender(h))
            assert counts(h, webhook) == {"failed": 1}

    play(scenario())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost.example"])
def test_W3_nothing_is_sent_into_the_network(memory: Harness, host: str) -> None:
    h = memory

    async def resolve(name: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    async def scenario() -> None:
        async with Receiver() as receiver:
            webhook = add(h, receiver.url.replace("127.0.0.1", host), delays=())
            end(h)
            await sent(Sender(h.engine, h.clock, Egress(plain_http=True, resolve=resolve)))
            assert receiver.posts == []
            (delivery,) = told(h, webhook)
            assert delivery.status == "failed"
            assert "inside the network" in (delivery.error or "")

    play(scenario())


def test_W4_the_sender_serves_the_living_beside_a_dead_one(memory: Harness) -> None:
    h = memory

    async def scenario() -> None:
        async with Receiver(hang) as dead, Receiver() as live:
            add(h, dead.url)
            webhook = add(h, live.url)
            end(h, 100)
            sending = sender(h, at_once=8)
            async with asyncio.timeout(60):
                while counts(h, webhook) != {"delivered": 100}:
                    await sending.tick()
                    await asyncio.sleep(0)
            assert dead.most_at_once <= 4
            assert len(dead.posts) <= 4
            assert live.most_at_once <= 4
            async with running(sending):  # which cancels what hangs
                pass

    play(scenario())


class running:
    """The sender's own loop, beside what is inside."""

    def __init__(self, *senders: Sender) -> None:
        self._senders = senders

    async def __aenter__(self) -> None:
        self._tasks = [asyncio.ensure_future(sending.run()) for sending in self._senders]
        await asyncio.sleep(0)

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - nobody could set an event
            await asyncio.sleep(0.005)


def test_the_loop_sends_what_it_is_woken_for(memory: Harness) -> None:
    h = memory

    async def scenario() -> None:
        async with Receiver() as receiver:
            webhook, sending = add(h, receiver.url), sender(h)
            async with running(sending):
                for n in range(1, 4):
                    end(h)
                    sending.wake()
                    await eventually(lambda n=n: counts(h, webhook) == {"delivered": n})  # type: ignore[misc]
            assert sending.sending == 0
            assert sending.problem is None

    play(scenario())


def test_the_loop_survives_a_store_that_is_away(memory: Harness) -> None:
    h = memory

    async def scenario() -> None:
        async with Receiver() as receiver:
            webhook, sending = add(h, receiver.url), sender(h)
            end(h)
            FAULTS.arm(
                "make_deliveries.before_begin=raise:busy@1,settle_delivery.before_begin=raise:busy@1,claim_deliveries.after_commit=drop@1"
            )
            assert await sending.tick() > 0
            assert sending.problem is not None
            await sent(sending)
            h.clock.advance(LEASE)  # of the claim whose answer was lost
            await sent(sending)
            assert len(receiver.posts) == 1, "a mark that failed is written again, and nothing is sent twice"
            assert counts(h, webhook) == {"delivered": 1}
            assert await sending.tick() > 0
            assert sending.problem is None

    play(scenario())


def test_a_mark_that_came_too_late_is_nobodys_business(memory: Harness, caplog: pytest.LogCaptureFixture) -> None:
    h = memory

    async def scenario() -> None:
        async def steal(writer: asyncio.StreamWriter) -> None:
            h.clock.advance(LEASE)
            (stolen,) = claim(h)
            take(h, stolen)
            await status(500)(writer)

        async with Receiver(steal) as receiver:
            webhook = add(h, receiver.url)
            end(h)
            await sent(sender(h))
            assert (counts(h, webhook), len(receiver.posts)) == ({"delivered": 1}, 1)
            assert caplog.messages == []

    play(scenario())


@pytest.mark.parametrize("kind", SHARED)
def test_two_senders_send_each_delivery_once(kind: str, emptied_postgres: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = SystemClock()
        stores = [AsyncPostgres(emptied_postgres, clock) if kind == "postgres" else AsyncSqlite(tmp_path / "a.db", clock) for _ in range(2)]
        engines = [Engine(store, clock) for store in stores]
        first = engines[0]
        await first.define("mail")
        async with Receiver() as receiver:
            webhook = await first.add_webhook(receiver.url, states=("queued",))
            await first.create([NewRun("mail")] * 300)
            senders = [Sender(engine, clock, Egress(allow=["127.0.0.0/8"], plain_http=True)) for engine in engines]
            async with running(*senders):
                await eventually(lambda: len(receiver.posts) >= 300)
                while (await first.deliveries(webhook.id, status="pending")).deliveries:  # noqa: ASYNC110 - a post out of turn would come now
                    await asyncio.sleep(0.02)
            assert len(receiver.posts) == len(set(receiver.ids)) == 300
            assert len({post.change[0] for post in receiver.posts}) == 300
        for store in stores:
            await store.close()

    play(scenario())


# Kills


SENT_BY = ("make_deliveries", "claim_deliveries", "settle_delivery")
RARE = ("after_probe_webhooks", "after_record_webhook_failure", "after_disable_webhook")  # which nobody passes whose receiver is well
FIRST = "after_add_webhook"  # only the first delivery to an origin passes it: test_formats.py


def kills(dialect: str) -> list[str]:
    """Every point that a sender passes."""
    stored = [point.split(".") for point in fault_points(dialect)]
    return [*webhooks.POINTS, *(f"{verb}.{place}" for verb, place in stored if verb in SENT_BY and place not in (*RARE, FIRST))]


@long
@pytest.mark.parametrize(("kind", "rounds"), [("sqlite", 400), ("postgres", 100)])
def test_W2_nothing_is_missing_whenever_a_sender_dies(kind: str, rounds: int, request: pytest.FixtureRequest) -> None:
    """Each round ends a few runs, and kills a sender; the one after it goes on. A round later the dead one's leases are over."""
    clock = ManualClock()

    async def scenario(where: str) -> None:
        store = kill_child.open_store(kind, where, clock)
        h = Harness(store, clock)
        h.define()
        server, died, ended, points = ForkServer("tests.hub.webhook_child"), Counter[str](), [], kills(kind)
        try:
            async with Receiver() as receiver:
                webhook = add(h, receiver.url)
                for point, nth in islice(cycle(product(points, (1, 2))), rounds):
                    ended += end(h, 2)
                    answer = await asyncio.to_thread(server.ask, faults=f"{point}=kill@{nth}", kind=kind, where=where, now=clock.now())
                    assert answer in ({"signal": 9, "code": -9}, {"signal": 0, "code": 0}), answer
                    died[point] += answer["signal"] == 9
                    clock.advance(webhooks.LEASE)
                assert await asyncio.to_thread(server.ask, faults="", kind=kind, where=where, now=clock.now()) == {"signal": 0, "code": 0}
                missing = {(run, "cancelled") for run in ended} - {post.change for post in receiver.posts}
                assert missing == set()
                ids = {(post.change, post.id, post.body) for post in receiver.posts}
                assert len(ids) == len(ended), "every repeat has the id and the bytes of the first"
                status_of = Counter[str]()
                cursor: str | None = None
                while True:
                    page = h(h.engine.deliveries(webhook.id, cursor=cursor, count=1_000))
                    status_of.update(delivery.status for delivery in page.deliveries)
                    if (cursor := page.cursor) is None:
                        break
                assert status_of == {"delivered": len(ended)}
                assert len(receiver.posts) > len(ended), "some were sent twice, or the kills came at no harm"
                assert all(died[point] for point in points), died
        finally:
            server.close()
            run_sync(store.close())

    if kind == "postgres":
        play(scenario(request.getfixturevalue("emptied_postgres")), 290)
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        play(scenario(f"{folder}/windlass.db"), 290)


# The hub's routes


def _have(receiver: Receiver, count: int) -> bool:
    return len(receiver.posts) == count


def test_what_comes_through_the_hub_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.webhooks.LOOK_ANYWAY", 3600.0)  # nothing happens by itself

    async def scenario() -> None:
        clock = SystemClock()
        store = AsyncSqlite(tmp_path / "hub.db", clock)
        hub = Hub(Engine(store, clock), clock, HubSettings(open=True, allow=("127.0.0.0/8",), plain_http=True))
        app: Any = HubApp(hub)
        async with (
            Receiver() as receiver,
            httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1/api/v1") as http,
        ):
            await hub.engine.define("mail")
            assert (await http.post("/webhooks", json={"url": receiver.url, "states": ["queued"]})).status_code == 201
            for n in range(1, 4):
                assert (await http.post("/runs", json={"job": "mail"})).status_code == 202
                await eventually(partial(_have, receiver, n))
        await hub.stop()
        await store.close()

    asyncio.run(scenario())


def test_the_hub_makes_tells_and_removes(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = SystemClock()
        store = AsyncSqlite(tmp_path / "hub.db", clock)
        engine = Engine(store, clock)
        hub = Hub(engine, clock, HubSettings(open=True, allow=("127.0.0.0/8",), plain_http=True))
        app: Any = HubApp(hub)
        async with (
            Receiver() as receiver,
            httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1/api/v1") as http,
        ):
            refused = await http.post("/webhooks", json={"url": "http://10.0.0.1/"})
            assert (refused.status_code, refused.json()["code"]) == (400, "egress_refused")
            answer = await http.post("/webhooks", json={"url": receiver.url, "states": ["queued"], "name": "all"})
            assert answer.status_code == 201, answer.text
            made, secret = answer.json()["webhook"], answer.json()["secret"]
            path = f"/webhooks/{made['id']}"
            assert (await http.get("/webhooks")).json() == {"webhooks": [made]}
            assert (await http.get(path)).json() == made
            assert "whsec_" not in (await http.get("/webhooks")).text
            await engine.define("mail")
            await engine.create([NewRun("mail")])
            await eventually(lambda: receiver.posts)
            assert by_library(secret, receiver.posts[0])
            deliveries: list[Any] = []
            while not deliveries:
                deliveries = (await http.get(f"{path}/deliveries?status=delivered")).json()["deliveries"]
            (delivery,) = deliveries
            assert (delivery["id"], delivery["type"]) == (receiver.posts[0].id, "run.queued")
            rotated = await http.post(f"{path}/rotate", json={"overlap": 0})
            assert rotated.json()["secret"] != secret
            assert (await http.post(f"/deliveries/{delivery['id']}/resend")).status_code == 202
            await eventually(lambda: len(receiver.posts) == 2)
            assert by_library(rotated.json()["secret"], receiver.posts[1])
            assert (await http.get(f"/deliveries/{delivery['id']}")).json()["id"] == delivery["id"]
            assert (await http.patch(path, json={"enabled": False, "jobs": ["mail"]})).json()["jobs"] == ["mail"]
            for bad in ({}, {"secret": "x"}, {"url": "http://10.0.0.1/"}, {"states": ["done"]}, {"delays": "x"}):
                assert (await http.patch(path, json=bad)).status_code == 400, bad
            assert (await http.delete(path)).status_code == 200
            assert (await http.get(path)).status_code == 404
            audit = [entry["what"] for entry in (await http.get("/audit")).json()["entries"]]
            assert audit == ["remove", "edit", "resend", "rotate", "add"]
        await hub.stop()
        await store.close()

    play(scenario())


# The command line


class HubDesk(World):
    """The world of the other commands, with webhooks."""

    def webhook(self) -> Webhook:
        (found,) = run_sync(self.engine.webhooks())
        return found


@pytest.fixture
def w(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubDesk]:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("WINDLASS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WINDLASS_STORE", "shop.db")
    world = HubDesk("shop.db", capsys)
    yield world
    run_sync(world.store.close())


def test_the_command_line_makes_changes_and_removes(w: HubDesk) -> None:
    made = w.json("webhooks", "add", URL, "--job", "mail", "--state", "failed", "--delay", "5s", "--delay", "1h", "--name", "alarms")
    found = w.webhook()
    assert made["secret"] == found.secrets[0].key
    assert (found.name, found.jobs, found.states, found.delays) == ("alarms", ("mail",), (State.FAILED,), (5_000, 3_600_000))
    assert w.json("webhooks", "list")["webhooks"] == [made["webhook"]]
    assert "failed of mail" in w("webhooks", "list")
    assert "whsec_" not in w("webhooks", "list")
    w("webhooks", "set", found.id, "--any-job", "--state", "skipped", "--disabled")
    assert (w.webhook().jobs, w.webhook().states, w.webhook().enabled) == (None, (State.SKIPPED,), False)
    w("webhooks", "set", found.id, "--enabled", "--url", "https://example.org/")
    assert (w.webhook().enabled, w.webhook().url) == (True, "https://example.org/")
    secret = w("webhooks", "rotate", found.id, "--overlap", "1h").split()[1]
    assert [kept.key for kept in w.webhook().secrets] == [secret, made["secret"]]
    w("webhooks", "remove", found.id)
    assert run_sync(w.engine.webhooks()) == []


def test_the_command_line_shows_and_resends(w: HubDesk) -> None:
    w("webhooks", "add", URL, "--delay", "0s")
    webhook = w.webhook()
    h = Harness(w.store, ManualClock(int(time.time() * 1000)))
    h.define()
    end(h)
    make(h)
    for _ in range(2):
        refuse(h, claim(h)[0])
    (shown,) = w.json("webhooks", "deliveries", webhook.id, "--status", "failed")["deliveries"]
    assert (shown["tries"], shown["answer"], shown["error"]) == (2, 500, "no")
    assert "run.cancelled" in w("webhooks", "deliveries", webhook.id)
    w("webhooks", "resend", shown["id"])
    (again,) = w.json("webhooks", "deliveries", webhook.id)["deliveries"]
    assert (again["status"], again["id"]) == ("pending", shown["id"])
