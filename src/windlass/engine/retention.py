"""How long ended runs are kept, and the removal of what is past its time: slice by slice, by one process at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Literal, NamedTuple

from msgspec import Struct

from windlass.engine import checks
from windlass.engine.limiting import Limiting
from windlass.engine.reading import Reading
from windlass.engine.stats import Counting
from windlass.engine.steady import TOLERANCE
from windlass.errors import BadInput, Conflict, OutcomeUnknown
from windlass.machine import ENDED
from windlass.model import FOREVER, Keep, State, kept
from windlass.store.records import Old
from windlass.store.retention import Setting
from windlass.store.webhooks import FOLLOWER as TELLING

SLICE = 250
"""What is removed in one batch, at most: others wait for their turn at the store while it is written."""

TURN, TURN_LASTS = "prune", 30_000
"""What the right to remove is called, and for how many milliseconds a process has it that does not renew it."""

NAMES = ("keep_succeeded", "keep_others")
_SHORTEST = "shortest"

Page = Callable[[tuple[int, int], int], Awaitable[list[Old]]]


class Kept(Struct, frozen=True):
    """How long ended runs are kept, and where that comes from: the store, what this process was told, or its defaults."""

    keep: Keep
    source: Literal["store", "settings", "default"]
    who: str | None = None  # who set it; None: the first process whose settings named it
    at: int | None = None


class Retention(Struct, frozen=True):
    """How long ended runs are kept that do not say so themselves."""

    keep_succeeded: Kept
    keep_others: Kept


class Shelf(NamedTuple):
    """Ended runs that are past their time: how the next of them are read, and how long after what they are sorted by that is."""

    page: Page
    keep: int


class Slice(NamedTuple):
    """How many runs went, and whether there may be more of the same."""

    runs: int
    more: bool


class Pruned(NamedTuple):
    """How many runs went, and whether there is more, which the next call goes on with."""

    runs: int
    left: bool


class Keeping(Reading):
    """The verbs that say how long ended runs are kept."""

    async def retention(self) -> Retention:
        """How long ended runs are kept. What the store has comes before what any process was told."""
        stored = await self.records.store_settings()
        return Retention(*(self._kept(stored, name) for name in NAMES))

    def _kept(self, stored: Mapping[str, Setting], name: str) -> Kept:
        keep, setting = kept(self._value(stored, name)), stored.get(name)
        if setting is not None:
            return Kept(keep, "store", setting.who, setting.at)
        return Kept(keep, "settings" if name in self.keeps else "default")

    async def set_retention(
        self, *, keep_succeeded: Keep | None = None, keep_others: Keep | None = None, by: str | None = None
    ) -> Retention:
        """Say how long ended runs are kept, for every process on this store; None stays as it is. In effect with the next removal."""
        given = {"keep_succeeded": keep_succeeded, "keep_others": keep_others}
        values = {name: checks.keep(value, name, self.limits) for name, value in given.items() if value is not None}
        if not values:
            raise BadInput("Nothing is said of retention.", hint="Give keep_succeeded, keep_others, or both.")
        await self.records.set_settings(values, "unknown" if by is None else checks.name(by, "Who did it"), self.clock.now())
        return await self.retention()

    async def shortest_retention(self) -> int:
        """After how many milliseconds the first runs may have been removed."""
        stored = await self.records.store_settings()
        own = stored[_SHORTEST].value if _SHORTEST in stored else FOREVER
        return min(own, *(self._value(stored, name) for name in NAMES))

    def _value(self, stored: Mapping[str, Setting], name: str) -> int:
        if name in stored:
            return stored[name].value
        default: int = getattr(self.limits, name)
        return self.keeps.get(name, default)

    async def shelves(self, now: int) -> dict[str, Shelf]:
        """The runs that should be gone by then: by state, and those with a time of their own."""
        read, within = min(await self._read_up_to(), default=None), self.limits.deliver_within
        stored = await self.records.store_settings()
        own = partial(self.records.prunable_own, now, FOREVER if read is None else read, now - within)
        shelves = {"own": Shelf(own, 0)}
        for state in ENDED:
            keep = self._value(stored, "keep_succeeded" if state is State.SUCCEEDED else "keep_others")
            if keep < FOREVER:
                before = now - keep if read is None else max(min(now - keep, read + 1), now - keep - within)
                shelves[state.value] = Shelf(partial(self.records.prunable, state, before), keep)
        return shelves

    async def _read_up_to(self) -> list[int]:
        """Up to when those who follow the journal have read it; webhooks only while there are any."""
        followers = await self.records.followers()
        if TELLING in followers and not any(webhook.enabled for webhook in await self.records.webhooks()):
            del followers[TELLING]
        return list(followers.values())


class Retaining(Keeping, Counting, Limiting):
    """The verbs that remove what is past its time."""

    _unpruned: Sequence[str] = ()  # kinds of which there is more, those that have waited longest first; replaced, since threads share it
    _renew_at = 0  # by the monotonic clock; before that the turn is this process's own

    @cached_property
    def _turn(self) -> str:
        return self.clock.nonce()

    @cached_property
    def _pruned_upto(self) -> dict[str, tuple[int, int]]:
        """Where the next slice of each kind begins."""
        return {}

    # What is removed

    async def prune(self) -> int:
        """Remove ended runs past their retention, and keys and workers past their time; how many runs went.

        Entries go with their run, so those that somebody follows the journal for are waited for, within reason: a hub that has been
        away for a week must not keep the store from ever being tidied. Nothing is removed because of a clock that was just set, and
        nothing while another process removes.
        """
        await self.clear_away()
        return (await self.prune_for(None)).runs

    async def clear_away(self) -> None:
        """Forget workers that are long gone and what nobody occupies any more, and look at every kind anew."""
        self._unpruned = ()
        await self.prune_workers()
        await self.tidy_gates()

    async def prune_for(self, budget: int | None) -> Pruned:
        """Remove what is past its time for so many milliseconds, in turns of every kind; None: all of it.

        The right to do so is asked for when there is something: where nothing is past its time, nothing is written.
        """
        ends, pruned = None if budget is None else self.clock.monotonic() + budget, 0
        await self._store_settings()
        kinds = await self._kinds((await self.bounds(note=True)).earliest)
        left = [name for name in self._unpruned if name in kinds] or [*kinds]
        while left:
            name, *left = left
            self._unpruned = left  # also where it fails: the others come first then
            removed = await kinds[name]()
            if removed is None:  # another process removes
                self._unpruned = ()
                return Pruned(pruned, left=False)
            pruned += removed.runs
            if removed.more:
                self._unpruned = left = [*left, name]
            if left and ends is not None and self.clock.monotonic() >= ends:
                return Pruned(pruned, left=True)
        await self._end_turn()
        return Pruned(pruned, left=False)

    async def _store_settings(self) -> None:
        """Keep in the store what this process was told of retention, if it is the first that was told anything."""
        stored = await self.records.store_settings() if self.keeps else {}
        if missing := {name: value for name, value in self.keeps.items() if name not in stored}:
            await self.records.add_settings(missing, self.clock.now())

    async def _take_turn(self) -> bool:
        """Whether this process may remove: no other does, as far as one that was killed has been gone for long enough."""
        if self.clock.monotonic() < self._renew_at:
            return True
        until = self.clock.now() + TURN_LASTS
        mine = False
        with suppress(OutcomeUnknown):
            mine = await self.records.take_turn(TURN, self._turn, self.clock.now(), until, until + TOLERANCE)
        self._renew_at = self.clock.monotonic() + TURN_LASTS // 3 if mine else 0
        return mine

    async def _end_turn(self) -> None:
        if self._renew_at:
            self._renew_at = 0
            with suppress(OutcomeUnknown):  # then it ends by itself
                await self.records.end_turn(TURN, self._turn)

    async def _kinds(self, now: int) -> dict[str, Callable[[], Awaitable[Slice | None]]]:
        """How a slice of each kind is removed of what is past its time."""
        kinds: dict[str, Callable[[], Awaitable[Slice | None]]] = {
            name: partial(self._prune, name, shelf.page, now) for name, shelf in (await self.shelves(now)).items()
        }
        audit_from = now - self.limits.keep_audit
        for name, drop, before in (
            ("keys", self.records.drop_expired_keys, now),
            ("audit", self.records.drop_audit, audit_from),
            ("tokens", self.records.drop_tokens, audit_from),
        ):
            kinds[name] = partial(self._drop_some, partial(drop, before, SLICE))
        kinds["deliveries"] = partial(self._drop_some, partial(self.records.prune_deliveries, now, self.limits.keep_deliveries, SLICE))
        return kinds

    async def _drop_some(self, drop: Callable[[], Awaitable[int]]) -> Slice:
        """Remove the first of some small things; more of them in turn."""
        return Slice(0, more=await drop() > 0 and await self._take_turn())

    async def _prune(self, name: str, page: Page, now: int) -> Slice | None:
        """Remove the next runs of a kind; what is kept does not hide what is behind it, however much it is."""
        old = await page(self._pruned_upto.pop(name, (0, 0)), SLICE)
        seqs = [run.seq for run in old if not run.needed]
        if seqs and not await self._take_turn():
            return None
        if more := len(old) == SLICE:
            self._pruned_upto[name] = (old[-1].at, old[-1].seq)
        return Slice(await self._prune_these(seqs, now, own=name == "own"), more)

    async def _prune_these(self, seqs: list[int], now: int, *, own: bool) -> int:
        try:
            if seqs and (seqs := await self.records.unlocked_old(seqs)):
                await self.records.prune(seqs, now, own=own)
        except Conflict:
            return 0  # one of them is needed again; the next call looks anew
        return len(seqs)
