"""Schedules: stored, edited, read."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from windlass import cron
from windlass import payload as json
from windlass.answers import Preview
from windlass.defaults import MAX_MISSED, SCHEDULE_EDITABLE
from windlass.engine import checks
from windlass.engine.creations import Creations
from windlass.engine.fires import Fires
from windlass.engine.ground import PATIENCE, Ground, Part
from windlass.engine.jobs import Jobs, not_theirs
from windlass.engine.payloads import Payloads
from windlass.engine.provision import Provision
from windlass.engine.templates import Template
from windlass.errors import BadInput, Conflict, DuplicateKey, Forbidden, NotFound, WindlassError
from windlass.firing import Fire, SkippedInstants, edited, fingerprint, first_from, last_instant, outage_of, passed_over, plan, rule_of
from windlass.model import Created, Key, Missed, NewRun, Options, Overlap, Schedule, Skipped
from windlass.needs import merged


class Schedules(Part):
    """The verbs of schedules."""

    def __init__(self, ground: Ground, jobs: Jobs, provision: Provision, payloads: Payloads, fires: Fires, trusted: Creations) -> None:
        super().__init__(ground)
        self._jobs, self._provision, self._payloads = jobs, provision, payloads
        self._fires = fires  # without an audit entry: due fires are not part of the audited edit
        self._trusted = trusted  # without a principal: what a schedule has stored was allowed when it was stored

    async def store(
        self,
        key: str,
        job: str,
        *,
        cron: str | None = None,
        every: str | float | None = None,
        at: str | None = None,
        zone: str = "UTC",
        payload: dict[str, Any] | None = None,
        options: Options | None = None,
        missed: Missed = "latest",
        max_missed: int = MAX_MISSED,
        max_age: int | None = None,
        overlap: Overlap = "allow",
        jitter: int = 0,
        enabled: bool = True,
        by_code: bool = False,
        new: bool = False,
        from_now: bool = False,
        checked: bool = False,
    ) -> Schedule:
        """Store a rule under a key; the same key again updates it, as `set_schedule` does, and keeps its id.

        `by_code` marks a definition in code: a person's edit of it stands until the code itself changes.
        `new` refuses a key that is taken; of several concurrent calls one succeeds. Code that calls through a hub may store new
        schedules, and change those that code of the same principal has stored; where a person has edited one, it stays as it is. A payload
        that the calling code has `checked` against its own signature is not compared with the job's schema.
        """
        if not (by_code or self.ground.trusted):
            raise Forbidden(
                "To store a schedule needs the scope admin.", hint="A worker stores the schedules of its own code, with by_code."
            )
        kind, expr = _kind(cron, every, at)
        now = self.clock.now()
        schedule = self._checked(
            Schedule(
                0, key, job, kind, expr, zone, now, payload or {}, options or Options(), missed, max_missed, max_age, overlap, jitter,
                enabled, None, None, None, None, 0, 0, 0, now, now,
            )
        )  # fmt: skip
        schedule = replace(schedule, code_hash=fingerprint(schedule) if by_code else None, owner=self.ground.owner)
        return await self._store(schedule, new=new, from_now=from_now, checked=checked)

    async def _store(self, schedule: Schedule, *, new: bool, from_now: bool, checked: bool) -> Schedule:
        """Add it, or update the one of its key, until no other call comes between reading and writing."""
        key = schedule.key
        for _ in range(PATIENCE):
            stored = await self.records.schedules.find(key)
            if stored is None and await self._add(schedule, checked):
                return await self.get(key)
            if new:
                raise DuplicateKey(f"There is a schedule {key!r} already.", hint="Use another key, or leave out `new` to update this one.")
            if stored is not None and self._stays(stored, schedule):
                return stored
            if stored is not None and await self._update(stored, schedule, from_now, checked):
                return await self.get(key)
        raise Conflict(f"Schedule {key!r} kept changing; it was not stored.", hint="Try again.")

    async def _add(self, schedule: Schedule, checked: bool) -> bool:
        """Store a new schedule; False when there is one of this key by now."""
        await self._check_fit(None, schedule, checked)
        await self._count_lane(schedule)
        return await self.records.schedules.add(_planned(schedule, schedule.created_at), schedule.created_at)

    def _stays(self, before: Schedule, schedule: Schedule) -> bool:
        """Whether the stored schedule stays as it is: the code that defines it has not changed, or a person's edit stands."""
        return schedule.code_hash is not None and (before.code_hash == schedule.code_hash or self._edit_stands(before))

    async def _update(self, before: Schedule, schedule: Schedule, from_now: bool, checked: bool) -> bool:
        """Replace a stored schedule; False when it must be read again. One that code has defined remains so after a person's call."""
        await self._check_fit(before, schedule, checked)
        await self._count_lane(schedule)
        return await self._write_edit(before, replace(schedule, code_hash=schedule.code_hash or before.code_hash), from_now)

    async def _check_fit(self, before: Schedule | None, schedule: Schedule, checked: bool = False) -> None:
        """Refuse a new payload that no code accepts; one that was accepted stays."""
        if not checked and (before is None or (before.job, before.payload) != (schedule.job, schedule.payload)):
            await self._payloads.refuse_misfit(schedule.job, schedule.payload, "The schedule's payload")

    async def _count_lane(self, schedule: Schedule) -> None:
        """Create the lane of a schedule's runs now, counted to an untrusted principal: the fires themselves have no principal."""
        if not self.ground.trusted:
            job, _ = (await self._jobs.definitions({schedule.job}, "wait"))[schedule.job]
            template = Template.of(merged(job.options, schedule.options), job.own_handler)
            await self._provision.lanes_for({(template.queue, job.name, template.requires)}, [] if job.rev else [job.name])

    def _edit_stands(self, schedule: Schedule) -> bool:
        """Whether a person's edit of an untrusted principal's schedule must stand; Forbidden where it is the schedule of another owner."""
        if self.ground.trusted:
            return False
        if schedule.code_hash is None or schedule.owner != self.ground.owner:
            raise not_theirs("schedule", schedule.key, schedule.owner)
        return edited(schedule)

    def _checked(self, schedule: Schedule) -> Schedule:
        checks.name(schedule.key, "A schedule's key")
        checks.name(schedule.job, "A job's name")
        self.ground.allowed(schedule.options)
        json.encode(schedule.payload, limit=self.limits.payload, what="The schedule's payload")
        checks.kind(schedule.payload, "payload", dict)
        checks.kind(schedule.enabled, "enabled", bool)
        checks.choice(schedule.missed, "missed", ("skip", "latest", "all"))
        checks.choice(schedule.overlap, "overlap", ("allow", "skip", "queue", "cancel"))
        checks.integer(schedule.max_missed, "max_missed", 1, 10_000)
        checks.maybe(schedule.max_age, "max_age", 1, self.limits.duration)
        checks.integer(schedule.jitter, "jitter", 0, self.limits.duration)
        rule = cron.parse(schedule.kind, schedule.expr, schedule.zone)
        return replace(schedule, expr=rule.expr, zone=rule.zone)

    async def get(self, key: str) -> Schedule:
        """The schedule with this key."""
        checks.name(key, "A schedule's key")
        schedule = await self.records.schedules.find(key)
        if schedule is None:
            raise NotFound(f"There is no schedule {key!r}.", hint="`windlass schedules list` shows those there are.")
        return schedule

    async def page(self, *, after: str = "", count: int = 100) -> list[Schedule]:
        """Schedules by key."""
        checks.integer(count, "count", 1, self.limits.page)
        return await self.records.schedules.after(after, count)

    async def edit(self, /, key: str, *, from_now: bool = False, **fields: Any) -> Schedule:
        """Edit a schedule. Unless its rule or `enabled` changes, its next instant stays. Existing runs stay as they are.

        When the rule changes, instants that are due by the old one become runs and skips first; when it is disabled, skips.
        A new interval is counted from the last instant. With `from_now` it is counted from now, and all due instants are skipped.
        """
        checks.editable(fields, SCHEDULE_EDITABLE, "a schedule")
        for _ in range(PATIENCE):
            before = await self.get(key)
            schedule = self._checked(replace(before, **fields))
            await self._check_fit(before, schedule)
            if await self._write_edit(before, schedule, from_now):
                return await self.get(key)
        raise Conflict(f"Schedule {key!r} kept changing; it was not edited.", hint="Try again.")

    async def _write_edit(self, before: Schedule, schedule: Schedule, from_now: bool) -> bool:
        """Write an edit; False when the schedule must be read again: it was changed meanwhile, or due instants have been settled."""
        now = self.clock.now()
        if _same_rule(before, schedule) and before.enabled == schedule.enabled:
            kept = replace(schedule, id=before.id, key=before.key, anchor=before.anchor, next_at=before.next_at)
            return await self.records.schedules.edit(kept, before, now)
        skips = _left_out(before, schedule, now, from_now) if _is_due(before, now) else ()
        if skips is None:
            await self._settle_due(before, now)
            return False
        rows = [(before.id, *skip) for skip in skips]
        return await self.records.schedules.edit(_edited(before, schedule, now, from_now), before, now, skips=rows, mark=self.clock.nonce())

    async def _settle_due(self, due: Schedule, now: int) -> None:
        """Create the runs and skips of all instants that are due by the old rule, as a sweep would."""
        schedule = due
        while schedule.rev == due.rev and _is_due(schedule, now):
            if await self._fires.fire_one(schedule, plan(schedule, now)) is None:
                self.ground.memory.forget_jobs()
                await self.ground.refresh_controls()
                break
            schedule = await self.get(due.key)

    async def remove(self, key: str) -> None:
        """Forget a schedule. Its runs stay."""
        await self.records.schedules.drop((await self.get(key)).id)

    async def trigger(self, key: str, *, once: Key | None = None) -> Created:
        """Create a run of a schedule now, or once under a key; its instants are not affected."""
        schedule = await self.get(key)
        new = NewRun(schedule.job, schedule.payload, schedule.options, key=once, checked=True)  # checked when stored
        return (await self._trusted.create([new], undefined="wait"))[0]

    async def skips(self, key: str, *, count: int = 100) -> list[Skipped]:
        """Instants that were due and did not become a run, latest first."""
        checks.integer(count, "count", 1, self.limits.page)
        return await self.records.schedules.skips((await self.get(key)).id, count)

    async def preview(self, key: str, *, start: int | None = None, count: int = 20) -> list[Preview]:
        """The coming instants of a schedule, from now or from a time."""
        checks.integer(count, "count", 1, self.limits.page)
        schedule = await self.get(key)
        instants = cron.upcoming(rule_of(schedule), self.clock.now() if start is None else start, schedule.anchor, count)
        return [Preview(at, *cron.shown(rule_of(schedule), at)) for at in instants]

    async def outage(self, key: str, start: int, end: int) -> Fire:
        """What a schedule would do at the end of a downtime, if all its runs had ended by then."""
        return outage_of(await self.get(key), start, end)


def _kind(cron_text: str | None, every: str | float | None, at: str | None) -> tuple[str, str]:
    rules = [(kind, value) for kind, value in (("cron", cron_text), ("interval", every), ("once", at)) if value is not None]
    if len(rules) != 1:
        raise BadInput("A schedule has one rule.", hint="Give one of cron='0 3 * * *', every='15m', at='2027-01-31T09:00Z'.")
    kind, value = rules[0]
    return kind, str(value)


def _planned(schedule: Schedule, now: int) -> Schedule:
    """The schedule with its next instant computed from now."""
    next_at = cron.next_after(rule_of(schedule), now, schedule.anchor) if schedule.enabled else None
    return replace(schedule, next_at=next_at)


def _is_due(schedule: Schedule, now: int) -> bool:
    return schedule.next_at is not None and schedule.next_at <= now


def _same_rule(one: Schedule, other: Schedule) -> bool:
    return rule_of(one) == rule_of(other)


def _left_out(before: Schedule, schedule: Schedule, now: int, from_now: bool) -> tuple[SkippedInstants, ...] | None:
    """The due instants of the old rule that an edit skips; None: they become runs first, as the old settings say."""
    reason = "disabled" if not schedule.enabled else "edited" if from_now else None
    assert before.next_at is not None
    try:
        plan(before, now)
        return None if reason is None else passed_over(before, now, reason)
    except WindlassError as error:  # its zone is not known here: only its next instant is known
        return (SkippedInstants(before.next_at, before.next_at, 1, reason or error.code),)


def _edited(before: Schedule, schedule: Schedule, now: int, from_now: bool) -> Schedule:
    """The new settings with the anchor and the next instant that follow from the old ones, where the rule or `enabled` changes."""
    settings = replace(schedule, id=before.id, key=before.key, anchor=before.anchor, next_at=None)
    if before.enabled and not from_now:
        last = _last(before, now)
        return replace(settings, anchor=last, next_at=first_from(schedule, last, now) if schedule.enabled else None)
    return _planned(settings if _same_rule(before, schedule) and not from_now else replace(settings, anchor=now), now)


def _last(schedule: Schedule, now: int) -> int:
    try:
        return last_instant(schedule, now)
    except WindlassError:
        return schedule.last_at or schedule.anchor
