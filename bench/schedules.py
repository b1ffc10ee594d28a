"""The schedules' part: what a sweep costs that finds ten due, among a thousand and among a hundred thousand."""

from __future__ import annotations

import time
from statistics import median
from typing import NamedTuple

from bench.figures import Figures, doing, say
from bench.places import Place, Times, open_postgres, open_sqlite
from windlass.clock import ManualClock
from windlass.engine import Engine, Outcome
from windlass.machine import Succeed
from windlass.model import WorkerInfo
from windlass.store.base import Store, run_sync

FEW, MANY, DUE = 1_000, 100_000, 10
SWEEPS, QUICK, WARM = 300, 60, 10
MINUTE = 60_000
WORKER = WorkerInfo("bench", slots=DUE)

# Each due once a day, from tomorrow on: a minute passes with every sweep, so none of them is reached.
_LATER = """
insert into job_schedules (key, job, kind, expr, zone, anchor, payload, options, missed, max_missed, overlap, jitter, enabled, next_at, rev,
  created_at, updated_at)
with recursive n(i) as (select 1 union all select i + 1 from n where i < {count})
select 'later ' || i, 'tick', 'interval', '1d', 'UTC', {now}, '{{}}', '{{}}', 'latest', 100, 'skip', 0, 1, {now} + 86400000 + i * 864, 1,
  {now}, {now}
from n"""


def measure(figures: Figures, *, quick: bool) -> None:
    """All figures of schedules."""
    with open_sqlite() as sqlite:
        sweeps_among(figures, sqlite, QUICK if quick else SWEEPS)
    with open_postgres() as postgres:
        sweeps_among(figures, postgres, QUICK if quick else SWEEPS)


class Spent(NamedTuple):
    """Milliseconds of a sweep."""

    statements: float  # without begin and commit
    whole: float


class Site:
    """A store with a number of schedules, ten of which are due every minute."""

    def __init__(self, store: Store, times: Times) -> None:
        self.store, self._times, self.clock = store, times, ManualClock()
        self.engine = Engine(store, self.clock)
        run_sync(self.engine.define("tick"))
        for n in range(DUE):
            run_sync(self.engine.schedule(f"due {n}", "tick", every="1m", overlap="skip"))
        self.sweep()  # a connection keeps the plans it made when there was next to nothing

    def sweep(self) -> Spent:
        """How long a sweep takes that fires ten; what it has made is ended after it."""
        self.clock.jump(MINUTE)
        self._times.take()
        begun = time.perf_counter()
        swept = run_sync(self.engine.sweep())
        whole = 1000 * (time.perf_counter() - begun)
        statements = self._times.take()
        runs = run_sync(self.engine.claim(WORKER, count=DUE))
        run_sync(self.engine.report_many([Outcome(run.id, Succeed(token=run.token), run.seq) for run in runs]))
        if (swept.fired, len(runs)) != (DUE, DUE):
            raise RuntimeError(f"fired {swept.fired} and claimed {len(runs)} of {DUE}")
        return Spent(statements, whole)


def sweeps_among(figures: Figures, place: Place, count: int) -> None:
    """Note how much longer a sweep takes among many; both in turn, so that both see the same machine."""
    say(f"\n{place.name}: sweeps that fire {DUE} among {MANY:,} schedules and among {FEW:,}")
    few, many = site_with(place, FEW), site_with(place, MANY)
    spent: dict[Site, list[Spent]] = {few: [], many: []}
    name = f"{place.name}.sweep.schedules_100k"
    with doing(f"{name}: {count} sweeps of each"):
        for number in range(count + WARM):
            for site in (few, many) if number % 2 else (many, few):
                spent[site].append(site.sweep())
    middle = {site: Spent(*map(median, zip(*spent[site][WARM:], strict=True))) for site in (few, many)}
    figures.note(f"{name}.ratio", middle[many].statements / middle[few].statements, at_most=1.5)
    figures.note(f"{name}.few_ms", middle[few].statements)
    figures.note(f"{name}.many_ms", middle[many].statements)
    figures.note(f"{name}.whole_ratio", middle[many].whole / middle[few].whole)
    figures.note(f"{name}.whole_many_ms", middle[many].whole)
    for site in (few, many):
        run_sync(site.store.close())


def site_with(place: Place, schedules: int) -> Site:
    """The others are loaded in bulk, and nothing is analyzed or vacuumed before."""
    address = place.make()
    site = Site(*place.timed_store(address))
    with place.loader(address) as execute:
        execute(_LATER.format(count=schedules - DUE, now=site.clock.now()))
    return site
