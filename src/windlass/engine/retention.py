"""How long ended runs are kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import NamedTuple

from windlass.answers import Retention, RetentionSetting
from windlass.engine import checks
from windlass.engine.ground import Part
from windlass.errors import BadInput
from windlass.machine import ENDED
from windlass.model import FOREVER, Keep, State, kept
from windlass.store.records import ExpiredRun
from windlass.store.records.retention import StoredSetting
from windlass.store.records.webhooks import format_of

NAMES = ("keep_succeeded", "keep_others")
_SHORTEST = "shortest"

Page = Callable[[tuple[int, int], int], Awaitable[list[ExpiredRun]]]


class Shelf(NamedTuple):
    """A kind of ended runs: how the next expired ones are read, and how many milliseconds after their sort key they expire."""

    page: Page
    keep: int


class RetentionRules(Part):
    """The verbs of retention settings for ended runs."""

    async def get(self) -> Retention:
        """How long ended runs are kept. The store's settings take precedence over those of any process."""
        stored = await self.records.retention.settings()
        return Retention(*(self._kept(stored, name) for name in NAMES))

    def _kept(self, settings: Mapping[str, StoredSetting], name: str) -> RetentionSetting:
        keep, setting = kept(self._value(settings, name)), settings.get(name)
        if setting is not None:
            return RetentionSetting(keep, "store", setting.actor, setting.at)
        return RetentionSetting(keep, "settings" if name in self.ground.keeps else "default")

    async def set(self, *, keep_succeeded: Keep | None = None, keep_others: Keep | None = None, by: str | None = None) -> Retention:
        """Set how long ended runs are kept, for every process on this store; None: unchanged. In effect with the next removal."""
        durations = {"keep_succeeded": keep_succeeded, "keep_others": keep_others}
        values = {name: checks.keep(value, name, self.limits) for name, value in durations.items() if value is not None}
        if not values:
            raise BadInput("No retention is given.", hint="Give keep_succeeded, keep_others, or both.")
        await self.records.retention.set(values, "unknown" if by is None else checks.name(by, "The actor's name"), self.clock.now())
        return await self.get()

    async def shortest(self) -> int:
        """The shortest retention of any run, in milliseconds."""
        stored = await self.records.retention.settings()
        own = stored[_SHORTEST].value if _SHORTEST in stored else FOREVER
        return min(own, *(self._value(stored, name) for name in NAMES))

    def _value(self, settings: Mapping[str, StoredSetting], name: str) -> int:
        if name in settings:
            return settings[name].value
        default: int = getattr(self.limits, name)
        return self.ground.keeps.get(name, default)

    async def shelves(self, now: int) -> dict[str, Shelf]:
        """The runs that have expired at a time: by state, and those with a retention of their own."""
        read, within = min(await self._read_up_to(), default=None), self.limits.deliver_within
        stored = await self.records.retention.settings()
        own = partial(self.records.retention.prunable_own, now, FOREVER if read is None else read, now - within)
        shelves = {"own": Shelf(own, 0)}
        for state in ENDED:
            keep = self._value(stored, "keep_succeeded" if state is State.SUCCEEDED else "keep_others")
            if keep < FOREVER:
                before = now - keep if read is None else max(min(now - keep, read + 1), now - keep - within)
                shelves[state.value] = Shelf(partial(self.records.retention.prunable, state, before), keep)
        return shelves

    async def overdue(self, now: int, count: int) -> list[int]:
        """The times at which runs that have expired but still exist should have been removed; at most `count` of each kind."""
        shelves = (await self.shelves(now)).values()
        return [run.at + shelf.keep for shelf in shelves for run in await shelf.page((0, 0), count) if not run.needed]

    async def _read_up_to(self) -> list[int]:
        """The times up to which the journal's consumers have read it; those of webhooks only while any of the format is enabled."""
        consumers = await self.records.journal.consumers()
        formats = {webhook.format for webhook in await self.records.webhooks.all() if webhook.enabled}
        return [at for name, at in consumers.items() if (format := format_of(name)) is None or format in formats]
