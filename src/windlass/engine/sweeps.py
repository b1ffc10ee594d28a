"""Sweeps: due runs are queued, lost leases lapse, old runs are pruned. Any process may sweep, any number at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from windlass.answers import SweepResult
from windlass.engine.fires import FIRED_AT_ONCE, Fires
from windlass.engine.ground import BACK_AT_LATEST, Ground, Part
from windlass.engine.parking import KEYS, Parking
from windlass.engine.removal import Removal
from windlass.engine.slots import Slots
from windlass.engine.unused import Unused
from windlass.engine.watch import JUMP, Watch
from windlass.errors import OutcomeUnknown
from windlass.machine import ENDED, Abandon, Command, Expire, Lapse, step
from windlass.model import Run
from windlass.store.records import Change, Pages, PageSizes, ReadyQueue

SLICE = 500
SLICES = 20
"""How many slices of one kind a sweep does before other processes get their turn at the store."""

PRUNE_EVERY, PRUNE_FOR = 60_000, 50
"""Milliseconds after which a sweep checks again for runs past their retention, and for how long it removes some of them."""
PAUSE = 2
"""The pause after a removal is the time it took divided by this."""
TIDY_ABOVE, TIDY_SHARE = 10_000, 0.02


class Sweeps(Part):
    """The verbs that time triggers."""

    def __init__(self, ground: Ground, fires: Fires, slots: Slots, parking: Parking, removal: Removal, unused: Unused) -> None:
        super().__init__(ground)
        self._fires, self._slots, self._parking, self._removal, self._unused = fires, slots, parking, removal, unused
        self._minute_at = self._prune_at = 0
        self._lapsed_to = (0, 0)  # where the last sweep stopped at its limit

    async def sweep(self, watch: Watch | None = None) -> SweepResult:
        """Lapse lost leases, fire schedules, dispatch due runs, prune old ones.

        Without a watch, leases are judged by the store's time alone, which cannot distinguish a dead worker from a process that
        slept or a clock that was set. A process that sweeps regularly keeps a Watch and passes it in each time.
        """
        began, minute = self.clock.now(), self.clock.monotonic() >= self._minute_at
        if watch is not None:
            watch.look()
        pages = await self._first_pages(watch, look_sooner=minute or (watch is not None and watch.was_set))
        lapsed = await self.lapse(watch, pages.overdue)
        await self._slots.lapse(watch, pages.slots)
        await self._parking.open_these(pages.limiters, pages.parked)
        fired, left = await self._fires.fire_in_turn(pages.schedules)
        settled = await self.settle(pages.checks)
        dispatched = await self.dispatch(first=pages.due)
        if minute:
            await self._removal.clear_away()
            self._minute_at = self._prune_at = self.clock.monotonic() + PRUNE_EVERY
        pruned = await self._prune_some() if minute or self.clock.monotonic() >= self._prune_at else 0
        more = left or max(lapsed, dispatched) >= SLICE * SLICES
        return SweepResult(fired, settled, dispatched, lapsed, pruned, 0 if more else await self._back_in(began, pages))

    async def _first_pages(self, watch: Watch | None, *, look_sooner: bool) -> Pages:
        """The first page of everything that may be due, in one read: a sweep with nothing to do makes no other."""
        now = self.clock.now()
        pages = await self._read_pages(now, late=now + JUMP if look_sooner else None)
        if look_sooner:
            await self._look_sooner(watch, pages.late)
        return await self._read_pages(self.clock.now()) if pages.late else pages

    async def _read_pages(self, now: int, *, late: int | None = None) -> Pages:
        sizes = PageSizes(SLICE, KEYS, FIRED_AT_ONCE)
        return await self.records.sweeps.first_pages(now, self._lapsed_to, self._parking.repaired, sizes, late=late)

    async def _prune_some(self) -> int:
        """Remove expired runs for a while. If there are more, the next sweep goes on after a pause in which others use the store."""
        began = self.clock.monotonic()
        pruned, left = await self._removal.prune_for(PRUNE_FOR)
        now = self.clock.monotonic()
        self._prune_at = now + (now - began) // PAUSE if left else self._minute_at
        return pruned

    async def _back_in(self, began: int, pages: Pages) -> int:
        """Milliseconds until the next sweep. What was due when the sweep began and still is, this process must not touch yet."""
        times = pages.times if pages.idle else await self.records.sweeps.next_times(began)
        now = self.clock.now()
        waits = [max(0, at - now) for at in times.values() if at > began]
        return min([BACK_AT_LATEST, max(0, self._prune_at - self.clock.monotonic()), *waits])

    async def dispatch(self, count: int = SLICE * SLICES, *, first: list[tuple[int, int]] | None = None) -> int:
        """Queue the runs that are due, oldest first; returns how many this call moved. Locked runs do not hide those after them."""
        moved, due = 0, await self._due((0, 0), count) if first is None else first
        while due:
            moved += await self._dispatch(sorted(seq for _, seq in due), self.clock.now())
            count -= len(due)
            due = await self._due(due[-1], count) if len(due) == SLICE else []
        return moved

    async def _due(self, after: tuple[int, int], count: int) -> list[tuple[int, int]]:
        return await self.records.sweeps.due(self.clock.now(), after, min(count, SLICE)) if count > 0 else []

    async def _dispatch(self, ids: list[int], now: int) -> int:
        try:
            moved = await self.records.sweeps.dispatch(ids, self.clock.nonce(), now)
        except OutcomeUnknown:
            return 0  # runs that were not moved are still due
        await self.ground.wake_queues((ReadyQueue(queue, now, (seq,)) for seq, queue in moved.items()), now)
        return len(moved)

    async def settle(self, first: list[int] | None = None) -> int:
        """Release or cancel runs that wait, from a caller's transaction, for runs that have ended meanwhile; how many were released."""
        released, after = 0, 0
        for _ in range(SLICES):
            runs, first = await self.records.sweeps.checks(after, SLICE) if first is None else first, None
            if not runs:
                break
            released += await self._settle_these(runs)
            if len(runs) < SLICE:
                break
            after = runs[-1]
        return released

    async def _settle_these(self, runs: list[int]) -> int:
        ended, now = await self.records.sweeps.checked_ends(runs), self.clock.now()
        try:
            free = await self.records.sweeps.unlocked(ended, ended)
            released = await self.records.sweeps.settle(runs, sorted(free), self.clock.nonce(), self.clock.nonce(), now)
        except OutcomeUnknown:
            return 0  # the next sweep reads them again
        await self.ground.wake_queues(released, now)
        return len(released)

    async def _look_sooner(self, watch: Watch | None, first: list[Run] | None) -> None:
        """Check leases now whose end is further ahead than a lease can last: the clock was set back since they were written."""
        for _ in range(SLICES):
            now = self.clock.now()
            runs, first = await self.records.sweeps.looked_at_late(now + JUMP, SLICE) if first is None else first, None
            await self._look_later([(run, now) for run in runs])
            if len(runs) < SLICE:
                if watch is not None:
                    watch.was_set = False
                break

    async def lapse(self, watch: Watch | None = None, first: list[Run] | None = None) -> int:
        """Lapse leases that were not renewed, and end runs that exceeded their time; returns how many this call moved.

        Pages by key, and goes on where the last call stopped, so that runs it must not touch never hide those it must.
        """
        moved = 0
        for _ in range(SLICES):
            now = self.clock.now()
            runs, first = await self.records.sweeps.overdue(now, self._lapsed_to, SLICE) if first is None else first, None
            self._lapsed_to = (runs[-1].lease_check_at or 0, runs[-1].seq) if len(runs) == SLICE else (0, 0)
            moved += await self._lapse(runs, now, watch)
            if len(runs) < SLICE:
                break
        return moved

    async def _lapse(self, runs: list[Run], now: int, watch: Watch | None) -> int:
        verdicts = {run.seq: self._verdict(run, now, watch) for run in runs}
        changes = [
            Change(run, step(run, cmd, now), cmd.name, lapsed=run.lease_until if isinstance(cmd, Lapse) else None)
            for run in runs
            if isinstance(cmd := verdicts[run.seq], Command)
        ]
        await self._look_later([(run, at) for run in runs if isinstance(at := verdicts[run.seq], int)])
        try:
            if not changes or not (changes := await self._unlocked(changes)):
                return 0
            result = await self.ground.write_back("lapse", changes, now)
        except OutcomeUnknown:
            return 0  # the next sweep reads them again
        return len(result.seqs)

    async def _look_later(self, looks: list[tuple[Run, int]]) -> None:
        if looks:
            with suppress(OutcomeUnknown):  # the next sweep reads them again
                await self.records.sweeps.postpone_check(looks)

    async def _unlocked(self, changes: list[Change]) -> list[Change]:
        """The changes that can be written now. Runs locked by a foreign transaction must not hold up the others."""
        ending = [change.before.seq for change in changes if change.after.state in ENDED]
        free = await self.records.sweeps.unlocked([change.before.seq for change in changes], ending)
        return [change for change in changes if change.before.seq in free]

    def _verdict(self, run: Run, now: int, watch: Watch | None) -> Command | int | None:
        """The verdict on a lease whose check is due: a command, the time of the next check, or nothing by this process."""
        verdicts = [(kind, start + length, _over(run, kind, start, length, now, watch)) for kind, start, length in _terms(run)]
        for kind, _, over in verdicts:
            if over:
                return self._ended_by(kind, run)
        # A verdict that is still open does not postpone the check: that would also keep processes from it that can decide.
        return None if any(over is None for *_, over in verdicts) else min(end for _, end, _ in verdicts)

    def _ended_by(self, kind: type[Command], run: Run) -> Command:
        if kind is Lapse:
            return Lapse(token=run.token, next_id=self.clock.new_id(), chance=self.clock.chance())
        return kind(token=run.token)

    async def tidy(self) -> bool:
        """Remove dead rows that slow claims down, if there are enough; once a day also unused lanes, resources and placeholders.

        On PostgreSQL a claim reads over the dead entries of earlier claims, and autovacuum runs once a minute at
        most. This can take seconds, so it belongs in a task of its own, not beside a Watch; every ten seconds is often enough.
        """
        await self._unused.tidy()
        return await self.records.retention.tidy(TIDY_ABOVE, TIDY_SHARE)


def _terms(run: Run) -> Iterator[tuple[type[Command], int, int]]:
    """The commands by which time can end a lease, each with its start and its length."""
    if run.cancel_asked_at is not None:
        yield Abandon, run.cancel_asked_at, run.policy.grace
    if run.max_runtime is not None and run.claimed_at is not None:
        yield Expire, run.claimed_at, run.max_runtime
    lease = run.lease or 0
    yield Lapse, (run.lease_until or 0) - lease, lease


def _over(run: Run, kind: type[Command], start: int, length: int, now: int, watch: Watch | None) -> bool | None:
    if watch is None:
        return start + length <= now
    return watch.over((run.seq, run.token, kind), start, length, run.lease or 0, now)
