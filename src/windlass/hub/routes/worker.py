"""The port of workers: claim, beat, report. Their names and tokens are checked by the engine as everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from litestar import post
from litestar.params import JSONBody

from windlass import payload, wire
from windlass.engine import Ask, Engine, Outcome, checks
from windlass.errors import Forbidden, WindlassError
from windlass.hub.requests import HubRequest
from windlass.model import Receipt, WorkerInfo
from windlass.store.base import ALL_QUEUES, queue_topic, worker_topic
from windlass.store.records import Held

TOPICS = 100
_WORK: dict[str, Any] = {"scope": "work", "plain": True}


@post("/api/v1/worker/register", status_code=200, opt=_WORK, summary="A worker introduces itself")
async def register(request: HubRequest, data: JSONBody[wire.RegisterWorker]) -> wire.Done:
    request.caller.check_worker(data.worker.name)
    await request.hub.engine.register(data.worker, about=data.about, schemas=data.schemas)
    return wire.DONE


@post("/api/v1/worker/lives", status_code=200, opt=_WORK, summary="A process of a worker begins; the others of its name")
async def begin_life(request: HubRequest, data: JSONBody[wire.BeginLife]) -> wire.Lives:
    request.caller.check_worker(data.worker)
    if not request.caller.stands_for_worker:
        return wire.Lives([])
    return wire.Lives(await request.hub.engine.begin_life(data.worker, data.life))


@post("/api/v1/worker/lapse", status_code=200, opt=_WORK, summary="Processes of a worker have ended: their leases lapse")
async def end_lives(request: HubRequest, data: JSONBody[wire.EndLives]) -> wire.Lapsed:
    request.caller.check_worker(data.worker)
    if not request.caller.stands_for_worker:
        raise Forbidden(
            "Only a token that is for one worker may end the leases of that worker's processes.",
            hint="Make one with `windlass tokens create NAME --scopes work --worker NAME`, or wait until the leases end.",
        )
    return wire.Lapsed(await request.hub.engine.end_lives(data.worker, data.tags))


@post("/api/v1/worker/leave", status_code=200, opt=_WORK, summary="A process of a worker has ended and holds nothing")
async def leave(request: HubRequest, data: JSONBody[wire.LeaveWorker]) -> wire.Done:
    request.caller.check_worker(data.worker)
    await request.hub.engine.leave(data.worker, data.incarnation)
    return wire.DONE


@post("/api/v1/worker/claim", status_code=200, opt=_WORK, summary="Take runs, or wait for some")
async def claim(request: HubRequest, data: JSONBody[wire.ClaimRuns]) -> wire.Claimed:
    request.caller.check_worker(data.worker.name)
    hub = request.hub
    ends = hub.clock.monotonic() + min(checks.integer(data.wait, "wait", 0, hub.engine.limits.duration), hub.settings.longest_wait)
    while not (runs := await hub.joining.claim(_ask(hub.engine, data))) and (left := ends - hub.clock.monotonic()) > 0:
        with hub.waits.for_one(request.caller):
            heard = await request.unless_gone(hub.engine.wait(_topics(data.worker), left / 1000))
        if heard is None:
            break  # whoever asked is gone: what would be claimed now would be lost until its lease ends
    return wire.Claimed(runs)


def _ask(engine: Engine, data: wire.ClaimRuns) -> Ask:
    return engine.asking(data.worker, count=data.count, lease=data.lease, nonce=data.token)


def _topics(worker: WorkerInfo) -> frozenset[str]:
    """What tells of something to take: its queues, and its own name where it has cores or memory free again."""
    return frozenset({worker_topic(worker.name), *([ALL_QUEUES] if worker.queues is None else map(queue_topic, worker.queues))})


@post("/api/v1/worker/recover", status_code=200, opt=_WORK, summary="What a claim brought whose answer was lost")
async def recover(request: HubRequest, data: JSONBody[wire.RecoverRuns]) -> wire.Claimed:
    request.caller.check_worker(data.worker.name)
    return wire.Claimed(await request.hub.engine.recover(data.worker, data.token))


@post("/api/v1/worker/start", status_code=200, opt=_WORK, summary="Say that runs have begun")
async def start(request: HubRequest, data: JSONBody[wire.StartRuns]) -> wire.Started:
    started = await request.hub.engine.start_many([Held(hold.seq, hold.token) for hold in data.held])
    return wire.Started([wire.Hold(*held) for held in sorted(started)])


@post("/api/v1/worker/beat", status_code=200, opt=_WORK, summary="Renew leases, tell progress, hear of cancels")
async def beat(request: HubRequest, data: JSONBody[wire.BeatRuns]) -> wire.Beaten:
    held = [Held(hold.seq, hold.token) for hold in data.held]
    progress = {held[index]: text for index, text in data.progress.items() if 0 <= index < len(held)}
    await request.read(_check_progress, progress.values(), request.hub.engine.limits.progress)
    return wire.Beaten(await request.hub.engine.beat(held, lease=data.lease, progress=progress))


def _check_progress(texts: Iterable[str], most: int) -> None:
    for text in texts:
        payload.parse(text, most=most, what="The progress")


@post("/api/v1/worker/log", status_code=200, opt=_WORK, summary="Add log lines")
async def log(request: HubRequest, data: JSONBody[wire.AddLines]) -> wire.Done:
    await request.hub.engine.log(data.run, data.token, data.lines, seq=data.seq)
    return wire.DONE


@post("/api/v1/worker/report", status_code=200, opt=_WORK, summary="Say how runs ended")
async def report(request: HubRequest, data: JSONBody[wire.ReportRuns]) -> wire.Receipts:
    read = await request.read(_read_all, data.outcomes, request.hub.engine.limits.output)
    answers = iter(await request.hub.joining.report_many([outcome for outcome in read if isinstance(outcome, Outcome)]))
    settled = [next(answers) if isinstance(outcome, Outcome) else outcome for outcome in read]
    return wire.Receipts([_receipt(view.run, answer) for view, answer in zip(data.outcomes, settled, strict=True)])


def _read_all(views: Sequence[wire.ReportView], most: int) -> list[Outcome | WindlassError]:
    return [_read(view, most) for view in views]


def _read(view: wire.ReportView, most: int) -> Outcome | WindlassError:
    """A report in the engine's words, or what is wrong with it: one that cannot be read does not stop the others."""
    try:
        if view.output is not None:
            payload.parse(view.output, most=most, what="The output")
        return wire.report_of(view)
    except WindlassError as error:
        return error


def _receipt(run: str, answer: Receipt | WindlassError) -> wire.ReceiptView:
    if isinstance(answer, WindlassError):
        return wire.ReceiptView(run, problem=wire.problem_of(answer))
    return wire.ReceiptView(run, answer.state, answer.repeated)


@post("/api/v1/worker/wait", status_code=200, opt=_WORK, summary="Wait until there may be something to do")
async def wait(request: HubRequest, data: JSONBody[wire.WaitFor]) -> wire.Heard:
    hub = request.hub
    checks.count(data.topics, "topics", TOPICS)
    for topic in data.topics:
        checks.name(topic, "A topic")
    timeout = min(checks.integer(data.timeout, "timeout", 0, hub.engine.limits.duration), hub.settings.longest_wait) / 1000
    with hub.waits.for_one(request.caller):
        heard = await request.unless_gone(hub.engine.wait(frozenset(data.topics), timeout))
    return wire.Heard(sorted(heard or ()))


HANDLERS: list[Any] = [register, begin_life, end_lives, leave, claim, recover, start, beat, log, report, wait]
