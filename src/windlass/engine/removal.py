"""Removal of expired data: slice by slice, by one process at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import NamedTuple

from windlass.engine.ground import Ground, Part
from windlass.engine.notices import Notices
from windlass.engine.parking import Parking
from windlass.engine.retention import Page, RetentionRules
from windlass.engine.workers import Workers
from windlass.errors import Conflict, OutcomeUnknown
from windlass.steady import TOLERANCE

SLICE = 250
"""How many rows one batch removes at most: other writers wait for the store meanwhile."""

TURN, TURN_LASTS = "prune", 30_000
"""The name of the right to remove, and the milliseconds after which it expires if a process does not renew it."""


class Slice(NamedTuple):
    """The number of runs removed, and whether there may be more of the same kind."""

    runs: int
    more: bool


class PrunedRuns(NamedTuple):
    """The number of runs removed, and whether there are more, with which the next call goes on."""

    runs: int
    left: bool


class Removal(Part):
    """The verbs that remove expired data."""

    def __init__(self, ground: Ground, rules: RetentionRules, workers: Workers, parking: Parking, notices: Notices) -> None:
        super().__init__(ground)
        self._rules, self._workers, self._parking, self._notices = rules, workers, parking, notices
        self._unpruned: Sequence[str] = ()  # kinds with more to remove, the longest waiting first; replaced, since threads share it
        self._pruned_upto: dict[str, tuple[int, int]] = {}  # where the next slice of each kind begins
        self._renew_at = 0  # by the monotonic clock; until then this process has the right

    @cached_property
    def _turn(self) -> str:
        return self.clock.nonce()

    async def prune(self) -> int:
        """Remove ended runs past their retention, and expired keys and workers; returns the number of runs removed.

        Entries go with their run, so a run is kept until the journal's consumers have read its entries, within reason: a hub that has been
        down for a week must not keep the store from ever being tidied. Nothing is removed because of a clock that was just set, and
        nothing while another process removes.
        """
        await self.clear_away()
        return (await self.prune_for(None)).runs

    async def clear_away(self) -> None:
        """Forget workers that are long gone, unoccupied limiters and unused origins, and start every kind anew."""
        self._unpruned = ()
        await self._workers.prune()
        await self._parking.tidy()
        await self._notices.tidy()

    async def prune_for(self, budget: int | None) -> PrunedRuns:
        """Remove expired data for this many milliseconds, in turns of every kind; None: all of it.

        The right to remove is requested only when something has expired: where nothing has, nothing is written.
        """
        ends, pruned = None if budget is None else self.clock.monotonic() + budget, 0
        await self._store_settings()
        kinds = await self._kinds((await self.ground.bounds(note=True)).earliest)
        left = [name for name in self._unpruned if name in kinds] or [*kinds]
        while left:
            name, *left = left
            self._unpruned = left  # also after an error: the other kinds then come first
            removed = await kinds[name]()
            if removed is None:  # another process removes
                self._unpruned = ()
                return PrunedRuns(pruned, left=False)
            pruned += removed.runs
            if removed.more:
                self._unpruned = left = [*left, name]
            if left and ends is not None and self.clock.monotonic() >= ends:
                return PrunedRuns(pruned, left=True)
        await self._end_turn()
        return PrunedRuns(pruned, left=False)

    async def _store_settings(self) -> None:
        """Keep this process's retention settings in the store, if no process has set any before."""
        stored = await self.records.retention.settings() if self.ground.keeps else {}
        if missing := {name: value for name, value in self.ground.keeps.items() if name not in stored}:
            await self.records.retention.add(missing, self.clock.now())

    async def _take_turn(self) -> bool:
        """Whether this process may remove: no other process has the right, or it has expired."""
        if self.clock.monotonic() < self._renew_at:
            return True
        until = self.clock.now() + TURN_LASTS
        mine = False
        with suppress(OutcomeUnknown):
            mine = await self.records.retention.take_turn(TURN, self._turn, self.clock.now(), until, until + TOLERANCE)
        self._renew_at = self.clock.monotonic() + TURN_LASTS // 3 if mine else 0
        return mine

    async def _end_turn(self) -> None:
        if self._renew_at:
            self._renew_at = 0
            with suppress(OutcomeUnknown):  # then the right expires by itself
                await self.records.retention.end_turn(TURN, self._turn)

    async def _kinds(self, now: int) -> dict[str, Callable[[], Awaitable[Slice | None]]]:
        """The functions that remove a slice of each kind of expired data."""
        kinds: dict[str, Callable[[], Awaitable[Slice | None]]] = {
            name: partial(self._prune, name, shelf.page, now) for name, shelf in (await self._rules.shelves(now)).items()
        }
        audit_from = now - self.limits.keep_audit
        for name, drop, before in (
            ("keys", self.records.retention.drop_expired_keys, now),
            ("audit", self.records.access.drop_audit, audit_from),
            ("tokens", self.records.access.drop_tokens, audit_from),
        ):
            kinds[name] = partial(self._drop_some, partial(drop, before, SLICE))
        kinds["deliveries"] = partial(self._drop_some, partial(self.records.deliveries.prune, now, self.limits.keep_deliveries, SLICE))
        return kinds

    async def _drop_some(self, drop: Callable[[], Awaitable[int]]) -> Slice:
        """Remove the first of some small rows; more of them in turn."""
        return Slice(0, more=await drop() > 0 and await self._take_turn())

    async def _prune(self, name: str, page: Page, now: int) -> Slice | None:
        """Remove the next runs of a kind; however many must be kept, they do not hide those after them."""
        old = await page(self._pruned_upto.pop(name, (0, 0)), SLICE)
        seqs = [run.seq for run in old if not run.needed]
        if seqs and not await self._take_turn():
            return None
        if more := len(old) == SLICE:
            self._pruned_upto[name] = (old[-1].at, old[-1].seq)
        return Slice(await self._prune_these(seqs, now, own=name == "own"), more)

    async def _prune_these(self, seqs: list[int], now: int, *, own: bool) -> int:
        try:
            if seqs and (seqs := await self.records.retention.unlocked_old(seqs)):
                await self.records.retention.prune(seqs, now, own=own)
        except Conflict:
            return 0  # one of them is needed again; the next call reads anew
        return len(seqs)
