"""Webhooks: every change that an endpoint wants becomes one delivery, which is tried by one at a time until it ends."""

from __future__ import annotations

import base64
import json
import math
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from msgspec.structs import replace

from tests.conformance import IN_STATE, SHARED, at_once, crowd, late
from tests.grounds import set_ground
from tests.harness import Harness
from tests.invariants import changes_are_told
from windlass.api.views import RUN
from windlass.clock import ManualClock
from windlass.defaults import DELIVERY_DELAYS, SECRET_OVERLAP
from windlass.engine import outbox
from windlass.engine import webhooks as endpoints
from windlass.engine.outbox import ClaimedDelivery
from windlass.engine.webhooks import MAX_SECRETS
from windlass.errors import BadInput, LeaseLost, LimitReached, NotFound, WindlassError, WrongState
from windlass.faults import FAULTS
from windlass.machine import ENDED
from windlass.model import Delivery, Entry, Failure, Limits, NewRun, Policy, Run, State, Webhook
from windlass.store.base import run_sync
from windlass.store.postgres import BlockingPostgres, BorrowedPostgres
from windlass.store.records.webhooks import BROKEN, End
from windlass.store.sqlite import BlockingSqlite
from windlass.webhooks import LIMIT, STANDARD, body_of

URL = "https://example.com/hook"
MINUTE, DAY = 60_000, 86_400_000
LEASE = 60_000


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    """Whatever a test arms, the next one begins without."""
    yield
    FAULTS.arm("")


@pytest.fixture
def memory() -> Iterator[Harness]:
    """The engine in memory alone, for what no database can change."""
    clock = ManualClock()
    harness = Harness(BlockingSqlite(":memory:", clock), clock)
    harness.define()
    yield harness
    run_sync(harness.store.close())


def add(h: Harness, url: str = URL, **words: Any) -> Webhook:
    return h(h.engine.add_webhook(url, **words))


def read(h: Harness, webhook: Webhook) -> Webhook:
    return h(h.engine.get_webhook(webhook.id))


def end(h: Harness, count: int = 1, job: str = "mail") -> list[str]:
    """So many new runs that have ended."""
    ids = [h.create(job) for _ in range(count)]
    for run_id in ids:
        h(h.engine.cancel(run_id))
    return ids


def make(h: Harness) -> None:
    while h(h.engine.make_deliveries(STANDARD.content(h.engine))):
        pass


def told(h: Harness, webhook: Webhook, status: str | None = None) -> list[Delivery]:
    """Oldest first."""
    return h(h.engine.deliveries(webhook.id, status=status, count=1_000)).deliveries[::-1]


def claim(h: Harness, count: int = 100, each: int = 4, **how: Any) -> list[ClaimedDelivery]:
    return h(h.engine.claim_deliveries(count, LEASE, each=each, **how))


def refuse(h: Harness, parcel: ClaimedDelivery, **how: Any) -> None:
    h(h.engine.not_delivered(parcel.delivery.id, parcel.delivery.token or "", how.pop("error", "no"), **{"answer": 500} | how))


def take(h: Harness, parcel: ClaimedDelivery) -> None:
    h(h.engine.delivered(parcel.delivery.id, parcel.delivery.token or "", 200))


def counts(h: Harness, webhook: Webhook) -> Counter[str]:
    return Counter(delivery.status for delivery in told(h, webhook))


# What is made of the journal


def test_A6_every_change_that_an_endpoint_wants_becomes_one_delivery(h: Harness) -> None:
    h.define("report", queue="slow")
    every, mails, slow, begun = add(h), add(h, jobs=("mail",)), add(h, queues=("slow",)), add(h, states=("queued", "claimed"))
    mail, report = h.create("mail"), h.create("report")
    for _ in range(2):
        h.succeed(h.claimed())
    for _ in range(2):
        make(h)
    changes = {webhook.id: sorted((d.run, d.type, d.rev) for d in told(h, webhook)) for webhook in (every, mails, slow, begun)}
    assert changes[every.id] == sorted([(mail, "run.succeeded", 3), (report, "run.succeeded", 3)])
    assert changes[mails.id] == [(mail, "run.succeeded", 3)]
    assert changes[slow.id] == [(report, "run.succeeded", 3)]
    assert changes[begun.id] == sorted(
        (run, type_, rev) for run in (mail, report) for type_, rev in (("run.queued", 1), ("run.claimed", 2))
    )
    assert counts(h, every) == {"pending": 2}


def check_told(h: Harness, *webhooks: Webhook) -> None:
    """A6, over the whole journal; the endpoints were there before it."""
    make(h)
    changes_are_told(h(h.engine.tail(count=1_000)).entries, webhooks, [delivery for webhook in webhooks for delivery in told(h, webhook)])


@pytest.mark.parametrize("state", [state for state in State if state in ENDED])
def test_A6_an_end_is_told_to_all_that_want_it_and_to_no_other(h: Harness, state: State) -> None:
    others = tuple(other.value for other in State if other in ENDED and other is not state)
    every, only, rest = add(h), add(h, states=(state.value,)), add(h, states=others)
    wide, narrow = add(h, states=tuple(state.value for state in State)), add(h, jobs=("nothing",), states=(state.value,))
    run = IN_STATE[state](h)
    check_told(h, every, only, rest, wide, narrow)
    for webhook, number in ((every, 1), (only, 1), (rest, 0), (narrow, 0)):
        assert [(d.run, d.type, d.rev) for d in told(h, webhook)] == [(run.id, f"run.{state.value}", run.rev)] * number
    check_told(h, every, only, rest, wide, narrow)  # nothing is made twice


def test_A6_the_ends_of_many_runs_are_all_told(h: Harness) -> None:
    every, failed, slow = add(h), add(h, states=("failed", "quarantined")), add(h, queues=("slow",))
    h.define("report", queue="slow", max_attempts=1)
    for bring in IN_STATE.values():
        bring(h)
        h.create("report")
        h.fail(h.started(jobs=("report",)))
        h(h.engine.sweep())
        make(h)
    h.define("twice", max_attempts=2, backoff=(0,))
    h.create("twice")
    for _ in range(2):
        h.fail(h.started(jobs=("twice",)))
    check_told(h, every, failed, slow)
    assert Counter(delivery.type for delivery in told(h, failed))["run.failed"] > len(IN_STATE)


def test_an_edit_of_a_run_is_no_change_of_its_state(h: Harness) -> None:
    webhook = add(h, states=("queued",))
    run = h.create()
    h(h.engine.patch(run, priority=5))
    make(h)
    assert [delivery.rev for delivery in told(h, webhook)] == [1]


def test_nothing_of_the_past_is_told(h: Harness) -> None:
    end(h, 3)
    first = add(h)
    make(h)
    now = end(h, 2)
    second = add(h)
    later = end(h)
    make(h)
    assert [delivery.run for delivery in told(h, first)] == [*now, *later]
    assert [delivery.run for delivery in told(h, second)] == later


def test_what_happened_while_there_was_no_endpoint_is_not_even_read(h: Harness) -> None:
    h(h.engine.remove_webhook(add(h).id))
    end(h, 3)
    assert h(h.engine.make_deliveries(STANDARD.content(h.engine))) == 0
    webhook = add(h)
    (run,) = end(h)
    assert h(h.engine.make_deliveries(STANDARD.content(h.engine))) == 2, "the creation and the end"
    assert [delivery.run for delivery in told(h, webhook)] == [run]


def test_what_happened_while_it_was_disabled_is_not_told(h: Harness) -> None:
    webhook = add(h)
    before = end(h)
    make(h)
    h(h.engine.set_webhook(webhook.id, enabled=False))
    end(h)
    h(h.engine.set_webhook(webhook.id, enabled=True))
    after = end(h)
    make(h)
    assert [delivery.run for delivery in told(h, webhook)] == [*before, *after]


def test_what_waits_at_a_disabled_endpoint_is_sent_when_it_is_enabled(h: Harness) -> None:
    webhook = add(h)
    end(h)
    make(h)
    h(h.engine.set_webhook(webhook.id, enabled=False))
    assert claim(h) == []
    h(h.engine.set_webhook(webhook.id, enabled=True))
    assert len(claim(h)) == 1


def test_an_endpoint_that_comes_while_the_journal_is_read_misses_nothing(h: Harness) -> None:
    add(h)
    seen: list[tuple[Webhook, list[str]]] = []
    make(late(h, "tail", lambda: seen.append((add(h), end(h)))))
    make(h)
    ((webhook, runs),) = seen
    assert [delivery.run for delivery in told(h, webhook)] == runs


def test_what_was_under_way_when_an_endpoint_came_is_told(emptied_postgres: str) -> None:
    """A transaction that began before the endpoint was there and is committed after it."""
    clock = ManualClock()
    h = Harness(BlockingPostgres(emptied_postgres, clock), clock)
    h.define()
    with psycopg.connect(emptied_postgres) as connection:
        (made,) = h(h.engine.on(BorrowedPostgres(connection)).create([NewRun("mail")]))
        webhook = add(h, states=("queued",))
        later = h.create()
        make(h)
        connection.commit()
    make(h)
    assert [delivery.run for delivery in told(h, webhook)] == [later, made.id]
    run_sync(h.store.close())


@pytest.mark.parametrize("act", ["remove", "disable"])
def test_an_endpoint_that_goes_while_deliveries_are_made_gets_none(h: Harness, act: str) -> None:
    webhook = add(h)
    end(h)
    gone = h.engine.remove_webhook if act == "remove" else lambda name: h.engine.set_webhook(name, enabled=False)
    make(late(h, "add_deliveries", lambda: h(gone(webhook.id))))
    assert h(h.engine.records.deliveries.page(webhook.id, None, 2**62, 10)) == []


@pytest.mark.parametrize("kind", SHARED)
def test_A6_two_processes_make_each_delivery_once(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with crowd(kind, tmp_path, request, 3) as members:
        h = members[0]
        webhook = add(h)
        runs = end(h, 5)
        make_one: Callable[[Harness], int] = lambda member: member(member.engine.make_deliveries(STANDARD.content(member.engine)))  # noqa: E731
        assert sorted(map(int, at_once(members, ("advance_tail",), *[make_one] * 3))) == [0, 0, 10]  # type: ignore[arg-type]
        assert [delivery.run for delivery in told(h, webhook)] == runs


def test_A6_entries_that_are_read_again_make_nothing_new(h: Harness) -> None:
    webhook, records = add(h), h.engine.records
    place = h(records.journal.consumer("webhooks"))
    end(h, 3)
    make(h)
    now = h(records.journal.consumer("webhooks"))
    assert place is not None
    assert now is not None
    h(records.journal.advance("make_deliveries", "webhooks", (now[1], place[0], 0), []))
    assert h(h.engine.make_deliveries(STANDARD.content(h.engine))) == 6
    assert len(told(h, webhook)) == 3


def test_many_changes_for_many_endpoints_are_made_in_bundles(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "ROOM", 10)
    hooks = [add(h) for _ in range(4)]
    runs = end(h, 7)
    looked = []
    while found := h(h.engine.make_deliveries(STANDARD.content(h.engine))):
        looked.append(found)
    assert len(looked) > 3
    assert sum(looked) == 14
    assert [[delivery.run for delivery in told(h, hook)] for hook in hooks] == [runs] * 4


def test_large_bodies_are_made_few_at_a_time_and_only_while_they_fit_into_a_batch(h: Harness) -> None:
    webhook, runs, asked = add(h), end(h, 7), list[int]()

    async def bodies(entries: Sequence[Entry]) -> list[str]:
        asked.append(len(entries))
        return ["x" * (outbox.MAX_BYTES // 3)] * len(entries)

    while h(h.engine.make_deliveries(STANDARD.content(h.engine)._replace(bodies=bodies, part=2))):
        pass
    assert asked == [2, 2, 2, 2, 1]  # three fit into the first batch, the fourth of the second part waits for the next
    assert [delivery.run for delivery in told(h, webhook)] == runs


def test_deliveries_are_told_in_the_order_of_the_changes(h: Harness) -> None:
    webhook = add(h, states=tuple(State))
    runs = end(h, 3)
    make(h)
    assert [(d.run, d.type) for d in told(h, webhook)] == [(run, "run.queued") for run in runs] + [(run, "run.cancelled") for run in runs]


# One at a time, and the next try


def test_a_delivery_belongs_to_one_at_a_time(h: Harness) -> None:
    add(h)
    end(h)
    make(h)
    (parcel,) = claim(h)
    assert claim(h) == []
    h.clock.advance(LEASE)
    (again,) = claim(h)
    assert (again.delivery.id, again.body, again.delivery.tries) == (parcel.delivery.id, parcel.body, 0)
    for act in (take, refuse):
        with pytest.raises(LeaseLost):
            act(h, parcel)
    take(h, again)
    with pytest.raises(LeaseLost):
        take(h, again)


@pytest.mark.parametrize("kind", SHARED)
def test_two_processes_claim_different_deliveries(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with crowd(kind, tmp_path, request, 2) as members:
        h = members[0]
        webhook = add(h)
        end(h, 4)
        make(h)
        claimed = at_once(members, ("claim_deliveries",), *[lambda member: claim(member)] * 2)
        ids = [parcel.delivery.id for parcels in claimed for parcel in parcels]  # type: ignore[union-attr]
        assert sorted(ids) == sorted(delivery.id for delivery in told(h, webhook))


def test_Z15_three_tries_and_none_more(h: Harness) -> None:
    webhook = add(h)
    (run,) = end(h)
    make(h)
    waits = []
    for _ in range(3):
        (parcel,) = claim(h)
        refuse(h, parcel)
        (delivery,) = told(h, webhook)
        if delivery.next_at is not None:
            waits.append(delivery.next_at - h.clock.now())
            h.clock.advance(waits[-1] - 1)
            assert claim(h) == []
            h.clock.advance(1)
    (delivery,) = told(h, webhook)
    assert [DELIVERY_DELAYS[n] <= wait <= DELIVERY_DELAYS[n] * 1.25 for n, wait in enumerate(waits)] == [True, True]
    assert (delivery.status, delivery.tries, delivery.answer, delivery.error) == ("failed", 3, 500, "no")
    h.clock.advance(DAY)
    assert claim(h) == []
    assert h.get(run).state is State.CANCELLED
    assert counts(h, webhook) == {"failed": 1}


def test_W1_a_longer_schedule_tries_for_days(h: Harness) -> None:
    delays = (5_000, 300_000, 1_800_000, 7_200_000, 18_000_000, 36_000_000, 50_400_000)
    webhook = add(h, delays=delays)
    end(h)
    make(h)
    begun = h.clock.now()
    while parcels := claim(h):
        refuse(h, parcels[0])
        (delivery,) = told(h, webhook)
        h.clock.advance((delivery.next_at or h.clock.now()) - h.clock.now())
    (delivery,) = told(h, webhook)
    assert (delivery.tries, delivery.status) == (len(delays) + 1, "failed")
    assert h.clock.now() - begun >= sum(delays) > DAY


def test_W1_tries_that_fail_together_are_spread(h: Harness) -> None:
    webhook = add(h, delays=(100_000,))
    end(h, 9)  # one more failure would break the endpoint
    make(h)
    for parcel in claim(h, each=100):
        refuse(h, parcel)
    waits = [(delivery.next_at or 0) - h.clock.now() for delivery in told(h, webhook)]
    assert len(set(waits)) == 9
    assert all(100_000 <= wait <= 125_000 for wait in waits)
    assert max(waits) - min(waits) > 5_000


def test_W1_410_disables_the_endpoint(h: Harness) -> None:
    webhook, other = add(h), add(h)
    end(h, 2)
    make(h)
    gone = next(parcel for parcel in claim(h, each=1) if parcel.webhook.id == webhook.id)
    refuse(h, gone, answer=410, error="It answered 410 Gone.", gone=True)
    found = read(h, webhook)
    assert (found.enabled, found.reason) == (False, "It answered 410 Gone.")
    assert counts(h, webhook) == {"failed": 1, "pending": 1}
    assert {parcel.webhook.id for parcel in claim(h)} == {other.id}
    end(h)
    make(h)
    assert (len(told(h, webhook)), len(told(h, other))) == (2, 3)


def test_W1_an_endpoint_that_asks_for_a_pause_gets_it(h: Harness) -> None:
    webhook = add(h)
    end(h, 3)
    make(h)
    refuse(h, claim(h, each=1)[0], answer=429, retry_after=90_000)
    h.clock.advance(89_999)
    assert claim(h) == []
    h.clock.advance(1)
    assert len(claim(h)) == 3
    assert read(h, webhook).enabled


def test_W1_no_endpoint_gets_a_pause_for_ever(h: Harness) -> None:
    add(h)
    end(h)
    make(h)
    refuse(h, claim(h)[0], answer=503, retry_after=10**12)
    h.clock.advance(DAY)
    assert len(claim(h)) == 1


def test_a_delivery_that_waits_too_long_is_given_up(h: Harness) -> None:
    webhook = add(h)
    end(h)
    make(h)
    h(h.engine.set_webhook(webhook.id, enabled=False))
    h.clock.advance(Limits().deliver_within - 1)
    h(h.engine.prune())
    assert counts(h, webhook) == {"pending": 1}
    h.clock.advance(1)
    h(h.engine.prune())
    (delivery,) = told(h, webhook)
    assert (delivery.status, delivery.error, delivery.next_at) == ("failed", "It could not be delivered in time.", None)


def test_Live3_every_delivery_ends(h: Harness) -> None:
    """Whatever the endpoint does: it breaks, and is tried by one now and then."""
    webhook = add(h)
    end(h, 30)
    make(h)
    for _ in range(200):
        for parcel in claim(h):
            refuse(h, parcel)
        h.clock.advance(3_600_000)
        h(h.engine.prune())
    assert counts(h, webhook) == {"failed": 30}


# The breaker, and fairness


def broken(h: Harness, count: int = 20) -> Webhook:
    """An endpoint that has just failed too often."""
    webhook = add(h, delays=(0,) * BROKEN)
    end(h, count)
    make(h)
    for _ in range(BROKEN):
        refuse(h, claim(h, each=1)[0])
    return webhook


def test_an_endpoint_that_fails_too_often_is_left_alone(h: Harness) -> None:
    webhook = broken(h)
    assert claim(h) == []
    pause = read(h, webhook).paused_until - h.clock.now()
    assert outbox.BREAK <= pause <= outbox.BREAK * 1.25
    h.clock.advance(pause)
    (probe,) = claim(h)
    assert claim(h) == []
    h.clock.advance(LEASE)  # whoever had it has died
    (probe,) = claim(h)
    refuse(h, probe)
    assert read(h, webhook).paused_until - h.clock.now() >= 2 * outbox.BREAK
    h.clock.advance(DAY)
    (probe,) = claim(h)
    take(h, probe)
    assert (read(h, webhook).failures, read(h, webhook).paused_until) == (0, 0)
    assert len(claim(h)) == 4


def test_the_pauses_of_a_broken_endpoint_grow_to_a_bound(h: Harness) -> None:
    webhook = add(h, delays=(0,) * 40)
    end(h)
    make(h)
    pauses = []
    for _ in range(30):
        refuse(h, claim(h)[0])
        pauses.append(read(h, webhook).paused_until - h.clock.now())
        h.clock.advance(max(0, pauses[-1]))
    grown = [pause for pause in pauses if pause > 0]
    assert len(grown) == 30 - BROKEN + 1
    assert max(grown) <= outbox.LONGEST_BREAK * 1.25
    assert grown[-1] >= outbox.LONGEST_BREAK


@pytest.mark.parametrize("kind", SHARED)
def test_a_broken_endpoint_is_tried_by_one_process_only(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with crowd(kind, tmp_path, request, 3) as members:
        h = members[0]
        broken(h)
        h.clock.advance(DAY)
        claimed = at_once(members, ("probe_webhooks",), *[lambda member: claim(member)] * 3)
        assert sum(map(len, claimed)) == 1  # type: ignore[arg-type]


def test_a_broken_endpoint_that_somebody_tries_already_is_left_alone(h: Harness) -> None:
    broken(h)
    h.clock.advance(DAY)
    probes: list[ClaimedDelivery] = []
    assert claim(late(h, "due_deliveries", lambda: probes.extend(claim(h)))) == []
    assert len(probes) == 1


def test_a_broken_endpoint_for_which_there_is_nothing_is_not_left_alone_for_longer(h: Harness) -> None:
    webhook = broken(h, 1)
    h.clock.advance(DAY)
    (probe,) = claim(h)
    h.clock.advance(LEASE)
    h(h.engine.records.deliveries.drop([probe.delivery]))
    paused_until = read(h, webhook).paused_until
    add(h)
    h(h.engine.set_webhook(webhook.id, jobs=("other",)))
    end(h)
    make(h)
    assert len(claim(h)) == 1
    assert read(h, webhook).paused_until == paused_until


def test_a_success_between_failures_counts(h: Harness) -> None:
    webhook = add(h)
    end(h, 30)
    make(h)
    for n in range(30):
        (parcel,) = claim(h, each=1)
        take(h, parcel) if n % BROKEN == BROKEN - 1 else refuse(h, parcel)
    assert read(h, webhook).failures == 0
    assert claim(h, each=1) == []  # nothing is due yet; the endpoint is not broken


def test_a_new_address_is_tried_at_once(h: Harness) -> None:
    webhook = broken(h)
    h(h.engine.set_webhook(webhook.id, url="https://example.org/hook"))
    assert len(claim(h)) == 4


@pytest.mark.parametrize("kind", ["memory", "postgres"])
def test_W4_one_dead_endpoint_does_not_hold_up_the_others(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with crowd(kind, tmp_path, request, 1) as (h,):
        h.define("noise")
        dead = add(h, jobs=("noise",), states=("queued",))
        h(h.engine.create([NewRun("noise")] * 10_000))
        make(h)
        live = [add(h, jobs=("mail",)) for _ in range(99)]
        end(h)
        make(h)
        held: Counter[str] = Counter()
        served: set[str] = set()
        for _ in range(math.ceil(99 / (32 - 4))):
            for parcel in claim(h, 32 - held.total(), held=held):
                if parcel.webhook.id == dead.id:
                    held[dead.id] += 1  # it hangs
                else:
                    take(h, parcel)
                    served.add(parcel.webhook.id)
        assert served == {webhook.id for webhook in live}
        assert held[dead.id] == 4


def test_the_first_of_each_endpoint_comes_before_the_second_of_any(h: Harness) -> None:
    busy = [add(h) for _ in range(5)]
    end(h, 3)
    make(h)
    h.clock.advance(1)
    newcomer = add(h)
    end(h)
    make(h)
    assert {parcel.webhook.id for parcel in claim(h, 6)} == {webhook.id for webhook in (*busy, newcomer)}


def test_those_who_hold_some_of_an_endpoint_get_no_more_than_the_rest(h: Harness) -> None:
    webhook = add(h)
    end(h, 10)
    make(h)
    assert len(claim(h, held={webhook.id: 3})) == 1
    assert claim(h, held={webhook.id: 4}) == []


# By hand


def test_what_has_failed_is_sent_again_under_the_same_id(h: Harness) -> None:
    webhook = add(h, delays=())
    end(h)
    make(h)
    (parcel,) = claim(h)
    refuse(h, parcel)
    (failed,) = told(h, webhook, "failed")
    h.clock.advance(Limits().keep_deliveries - 1)
    again = h(h.engine.resend(failed.id))
    assert (again.id, again.status, again.tries) == (failed.id, "pending", 0)
    h.clock.advance(1)
    h(h.engine.prune())
    (parcel,) = claim(h)
    with pytest.raises(WrongState):
        h(h.engine.resend(failed.id))
    take(h, parcel)
    assert counts(h, webhook) == {"delivered": 1}


def test_nothing_is_sent_again_to_a_disabled_endpoint(h: Harness) -> None:
    webhook = add(h, delays=())
    end(h)
    make(h)
    refuse(h, claim(h)[0], answer=410, error="It answered 410 Gone.", gone=True)
    with pytest.raises(WrongState, match="410"):
        h(h.engine.resend(told(h, webhook)[0].id))


def test_deliveries_are_listed_in_pages(h: Harness) -> None:
    webhook = add(h, delays=())
    end(h, 7)
    make(h)
    for n, parcel in enumerate(claim(h, each=7)):
        take(h, parcel) if n % 2 else refuse(h, parcel)
    for status_, expected in ((None, 7), ("delivered", 3), ("failed", 4), ("pending", 0)):
        found: list[str] = []
        cursor: str | None = None
        while True:
            page = h(h.engine.deliveries(webhook.id, status=status_, cursor=cursor, count=2))
            found += [delivery.id for delivery in page.deliveries]
            if (cursor := page.cursor) is None:
                break
        assert found == [delivery.id for delivery in told(h, webhook, status_)][::-1]
        assert len(found) == expected


def test_old_deliveries_are_removed_in_slices(h: Harness) -> None:
    webhook = add(h)
    end(h, 3)
    make(h)
    for parcel in claim(h):
        take(h, parcel)
    h.clock.advance(Limits().keep_deliveries - 1)
    assert h(h.engine.records.deliveries.prune(h.clock.now(), 1, 2)) == 0
    h.clock.advance(1)
    assert [h(h.engine.records.deliveries.prune(h.clock.now(), 1, 2)) for _ in range(3)] == [2, 1, 0]
    assert told(h, webhook) == []


def test_what_was_sent_again_meanwhile_is_not_removed(h: Harness) -> None:
    webhook = add(h)
    end(h)
    make(h)
    (parcel,) = claim(h)
    take(h, parcel)
    h.clock.advance(Limits().keep_deliveries)
    pruner = late(h, "prune_deliveries", lambda: h(h.engine.resend(parcel.delivery.id)))
    pruner(pruner.engine.prune())
    assert counts(h, webhook) == {"pending": 1}


def test_what_was_taken_meanwhile_is_not_given_up(h: Harness) -> None:
    webhook = add(h)
    end(h)
    make(h)
    h.clock.advance(Limits().deliver_within)
    pruner = late(h, "give_up_deliveries", lambda: take(h, claim(h)[0]))
    pruner(pruner.engine.prune())
    assert counts(h, webhook) == {"delivered": 1}


def test_what_is_being_sent_is_not_given_up(h: Harness) -> None:
    webhook = add(h)
    end(h)
    make(h)
    h.clock.advance(Limits().deliver_within - 1)
    (parcel,) = claim(h)
    h.clock.advance(1)
    h(h.engine.prune())
    take(h, parcel)
    assert counts(h, webhook) == {"delivered": 1}


def test_a_removed_endpoint_leaves_nothing(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "REMOVED_AT_ONCE", 2)
    webhook, other = add(h), add(h)
    end(h, 5)
    make(h)
    held = [parcel for parcel in claim(h) if parcel.webhook.id == webhook.id]
    h(h.engine.remove_webhook(webhook.id))
    with pytest.raises(NotFound):
        read(h, webhook)
    with pytest.raises(LeaseLost):
        take(h, held[0])
    with pytest.raises(NotFound):
        refuse(h, held[0])
    assert h(h.engine.records.deliveries.page(webhook.id, None, 2**62, 10)) == []
    assert counts(h, other) == {"pending": 5}
    with pytest.raises(NotFound):
        h(h.engine.remove_webhook(webhook.id))


def test_edits_change_what_is_said_and_nothing_else(h: Harness) -> None:
    webhook = add(h, name="alarms", jobs=("mail",), delays=(1, 2))
    h.clock.advance(5)
    made = h(h.engine.set_webhook(webhook.id, jobs=None, states=("failed",)))
    assert made == read(h, webhook)
    assert (made.name, made.url, made.jobs, made.states, made.delays) == ("alarms", URL, None, (State.FAILED,), (1, 2))
    assert (made.secrets, made.created_at, made.updated_at) == (webhook.secrets, webhook.created_at, h.clock.now())
    assert [found.id for found in h(h.engine.webhooks())] == [webhook.id]


def test_an_edit_is_made_from_what_is_there(h: Harness) -> None:
    webhook = add(h)
    slow = late(h, "edit_webhook", lambda: h(h.engine.set_webhook(webhook.id, name="first")))
    made = slow(slow.engine.set_webhook(webhook.id, jobs=("mail",)))
    assert (made.name, made.jobs) == ("first", ("mail",))


BAD: list[dict[str, Any]] = [
    {"url": url}
    for url in ("", "example.com", "ftp://a.b/", "https://user@a.b/", "https://a.b/#x", "https://", 7, "https://a b/", "https://127.1/")
] + [
    {"url": f"https://example.com/{'x' * 2_048}"},
    {"name": ""}, {"name": "x" * 129}, {"name": "a\nb"}, {"name": 7},
    {"jobs": ["mail"]}, {"jobs": ("",)}, {"jobs": "mail"}, {"queues": ("a\0",)}, {"jobs": ("x",) * 101},
    {"states": ()}, {"states": ("done",)}, {"states": 7}, {"states": (["failed"],)},
    {"delays": [1]}, {"delays": (-1,)}, {"delays": (1.5,)}, {"delays": ("1",)}, {"delays": (True,)}, {"delays": (1,) * 51},
    {"delays": (Limits().deliver_within,)}, {"enabled": 1}, {"enabled": None},
]  # fmt: skip


@pytest.mark.parametrize("words", BAD, ids=repr)
def test_bad_words_are_refused_and_change_nothing(memory: Harness, words: dict[str, Any]) -> None:
    h, webhook = memory, add(memory)
    with pytest.raises(BadInput) as refused:
        add(h, **{"url": URL} | words)
    assert refused.value.hint
    with pytest.raises(BadInput):
        h(h.engine.set_webhook(webhook.id, **words))
    assert h(h.engine.webhooks()) == [webhook]


@pytest.mark.parametrize("fields", [{}, {"secrets": ()}, {"failures": 0}, {"id": "x"}, {"begins": ""}])
def test_only_what_is_meant_to_be_can_be_set(memory: Harness, fields: dict[str, Any]) -> None:
    webhook = add(memory)
    with pytest.raises(BadInput, match="Cannot modify"):
        memory(memory.engine.set_webhook(webhook.id, **fields))


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "x" * 40,
        "whsec_",
        "whsec_!!!",
        "whsec_" + base64.b64encode(b"x" * 23).decode(),
        "whsec_" + base64.b64encode(b"x" * 65).decode(),
        7,
    ],
)
def test_a_secret_is_what_the_standard_says(memory: Harness, secret: Any) -> None:
    webhook = add(memory)
    for verb in (memory.engine.add_webhook(URL, secret=secret), memory.engine.rotate_webhook(webhook.id, secret=secret)):
        with pytest.raises(BadInput):
            memory(verb)
    assert memory(memory.engine.webhooks()) == [webhook]


def test_other_bad_questions_are_refused(memory: Harness) -> None:
    engine, webhook = memory.engine, add(memory)
    refused: list[tuple[type[WindlassError], Coroutine[Any, Any, Any]]] = [
        (NotFound, engine.get_webhook("nobody")),
        (BadInput, engine.get_webhook("no/body")),
        (BadInput, engine.get_webhook("x" * 65)),
        (BadInput, engine.deliveries(webhook.id, status="lost")),
        (BadInput, engine.deliveries(webhook.id, cursor="x")),
        (BadInput, engine.deliveries(webhook.id, cursor="9" * 19)),
        (BadInput, engine.deliveries(webhook.id, count=0)),
        (NotFound, engine.deliveries("nobody")),
        (NotFound, engine.resend("nobody")),
        (BadInput, engine.resend("../x")),
        (BadInput, engine.rotate_webhook(webhook.id, overlap=-1)),
        (BadInput, engine.claim_deliveries(0, 1)),
        (BadInput, engine.claim_deliveries(1, 0)),
    ]
    for kind, verb in refused:
        with pytest.raises(kind):
            memory(verb)


def test_there_is_a_bound_on_endpoints(memory: Harness) -> None:
    set_ground(memory.engine, limits=Limits(webhooks=3))
    for _ in range(3):
        add(memory)
    with pytest.raises(LimitReached):
        add(memory)
    assert len(memory(memory.engine.webhooks())) == 3


def test_an_endpoint_that_may_have_been_stored_is_looked_for(h: Harness) -> None:
    for point, stored in (("add_webhook.before_commit=drop@1", 0), ("add_webhook.after_commit=drop@1", 1)):
        FAULTS.arm(point)
        before = len(h(h.engine.webhooks()))
        try:
            made = add(h)
            assert read(h, made).url == URL
        except WindlassError:
            assert not stored
        assert len(h(h.engine.webhooks())) == before + stored


def test_acts_of_people_are_in_the_audit(h: Harness) -> None:
    engine = h.engine
    webhook = h(engine.by("ann", "add", "webhook x").add_webhook(URL))
    h(engine.by("ann", "rotate", "webhook x").rotate_webhook(webhook.id))
    h(engine.by("ann", "edit", "webhook x").set_webhook(webhook.id, name="y"))
    h(engine.by("ann", "remove", "webhook x").remove_webhook(webhook.id))
    assert [entry.what for entry in h(engine.audit()).entries] == ["remove", "edit", "rotate", "add"]


# What is told


def entry(**fields: Any) -> Entry:
    return replace(Entry("r1", 3, 1_767_225_600_000, "succeed", State.SUCCEEDED, 1, job="mail"), **fields)


def a_run(**fields: Any) -> Run:
    given: dict[str, Any] = {"payload": "{}", "max_attempts": 3, "max_runtime": None, "policy": Policy()} | fields
    return Run(1, "r1", given.pop("rev", 3), State.SUCCEEDED, "mail", "slow", 1, 0, 0, due_at=1, created_at=1, **given)


def test_G22_the_body_tells_the_change_and_the_run_as_the_api_does() -> None:
    run = a_run(output='{"a":[1]}', meta='{"user":"ann"}')
    assert RUN.show(run).meta is not None
    body = json.loads(body_of(entry(queue="slow", worker="w"), End(run)))
    assert body["data"].pop("full") == json.loads(msgspec.json.encode(RUN.show(run)))
    assert body == {
        "type": "run.succeeded",
        "timestamp": "2026-01-01T00:00:00.000Z",
        "data": {
            "id": "r1.3", "run": "r1", "rev": 3, "at": "2026-01-01T00:00:00.000Z", "move": "succeed", "state": "succeeded", "attempt": 1,
            "job": "mail", "queue": "slow", "worker": "w",
        },
    }  # fmt: skip


def test_the_body_of_a_run_that_has_moved_on_tells_only_the_change() -> None:
    data = json.loads(body_of(entry(rev=2), End(a_run(output='"out"'))))["data"]
    assert {"full", "truncated"} & data.keys() == set()
    assert body_of(entry(), None) == body_of(entry(), End(a_run(rev=4)))


@pytest.mark.parametrize(
    ("end_", "left_out"),
    [
        (lambda: End(a_run(output=json.dumps("o" * LIMIT))), ["output"]),
        (lambda: End(a_run(payload=json.dumps("p" * LIMIT), output='"o"')), ["payload", "output"]),
        (lambda: End(a_run(error=Failure("x", "\x01" * 4_000))), None),
        (lambda: End(a_run(), ("output",)), ["output"]),
    ],
)
def test_a_body_is_small(end_: Callable[[], End], left_out: list[str] | None) -> None:
    text = body_of(entry(detail=json.dumps({"reason": "r" * 100})), end_())
    data = json.loads(text)["data"]
    assert len(text.encode()) <= LIMIT
    assert data["truncated"] is True
    assert (data["full"]["left_out"] if "full" in data else None) == left_out
    assert data["detail"] == {"reason": "r" * 100}


def test_a_body_is_small_whatever_the_detail() -> None:
    text = body_of(entry(detail=json.dumps("\x01" * LIMIT)), None)
    assert len(text.encode()) <= LIMIT
    assert json.loads(text)["data"]["truncated"] is True


def test_bodies_hold_what_the_store_has(h: Harness) -> None:
    webhook = add(h)
    h.define("once", max_attempts=1)
    h.create("once")
    failed = h.claimed()
    h.fail(failed, Failure("boom", "it broke"))
    h.create()
    h.succeed(h.claimed(), json.dumps("x" * 30_000))
    make(h)
    bodies = [json.loads(parcel.body)["data"] for parcel in claim(h)]
    assert bodies[0]["full"]["error"]["code"] == "boom"
    assert "truncated" not in bodies[0]
    assert bodies[1]["truncated"] is True
    assert bodies[1]["full"]["left_out"] == ["output"]
    assert [delivery.type for delivery in told(h, webhook)] == ["run.failed", "run.succeeded"]


# Secrets


def test_an_old_secret_ends_at_once_if_so_asked(memory: Harness) -> None:
    webhook = add(memory)
    made = memory(memory.engine.rotate_webhook(webhook.id, overlap=0))
    assert len(made.secrets) == 1
    assert made.secrets != webhook.secrets


def test_no_more_than_a_few_secrets_sign(memory: Harness) -> None:
    webhook = add(memory)
    for _ in range(MAX_SECRETS - 1):
        memory(memory.engine.rotate_webhook(webhook.id))
    with pytest.raises(LimitReached):
        memory(memory.engine.rotate_webhook(webhook.id))
    memory.clock.advance(SECRET_OVERLAP)
    assert len(memory(memory.engine.rotate_webhook(webhook.id)).secrets) == 2


def test_a_secret_of_ones_own(memory: Harness) -> None:
    secret = "whsec_" + base64.b64encode(b"k" * 24).decode()
    assert add(memory, secret=secret).secrets[0].key == secret
    assert secret not in repr(add(memory, secret=secret))


def test_secrets_are_long_and_never_the_same(memory: Harness) -> None:
    set_ground(memory.engine, limits=Limits(webhooks=1_000))
    keys = [add(memory).secrets[0].key for _ in range(100)]
    assert len(set(keys)) == 100
    assert {len(base64.b64decode(key.removeprefix("whsec_"))) for key in keys} == {32}


def test_A6_what_was_not_told_yet_is_not_pruned_for_a_week(h: Harness) -> None:
    """A hub that was away finds what it has to tell."""
    webhook = add(h)
    h.clock.advance(MINUTE)
    end(h, 3)
    h.clock.advance(31 * DAY)
    assert h(h.engine.prune()) == 0
    make(h)
    assert len(told(h, webhook)) == 3
    assert h(h.engine.prune()) == 3
    h.clock.advance(MINUTE)
    end(h, 2)
    h(h.engine.set_webhook(webhook.id, enabled=False))
    h.clock.advance(31 * DAY)
    assert h(h.engine.prune()) == 2  # nobody waits for them
