"""Formats of webhooks, and addresses that runs name: what is sent, in which words, and to whom, whatever others do."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import os
import sys
import tempfile
import time
import types
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from tests import kill_child
from tests.conformance import SHARED
from tests.engine.test_webhooks import DAY, LEASE, MINUTE, URL, add, end, make, memory, no_faults, told
from tests.forkserver import ForkServer
from tests.formats import ATTEMPTS
from tests.grounds import set_ground
from tests.harness import Harness
from tests.hub.receivers import Receiver, hang, status
from tests.hub.test_webhook_sender import HubDesk, by_openssl, eventually, play, sent, w
from windlass import App, dialects, webhooks
from windlass.clock import ManualClock, SystemClock
from windlass.egress import Egress
from windlass.engine import Engine, notices
from windlass.errors import BadInput, DuplicateKey, EgressRefused, Forbidden, NotFound, WindlassError, WrongState
from windlass.hub import Hub, HubApp, HubSettings
from windlass.machine import ENDED
from windlass.model import STANDARD as STANDARD_NAME
from windlass.model import Delivery, Entry, Key, Limits, Member, NewGroup, NewRun, Notify, Principal
from windlass.store.base import run_sync
from windlass.store.sqlite import AsyncSqlite
from windlass.webhooks import STANDARD, Format, Sender

__all__ = ["memory", "no_faults", "w"]  # fixtures

SECRET = "a text of the user's own"


def sender(h: Harness, *formats: Format, **how: Any) -> Sender:
    return Sender(h.engine, h.clock, Egress(allow=["127.0.0.0/8"], plain_http=True), formats=formats or (STANDARD, ATTEMPTS), **how)


def of_run(h: Harness, run_id: str) -> list[Delivery]:
    return h(h.engine.deliveries_of(run_id))


def statuses(h: Harness, run_id: str) -> list[str]:
    return [delivery.status for delivery in of_run(h, run_id)]


def notified(h: Harness, url: str, count: int = 1, **how: Any) -> list[str]:
    """So many runs that name an address and have ended."""
    ids = [h.create(notify=Notify(url, **how)) for _ in range(count)]
    for run_id in ids:
        h(h.engine.cancel(run_id))
    return ids


# Formats


def test_a_format_decides_what_is_sent_and_how_it_is_signed(h: Harness) -> None:
    async def scenario() -> None:
        async with Receiver() as receiver:
            webhook = add(h, receiver.url, format="attempts", secret=SECRET)
            run_id = h.create()
            h.fail(h.started(), delay=0)
            h.succeed(h.started(), '"done"')
            h(h.engine.cancel(h.create()))  # without an attempt there is nothing to send
            await sent(sender(h))
            first, last = receiver.posts
            assert [post.headers["x-event"] for post in receiver.posts] == ["attempt.again", "attempt.last"]
            assert [post.json["attempt"]["outcome"] for post in receiver.posts] == ["failed", "succeeded"]
            assert first.json["attempt"]["id"] == run_id != last.json["attempt"]["id"]
            for post in receiver.posts:
                digest = hmac.new(SECRET.encode(), post.body, "sha256").hexdigest()
                assert post.headers["x-signature"] == f"sha256={digest}"
                assert post.headers["x-run"] == run_id
                assert "webhook-id" not in post.headers
            assert [(d.type, d.status) for d in told(h, webhook)] == [("attempt.again", "delivered"), ("attempt.last", "delivered")]

    play(scenario())


def test_every_try_sends_the_body_that_was_made_first_after_the_delays_of_the_format(memory: Harness) -> None:
    h = memory

    async def scenario() -> None:
        async with Receiver(status(500)) as receiver:
            add(h, receiver.url, format="attempts", secret=SECRET)
            h.create()
            h.fail(h.started(), delay=0)
            at, begun = list[int](), h.clock.now()
            for _ in range(20):
                before = len(receiver.posts)
                await sent(sender(h))
                at += [h.clock.now()] * (len(receiver.posts) - before)
                if h.clock.now() == begun + 500:
                    h.succeed(h.started())  # the run has changed meanwhile, and has sent more
                h.clock.advance(250)
            bodies = Counter(post.body for post in receiver.posts)
            assert sorted(bodies.values()) == [3, 3], "three tries of each, with one body"
            firsts = [moment for moment, post in zip(at, receiver.posts, strict=True) if post.body == receiver.posts[0].body]
            pauses = [later - earlier for earlier, later in pairwise(firsts)]
            assert 1_000 <= pauses[0] <= 1_500
            assert 2_000 <= pauses[1] <= 2_750

    play(scenario())


def test_the_standard_format_is_what_it_was(memory: Harness) -> None:
    h = memory

    async def scenario() -> None:
        async with Receiver() as receiver:
            webhook, other = add(h, receiver.url), add(h, receiver.url, format="attempts")
            assert (webhook.format, webhook.states, webhook.delays) == (STANDARD_NAME, ENDED, (5_000, 60_000))
            assert (other.states, other.delays) == (None, None)
            (run,) = end(h)
            await sent(sender(h))
            (post,) = receiver.posts
            assert post.change == (run, "cancelled")
            assert by_openssl(webhook.secrets[0].key, post)

    play(scenario())


def test_the_filters_of_an_endpoint_hold_in_every_format(memory: Harness) -> None:
    h = memory

    async def scenario() -> None:
        async with Receiver() as receiver:
            add(h, receiver.url, format="attempts", states=("succeeded",), delays=(10,))
            add(h, receiver.url, format="attempts", jobs=("other",))
            h.create()
            h.fail(h.started(), delay=0)
            h.succeed(h.started())
            await sent(sender(h))
            assert [post.headers["x-event"] for post in receiver.posts] == ["attempt.last"]

    play(scenario())


def test_an_endpoint_whose_format_is_not_known_here_waits_and_holds_up_no_other(h: Harness, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with Receiver() as receiver:
            unknown, known = add(h, receiver.url, format="attempts"), add(h, receiver.url)
            run_id = h.create()
            h.succeed(h.started())
            ignorant = sender(h, STANDARD)
            for _ in range(3):
                await sent(ignorant)
            assert [post.change for post in receiver.posts] == [(run_id, "succeeded")]
            assert [record.message for record in caplog.records if "attempts" in record.message] == [
                "Webhooks of a format that this process does not know wait for one that does: attempts."
            ]
            assert h(h.engine.get_webhook(unknown.id)).enabled
            h.clock.advance(8 * DAY)
            assert h(h.engine.get_webhook(known.id)).enabled
            await sent(sender(h))
            assert [post.headers.get("x-event") for post in receiver.posts] == [None, "attempt.last"], "nothing was lost meanwhile"

    caplog.set_level(logging.WARNING)
    play(scenario())


def test_deliveries_of_a_format_are_left_to_senders_that_know_it(memory: Harness) -> None:
    h = memory
    add(h, format="attempts")
    h.create()
    h.succeed(h.started())
    h(h.engine.make_deliveries(ATTEMPTS.content(h.engine)))
    assert h(h.engine.claim_deliveries(10, LEASE, formats=("standard",))) == []
    assert h(h.engine.next_delivery_in(("standard",))) is None
    assert h(h.engine.next_delivery_in(("standard", "attempts"))) == 0 or h(h.engine.claim_deliveries(10, LEASE, formats=("attempts",)))


def test_a_format_that_fails_waits_and_holds_up_no_other(memory: Harness, caplog: pytest.LogCaptureFixture) -> None:
    h = memory

    async def broken(engine: Engine, entries: Sequence[Entry]) -> list[str]:
        raise RuntimeError("no body")

    async def scenario() -> None:
        async with Receiver() as receiver:
            add(h, receiver.url, format="attempts")
            add(h, receiver.url)
            h.create()
            h.succeed(h.started())
            await sent(sender(h, STANDARD, replace(ATTEMPTS, bodies=broken)))
            assert len(receiver.posts) == 1
            assert "attempts wait" in caplog.text
            await sent(sender(h))
            assert len(receiver.posts) == 2

    play(scenario())


@pytest.mark.parametrize("secret", ["", "x" * 257, "a\nb", 5])
def test_a_raw_secret_is_bounded(memory: Harness, secret: Any) -> None:
    with pytest.raises(BadInput):
        add(memory, format="attempts", secret=secret)
    assert memory(memory.engine.webhooks()) == []


def test_a_secret_must_be_one_that_the_format_signs_with(memory: Harness) -> None:
    h = memory
    h.engine.deliver_by(sender(h, STANDARD, ATTEMPTS))
    with pytest.raises(BadInput, match="no secret"):
        add(h, secret=SECRET)
    with pytest.raises(BadInput, match=r"no webhook format called 'atempts'.*attempts"):
        add(h, format="atempts")
    webhook = add(h, format="attempts", secret=SECRET)
    assert h(h.engine.rotate_webhook(webhook.id, secret="another")).secrets[0].key == "another"
    with pytest.raises(BadInput, match="no secret"):
        h(h.engine.rotate_webhook(add(h).id, secret="another"))


def test_a_standard_endpoint_keeps_states_and_delays(memory: Harness) -> None:
    webhook = add(memory)
    for field in ("states", "delays"):
        with pytest.raises(BadInput):
            memory(memory.engine.set_webhook(webhook.id, **{field: None}))


def test_dialects_are_asked_for_their_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(isinstance(format, Format) for format in dialects.formats())
    module = types.ModuleType("windlass.dialects.forge.webhooks")
    module.FORMAT = ATTEMPTS  # type: ignore[attr-defined]
    module.__spec__ = types.SimpleNamespace()  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "windlass.dialects.forge.webhooks", module)
    assert ATTEMPTS in dialects.formats()


# Addresses that runs name


def test_a_run_notifies_the_address_that_it_names_of_its_end(h: Harness) -> None:
    async def scenario() -> None:
        async with Receiver() as receiver:
            (run,) = notified(h, receiver.url)
            end(h)  # which names none
            await sent(sender(h))
            (post,) = receiver.posts
            assert post.change == (run, "cancelled")
            assert "webhook-signature" not in post.headers, "there is no secret to sign with"
            assert [(d.status, d.url, d.type) for d in of_run(h, run)] == [("delivered", receiver.url, "run.cancelled")]
            assert h(h.engine.webhooks()) == [], "it is no endpoint"

    play(scenario())


def test_a_run_names_a_format_and_events_of_it(h: Harness) -> None:
    async def scenario() -> None:
        async with Receiver() as receiver:
            every = h.create(notify=Notify(receiver.url, "attempts"))
            last = h.create(notify=Notify(receiver.url, "attempts", ("attempt.last",)))
            started = h.create(notify=Notify(receiver.url, events=("run.running", "run.succeeded")))
            for run in [h.started() for _ in range(3)]:
                h.fail(run, delay=0)
            for run in [h.started() for _ in range(3)]:
                h.succeed(run)
            await sent(sender(h))
            told = [(d.run, d.type) for run_id in (every, last, started) for d in of_run(h, run_id)]
            sent_of = {run_id: [event for name, event in told if name == run_id] for run_id in (every, last, started)}
            assert sent_of == {
                every: ["attempt.again", "attempt.last"],
                last: ["attempt.last"],
                started: ["run.running", "run.running", "run.succeeded"],
            }
            assert len(receiver.posts) == 6
            assert "x-signature" not in receiver.posts[0].headers

    play(scenario())


def test_endpoints_and_the_address_of_a_run_are_both_told_once(h: Harness) -> None:
    async def scenario() -> None:
        async with Receiver() as receiver:
            webhook = add(h, receiver.url)
            (run,) = notified(h, receiver.url + "/own")
            for _ in range(2):
                await sent(sender(h))
            assert sorted(post.path for post in receiver.posts) == ["/hook", "/hook/own"]
            assert [d.url for d in of_run(h, run)] in ([None, receiver.url + "/own"], [receiver.url + "/own", None])
            assert [d.run for d in told(h, webhook)] == [run]

    play(scenario())


def test_reruns_and_retries_keep_the_address(h: Harness) -> None:
    async def scenario() -> None:
        async with Receiver() as receiver:
            notify = Notify(receiver.url, "attempts")
            run = h.create(notify=notify)
            h.fail(h.started(), delay=0)
            h.succeed(h.started())
            rerun = h(h.engine.rerun(run)).id
            h.succeed(h.started())
            group = h(h.engine.create_group(NewGroup((Member(NewRun("mail", notify=notify)),))))
            h.succeed(h.started())
            again = h(h.engine.rerun_group(group.id))
            h.succeed(h.started())
            (member,) = h(h.engine.members(group.id))
            (once_more,) = h(h.engine.members(again.id))
            await sent(sender(h))
            assert [len(of_run(h, name)) for name in (run, rerun, member.id, once_more.id)] == [2, 1, 1, 1]
            assert len(receiver.posts) == 5

    play(scenario())


def test_an_audited_rerun_leaves_one_entry(memory: Harness) -> None:
    h = memory
    (run,) = notified(h, "https://example.com/")
    h(h.engine.records.webhooks.drop(h(h.engine.records.webhooks.all())[0]))  # as if no process had followed the format yet
    h(h.another().engine.by("ann", "rerun", f"run {run}").rerun(run))
    assert [entry.what for entry in h(h.engine.audit()).entries] == ["rerun"]


def test_a_key_stands_for_the_address_too(memory: Harness) -> None:
    h = memory
    key = Key("k", on_duplicate="compare", ttl=DAY)
    (first,) = h(h.engine.create([NewRun("mail", key=key, notify=Notify("https://a.example/"))]))
    (same,) = h(h.engine.create([NewRun("mail", key=key, notify=Notify("https://a.example/"))]))
    assert (same.id, same.created) == (first.id, False)
    with pytest.raises(DuplicateKey):
        h(h.engine.create([NewRun("mail", key=key, notify=Notify("https://b.example/"))]))


def test_what_happens_before_any_sender_knows_of_the_address_is_not_lost(h: Harness) -> None:
    """The journal is not read while there is no endpoint; a run that names an address counts as one."""

    async def scenario() -> None:
        async with Receiver() as receiver:
            end(h, 3)
            assert await sender(h).tick() > 0
            (run,) = notified(h, receiver.url)
            await sent(sender(h))
            assert [post.change for post in receiver.posts] == [(run, "cancelled")]
            for webhook in h(h.engine.webhooks()):
                h(h.engine.remove_webhook(webhook.id))
            (later,) = notified(h.another(), receiver.url)
            await sent(sender(h))
            assert receiver.posts[-1].change == (later, "cancelled")

    play(scenario())


def test_an_endpoint_that_is_added_after_addresses_loses_nothing_and_gets_nothing_from_before(h: Harness) -> None:
    async def scenario() -> None:
        async with Receiver() as own, Receiver() as receiver:
            (first,) = notified(h, own.url)
            add(h, receiver.url)
            (second,) = notified(h, own.url)
            await sent(sender(h))
            assert sorted(post.change[0] for post in own.posts) == sorted([first, second])
            assert [post.change[0] for post in receiver.posts] == [second]

    play(scenario())


@pytest.mark.parametrize(
    ("notify", "match"),
    [
        ("https://example.com", "notify must be Notify"),
        (Notify("ftp://example.com/"), "not a URL"),
        (Notify("https://example.com/" + "x" * 2_048), "not a URL"),
        (Notify("https://example.com/", ""), "format"),
        (Notify("https://example.com/", events=("",)), "event"),
        (Notify("https://example.com/", events=tuple(map(str, range(51)))), "51 events"),
        (Notify("https://example.com/", events=["run.failed"]), "tuple"),  # type: ignore[arg-type]
    ],
)
def test_an_address_that_cannot_be_stored_is_refused(memory: Harness, notify: Any, match: str) -> None:
    with pytest.raises(WindlassError, match=match):
        memory.create(notify=notify)
    assert memory(memory.engine.runs()).runs == []


@pytest.mark.parametrize(
    ("notify", "error", "match"),
    [
        (Notify("https://10.0.0.1/"), EgressRefused, "setting allow"),
        (Notify("http://example.com/"), EgressRefused, "setting plain_http"),
        (Notify("https://example.com/", "atempts"), BadInput, "attempts"),
        (Notify("https://example.com/", events=("run.done",)), BadInput, "run.succeeded"),
        (Notify("https://example.com/", "attempts", ("run.failed",)), BadInput, "attempt.again, attempt.last"),
    ],
)
def test_an_address_to_which_nothing_would_be_sent_is_refused_where_a_sender_is(
    memory: Harness, notify: Notify, error: type[Exception], match: str
) -> None:
    h = memory
    h.engine.deliver_by(Sender(h.engine, h.clock, Egress(), formats=(STANDARD, ATTEMPTS)))
    for engine in (h.engine, h.engine.on_behalf_of(Principal("ann", trusted=True))):
        with pytest.raises(error, match=match):
            h(engine.create([NewRun("mail", notify=notify)]))
        with pytest.raises(error, match=match):
            h(engine.create_group(NewGroup((Member(NewRun("mail", notify=notify)),))))
    assert h(h.engine.runs()).runs == []


def test_R18_a_small_token_names_only_hosts_that_the_hub_names(memory: Harness) -> None:
    h = memory
    h.engine.deliver_by(Sender(h.engine, h.clock, Egress(), notify=("hooks.example.com",)))
    small = h.engine.on_behalf_of(Principal("ann", trusted=False))
    h(small.create([NewRun("mail", notify=Notify("https://hooks.example.com/ann"))]))
    for url in ("https://example.com/", "https://evil.hooks.example.com/", "https://hooks.example.com.evil.org/"):
        with pytest.raises(Forbidden, match="scope admin") as refused:
            h(small.create([NewRun("mail", notify=Notify(url))]))
        assert "setting notify" in (refused.value.hint or "")
    h.engine.deliver_by(Sender(h.engine, h.clock, Egress(), notify=("*",)))
    h(small.create([NewRun("mail", notify=Notify("https://example.com/"))]))
    with pytest.raises(EgressRefused):
        h(small.create([NewRun("mail", notify=Notify("https://127.0.0.1/"))]))
    h(h.engine.create([NewRun("mail", notify=Notify("https://example.com/"))]))  # the process itself may


# Hosts that fail


def test_a_dead_host_holds_up_no_other(memory: Harness) -> None:
    h = memory

    async def scenario() -> None:
        async with Receiver(hang) as dead, Receiver() as well:
            lost = notified(h, dead.url, 50)
            runs = notified(h, well.url, 20)
            sending = sender(h, at_once=8)
            for _ in range(500):
                await sending.tick()
                await asyncio.sleep(0.001)
                if len(well.posts) == 20:
                    break
            assert Counter(post.change[0] for post in well.posts) == Counter(runs)
            assert dead.most_at_once <= 4
            assert len(dead.posts) < len(lost)
            for task in sending._sending:
                task.cancel()

    play(scenario())


def test_runs_that_name_one_dead_host_end_bounded(memory: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """After ten failures in a row the host is only probed; a week later its deliveries are given up."""
    h = memory

    async def scenario() -> None:
        async with Receiver(status(500)) as dead, Receiver() as well:
            lost = notified(h, dead.url, 300)
            for _ in range(24):
                await sent(sender(h))
                h.clock.advance(MINUTE)
            assert len(dead.posts) < 80
            (run,) = notified(h, well.url)
            await sent(sender(h))
            assert [post.change[0] for post in well.posts] == [run], "its failures are its own"
            h.clock.advance(8 * DAY)
            h(h.engine.prune())
            await sent(sender(h))
            ended = Counter(status for name in lost for status in statuses(h, name))
            assert ended == {"failed": 300}
            assert len(dead.posts) < 90

    play(scenario())


def test_a_host_that_is_gone_for_one_run_is_not_gone_for_others(memory: Harness) -> None:
    h = memory

    async def scenario() -> None:
        async with Receiver(status(410), status(200)) as receiver:
            (gone,) = notified(h, receiver.url)
            await sent(sender(h))
            (other,) = notified(h, receiver.url)
            await sent(sender(h))
            assert statuses(h, gone) == ["failed"]
            assert statuses(h, other) == ["delivered"]

    play(scenario())


def test_origins_beyond_the_limit_share_a_place_that_is_never_paused(memory: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    h = memory
    monkeypatch.setattr(notices, "MAX_ORIGINS", 2)

    async def scenario() -> None:
        async with Receiver() as first, Receiver(status(500)) as dead, Receiver() as well:
            notified(h, first.url)
            await sent(sender(h))
            lost = notified(h, dead.url, 15)
            for _ in range(4):
                await sent(sender(h))
                h.clock.advance(2 * MINUTE)
            assert {status for name in lost for status in statuses(h, name)} == {"failed"}, "three tries each, and no pause"
            assert len(dead.posts) == 45
            (run,) = notified(h, well.url)
            await sent(sender(h))
            assert statuses(h, run) == ["delivered"]

    play(scenario())


def test_an_origin_is_forgotten_when_it_has_nothing_left_to_send_and_comes_back(h: Harness) -> None:
    async def scenario() -> None:
        async with Receiver(status(500), status(500), status(500), status(200)) as receiver:
            (run,) = notified(h, receiver.url)
            notified(h, "https://192.0.2.1/")
            for _ in range(3):
                await sent(sender(h))
                h.clock.advance(10 * MINUTE)
            assert statuses(h, run) == ["failed"]
            h.clock.advance(notices.UNUSED_AFTER)
            notified(h, "https://192.0.2.1/")
            make(h)
            h(h.engine.prune())
            origins = {hook.origin for hook in h(h.engine.records.webhooks.all())}
            assert "https://192.0.2.1" in origins, "a delivery is pending"
            assert receiver.url.removesuffix("/hook") not in origins
            assert "" in origins, "the journal is read on"
            (delivery,) = of_run(h, run)
            h(h.engine.resend(delivery.id))
            await sent(sender(h))
            assert statuses(h, run) == ["delivered"]

    play(scenario())


def test_a_pruned_run_takes_its_address_with_it(h: Harness) -> None:
    set_ground(h.engine, limits=Limits(keep_succeeded=MINUTE, keep_others=MINUTE))

    async def scenario() -> None:
        async with Receiver() as receiver:
            run = h.create(notify=Notify(receiver.url))
            h.clock.advance(MINUTE)
            h(h.engine.cancel(run))
            h.clock.advance(2 * MINUTE)
            h(h.engine.prune())
            assert h.get(run).id == run, "nothing was sent yet"
            await sent(sender(h))
            h.clock.advance(2 * MINUTE)
            h(h.engine.prune())
            assert h(h.engine.records.runs.seqs([run])) == {}
            (delivery,) = of_run(h, run)
            with pytest.raises(WrongState, match="removed"):
                h(h.engine.resend(delivery.id))

    play(scenario())


def test_the_place_of_an_origin_is_no_endpoint_that_can_be_edited(memory: Harness) -> None:
    h = memory
    notified(h, "https://example.com/")
    h(h.engine.make_deliveries(STANDARD.content(h.engine)))
    ids = [hook.id for hook in h(h.engine.records.webhooks.all())]
    assert len(ids) == 2
    for identity in ids:
        for verb in (h.engine.get_webhook, h.engine.remove_webhook, h.engine.rotate_webhook, h.engine.deliveries):
            with pytest.raises(NotFound):
                h(verb(identity))
        with pytest.raises(NotFound):
            h(h.engine.set_webhook(identity, enabled=False))


def test_the_number_of_endpoints_is_not_used_up_by_addresses(memory: Harness) -> None:
    h = memory
    set_ground(h.engine, limits=Limits(webhooks=1))
    for host in "abc":
        notified(h, f"https://{host}.example/")
    h(h.engine.make_deliveries(STANDARD.content(h.engine)))
    add(h)


# Through a hub, on the command line


def test_through_a_hub_an_address_is_checked_kept_and_shown_without_its_path(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = SystemClock()
        store = AsyncSqlite(tmp_path / "hub.db", clock)
        engine = Engine(store, clock)
        hub = Hub(engine, clock, HubSettings(allow=("127.0.0.0/8",), plain_http=True, notify=("127.0.0.1",)))
        app: Any = HubApp(hub)
        await engine.define("mail")
        admin = (await engine.create_token("ops", ("admin",)))[1]
        small = (await engine.create_token("shop", ("submit", "read")))[1]
        async with (
            Receiver() as receiver,
            httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1/api/v1") as http,
        ):

            async def post(path: str, body: Any, secret: str) -> httpx.Response:
                return await http.post(path, json=body, headers={"authorization": f"Bearer {secret}"})

            own, other = {"url": receiver.url}, {"url": "https://example.com/"}
            for secret, notify, answer in (
                (small, other, (403, "forbidden")),
                (admin, {"url": "https://10.0.0.1/"}, (400, "egress_refused")),
                (admin, own | {"format": "other"}, (400, "bad_input")),
                (admin, own | {"events": ["run.done"]}, (400, "bad_input")),
                (admin, own | {"secret": "x"}, (400, "bad_input")),
            ):
                for path, body in (
                    ("/runs", {"job": "mail", "notify": notify}),
                    ("/runs/batch", {"runs": [{"job": "mail", "notify": notify}]}),
                    ("/groups", {"members": [{"job": "mail", "notify": notify}]}),
                    ("/groups", {"members": [{"job": "mail"}], "callback": {"job": "mail", "notify": notify}}),
                ):
                    refused = await post(path, body, secret)
                    assert (refused.status_code, refused.json()["code"]) == answer, (path, refused.text)
            assert (await engine.runs()).runs == []
            assert (await post("/runs", {"job": "mail", "notify": other}, admin)).status_code == 202
            run = (await post("/runs", {"job": "mail", "notify": own}, small)).json()["id"]
            assert (await post(f"/runs/{run}/cancel", None, small)).status_code == 200
            await eventually(lambda: receiver.posts)
            assert receiver.posts[0].change == (run, "cancelled")
            text = ""
            while '"delivered"' not in text:
                text = (await http.get(f"/runs/{run}/deliveries", headers={"authorization": f"Bearer {small}"})).text
            (delivery,) = json.loads(text)["deliveries"]
            assert delivery["origin"] == receiver.url.removesuffix("/hook")
            assert "/hook" not in text
            assert (await http.get("/webhooks", headers={"authorization": f"Bearer {admin}"})).json() == {"webhooks": []}
        await hub.stop()
        await store.close()

    play(scenario())


def test_the_command_line_adds_formats_that_there_are_and_shows_the_deliveries_of_a_run(w: HubDesk) -> None:
    assert w.json("webhooks", "add", URL, "--format", "standard")["webhook"]["format"] == "standard"
    w("webhooks", "add", URL, "--format", "standart", exits=2)
    assert len(run_sync(w.engine.webhooks())) == 1
    h = Harness(w.store, ManualClock(int(time.time() * 1000)))
    h.define()
    run = w.json("enqueue", "mail", "--notify", "https://example.org/secret")["id"]
    h(h.engine.cancel(run))
    make(h)
    shown = w.json("webhooks", "deliveries", "--run", run)["deliveries"]
    assert sorted(delivery.get("origin", "") for delivery in shown) == ["", "https://example.org"]
    assert w.json("webhooks", "deliveries", "--run", run, "--status", "failed")["deliveries"] == []
    assert "run.cancelled" in w("webhooks", "deliveries", "--run", run)
    w("webhooks", "deliveries", exits=2)


def test_an_app_takes_an_address_or_a_record(tmp_path: Path) -> None:
    with App(str(tmp_path / "windlass.db")) as app:
        run_sync(app.engine.define("mail"))
        records = app.engine.records.webhooks
        plain, whole = (app.enqueue("mail", notify=notify) for notify in (URL, Notify(URL, events=("run.failed",))))
        kept = run_sync(records.notify_of([plain.id, whole.id]))
        assert kept == {plain.id: Notify(URL), whole.id: Notify(URL, events=("run.failed",))}


# Kills


POINTS = [
    *webhooks.POINTS,
    *(f"make_deliveries.{place}" for place in ("before_begin", "after_advance_tail", "after_add_webhook", "after_add_deliveries")),
    *("make_deliveries.before_commit", "make_deliveries.after_commit", "claim_deliveries.after_commit", "settle_delivery.after_commit"),
]


@pytest.mark.parametrize("kind", SHARED)
def test_W2_nothing_is_missing_for_formats_and_addresses_whenever_a_sender_dies(kind: str, request: pytest.FixtureRequest) -> None:
    clock = ManualClock()

    async def scenario(where: str) -> None:
        store = kill_child.open_store(kind, where, clock)
        h = Harness(store, clock)
        h.define()
        server, died, runs = ForkServer("tests.hub.webhook_child"), Counter[str](), list[str]()
        try:
            async with Receiver() as endpoint, Receiver() as own:
                add(h, endpoint.url, format="attempts")
                for point in POINTS:
                    run = h.create(notify=Notify(own.url))
                    runs.append(run)
                    h.succeed(h.started())
                    answer: dict[str, int] = {}
                    for faults in (f"{point}=kill@1", ""):
                        answer = await asyncio.to_thread(server.ask, faults=faults, kind=kind, where=where, now=clock.now())
                        died[point] += answer["signal"] == 9
                        clock.advance(webhooks.LEASE)
                    assert answer == {"signal": 0, "code": 0}
                    clock.advance(notices.UNUSED_AFTER)
                    h(h.engine.prune())  # so that the next delivery stores its origin again
                assert set(runs) == {post.change[0] for post in own.posts} == {post.json["run"] for post in endpoint.posts}
                assert len({(post.change, post.id, post.body) for post in own.posts}) == len(runs)
                assert len({(post.json["run"], post.body) for post in endpoint.posts}) == len(runs)
                assert all(died[point] for point in POINTS), died
        finally:
            server.close()
            run_sync(store.close())

    if kind == "postgres":
        play(scenario(request.getfixturevalue("emptied_postgres")))
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        play(scenario(f"{folder}/windlass.db"))
