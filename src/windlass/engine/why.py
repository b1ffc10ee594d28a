"""Why a run is not executed: everything that blocks it, by the same rules as a claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from windlass.answers import Reason
from windlass.durations import span
from windlass.engine.ground import Ground, Part
from windlass.engine.heads import Heads, all_needs
from windlass.engine.lanes import OpenLanes
from windlass.engine.runs import Runs
from windlass.limiters import Blocker, Limiter, Selector, lacks, needs, owner_of, parts_of, worker_needs
from windlass.machine import ENDED, LIVE, REFUSED_FOR, last_refused
from windlass.model import Lane, Pause, Run, State, WorkerInfo
from windlass.needs import open_to
from windlass.store.records.claims import FIRST

_AHEAD = 1_000
_VIEWS = 8  # kinds of workers that are considered


class Why(Part):
    """The verb that explains why a run waits."""

    def __init__(self, ground: Ground, runs: Runs, heads: Heads) -> None:
        super().__init__(ground)
        self._runs, self._heads = runs, heads

    async def why(self, run_id: str) -> list[Reason]:
        """Everything that blocks a run now; empty if a suitable worker would get it with its next claim."""
        run = await self._runs.get(run_id)
        match run.state:
            case State.WAITING:
                return [*await self._why_waiting(run), *await self._why_paused(run)]
            case State.SCHEDULED:
                due = Reason("not_due", f"It is due in {span(max(0, run.due_at - self.clock.now()))}.", {"due_at": run.due_at})
                return [due, *await self._why_refused(run), *await self._why_paused(run)]
            case State.QUEUED:
                reasons = [*await self._why_paused(run), *await self._why_queued(run)]
                return [*await self._why_refused(run), *reasons] if reasons else []
            case _ if run.state in LIVE:
                held = Reason("held", f"Worker {run.worker} has it.", {"worker": run.worker, "lease_until": run.lease_until})
                return [held, *_lease_over(run, self.clock.now())]
            case _:
                return [Reason("ended", f"It has ended: {run.state}.", {"state": run.state, "reason": run.reason})]

    async def why_not(self, run: Run, worker: WorkerInfo) -> list[Reason]:
        """What keeps a worker from claiming a run that is queued, whatever is ahead of it."""
        paused = await self._why_paused(run)
        await self.ground.refresh_lanes()
        lane = await self.ground.lane_of(run)
        able = [worker] if open_to(lane, worker) else []
        reasons = paused if able else [*paused, _not_taken(lane, worker)]
        limited, _, _ = await self._why_limited(run, lane, able)
        busy = worker.slots == 1 and await self.records.claims.busy(worker.name)
        text = f"Worker {worker.name} has one slot, which is taken."
        return [*reasons, *limited, *([Reason("worker_busy", text, {"worker": worker.name})] if busy else [])]

    async def _why_waiting(self, run: Run) -> list[Reason]:
        if (group := await self.records.groups.of_callback(run.id)) is not None:
            left = group.total - group.succeeded - group.failed - group.cancelled
            text = f"It is called at the end of group {group.id}, of which {left} of {group.total} have not ended."
            return [Reason("waits_for_group", text, {"group": group.id, "left": left, "total": group.total})]
        before = await self.records.runs.predecessors(run.seq, 100)
        reasons = [
            Reason("waits_for", f"It waits for run {other}, which is {state}.", {"run": other, "state": state})
            for other, state, _ in before
            if state not in ENDED
        ]
        if not reasons and len(before) < 100:
            return [Reason("unsettled", "Its predecessors have ended; the next sweep releases or cancels it.", {})]
        return reasons

    async def _why_refused(self, run: Run) -> list[Reason]:
        """That its payload does not fit the code of some workers, if its last attempt was refused for that."""
        refused = last_refused(run)
        if refused is None:
            return []
        now, lane = self.clock.now(), await self.ground.lane_of(run)
        alive = await self.records.workers.schemas_seen(now - self.limits.worker_silence)
        schemas = {worker.name: schemas.get(run.handler) for worker, schemas in alive if open_to(lane, worker)}
        others = sorted(name for name, schema in schemas.items() if schema not in refused.schemas)
        until = refused.since + REFUSED_FOR
        times = "once" if refused.count == 1 else f"{refused.count} times in {span(max(0, now - refused.since))}"
        text = f"Its payload does not fit the code of worker {refused.worker} (schema {refused.schemas[-1]}) and was refused {times}. "
        if others:
            text += f"{len(others)} of {len(schemas)} live workers that take it may have code that it fits ({', '.join(others[:_VIEWS])}). "
        else:
            text += "No live worker has other code. "
        text += f"It fails with the next refusal after {span(max(0, until - now))}, or when all live workers have refused it."
        data = {"schemas": refused.schemas, "count": refused.count, "since": refused.since, "until": until, "workers": schemas}
        return [Reason("refused", text, data)]

    async def _why_paused(self, run: Run) -> list[Reason]:
        await self.ground.refresh_controls()
        return [_paused(pause) for pause in self.ground.controls.paused(await self.ground.lane_of(run))]

    async def _why_queued(self, run: Run) -> list[Reason]:
        """What the claim of the worker that would reach it first meets before it."""
        await self.ground.refresh_lanes()
        lane, now = await self.ground.lane_of(run), self.clock.now()
        alive = await self.records.workers.seen(now - self.limits.worker_silence)
        able = [worker for worker in alive if open_to(lane, worker)]
        limited, short, limiters = await self._why_limited(run, lane, able)
        reasons = limited if able else [_no_worker(lane, alive), *limited]
        views = [await self._before(run, lanes, limiters, Selector(now, worker)) for worker, lanes in self._ways(lane, short)]
        return [*reasons, *min(views, key=len, default=[])]

    async def _why_limited(
        self, run: Run, lane: Lane, able: Sequence[WorkerInfo]
    ) -> tuple[list[Reason], dict[WorkerInfo, list[Blocker]], dict[str, Limiter]]:
        """The limits that do not admit a run now, what each of these workers is short of, and the limiters as they were read."""
        now, reasons = self.clock.now(), list[Reason]()
        shared = needs(lane.requires.uses, run.keys)
        own = {worker: worker_needs(lane.requires, run.keys, worker.name) for worker in able}
        limiters = await self.ground.limiters_of({need.key for some in (shared, *own.values()) for need in some}, now, able)
        missing = lacks(shared, limiters, frozenset())
        reasons += [await self._why_lacking(lack) for lack in missing]
        short = {worker: lacks(own[worker], limiters, frozenset()) for worker in able}
        if able and all(short.values()):
            reasons += [await self._why_short(what, short) for what in _short_of(short)]
        if run.parked is not None and not missing:
            reasons.append(
                Reason("parked", "It was parked until its key is free, and will be queued again at once.", _limiter_data(run.parked))
            )
        return reasons, short, limiters

    def _ways(self, lane: Lane, short: Mapping[WorkerInfo, list[Blocker]]) -> list[tuple[WorkerInfo | None, OpenLanes]]:
        """The workers whose claims may reach a run of a lane, those with room first, and the lanes that they may take from."""
        ways = dict[tuple[int | str, ...], tuple[WorkerInfo | None, OpenLanes]]()
        for worker in sorted(short, key=lambda worker: len(short[worker])):
            if any(lanes := self.ground.open_lanes(worker)):
                alone = [worker.name] if any(one.requires.cores or one.requires.memory for one in lanes.limited) else []
                ways.setdefault((*lanes.plain, *(-one.id for one in lanes.limited), *alone), (worker, lanes))
        only = OpenLanes([], [lane]) if lane.requires.limited else OpenLanes([lane.id], [])
        return list(ways.values())[:_VIEWS] or [(None, only)]

    async def _before(self, run: Run, lanes: OpenLanes, limiters: Mapping[str, Limiter], choice: Selector) -> list[Reason]:
        """The runs of these lanes that a claim would take, or keep resources for, before it reaches a run."""
        heads = (await self._heads.look(lanes, choice, FIRST, _AHEAD)).views[0].heads
        ahead = [head for head in heads if head.place < (run.priority_key, run.position, run.seq)]
        candidates = await self._heads.candidates(choice, ahead)
        choice.offer(candidates, len(candidates))
        reasons = []
        if number := len(choice.runs):
            more = " or more" if len(ahead) >= _AHEAD else ""
            reasons.append(Reason("behind", f"{number}{more} are ahead of it.", {"ahead": number}))
        needs = all_needs((await self.ground.lane_of(run)).requires, run.keys, choice)
        kept = [lack for lack in lacks(needs, limiters, choice.kept) if lack.why == "kept"]
        text = "{} is kept for a run ahead of it that needs more than is free."
        return reasons + [Reason("kept", text.format(_limiter_name(lack.need.key)), _limiter_data(lack.need.key)) for lack in kept]

    async def _why_short(self, what: str, short: Mapping[WorkerInfo, list[Blocker]]) -> Reason:
        """That no worker which takes a run has enough cores or memory free."""
        lacking = [(worker, lack) for worker, some in short.items() for lack in some if owner_of(lack.need.key)[0] == what]
        free = {worker.name: max(0, (lack.limiter.resource.capacity or 0) - lack.limiter.held) for worker, lack in lacking}
        worker, lack = max(lacking, key=lambda pair: free[pair[0].name])
        capacity, holders = lack.limiter.resource.capacity, await self.records.limiters.holders(lack.limiter.key, 10)
        text = f"It needs {_amount(what, lack.need.weight)}, and worker {worker.name} has {free[worker.name]:,} of {capacity:,} free"
        text += f" beside run {', run '.join(holder.run for holder in holders)}" if holders else ""
        text += f"; none of the {len(free):,} workers that are short of it has more" if len(free) > 1 else ""
        data = {"resource": what, "needs": lack.need.weight, "capacity": capacity, "worker": worker.name, "free": free[worker.name]}
        return Reason("worker_full", f"{text}.", {**data, "runs": [holder.run for holder in holders]})

    async def _why_lacking(self, lack: Blocker) -> Reason:
        limiter, need = lack.limiter, lack.need
        what, data = _limiter_name(limiter.key), {**_limiter_data(limiter.key), "needs": need.weight, "capacity": limiter.resource.capacity}
        if lack.why == "impossible":
            return Reason("impossible", f"It needs {need.weight} of {what}, which never has that much.", data)
        if lack.why == "rate":
            left = span(max(0, lack.until - self.clock.now()))
            return Reason("rate", f"The rate of {what} lets the next one in after {left}.", {**data, "until": lack.until})
        runs, slots = await self.records.limiters.holders(limiter.key, 10), await self.records.slots.at(limiter.key, 10)
        by = [f"run {holder.run}" for holder in runs] + [f"a direct call{f' of {slot.actor}' if slot.actor else ''}" for slot in slots]
        data |= {"held": limiter.held, "runs": [holder.run for holder in runs], "slots": [slot.id for slot in slots]}
        if sum(holder.weight for holder in runs) + need.weight <= (limiter.resource.capacity or 0):
            return Reason("reserved", f"{what} is kept for {', '.join(by)}.", data)
        return Reason(
            "full", f"{limiter.held} of {limiter.resource.capacity} of {what} are occupied, by {', '.join(by) or 'nothing now'}.", data
        )


def _amount(what: str, number: int) -> str:
    return f"{number:,} MiB of memory" if what == "memory" else f"{number:,} core{'s' if number > 1 else ''}"


def _short_of(short: Mapping[WorkerInfo, list[Blocker]]) -> list[str]:
    return sorted({owner_of(lack.need.key)[0] for some in short.values() for lack in some})


def _limiter_data(key: str) -> dict[str, Any]:
    what, worker = owner_of(key)
    resource, value = parts_of(what)
    return {"resource": resource, "key": value} if worker is None else {"resource": what, "worker": worker}


def _limiter_name(key: str) -> str:
    what, worker = owner_of(key)
    if worker is not None:
        return f"What is free of the {what} of worker {worker}"
    resource, value = parts_of(key)
    return repr(resource) if value is None else f"{resource!r} for {value!r}"


def _lease_over(run: Run, now: int) -> list[Reason]:
    if run.lease_until is None or run.lease_until > now or run.lease is None:
        return []
    text = (
        f"Its lease has been over for {span(now - run.lease_until)}. A worker or a hub on the store itself recovers it when it has run for "
        f"{span(run.lease)}, a burst when it stays for that long, and a new process of worker {run.worker} at once if the former is gone."
    )
    return [Reason("lease_over", text, {"worker": run.worker, "since": run.lease_until, "lease": run.lease})]


def _paused(pause: Pause) -> Reason:
    what = "Everything" if pause.scope == "system" else f"The {pause.scope} {pause.name!r}"
    reason = f": {pause.reason}" if pause.reason else ""
    by = f" by {pause.actor}" if pause.actor else ""
    data = {"scope": pause.scope, "name": pause.name, "at": pause.at, "actor": pause.actor, "reason": pause.reason}
    return Reason("paused", f"{what} is paused{by}{reason}.", data)


def _no_worker(lane: Lane, alive: Sequence[WorkerInfo]) -> Reason:
    data = _lane_data(lane)
    if not alive:
        return Reason("no_worker", "No worker is running. Start one: windlass work MODULE:APP", data)
    text = f"None of the {len(alive)} live workers takes {_work(lane)}"
    if lane.requires.handler is not None and not any(worker.jobs is None or lane.handler in worker.jobs for worker in alive):
        text += f"; no worker has the handler {lane.handler!r}"
    light = replace(lane, requires=replace(lane.requires, cores=0, memory=0))
    others = [worker for worker in alive if open_to(light, worker)]
    for what in ("cores", "memory") if others else ():
        number, limit = getattr(lane.requires, what), max(getattr(worker, what) for worker in others)
        text += f"; it needs {_amount(what, number)}, and none has more than {limit:,}" if number > limit else ""
    return Reason("no_worker", f"{text}.", data)


def _not_taken(lane: Lane, worker: WorkerInfo) -> Reason:
    """That one worker can or may not take the runs of a lane."""
    missing = f"; it has no handler {lane.handler!r}" if worker.jobs is not None and lane.handler not in worker.jobs else ""
    text = f"Worker {worker.name} does not take {_work(lane)}{missing}."
    return Reason("no_worker", text, _lane_data(lane) | {"worker": worker.name})


def _work(lane: Lane) -> str:
    return f"job {lane.job!r} in queue {lane.queue!r} with what it requires"


def _lane_data(lane: Lane) -> dict[str, Any]:
    needs = lane.requires
    amounts = {"cores": needs.cores, "memory": needs.memory}
    return {"job": lane.job, "handler": lane.handler, "queue": lane.queue, "tags": needs.tags, **amounts}
