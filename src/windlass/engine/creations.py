"""Creation of runs: one or many, with keys and predecessors, from the job definition that is current when they are stored."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from hashlib import blake2b
from typing import Literal

import msgspec
from msgspec.structs import replace

from windlass import payload as json
from windlass.engine import checks
from windlass.engine.ground import PATIENCE, Ground, Part
from windlass.engine.jobs import Jobs
from windlass.engine.notices import Notices
from windlass.engine.payloads import Payloads, UnfitPayload, laid_over
from windlass.engine.provision import Provision
from windlass.engine.runs import Runs
from windlass.engine.templates import Template, Usual
from windlass.errors import BadInput, Conflict, DuplicateKey, Forbidden, NotFound, OutcomeUnknown, WrongState, in_doubt
from windlass.limiters import amounts_of, keys_text, limits_by_key, own_amounts
from windlass.machine import ENDED, begin, rank, refusal
from windlass.model import Created, JobRecord, Key, Lane, NewRun, Options, Run, State, Use, place
from windlass.needs import lessened, merged
from windlass.steady import Bounds
from windlass.store.columns import COMMON
from windlass.store.creation import Creation, KeyRow, Kind, NewNotify, NewRow
from windlass.store.records import ReadyQueue, Winner, needs_from, needs_text
from windlass.store.rows import policy_of, policy_text, storing

_canonical = msgspec.json.Encoder(order="deterministic").encode
_common_of = storing(COMMON)
_FAILED_ATTEMPTS = ("failed", "lapsed")
"""The outcomes of closed attempts that may be rerun while their run goes on; a returned one has not failed."""

_PLACEHOLDER = 0, 0  # the id and the revision of an undefined job
_NOTHING_SAID = NewRun("").options  # the very object that a creation has by default


def content_hash(new: NewRun) -> str:
    """Equal for creations with the same content."""
    if new.key is not None and new.key.content is not None:
        return new.key.content
    content = (new.job, new.payload, new.options, new.due_at, new.after, new.after_end)
    whole = content if new.meta is None else (*content, new.meta)
    whole = whole if new.notify is None else (*whole, new.notify)
    return blake2b(_canonical(whole), digest_size=16).hexdigest()


_Alike = tuple[State, str, Options | None, str | None]  # state, job, own options, retry_of: what a kind is computed from


# A creation with the id it will have if its key is free, its key, and the JSON text of its payload.
_Request = tuple[str, NewRun, tuple[str, str] | None, str]


class Transaction:
    """Creations that are collected, and stored together when the block ends without an error."""

    def __init__(self) -> None:
        self.news: list[NewRun] = []
        self.created: list[Created] = []  # filled when the block has ended

    def create(self, *news: NewRun) -> None:
        """Add runs; they are checked and stored when the block ends."""
        self.news += news


class Creations(Part):
    """The verbs that create runs."""

    def __init__(self, ground: Ground, runs: Runs, jobs: Jobs, provision: Provision, payloads: Payloads, addresses: Notices) -> None:
        super().__init__(ground)
        self._runs, self._jobs, self._provision, self._payloads, self._notices = runs, jobs, provision, payloads, addresses

    @asynccontextmanager
    async def transaction(self, *, undefined: Literal["refuse", "wait"] = "refuse") -> AsyncIterator[Transaction]:
        """Collect creations and store them in one batch; an error in the block, or in one of them, stores none."""
        transaction = Transaction()
        yield transaction
        transaction.created = await self.create(transaction.news, undefined=undefined)

    async def create(self, news: Sequence[NewRun], *, undefined: Literal["refuse", "wait"] = "refuse") -> list[Created]:
        """Store these runs, all or none; the answers are in the same order.

        A run whose key is taken is not created: its answer names the run that holds the key. Nor is a run whose id exists.
        """
        checks.count(news, "runs", self.limits.create)
        checks.choice(undefined, "undefined", ("refuse", "wait"))
        if not news:
            return []
        limit = self.limits.payload
        ids, own_ids = self._ids_for(news)
        requests = [
            (identity, new, self.checked(new), json.encode(new.payload, limit=limit)) for identity, new in zip(ids, news, strict=True)
        ]
        for _ in range(PATIENCE):
            if own_ids and (existing := await self.records.runs.seqs(own_ids)):
                created = await self.create([new for new in news if new.id not in existing], undefined=undefined)
                return _merged(news, existing, created)
            creation = await self.planned(requests, undefined)
            if unfit := await self._payloads.unfit(news):
                await self._refuse_new(unfit, requests, creation)
            winners = await self._store(creation, may_exist=bool(own_ids))
            if winners is not None:
                return (
                    [self._answer(item, winners) for item in requests] if winners else [Created(item[0], created=True) for item in requests]
                )
            await self.refuse_other_content(creation)
            self.ground.memory.forget_jobs()
            await self.ground.refresh_controls()
        raise Conflict("The jobs kept changing; nothing was created.", hint="Try again.")

    def _ids_for(self, news: Sequence[NewRun]) -> tuple[Sequence[str], Sequence[str]]:
        """The ids of these runs, of which some may be chosen and the others are new; and the chosen ones."""
        fresh, chosen = self.clock.new_ids(len(news)), [new.id for new in news if new.id is not None]
        if not chosen:
            return fresh, chosen
        if len(set(chosen)) < len(chosen):
            raise BadInput("An id is used twice in one call.", hint="Give each run its own.")
        return [new.id or identity for new, identity in zip(news, fresh, strict=True)], chosen

    async def rerun(self, run_id: str, *, attempt: int | None = None, key: Key | None = None) -> Created:
        """Create a new run from an ended one: the same payload, meta and rules, for the same instant, with a fresh limit.

        One attempt is rerun by its number or by its id (a run's id stands for the whole run), with the payload that it ran with; a failed
        or lost one also before the run has ended. The new run has no key but the one given here, under which it is created once.
        """
        old = await self._rerunnable(run_id, attempt)
        now, new_id = self.clock.now(), self.clock.new_id()
        request: _Request = (new_id, NewRun(old.job, key=key), None if key is None else (checks.key(key, self.limits).scope, key.name), "")
        creation = Creation(now, [new_id], {}, notices=await self.notices_again({old.id: new_id}))
        if key is not None:
            earliest, latest = await self.ground.bounds()
            creation = creation._replace(keys=[_key_row(request, key.on_duplicate == "compare", latest)], keys_at=earliest)
        for _ in range(PATIENCE):
            rev, ((lane, keys),) = await self.lanes_again([old])
            kind, row = again(old, new_id, lane, keys, now)
            if request[2] is not None:
                row = replace(row, scope=request[2][0], key=request[2][1])
            rows = {kind._replace(retry_of=old.current_attempt): [row]}
            if (winners := await self._store(creation._replace(rows=rows, controls=rev))) is not None:
                return self._answer(request, winners)
            await self.ground.refresh_controls()
        raise Conflict(f"Run {old.id} could not be rerun.", hint="Try again.")

    async def _rerunnable(self, run_id: str, n: int | None) -> Run:
        """The run as it was in the attempt that is to be executed again."""
        run, attempt = await self._runs.attempt(run_id, n)
        if run.state not in ENDED and attempt.outcome not in _FAILED_ATTEMPTS:
            raise WrongState(refusal(run, "rerun"), hint="Wait for its end, or cancel it first.")
        payload = run.payload if attempt.payload is None else attempt.payload
        return replace(run, lane=abs(run.lane), attempt_id=attempt.id, payload=payload)

    async def lanes_again(self, ended: Sequence[Run]) -> tuple[int, list[tuple[int, str | None]]]:
        """The lanes and the keys for reruns of these ended runs, and the revision of the controls for which they hold.

        Where the old lane was removed, the needs of the run are lost with it, and those of its job as it is now apply. Its handler stays.
        """
        await self.ground.refresh_controls()
        texts = {lane.id: needs_text(lane.requires) for lane in self.ground.lanes.all}
        jobs = await self._jobs.definitions({run.job for run in ended if run.lane not in texts}, "wait")
        needs = [texts[run.lane] if run.lane in texts else _with_handler(jobs[run.job][1].requires, run.policy.handler) for run in ended]
        lane_keys = [(run.queue, run.job, text) for run, text in zip(ended, needs, strict=True)]
        rev, lanes = await self._provision.lanes_for(set(lane_keys))
        pairs = [(run, lanes[key]) for run, key in zip(ended, lane_keys, strict=True)]
        amounts = [amounts_of(lane.requires, run.keys) if run.lane in texts else jobs[run.job][1].amounts for run, lane in pairs]
        return rev, [(lane.id, _keys_of(lane, own, run.payload)) for (run, lane), own in zip(pairs, amounts, strict=True)]

    async def notices_again(self, new_ids: Mapping[str, str]) -> list[NewNotify]:
        """The addresses that reruns keep, by the ids of the old runs."""
        return await self._notices.rows([(new_ids[run_id], notify) for run_id, notify in (await self._notices.of(new_ids)).items()])

    async def _store(self, creation: Creation, *, may_exist: bool = False) -> dict[tuple[str, str], Winner] | None:
        """The holders of the keys once the runs are stored; None when they are not stored.

        The ids are fixed, so after an unknown outcome the store can be read.
        """
        try:
            return await self._stored(creation, may_exist)
        except OutcomeUnknown as unknown:
            with in_doubt(unknown):
                winners = await self._found(creation)
                return winners if winners is not None or unknown.settled else await self._stored(creation, may_exist)

    async def _stored(self, creation: Creation, may_exist: bool) -> dict[tuple[str, str], Winner] | None:
        try:
            winners, released = await self.records.creations.create(creation, self.clock.nonce())
        except Conflict:
            # Runs with ids that were chosen may be those of another call: which of them exist is read anew.
            return None if may_exist else await self._found(creation)
        await self.ground.wake_queues([*self.ready(creation, winners), *released], creation.now)
        return winners

    async def _found(self, creation: Creation) -> dict[tuple[str, str], Winner] | None:
        seqs = await self.records.runs.seqs(creation.ids)
        if not seqs:
            return None
        await self.ground.wake_queues(self.ready(creation, {}), creation.now)
        ours = {(row.scope, row.key): Winner(row.run, None) for row in creation.keys if row.run in seqs}
        return await self.records.creations.winners(creation.keys, creation.judged_at) | ours

    def ready(self, creation: Creation, winners: Mapping[tuple[str, str], Winner]) -> Iterator[ReadyQueue]:
        """The queue and the time at which the next run of each kind is ready. Runs whose keys are held by others were not created."""
        lost = {row.run for row in creation.keys if (winner := winners.get((row.scope, row.key))) is not None and winner.run != row.run}
        for kind, rows in creation.rows.items():
            if kind.state == State.QUEUED:
                if runs := [row.id for row in rows if row.id not in lost]:
                    yield ReadyQueue(kind.queue, creation.now, runs)
            elif kind.state == State.SCHEDULED:
                yield ReadyQueue(kind.queue, min(row.due_at for row in rows))
        if creation.later and creation.waits:
            yield ReadyQueue("", creation.now + 1)  # a sweep settles these waits

    def checked(self, new: NewRun) -> tuple[str, str] | None:
        """The scope and the name of its key; raises if the creation cannot be stored."""
        if type(new.job) is not str or new.job not in self.ground.memory.jobs:
            checks.name(new.job, "A job's name")
        if new.options is not _NOTHING_SAID and new.options != _NOTHING_SAID:
            self.ground.allowed(new.options)
        if new.after != ():
            checks.kind(new.after, "after", tuple)
            checks.count(new.after, "predecessors", self.limits.predecessors)
        if new.after_end != "success":
            checks.choice(new.after_end, "after_end", ("success", "any"))
        if new.retry_of is not None:
            checks.identifier(new.retry_of, "retry_of")
        if new.due_at is not None:
            checks.instant(new.due_at, "due_at")
        if new.id is not None:
            checks.identifier(new.id, "The run's id")
        if new.notify is not None:
            self._notices.check(new.notify)
        if new.key is None:
            return None
        key = checks.key(new.key, self.limits)
        return key.scope, key.name

    async def planned(
        self, requests: Sequence[_Request], undefined: Literal["refuse", "wait"], waiting: Collection[str | None] = ()
    ) -> Creation:
        """Everything one batch needs, computed from this process's caches. `waiting`: runs that wait for others of the same call."""
        now, first = self.clock.now(), _first_by_key(requests)
        entries = (
            [(index, item) for index, item in enumerate(requests) if not item[2] or first[item[2]] is item]
            if first
            else list(enumerate(requests))
        )
        predecessors = await self._predecessors({before for _, new, _, _ in requests if new.after for before in new.after})
        jobs = await self._jobs.definitions({new.job for _, new, _, _ in requests}, undefined)
        rows: dict[_Alike, list[NewRow]] = defaultdict(list)
        waits: list[tuple[str, int, str]] = []
        for index, (identity, new, key, text) in entries:
            state, due_at, position = begin(now, new.due_at, new.after != () or identity in waiting, index)
            template = jobs[new.job][0].payload
            if template or new.payload is None:
                text = json.dump(laid_over(template, new.payload), limit=self.limits.payload)
            if key is None and new.schedule is None and new.instant is None and new.meta is None:  # as nearly all
                row = NewRow(identity, position, due_at, text)
            else:
                scope, name = key or (None, None)
                meta = checks.meta(new.meta, self.limits)
                row = NewRow(identity, position, due_at, text, scope, name, new.schedule, new.instant, meta=meta)
            rows[state, new.job, None if new.options is _NOTHING_SAID else new.options, new.retry_of].append(row)
            if new.after:
                waits += ((identity, predecessors[before], new.after_end) for before in sorted(set(new.after)))
        notices = [(identity, new.notify) for _, (identity, new, _, _) in entries if new.notify is not None]
        rev, kinds = self._usual_kinds(now, rows, jobs) or await self._by_kind(rows, jobs)
        definitions = sorted({(jobs[name][0].id, jobs[name][0].rev) for _, name, _, _ in rows})
        if _PLACEHOLDER in definitions:  # they were created for undefined jobs just now
            return await self.planned(requests, undefined, waiting)
        bounds = await self.ground.bounds() if first else Bounds(now, now)
        compare = {key for _, new, key, _ in requests if new.key and new.key.on_duplicate == "compare"} if first else set()
        return Creation(
            now=now,
            ids=[item[0] for _, item in entries],
            rows=kinds,
            controls=rev,
            later=self.ground.joined is not None,
            keys=[_key_row(item, key in compare, bounds.latest) for key, item in sorted(first.items())],
            keys_at=bounds.earliest,
            definitions=definitions,
            waits=waits,
            notices=await self._notices.rows(notices) if notices else (),
        )

    def _usual_kinds(
        self, now: int, rows: Mapping[_Alike, list[NewRow]], jobs: Mapping[str, tuple[JobRecord, Template]]
    ) -> tuple[int, dict[Kind, list[NewRow]]] | None:
        """The same as `_by_kind` from the cache, if all these runs are of usual kinds, and the use of all lanes is noted."""
        rev, usual = self.ground.controls.rev, self.ground.memory.usual
        if rev < 0 or self.ground.lanes.unused(now):
            return None
        kinds: dict[Kind, list[NewRow]] = {}
        for alike, new_rows in rows.items():
            known = usual.get(alike)
            if known is None or known.controls != rev or known.job is not jobs[alike[1]][0]:
                return None
            kinds[known.kind] = new_rows
        return rev, kinds

    async def _by_kind(
        self, rows: Mapping[_Alike, list[NewRow]], jobs: Mapping[str, tuple[JobRecord, Template]]
    ) -> tuple[int, dict[Kind, list[NewRow]]]:
        """The rows grouped by kind, in lanes that exist as of a revision."""
        templates = {alike: self._template(alike[2], *jobs[alike[1]]) for alike in rows}
        undefined = {alike[1] for alike in rows if jobs[alike[1]][0].rev == 0}
        rev, lanes = await self._provision.lanes_for(
            {(template.queue, alike[1], template.requires) for alike, template in templates.items()}, undefined
        )
        kinds: dict[Kind, list[NewRow]] = defaultdict(list)
        for (state, job, options, retry_of), template in templates.items():
            lane = lanes[template.queue, job, template.requires]
            kind = template.kind(state, job, lane.id, retry_of)
            new_rows = rows[state, job, options, retry_of]
            own = own_amounts(lane.requires, template.amounts)
            keyed, aging = own is not None or limits_by_key(lane.requires.uses), self.ground.controls.aging(template.queue)
            if keyed:
                new_rows = _keyed(new_rows, lane.requires.uses, own)
            if aging is not None:
                kind, new_rows = _aging(kind, new_rows, aging)
            if not keyed and aging is None and options is None and retry_of is None:
                self.ground.memory.usual[state, job, None, None] = Usual(rev, jobs[job][0], kind)
            kinds[kind] += new_rows
        return rev, kinds

    def _template(self, options: Options | None, job: JobRecord, template: Template) -> Template:
        if options is None:
            return template
        if not self.ground.trusted:
            self._refuse_more(job, options)
        return Template.of(merged(job.options, options), job.own_handler)

    def _refuse_more(self, job: JobRecord, options: Options) -> None:
        """An untrusted principal's options may ask for less than the job has for all its runs, not for more."""
        if (less := lessened(job.options, options)) is not None:
            raise Forbidden(f"The job {job.name!r} {less}; a run without needs the scope admin.", hint="Leave it out of the run's options.")
        usual, own = (Template.of(one).keep for one in (job.options, options))
        if own is not None and own > (self.limits.keep_others if usual is None else usual):
            raise Forbidden("To keep a run for longer than its job says needs the scope admin.", hint="Say a shorter time, or none.")

    async def _predecessors(self, ids: set[str]) -> dict[str, int]:
        for before in ids:
            checks.identifier(before, "The predecessor")
        seqs = await self.records.runs.seqs(sorted(ids))
        for before in sorted(ids - seqs.keys()):
            raise NotFound(
                f"There is no run {before} to wait for.", hint="Create the predecessor first, and wait for the id in its answer."
            )
        return seqs

    def _answer(self, item: _Request, winners: Mapping[tuple[str, str], Winner]) -> Created:
        identity, _, key, _ = item
        winner = winners[key] if key else None
        if winner is None or winner.run == identity:
            return Created(identity, created=True)
        return Created(winner.run, created=False, pruned=not winner.kept)

    async def _refuse_new(self, unfit: Mapping[int, UnfitPayload], requests: Sequence[_Request], creation: Creation) -> None:
        """Refuse payloads that do not fit, except for repeated requests: those were accepted when they fitted."""
        winners = await self.records.creations.winners(creation.keys, creation.judged_at)
        for index, wrong in unfit.items():
            if (key := requests[index][2]) is None or key not in winners or not winners[key].held:
                raise wrong.error("The payload" if len(requests) == 1 else f"The payload of runs[{index}]")

    async def refuse_other_content(self, creation: Creation) -> None:
        """Raise DuplicateKey if the batch was refused because a key is held by a run with other content."""
        winners = await self.records.creations.winners(creation.keys, creation.judged_at)
        for row in creation.keys:
            winner = winners.get((row.scope, row.key))
            if row.compare and winner is not None and winner.held and winner.run != row.run and winner.hash != row.hash:
                raise DuplicateKey(
                    f"The key {row.key!r} is held by run {winner.run}, which was asked for with other content.",
                    hint="Use a new key for a new request; repeat the first request exactly to get its run.",
                )


def _merged(news: Sequence[NewRun], existing: Collection[str], created: Sequence[Created]) -> list[Created]:
    """The answers in the order of the call: runs that existed, and those that were created."""
    others = iter(created)
    return [Created(new.id, created=False) if new.id is not None and new.id in existing else next(others) for new in news]


def _keys_of(lane: Lane, amounts: tuple[int, int], payload: str) -> str | None:
    """The keys of a run with this payload in a lane, with its own amounts where the lane has rounded them."""
    uses, own = lane.requires.uses, own_amounts(lane.requires, amounts)
    return keys_text(uses, msgspec.json.decode(payload), own) if own is not None or limits_by_key(uses) else None


def _with_handler(requires: str, handler: str | None) -> str:
    return needs_text(replace(needs_from(requires), handler=handler))


def again(old: Run, new_id: str, lane: int, keys: str | None, now: int, *, waits: bool = False, index: int = 0) -> tuple[Kind, NewRow]:
    """The creation of a new run with the payload and the rules of an ended one, in this lane and under these keys."""
    state, due_at, position = begin(now, waits=waits, index=index, head_start=old.head_start)
    kind = Kind(**dict(zip(COMMON, _common_of(old), strict=True)))._replace(state=state.value, lane=lane, retry_of=None)
    return kind, NewRow(new_id, position, due_at, old.payload, instant=old.instant, keys=keys, meta=old.meta)


def _keyed(rows: list[NewRow], uses: tuple[Use, ...], amounts: tuple[int, int] | None) -> list[NewRow]:
    """The same rows with the keys of their keyed resources, and with their own amounts."""
    return [replace(row, keys=keys_text(uses, msgspec.json.decode(row.payload), amounts)) for row in rows]


def _aging(kind: Kind, rows: list[NewRow], aging: int) -> tuple[Kind, list[NewRow]]:
    """The same rows for a queue with aging: one priority key for all, within which a priority is a head start."""
    priority_key, priority = rank(-kind.priority_key, aging)
    head_start = place((priority or 0) * aging)
    policy = policy_text(replace(policy_of(kind.policy or "{}"), aging=aging))
    return kind._replace(priority_key=priority_key, aging_priority=priority, policy=policy), [
        replace(row, position=row.position - head_start) for row in rows
    ]


def _other_content(first: NewRun, again: NewRun) -> bool:
    compare = again.key is not None and again.key.on_duplicate == "compare"
    return compare and first is not again and content_hash(first) != content_hash(again)


def _first_by_key(requests: Sequence[_Request]) -> dict[tuple[str, str], _Request]:
    """The first creation for each key; the others of the call get its answer."""
    first: dict[tuple[str, str], _Request] = {}
    for item in requests:
        key = item[2]
        if key and _other_content(first.setdefault(key, item)[1], item[1]):
            raise BadInput(f"The key {key[1]!r} is used twice in one call, with different content.", hint="Give each its own key.")
    return first


def _key_row(item: _Request, compare: bool, now: int) -> KeyRow:
    identity, new, _, _ = item
    key = new.key or Key("")
    return KeyRow(key.scope, key.name, identity, content_hash(new), int(key.ttl == "unfinished"), key.until(now), int(compare))
