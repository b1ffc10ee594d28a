"""The port of workers: claim, heartbeat, report. Their names and tokens are checked by the engine as everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from windlass import payload
from windlass.answers import Outcome
from windlass.api import port
from windlass.api.gives import Done
from windlass.api.problems import problem_of
from windlass.engine import ClaimRequest, Engine, checks
from windlass.errors import Forbidden, WindlassError
from windlass.hub.requests import HubRequest
from windlass.model import Receipt, WorkerInfo
from windlass.store.base import ALL_QUEUES, queue_topic, worker_topic
from windlass.store.records import Held

TOPICS = 100


async def register(request: HubRequest, data: port.RegisterWorker) -> Done:
    request.caller.check_worker(data.worker.name)
    await request.hub.engine.register(data.worker.info(), about=data.about, schemas=data.schemas)
    return Done()


async def begin_life(request: HubRequest, data: port.BeginLife) -> port.LivesView:
    request.caller.check_worker(data.worker)
    if not request.caller.stands_for_worker:
        return port.LivesView([])
    return port.LivesView(await request.hub.engine.begin_life(data.worker, data.life))


async def end_lives(request: HubRequest, data: port.EndLives) -> port.Lapsed:
    request.caller.check_worker(data.worker)
    if not request.caller.stands_for_worker:
        raise Forbidden(
            "Only a token that is for one worker may end the leases of that worker's processes.",
            hint="Make one with `windlass tokens create NAME --scopes work --worker NAME`, or wait until the leases end.",
        )
    return port.Lapsed(await request.hub.engine.end_lives(data.worker, data.tags))


async def leave(request: HubRequest, data: port.LeaveWorker) -> Done:
    request.caller.check_worker(data.worker)
    await request.hub.engine.leave(data.worker, data.incarnation)
    return Done()


async def claim(request: HubRequest, data: port.ClaimRuns) -> port.Claimed:
    request.caller.check_worker(data.worker.name)
    hub = request.hub
    ends = hub.clock.monotonic() + min(checks.integer(data.wait, "wait", 0, hub.engine.limits.duration), hub.settings.longest_wait)
    while not (runs := await hub.joining.claim(_ask(hub.engine, data))) and (remaining := ends - hub.clock.monotonic()) > 0:
        with hub.waits.for_one(request.caller):
            topics = await request.unless_gone(hub.engine.wait(_topics(data.worker), remaining / 1000))
        if topics is None:
            break  # the client has gone: runs claimed now would be lost until their lease expires
    return port.Claimed(runs)


def _ask(engine: Engine, data: port.ClaimRuns) -> ClaimRequest:
    return engine.asking(data.worker.info(), count=data.count, lease=data.lease, nonce=data.token)


def _topics(worker: WorkerInfo) -> frozenset[str]:
    """The topics that signal claimable runs: its queues, and its own name for cores or memory that become free."""
    return frozenset({worker_topic(worker.name), *([ALL_QUEUES] if worker.queues is None else map(queue_topic, worker.queues))})


async def recover(request: HubRequest, data: port.RecoverRuns) -> port.Claimed:
    request.caller.check_worker(data.worker.name)
    return port.Claimed(await request.hub.engine.recover(data.worker, data.token))


async def start(request: HubRequest, data: port.StartRuns) -> port.Started:
    started = await request.hub.engine.start_many([Held(hold.seq, hold.token) for hold in data.held])
    return port.Started([port.Hold(*lease) for lease in sorted(started)])


async def beat(request: HubRequest, data: port.BeatRuns) -> port.RenewedLeases:
    leases = [Held(hold.seq, hold.token) for hold in data.held]
    progress = {leases[index]: text for index, text in data.progress.items() if 0 <= index < len(leases)}
    await request.read(_check_progress, progress.values(), request.hub.engine.limits.progress)
    return port.RenewedLeases(await request.hub.engine.beat(leases, lease=data.lease, progress=progress))


def _check_progress(texts: Iterable[str], limit: int) -> None:
    for text in texts:
        payload.parse(text, limit=limit, what="The progress")


async def log(request: HubRequest, data: port.AddLines) -> Done:
    await request.hub.engine.log(data.run, data.token, data.lines, seq=data.seq)
    return Done()


async def store_step(request: HubRequest, data: port.StoreStep) -> port.StoredStep:
    engine = request.hub.engine
    await request.read(_check_step, data.output, engine.limits.step)
    return port.StoredStep(await engine.store_step(data.run, data.token, data.key, data.output, seq=data.seq))


def _check_step(text: str, limit: int) -> None:
    payload.parse(text, limit=limit, what="The result of a step")


async def report(request: HubRequest, data: port.ReportRuns) -> port.Receipts:
    read = await request.read(_read_all, data.outcomes, request.hub.engine.limits.output)
    answers = iter(await request.hub.joining.report_many([outcome for outcome in read if isinstance(outcome, Outcome)]))
    settled = [next(answers) if isinstance(outcome, Outcome) else outcome for outcome in read]
    return port.Receipts([_receipt(view.run, answer) for view, answer in zip(data.outcomes, settled, strict=True)])


def _read_all(views: Sequence[port.ReportView], limit: int) -> list[Outcome | WindlassError]:
    return [_read(view, limit) for view in views]


def _read(view: port.ReportView, limit: int) -> Outcome | WindlassError:
    """A report as the engine takes it, or what is wrong with it: an invalid one does not stop the others."""
    try:
        if view.output is not None:
            payload.parse(view.output, limit=limit, what="The output")
        return port.report_of(view)
    except WindlassError as error:
        return error


def _receipt(run: str, answer: Receipt | WindlassError) -> port.ReceiptView:
    if isinstance(answer, WindlassError):
        return port.ReceiptView(run, problem=problem_of(answer))
    return port.ReceiptView(run, answer.state, answer.repeated)


async def wait(request: HubRequest, data: port.WaitFor) -> port.WokenTopics:
    hub = request.hub
    checks.count(data.topics, "topics", TOPICS)
    for topic in data.topics:
        checks.name(topic, "A topic")
    timeout = min(checks.integer(data.timeout, "timeout", 0, hub.engine.limits.duration), hub.settings.longest_wait) / 1000
    with hub.waits.for_one(request.caller):
        topics = await request.unless_gone(hub.engine.wait(frozenset(data.topics), timeout))
    return port.WokenTopics(sorted(topics or ()))


async def worker_metrics(request: HubRequest, data: port.TellMetrics) -> Done:
    request.caller.check_worker(data.worker)
    await request.hub.engine.worker_metrics(data.worker, data.metrics)
    return Done()


HANDLERS = {
    handler.__name__: handler
    for handler in (register, begin_life, end_lives, leave, claim, recover, start, beat, log, store_step, report, wait, worker_metrics)
}
