"""Rules that make runs: kept, edited, fired by whoever sweeps, without a leader."""

from __future__ import annotations

import logging
from collections.abc import Sequence, Set
from copy import copy
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from windlass import cron
from windlass import payload as json
from windlass.engine import checks
from windlass.engine.core import PATIENCE, Template, merged, not_theirs
from windlass.engine.create import Creating
from windlass.engine.edits import Editing
from windlass.errors import BadInput, Conflict, DuplicateKey, Forbidden, NotFound, OutcomeUnknown, StoreError, WindlassError
from windlass.firing import Fire, Skip, first_from, last_instant, passed_over, plan, rule_of
from windlass.model import Created, Key, Limits, Missed, NewRun, Options, Overlap, Schedule, Skipped, State
from windlass.store.creation import KeyRow
from windlass.store.records import Advance, Records, Unfinished

_LOG = logging.getLogger("windlass.schedules")

FIRED_AT_ONCE, PASSES, TOGETHER = 500, 200, 5
KEEP_FIRES = 30 * 24 * 3600 * 1000
"""Milliseconds for which a fire is remembered by its key. That a schedule moves on from one instant only once protects longer."""

SCOPE = "schedule"
MOST = 100
PREDECESSORS = Limits().predecessors
EDITABLE = ("kind", "job", "expr", "zone", "payload", "options", "missed", "most", "max_age", "overlap", "jitter", "enabled")


class Preview(Struct, frozen=True):
    """One coming instant."""

    at: int
    local: str
    clock_changes: bool


_Plan = tuple[Schedule, Fire]
_Place = tuple[int, int, int]  # next_at, created_at, id
_FIRST: _Place = (0, 0, 0)


class _Look(NamedTuple):
    """What came of one look at some schedules."""

    made: int  # runs
    moved: frozenset[int]  # schedules
    left: bool  # whether some have not moved on, or are still due
    end: _Place | None  # behind which the next are; None when these were the last


class Scheduling(Creating, Editing):
    """The verbs of schedules."""

    _left: frozenset[tuple[int, int]] = frozenset()  # to other machines; id and rev

    async def schedule(
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
        most: int = MOST,
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

        `by_code` says that a program defines it: what a person has edited since stands until the program says something else.
        `new` refuses a key that is taken; of several who ask for it at once, one gets it. Code that asks through a hub may store
        what is new, and what code of the same principal has stored; where a person has edited that, it stays as it is. A payload that
        the code which asks has `checked` against its own signature is not compared with what the job takes.
        """
        if not (by_code or self.trusted):
            raise Forbidden("To store a schedule needs the scope admin.", hint="A worker stores what its own code says, with by_code.")
        kind, expr = _kind(cron, every, at)
        now = self.clock.now()
        wanted = self._checked_schedule(
            Schedule(
                0, key, job, kind, expr, zone, now, payload or {}, options or Options(), missed, most, max_age, overlap, jitter, enabled,
                None, None, None, None, 0, 0, 0, now, now,
            )
        )  # fmt: skip
        said = fingerprint(wanted) if by_code else None
        for _ in range(PATIENCE):
            seen = await self.records.schedule(key)
            if seen is None:
                await self._check_fit(None, wanted, checked)
                await self._count_lane(wanted)
            if seen is None and await self.records.add_schedule(_planned(replace(wanted, said=said, owner=self.owner), now), now):
                return await self.get_schedule(key)
            if new:
                raise DuplicateKey(f"There is a schedule {key!r} already.", hint="Use another key, or leave out `new` to update this one.")
            if seen is None:
                continue
            if by_code and (seen.said == said or self._stands(seen)):
                return seen
            await self._check_fit(seen, wanted, checked)
            await self._count_lane(wanted)
            if await self._write_edit(seen, replace(wanted, said=said or seen.said), from_now):
                return await self.get_schedule(key)
        raise Conflict(f"Schedule {key!r} kept changing; it was not stored.", hint="Try again.")

    async def _check_fit(self, seen: Schedule | None, wanted: Schedule, checked: bool = False) -> None:
        """Refuse a new payload that no code accepts; one that was accepted stays."""
        if not checked and (seen is None or (seen.job, seen.payload) != (wanted.job, wanted.payload)):
            await self.refuse_misfit(wanted.job, wanted.payload, "The schedule's payload")

    async def _count_lane(self, schedule: Schedule) -> None:
        """Make the lane of a schedule's runs on the account of one who may not do everything: its fires are on nobody's."""
        if not self.trusted:
            job, _ = (await self.definitions({schedule.job}, "wait"))[schedule.job]
            template = Template.of(merged(job.options, schedule.options))
            await self.lanes_for({(template.queue, job.name, template.requires)}, [] if job.rev else [job.name])

    def _stands(self, schedule: Schedule) -> bool:
        """Whether a person has edited a schedule of whoever asks, against which they may not; Forbidden where it is not theirs."""
        if self.trusted:
            return False
        if schedule.said is None or schedule.owner != self.owner:
            raise not_theirs("schedule", schedule.key, schedule.owner)
        return edited(schedule)

    def _checked_schedule(self, schedule: Schedule) -> Schedule:
        checks.name(schedule.key, "A schedule's key")
        checks.name(schedule.job, "A job's name")
        self.allowed(schedule.options)
        json.encode(schedule.payload, most=self.limits.payload, what="The schedule's payload")
        checks.kind(schedule.payload, "payload", dict)
        checks.choice(schedule.missed, "missed", ("skip", "latest", "all"))
        checks.choice(schedule.overlap, "overlap", ("allow", "skip", "queue", "cancel"))
        checks.integer(schedule.most, "most", 1, 10_000)
        checks.maybe(schedule.max_age, "max_age", 1, self.limits.duration)
        checks.integer(schedule.jitter, "jitter", 0, self.limits.duration)
        rule = cron.parse(schedule.kind, schedule.expr, schedule.zone)
        return replace(schedule, expr=rule.expr, zone=rule.zone)

    async def get_schedule(self, key: str) -> Schedule:
        """The schedule with this key."""
        checks.name(key, "A schedule's key")
        found = await self.records.schedule(key)
        if found is None:
            raise NotFound(f"There is no schedule {key!r}.", hint="`windlass schedules list` shows those there are.")
        return found

    async def schedules(self, *, after: str = "", count: int = 100) -> list[Schedule]:
        """Schedules by key."""
        checks.integer(count, "count", 1, self.limits.page)
        return await self.records.schedules_after(after, count)

    async def set_schedule(self, key: str, *, from_now: bool = False, **fields: Any) -> Schedule:
        """Edit a schedule. Unless its rule or switch changes, its next instant stays. Runs already made stay as they are.

        What is due by a rule that changes becomes runs and skips first, by the old words; of one that is switched off, skips.
        Another interval is counted from the last instant. With `from_now` it is counted from now, and all that was due is skipped.
        """
        unknown = sorted(fields.keys() - set(EDITABLE))
        if unknown or not fields:
            raise BadInput(
                f"Cannot modify {', '.join(unknown) or 'nothing'} of a schedule.", hint=f"These can be set: {', '.join(EDITABLE)}."
            )
        for _ in range(PATIENCE):
            seen = await self.get_schedule(key)
            wanted = self._checked_schedule(replace(seen, **fields))
            await self._check_fit(seen, wanted)
            if await self._write_edit(seen, wanted, from_now):
                return await self.get_schedule(key)
        raise Conflict(f"Schedule {key!r} kept changing; it was not edited.", hint="Try again.")

    async def _write_edit(self, seen: Schedule, wanted: Schedule, from_now: bool) -> bool:
        """Write an edit; False when the schedule is to be read again: something came between, or what was due has been settled."""
        now = self.clock.now()
        if _same_rule(seen, wanted) and seen.enabled == wanted.enabled:
            kept = replace(wanted, id=seen.id, key=seen.key, anchor=seen.anchor, next_at=seen.next_at)
            return await self.records.edit_schedule(kept, seen, now)
        skips = _left_out(seen, wanted, now, from_now) if _is_due(seen, now) else ()
        if skips is None:
            await self._settle_due(seen, now)
            return False
        rows = [(seen.id, *skip) for skip in skips]
        return await self.records.edit_schedule(_edited(seen, wanted, now, from_now), seen, now, skips=rows, mark=self.clock.nonce())

    async def _settle_due(self, due: Schedule, now: int) -> None:
        """Make runs and skips of all that is due by a rule that is about to go, as a sweep would."""
        sweeper, seen = copy(self), due
        sweeper.records = Records(self.records.store, most=self.limits.batch)  # what the clock asks for is no part of the act that edits
        while seen.rev == due.rev and _is_due(seen, now):
            if await sweeper._fire_one(seen, plan(seen, now)) is None:
                self.forget_jobs()
                await self.refresh_controls()
                break
            seen = await self.get_schedule(due.key)

    async def remove_schedule(self, key: str) -> None:
        """Forget a schedule. Its runs stay."""
        await self.records.drop_schedule((await self.get_schedule(key)).id)

    async def trigger(self, key: str, *, once: Key | None = None) -> Created:
        """Make a run of a schedule now, or once under a key; its instants are not touched."""
        schedule = await self.get_schedule(key)
        new = NewRun(schedule.job, schedule.payload, schedule.options, key=once, checked=True)  # when it was stored
        return (await self.on_behalf_of(None).create([new], undefined="wait"))[0]  # its options were allowed when it was stored

    async def skips(self, key: str, *, count: int = 100) -> list[Skipped]:
        """What was due and did not become a run, latest first."""
        checks.integer(count, "count", 1, self.limits.page)
        return await self.records.skips((await self.get_schedule(key)).id, count)

    async def preview(self, key: str, *, start: int | None = None, count: int = 20) -> list[Preview]:
        """The coming instants of a schedule, from now or from a time."""
        checks.integer(count, "count", 1, self.limits.page)
        schedule = await self.get_schedule(key)
        found = cron.upcoming(rule_of(schedule), self.clock.now() if start is None else start, schedule.anchor, count)
        return [Preview(at, *cron.shown(rule_of(schedule), at)) for at in found]

    async def outage(self, key: str, start: int, end: int) -> Fire:
        """What a schedule would do at the end of a downtime, if all its runs had ended by then."""
        return outage_of(await self.get_schedule(key), start, end)

    # Firing

    async def fire_all(self) -> int:
        """Fire what is due, oldest first, until nothing is behind; how many runs this call made."""
        fired, _ = await self.fire_in_turn()
        return fired

    async def fire_in_turn(self, first: list[Schedule] | None = None) -> tuple[int, bool]:
        """How many runs were made, and whether there may be more to do.

        Everything that is due has its turn before anything has a second one, and it is paged by key: neither a schedule that is
        far behind nor any number of those that cannot be followed here keep others from firing.
        """
        fired, turn, left, place = 0, set[int](), False, _FIRST
        for _ in range(PASSES):
            look, first = await self._fire(FIRED_AT_ONCE, place, turn, first), None
            fired, left, place = fired + look.made, left or look.left, look.end or _FIRST
            turn |= look.moved
            if look.end is None:
                if not (turn and left):
                    return fired, False
                turn, left = set(), False
        return fired, True

    async def fire(self, count: int = FIRED_AT_ONCE) -> int:
        """Look at the schedules that are due once: each makes at most one run, the oldest that is due; how many runs were made."""
        look = await self._fire(count, _FIRST)
        while look.end is not None and not look.moved:
            look = await self._fire(count, look.end)
        return look.made

    async def _fire(self, count: int, after: _Place, but: Set[int] = frozenset(), first: list[Schedule] | None = None) -> _Look:
        now, count = self.clock.now(), min(count, FIRED_AT_ONCE)
        plans: list[_Plan] = []
        end: _Place | None = None
        for _ in range(TOGETHER):
            due, first = await self.records.schedules_due(now, after, count) if first is None else first[:count], None
            end = (due[-1].next_at or 0, due[-1].created_at, due[-1].id) if len(due) == count else None
            plans = self._plans([schedule for schedule in due if schedule.id not in but], now)
            try:
                return _look(plans, *await self._fire_these(plans), end, now)
            except (Conflict, OutcomeUnknown):
                self.forget_jobs()  # another process was faster, or somebody edits one: what is still due is read again
                await self.refresh_controls()
            except StoreError:
                raise
            except WindlassError:
                break  # one of them cannot fire
        # Then each by itself, so that one does not hold up the others.
        made = {schedule.id: await self._fire_one(schedule, fire) for schedule, fire in plans}
        moved = frozenset(key for key, number in made.items() if number is not None)
        return _look(plans, sum(filter(None, made.values())), moved, end, now)

    def _plans(self, due: Sequence[Schedule], now: int) -> list[_Plan]:
        """What each is to do now. One whose rule cannot be followed on this machine is left to another, which is said once."""
        found: list[_Plan] = []
        for schedule in due:
            try:
                found.append((schedule, plan(schedule, now)))
            except WindlassError as error:
                if (schedule.id, schedule.rev) not in self._left:
                    self._left |= {(schedule.id, schedule.rev)}
                    _LOG.error("Schedule %s cannot fire on this machine: %s", schedule.key, error)
        return found

    async def _fire_one(self, schedule: Schedule, fire: Fire) -> int | None:
        """How many runs it made; None when it has not moved on. What is wrong with one must not keep the others from firing."""
        try:
            made, moved = await self._fire_these([(schedule, fire)])
            return made if moved else None
        except (Conflict, OutcomeUnknown):
            return None  # the next look tells
        except StoreError:
            raise
        except WindlassError as error:
            _LOG.error("Schedule %s cannot fire: %s", schedule.key, error)
            return await self._pass_over(schedule, fire, error.code)

    async def _pass_over(self, schedule: Schedule, fire: Fire, reason: str) -> int | None:
        """Leave a trace of an instant that cannot become a run, and go on with the next."""
        if fire.due_at is not None:
            fire = fire._replace(due_at=None, skips=(*fire.skips, Skip(fire.due_at, fire.due_at, 1, reason)))
        try:
            return await self._store_fires([(schedule, fire)], [])
        except (Conflict, OutcomeUnknown):
            return None

    async def _fire_these(self, plans: Sequence[_Plan]) -> tuple[int, frozenset[int]]:
        """How many runs were made, and the schedules that have moved on."""
        jealous = [schedule.id for schedule, _ in plans if schedule.overlap != "allow"]
        unfinished = await self.records.unfinished(jealous)
        plans = [(schedule, fire) for schedule, fire in plans if not _held_up(schedule, unfinished.get(schedule.id, []))]
        if not plans:
            return 0, frozenset()
        news: list[NewRun] = []
        fires: list[_Plan] = []
        doomed: list[str] = []
        for schedule, planned in plans:
            fire, new, stop = _overlapped(schedule, await self._unless_fired(schedule, planned), unfinished.get(schedule.id, []))
            fires.append((schedule, fire))
            doomed += stop
            if new is not None:
                news.append(new)
        made = await self._store_fires(fires, news)
        for run in doomed:  # only now: a process that was too slow would cancel the run that another has just made
            await self._replace(run)
        return made, frozenset(schedule.id for schedule, _ in plans)

    async def _unless_fired(self, schedule: Schedule, fire: Fire) -> Fire:
        """A clock that was set back, or a rule that was changed meanwhile, can make an instant due again that has its run."""
        if fire.due_at is None or schedule.last_at is None or fire.due_at > schedule.last_at:
            return fire
        key = KeyRow(SCOPE, f"{schedule.id}@{fire.due_at}", "", "", 0, None, 0)
        return fire._replace(due_at=None) if await self.records.winners([key], self.clock.now()) else fire

    async def _replace(self, run: str) -> None:
        try:
            await self.cancel(run, reason="replaced by a later run of its schedule")
        except WindlassError as error:
            if error.status >= 500:
                raise  # else it has ended meanwhile

    async def _store_fires(self, plans: Sequence[_Plan], news: Sequence[NewRun]) -> int:
        texts = [json.encode(new.payload, most=self.limits.payload) for new in news]
        asked = list(zip(self.clock.new_ids(len(news)), news, map(self._checked, news), texts, strict=True))
        made = await self._made(asked, "wait")
        runs = {new.schedule: identity for identity, new, _, _ in asked}
        advances = [_advance(schedule, fire, runs.get(schedule.id)) for schedule, fire in plans]
        skips = [(schedule.id, *skip) for schedule, fire in plans for skip in fire.skips]
        try:
            stored = await self.records.fire(made, advances, skips, self.clock.nonce())
        except Conflict:
            await self._refuse_other_content(made)  # a key of theirs that something else holds becomes a recorded skip
            raise
        await self.wake_queues([*self.ready(made, stored.winners), *stored.released], made.now)
        return len(news)


def _look(plans: Sequence[_Plan], made: int, moved: frozenset[int], end: _Place | None, now: int) -> _Look:
    left = any(schedule.id not in moved or (fire.next_at is not None and fire.next_at <= now) for schedule, fire in plans)
    return _Look(made, moved, left, end)


def _kind(cron_text: str | None, every: str | float | None, at: str | None) -> tuple[str, str]:
    said = [(kind, value) for kind, value in (("cron", cron_text), ("interval", every), ("once", at)) if value is not None]
    if len(said) != 1:
        raise BadInput("A schedule has one rule.", hint="Give one of cron='0 3 * * *', every='15m', at='2027-01-31T09:00Z'.")
    kind, value = said[0]
    return kind, str(value)


def outage_of(schedule: Schedule, start: int, end: int) -> Fire:
    """What a schedule would do at the end of a downtime."""
    first = cron.next_after(rule_of(schedule), start, schedule.anchor)
    return Fire(None, (), None) if first is None else plan(replace(schedule, next_at=first), end)


def described(schedule: Schedule) -> str:
    """Its rule in words; one that cannot be read here, such as in a zone that this machine does not know, as it is written."""
    try:
        return cron.describe(rule_of(schedule))
    except BadInput:
        return f"{schedule.expr} ({schedule.zone})"


def edited(schedule: Schedule) -> bool:
    """Whether a person has changed what code says of it."""
    return schedule.said is not None and schedule.said != fingerprint(schedule)


def fingerprint(schedule: Schedule) -> str:
    """Equal for definitions that say the same."""
    content = [getattr(schedule, name) for name in EDITABLE]
    return blake2b(msgspec.json.encode(content, order="deterministic"), digest_size=16).hexdigest()


def _planned(schedule: Schedule, now: int) -> Schedule:
    """With its next instant worked out from now."""
    next_at = cron.next_after(rule_of(schedule), now, schedule.anchor) if schedule.enabled else None
    return replace(schedule, next_at=next_at)


def _is_due(schedule: Schedule, now: int) -> bool:
    return schedule.next_at is not None and schedule.next_at <= now


def _same_rule(one: Schedule, other: Schedule) -> bool:
    return rule_of(one) == rule_of(other)


def _left_out(seen: Schedule, wanted: Schedule, now: int, from_now: bool) -> tuple[Skip, ...] | None:
    """What an edit skips of that which is due by the rule before it; None: that becomes runs first, as its words say."""
    reason = "disabled" if not wanted.enabled else "edited" if from_now else None
    assert seen.next_at is not None
    try:
        plan(seen, now)
        return None if reason is None else passed_over(seen, now, reason)
    except WindlassError as error:  # its zone is not known here: all that can be told of it is its next instant
        return (Skip(seen.next_at, seen.next_at, 1, reason or error.code),)


def _edited(seen: Schedule, wanted: Schedule, now: int, from_now: bool) -> Schedule:
    """The wanted words over what has happened, where the rule or the switch is another."""
    kept = replace(wanted, id=seen.id, key=seen.key, anchor=seen.anchor, next_at=None)
    if seen.enabled and not from_now:
        last = _last(seen, now)
        return replace(kept, anchor=last, next_at=first_from(wanted, last, now) if wanted.enabled else None)
    return _planned(kept if _same_rule(seen, wanted) and not from_now else replace(kept, anchor=now), now)


def _last(schedule: Schedule, now: int) -> int:
    try:
        return last_instant(schedule, now)
    except WindlassError:
        return schedule.last_at or schedule.anchor


def _held_up(schedule: Schedule, unfinished: Sequence[Unfinished]) -> bool:
    """Whether its run would wait for one that somebody has locked: then it is fired by a later sweep, so that no other waits as well."""
    return schedule.overlap in ("queue", "cancel") and not all(run.free for run in unfinished)


def _overlapped(schedule: Schedule, fire: Fire, unfinished: Sequence[Unfinished]) -> tuple[Fire, NewRun | None, list[str]]:
    """What is left of a fire when the runs before it have not ended: the fire, its run, and the runs that are to be cancelled."""
    if fire.due_at is None:
        return fire, None, []
    busy = [run.run for run in unfinished]
    waiting = any(run.state is State.WAITING for run in unfinished)
    if busy and (schedule.overlap == "skip" or (schedule.overlap == "queue" and waiting)):
        skip = Skip(fire.due_at, fire.due_at, 1, "overlap")
        return fire._replace(due_at=None, skips=(*fire.skips, skip)), None, []
    after = tuple(busy[-PREDECESSORS:]) if schedule.overlap in ("queue", "cancel") else ()
    return fire, _run_of(schedule, fire.due_at, after), busy if schedule.overlap == "cancel" else []


def _run_of(schedule: Schedule, due_at: int, after: tuple[str, ...]) -> NewRun:
    name = f"{schedule.id}@{due_at}"
    key = Key(name, "time", KEEP_FIRES, scope=SCOPE, on_duplicate="compare", content=name)
    late = int.from_bytes(blake2b(name.encode(), digest_size=4).digest(), "big") % (schedule.jitter + 1)  # the same in every process
    return NewRun(schedule.job, schedule.payload, schedule.options, due_at + late, key, after, "any", schedule=schedule.id, instant=due_at)


def _advance(schedule: Schedule, fire: Fire, run: str | None) -> Advance:
    skipped = sum(skip.number for skip in fire.skips)
    return Advance(schedule.id, schedule.rev, schedule.next_at or 0, fire.next_at, fire.due_at, run, int(run is not None), skipped)
