"""A process that does a bit of everything, to be killed at any point of it.

`python -m tests.kill_child` reads requests from its standard input, one JSON object a line, and forks for each: so that a round costs
a few milliseconds instead of the start of an interpreter. With arguments it does one round itself, with the faults of its environment.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Collection, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from tests.grounds import set_ground
from tests.ledger import Ledger
from windlass import model
from windlass.clock import ManualClock
from windlass.engine import Engine
from windlass.errors import Cancelled
from windlass.faults import FAULTS
from windlass.machine import Fail, Report, Requeue, Snooze, Succeed
from windlass.model import Failure, Group, GroupKind, Key, Limits, Member, NewGroup, NewRun, Notify, Options, Rate, Run, Use, WorkerInfo
from windlass.steady import Scale
from windlass.store.base import Statement, Store, run_sync
from windlass.store.postgres import AsyncPostgres, BlockingPostgres
from windlass.store.records import Held
from windlass.store.records.webhooks import BROKEN
from windlass.store.sqlite import AsyncSqlite, BlockingSqlite
from windlass.webhooks import STANDARD

T = TypeVar("T")

HOUR, DAY = 3600 * 1000, 24 * 3600 * 1000
BOOM = Failure("boom", "it broke")
WORKER = WorkerInfo("child", slots=100)
TOGETHER = WorkerInfo("together", queues=("together",), slots=100)
LIMITED = WorkerInfo("limited", queues=("limited",), slots=100)


def open_store(kind: str, where: str, clock: ManualClock, **how: Any) -> Store:
    return BlockingPostgres(where, clock, **how) if kind == "postgres" else BlockingSqlite(where, clock, **how)


class InTransaction:
    """A store that is taken for a caller's transaction, each batch of it for one that is committed at once."""

    def __init__(self, store: Store) -> None:
        self.batch, self.close = store.batch, store.close

    async def notify(self, topics: Collection[str]) -> None:
        pass


class Life:
    """An application and its worker in one; whatever they are told goes into the ledger."""

    def __init__(self, store: Store, clock: ManualClock, ledger: Path) -> None:
        self.engine, self.clock, self.ledger = Engine(store, clock), clock, Ledger(ledger)

    def __call__(self, verb: Coroutine[Any, Any, T]) -> T:
        return run_sync(verb)

    def create(self, job: str = "job", key: Key | None = None, **fields: Any) -> str:
        (made,) = self(self.engine.create([NewRun(job, key=key, **fields)], undefined="wait"))
        self.ledger.write("E", made.id, *([key.name] if key else []))
        return made.id

    def claim(self, count: int = 1, lease: int = 30_000) -> list[Run]:
        """Several by two claims that are made together."""
        parts = (count - 1, 1) if count > 1 else (1,)
        asks = [self.engine.asking(WORKER, count=part, lease=lease, nonce=self.clock.nonce()) for part in parts]
        runs = [run for answer in self(self.engine.claim_many(asks)) if isinstance(answer, list) for run in answer]
        assert len(runs) == count, f"{len(runs)} of {count} runs"
        return runs

    def execute(self, run: Run) -> None:
        self.ledger.write("S", run.id, run.token)
        self(self.engine.start(run.id, run.token or ""))
        self.ledger.write("X", run.id, run.token)

    def report(self, run: Run, report: Report) -> None:
        receipt = self(self.engine.report(run.id, report))
        self.ledger.write("R", run.id, run.token, receipt.state)

    def succeed(self, run: Run) -> None:
        self.execute(run)
        self.report(run, Succeed(token=run.token, output='"done"'))

    def cancel(self, run_id: str) -> None:
        self(self.engine.cancel(run_id, reason="not wanted"))
        self.ledger.write("C", run_id)


def scenario(life: Life) -> None:
    """Every verb there is, so that every point is passed."""
    life(life.engine.define("job", options=Options(backoff=(1_000,), grace=5_000), schema={"title": "anything"}))
    life(life.engine.register(WORKER))
    life(life.engine.records.scales.keep_scale(Scale("boot", 0, None, None, 0)))
    life(life.engine.worker_metrics(WORKER.name, {"load": 1}))
    life(life.engine.seen(WORKER.name))
    take_over(life)
    let_old_runs_go(life)
    let_unused_go(life)
    work_in_groups(life)
    join_a_transaction(life)
    use_keys(life)
    announce(life)
    report_in_every_way(life)
    edit(life)
    rearrange(life)
    let_time_pass(life)
    keep_for_a_while(life)
    follow_a_schedule(life)
    keep_within_limits(life)
    let_people_in(life)
    tell_a_receiver(life)
    tell_whom_runs_name(life)
    read_a_copy(life)


def take_over(life: Life) -> None:
    """A process of the worker is gone, and another one does what it held."""
    former = model.Life("f" * model.LIFE_TAG, "somewhere")
    life(life.engine.begin_life(WORKER.name, former))
    run_id = life.create()
    life(life.engine.claim(WORKER, token=former.tag + life.clock.nonce()))
    assert life(life.engine.end_lives(WORKER.name, [former.tag])) == 1
    life(life.engine.leave(WORKER.name, 0))
    life.clock.advance(5_000)
    life(life.engine.sweep())
    life.succeed(*life.claim())
    life.ledger.write("O", run_id)  # it will be pruned


def let_old_runs_go(life: Life) -> None:
    first = life.create(key=Key("old"))
    second = life.create(after=(first,), key=Key("short", ttl=1_000))
    (run,) = life.claim()
    life(life.engine.log(run.id, run.token or "", [(1, "a line")]))
    life.ledger.write("L", run.id, run.token, 1)
    do_a_step(life, run, "charge")
    life.report(run, Requeue(token=run.token))
    for _ in range(2):
        life.succeed(*life.claim())
    for run_id in (first, second):
        life.ledger.write("O", run_id)
    life(life.engine.roll_up())  # as a hub does every second: what is counted may go
    life.clock.advance(31 * DAY)
    life(life.engine.prune())


def let_unused_go(life: Life) -> None:
    """Lanes, a resource and a job that nobody uses any more; another lane is used again just in time."""
    engine = life.engine
    for job, queue, uses in (("nobody's", "nobody's", (Use("nobody's"),)), ("job", "default", None)):
        (made,) = life(engine.create([NewRun(job, options=Options(queue=queue, uses=uses))], undefined="wait"))
        life.ledger.write("E", made.id)
        life.ledger.write("O", made.id)
        life.succeed(*life.claim())
    life(engine.roll_up())
    life.clock.advance(31 * DAY)
    life(engine.prune())
    life(engine.tidy())
    life.clock.advance(DAY + HOUR)
    life(engine.tidy())
    life.ledger.write("O", life.create())
    life.succeed(*life.claim())


def join_a_transaction(life: Life) -> None:
    first, second = life.create(), life.create()
    done, failed = life.claim(2)
    life.succeed(done)
    life.report(failed, Fail(token=failed.token, error=BOOM, retry=False))
    caller = life.engine.on(InTransaction(life.engine.records.store))
    for before in (first, second):
        (made,) = life(caller.create([NewRun("job", after=(before,))]))
        life.ledger.write("E", made.id)
    life(life.engine.settle())
    life.succeed(*life.claim())


def use_keys(life: Life) -> None:
    for ttl in (Key("a"), Key("b", ttl="forever"), Key("c", ttl=DAY)):
        assert life.create(key=ttl) == life.create(key=ttl)
    for run in life.claim(3):
        life.succeed(run)
    life.create(key=Key("a"))  # free again, since its run has ended
    life.succeed(*life.claim())


def announce(life: Life) -> None:
    """A dispatcher sends what is queued, and reads again when a worker has taken it."""
    life.create()
    runs = life(life.engine.to_announce("default", resend=1_000))
    assert life(life.engine.announce(runs, resend=1_000))
    life.succeed(*life.claim())
    life.clock.advance(1_000)
    life(life.engine.to_announce("default", resend=1_000))


def do_a_step(life: Life, run: Run, key: str) -> None:
    """Store the result of a step, or learn what is stored; what the store answers stays true."""
    step = life(life.engine.store_step(run.id, run.token or "", key, str(run.attempt), seq=run.seq))
    life.ledger.write("D", run.id, step.key, step.output)


def report_in_every_way(life: Life) -> None:
    ids = [life.create(options=Options(max_attempts=2)) for _ in range(4)]
    life.create(after=(ids[0], ids[1]))
    life.create(after=(ids[3],))
    good, again, later, bad = life.claim(4)
    life(life.engine.records.claims.correct([good], life.clock.now()))  # as where the server's time was another
    life(life.engine.beat([Held(run.seq, run.token or "") for run in (good, again, later, bad)], lease=60_000))
    do_a_step(life, good, "charge")
    do_a_step(life, again, "charge")
    life.succeed(good)
    life.report(again, Fail(token=again.token, error=BOOM, delay=0))
    life(life.engine.patch(again.id, payload=8))
    life.ledger.write("P", again.id, 8)
    life.report(later, Snooze(token=later.token, delay=500))
    life.report(bad, Fail(token=bad.token, error=BOOM, retry=False))
    life.create(after=(good.id,))
    for run in life.claim(2):
        do_a_step(life, run, "charge")
        do_a_step(life, run, "ship")
        life.succeed(run)
    life.create("ghost")  # nobody has defined it; it waits for whoever takes it


def edit(life: Life) -> None:
    waiting, skipped, patched = (life.create(due_at=life.clock.now() + 10_000) for _ in range(3))
    life.create(after=(skipped,))
    life.cancel(waiting)
    life(life.engine.skip(skipped, reason="not needed"))
    life.ledger.write("K", skipped)
    life(life.engine.patch(patched, payload=7, due_at=life.clock.now() + 20_000))
    life.ledger.write("P", patched, 7)
    made = life(life.engine.rerun(waiting))
    life.ledger.write("E", made.id)
    runs = life.claim(3)  # the consumer of the one given back, the ghost, and the rerun
    life.cancel(runs[0].id)
    try:
        life.report(runs[0], Succeed(token=runs[0].token))
    except Cancelled:
        life.ledger.write("C", runs[0].id)
    life.succeed(runs[1])


def rearrange(life: Life) -> None:
    """Moves, one of which needs a neighbour to make room."""
    first, second, third = [life.create(options=Options(queue="line")) for _ in range(3)]
    life(life.engine.move(third, before=second))
    life(life.engine.move(first, to="bottom"))
    for run_id in (first, second, third):
        life.cancel(run_id)


def work_in_groups(life: Life) -> None:
    """A chain whose first run fails, a diamond that goes well, one that is cancelled, and a rerun of it; all of them called at the end."""
    job = NewRun("job", options=Options(queue="together", max_attempts=1))

    groups: list[Group] = []

    def group(kind: GroupKind, *after: tuple[str, ...], **how: Any) -> Group:
        members = tuple(Member(job, str(n), names) for n, names in enumerate(after))
        made = life(life.engine.create_group(NewGroup(members, kind, callback=replace(job, meta={"of": kind}), **how)))
        groups.append(made)
        for run in life(life.engine.members(made.id)):
            life.ledger.write("E", run.id)
        return made

    def take(count: int) -> list[Run]:
        runs = life(life.engine.claim(TOGETHER, count=count, nonce=life.clock.nonce()))
        assert len(runs) == count, f"{len(runs)} of {count} runs"
        return runs

    group("sequential", (), (), (), key=Key("chain", ttl="forever"))
    (first,) = take(1)
    life.report(first, Fail(token=first.token, error=BOOM))
    life.succeed(*take(1))
    group("graph", (), ("0",), ("0",), ("1", "2"), on_failure="skip")
    for count in (1, 2, 1, 1):
        for run in take(count):
            life.succeed(run)
    unwanted = group("graph", (), ("0",), on_failure="continue")
    life(life.engine.cancel_group(unwanted.id, reason="not wanted"))
    life.succeed(*take(1))
    again = life(life.engine.rerun_group(unwanted.id))
    for _ in range(3):
        life.succeed(*take(1))
    assert life(life.engine.get_group(again.id)).status == "completed"
    for one in groups:
        for run in life(life.engine.members(one.id)):
            life.ledger.write("O", run.id)
    life(life.engine.roll_up())
    life.clock.advance(31 * DAY)
    life(life.engine.prune())


def let_time_pass(life: Life) -> None:
    life.create(options=Options(max_attempts=1))
    life.create(options=Options(max_runtime=2_000))
    life.create()
    runs = life.claim(3, lease=1_000)
    life.create(after=(runs[0].id,))
    for run in runs:
        life.execute(run)
    life.cancel(runs[2].id)
    life.clock.advance(900)
    life(life.engine.beat([Held(runs[1].seq, runs[1].token or "")], lease=10_000))
    life.clock.advance(200)
    life(life.engine.sweep())  # one lapses and ends, one is looked at later, what is due is queued
    life.clock.advance(30_000)
    life(life.engine.sweep())  # one has run for too long, one was cancelled and never confirmed


def keep_for_a_while(life: Life) -> None:
    """A run with a time of its own, and how long the others are kept: as somebody sets it, and as this process was told."""
    life.engine.parts.ground.keeps = {"keep_others": 30 * DAY}
    life(life.engine.set_retention(keep_succeeded=7 * DAY, by="ann"))
    run_id = life.create(options=Options(queue="brief", keep=HOUR))
    life.succeed(*life(life.engine.claim(WorkerInfo("brief", queues=("brief",), slots=100))))
    life.ledger.write("O", run_id)
    life(life.engine.roll_up())
    life.clock.advance(2 * HOUR)
    life(life.engine.prune())


def follow_a_schedule(life: Life) -> None:
    life(life.engine.schedule("tick", "job", every="1m", missed="all", overlap="queue"))
    life(life.engine.set_schedule("tick", payload={"n": 1}))
    for _ in range(3):  # a run, one that waits for it, and an instant that is skipped because one waits already
        life.clock.advance(60_000)
        life(life.engine.sweep())
    life.clock.advance(60_000)
    life(life.engine.set_schedule("tick", enabled=False))  # what is due then is skipped in the same batch
    life(life.engine.remove_schedule("tick"))


def tell_a_receiver(life: Life) -> None:
    """Deliveries that are taken, refused, given up, sent again, removed; an endpoint that breaks, and one that is gone."""
    set_ground(life.engine, limits=Limits(deliver_within=2 * HOUR, keep_deliveries=2 * HOUR))
    taker = life(life.engine.add_webhook("https://example.com/taker", delays=(0,) * BROKEN))
    gone = life(life.engine.add_webhook("https://example.com/gone"))
    for _ in range(2):
        life.cancel(life.create())
    life(life.engine.make_deliveries(STANDARD.content(life.engine)))
    for _ in range(BROKEN):  # the last refusal breaks it
        for delivery, webhook, _ in life(life.engine.claim_deliveries(10, 1_000, each=1)):
            life(life.engine.not_delivered(delivery.id, delivery.token or "", "no", gone=webhook.id == gone.id))
    life.clock.advance(HOUR)
    ((probe, _, _),) = life(life.engine.claim_deliveries(10, 1_000))
    life(life.engine.delivered(probe.id, probe.token or "", 200))
    life(life.engine.resend(probe.id))
    for _ in range(2):  # given up, then removed
        life.clock.advance(3 * HOUR)
        life(life.engine.prune())
    life.cancel(life.create())
    life(life.engine.make_deliveries(STANDARD.content(life.engine)))
    life(life.engine.remove_webhook(taker.id))
    life(life.engine.remove_webhook(gone.id))


def tell_whom_runs_name(life: Life) -> None:
    """A run and a group that name an address; a delivery that is sent again when its origin was removed."""
    set_ground(life.engine, limits=Limits(deliver_within=2 * HOUR, keep_deliveries=DAY))
    notify = Notify("https://example.com/run")
    run_id = life.create(notify=notify)
    life.cancel(run_id)
    group = life(life.engine.create_group(NewGroup((Member(NewRun("job", notify=notify)),))))
    for run in life(life.engine.members(group.id)):
        life.ledger.write("E", run.id)
    life(life.engine.cancel_group(group.id, reason="not wanted"))
    while life(life.engine.make_deliveries(STANDARD.content(life.engine))):
        pass
    for delivery, *_ in life(life.engine.claim_deliveries(10, 1_000)):
        life(life.engine.delivered(delivery.id, delivery.token or "", 200))
    life.clock.advance(HOUR)
    life(life.engine.prune())
    life(life.engine.resend(life(life.engine.deliveries_of(run_id))[0].id))


def keep_within_limits(life: Life) -> None:
    """Runs that are parked for a key or for a rate and come back by an end, a lapse, a sweep; direct calls; and what people control."""
    engine = life.engine
    life(engine.define("keyed", options=Options(queue="limited", uses=(Use("gpu"), Use("customer", per="customer")), backoff=(0,))))
    life(engine.set_resource("gpu", capacity=2))
    life(engine.set_resource("api", rates=(Rate(1, 1_000),)))
    life(engine.define("rated", options=Options(queue="limited", uses=(Use("api", per="customer"),))))
    life(engine.set_resource("spare", capacity=1))
    life(engine.drop_resource("spare"))

    def take(count: int, lease: int = 30_000) -> list[Run]:
        runs = life(engine.claim(LIMITED, count=10, lease=lease, nonce=life.clock.nonce()))
        assert len(runs) == count, f"{len(runs)} of {count} runs"
        return runs

    for job in ("keyed", "keyed", "keyed", "rated", "rated"):
        life.create(job, payload={"customer": 1})
    keyed, rated = take(2)  # the others are parked
    life.succeed(rated)
    life.succeed(keyed)
    take(1, lease=1_000)
    life.clock.advance(1_000)
    life(engine.sweep())  # the lease lapses, and the rate lets the next one in
    again, rated = take(2)
    life.succeed(rated)
    engine.parts.ground.lanes.limited = (
        False  # as in a process that has not heard of limits yet: a hold is left behind, and one stays parked
    )
    life.succeed(again)
    engine.parts.ground.lanes.limited = True
    life(engine.parts.parking.tidy())
    life(engine.sweep())
    slot = life(engine.reserve("gpu", lease=1_000))
    life(engine.renew(slot.id, slot.token, lease=1_000))
    life.succeed(*take(1))
    life(engine.release(slot.id, slot.token))
    life(engine.reserve("gpu", weight=2, lease=1_000))
    life.clock.advance(2 * HOUR)
    life(engine.sweep())
    life(engine.parts.parking.tidy())
    life(engine.pause("queue", "nobody's"))
    life(engine.resume("queue", "nobody's"))
    life(engine.set_queue("nobody's", aging=1_000))
    life(engine.set_queue("nobody's", aging=None))


def read_a_copy(life: Life) -> None:
    """A journal that was restored on another server: its entries are settled, and those who follow it go on from its end."""
    records = life.engine.records
    life(records.batches.batch("begin_again", Statement("settle_journal", {"xid": "1"})))
    life(life.engine.follow("copy"))
    _, rev = life(records.journal.consumer("copy")) or ("", 0)
    life(records.journal.advance("begin_again", "copy", (rev, life(life.engine.tail_end()), life.clock.now()), ()))


def let_people_in(life: Life) -> None:
    """Tokens that are made, used, rotated, revoked, forgotten; somebody who signs in; and the audit of it."""
    token, secret = life(life.engine.by("root", "create", "token").create_token("ann", ["admin"]))
    life(life.engine.find_token(secret))
    life.clock.advance(1)
    life(life.engine.by("root", "rotate", "token").rotate_token(token.id, overlap=0))
    life(life.engine.by("root", "revoke", "token").revoke_token(token.id))
    life(life.engine.sign_in(life(life.engine.invite("bob", ["read"]))))
    for drop in (life.engine.records.access.drop_audit, life.engine.records.access.drop_tokens):
        life(drop(life.clock.now() + 1, 100))


def write_much(life: Life) -> None:
    """So much that the log is copied into the file."""
    life(life.engine.define("job"))
    for _ in range(60):
        life.create(payload="x" * 250_000)


async def crowd(store: Store, clock: ManualClock, ledger: Ledger) -> None:
    """Many at once, whose batches are joined into one commit where a store does that."""
    engine = Engine(store, clock)
    await engine.define("job")

    async def one(n: int) -> None:
        for _ in range(5):
            (made,) = await engine.create([NewRun("job")])
            ledger.write("E", made.id)
            for run in await engine.claim(WorkerInfo(f"w{n}")):
                ledger.write("S", run.id, run.token)
                ledger.write("X", run.id, run.token)
                receipt = await engine.report(run.id, Succeed(token=run.token))
                ledger.write("R", run.id, run.token, receipt.state)

    await asyncio.gather(*(one(n) for n in range(8)))
    await store.close()


def live(kind: str, where: str, ledger: str, which: str) -> None:
    """One life, from the first definition to the last sweep."""
    clock = ManualClock(seed=1)
    if which == "crowd":
        make = AsyncPostgres if kind == "postgres" else AsyncSqlite
        asyncio.run(crowd(make(where, clock), clock, Ledger(Path(ledger))))
        return
    store = open_store(kind, where, clock)
    life = Life(store, clock, Path(ledger))
    write_much(life) if which == "much" else scenario(life)
    run_sync(store.close())


def count_visits() -> Counter[str]:
    """From here on, how often each point is passed."""
    visits = Counter[str]()

    def hit(point: str) -> None:
        visits[point] += 1

    FAULTS.on, FAULTS.hit = True, hit  # type: ignore[method-assign]
    return visits


def serve() -> None:
    """Fork for each request and say how the child ended: the signal that killed it, or what it passed."""
    for line in sys.stdin:
        request = json.loads(line)
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            _one_life(request, writing)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            said = pipe.read()
        status = os.waitpid(pid, 0)[1]
        answer = {"signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, "said": said.decode()}
        print(json.dumps(answer), flush=True)


def _one_life(request: dict[str, Any], writing: int) -> None:
    faults, arguments = request["faults"], request["life"]
    visits = Counter[str]()
    try:
        if faults:
            FAULTS.arm(faults)
        else:
            visits = count_visits()
        live(*arguments)
        os.write(writing, json.dumps(visits).encode())
    except BaseException as error:
        os.write(writing, repr(error).encode())
    os._exit(0)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        live(*sys.argv[1:])
    else:
        serve()
