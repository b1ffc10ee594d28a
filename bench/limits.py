"""The limits' part: what a claim costs where resources are limited, and where very many wait for one that is full."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from bench import load
from bench.figures import Figures, doing, say
from bench.places import Place, open_postgres, open_sqlite
from windlass.clock import SystemClock
from windlass.engine import Engine, Outcome
from windlass.machine import Succeed
from windlass.model import NewRun, Options, Use, WorkerInfo
from windlass.store.base import run_sync

WAITING, CLAIMS = 100_000, 200
QUICK_WAITING, QUICK_CLAIMS = 20_000, 60
CLAIM, WARM = 10, 10
WORKER = WorkerInfo("bench", slots=1_000)
PLAIN, LIMITED, KEYED, BEHIND = "plain", "limited", "keyed", "behind"
USES = {PLAIN: (), LIMITED: (Use("gpu"),), KEYED: (Use("gpu"), Use("customer", per="customer")), BEHIND: (Use("full"),)}


class Site:
    """A store with one job from which a worker claims, and perhaps another one that waits."""

    def __init__(self, place: Place, *jobs: str, uses: tuple[Use, ...] | None = None) -> None:
        self.address = place.make()
        store, self._times = place.timed_store(self.address)
        self.engine, self.job = Engine(store, SystemClock()), jobs[0]
        for job in jobs:
            run_sync(self.engine.define(job, options=Options(uses=USES[job] if uses is None or job != BEHIND else uses)))
        for name in ("gpu", "customer"):
            run_sync(self.engine.set_resource(name, capacity=CLAIM))

    def hold(self, place: Place, waiting: int) -> None:
        """One run that has all there is, and so many that wait for it, ahead of all others."""
        lane = next(lane.id for lane in self.engine.parts.ground.lanes.all if lane.job == BEHIND)
        run_sync(self.engine.create([NewRun(BEHIND)]))
        run_sync(self.engine.claim(WorkerInfo("holder", jobs=(BEHIND,), slots=9), lease=10_000_000))
        if waiting:
            with place.loader(self.address) as execute:
                load.queued(execute, waiting, job=BEHIND, lane=lane, at=SystemClock().now() - 60_000, first=10)

    def claim(self) -> float:
        """The time of a claim's statements in milliseconds; what was claimed is ended, so that the next finds the same."""
        run_sync(self.engine.create([NewRun(self.job, {"customer": number}) for number in range(CLAIM)]))
        self._times.take()
        runs = run_sync(self.engine.claim(WORKER, count=CLAIM))
        spent = self._times.take()
        if len(runs) != CLAIM:
            raise RuntimeError(f"claimed {len(runs)} runs of {CLAIM}")
        run_sync(self.engine.report_many([Outcome(run.id, Succeed(token=run.token), run.seq) for run in runs]))
        return spent

    def close(self) -> None:
        run_sync(self.engine.close())


def measure(figures: Figures, *, quick: bool) -> None:
    """All figures of limits."""
    waiting, count = (QUICK_WAITING, QUICK_CLAIMS) if quick else (WAITING, CLAIMS)
    with open_sqlite() as sqlite:
        measure_place(figures, sqlite, waiting, count)
    with open_postgres() as postgres:
        measure_place(figures, postgres, waiting, count)


def measure_place(figures: Figures, place: Place, waiting: int, count: int) -> None:
    """The figures that every store has."""
    say(f"\n{place.name}: claims of {CLAIM} within limits, and in front of them {waiting:,} that wait for what is full")
    compare(figures, f"{place.name}.claim_limited", [Site(place, PLAIN), Site(place, LIMITED)], count, bar=2)
    compare(figures, f"{place.name}.claim_limited_by_key", [Site(place, PLAIN), Site(place, KEYED)], count, bar=None)
    for name, uses in (("claim_behind_full", (Use("full"),)), ("claim_behind_key", (Use("full", per="customer"),))):
        sites = [Site(place, PLAIN, BEHIND, uses=uses) for _ in range(2)]
        for site, behind in zip(sites, (0, waiting), strict=True):
            site.hold(place, behind)
        with doing(f"{name}: the first claim, which puts aside what waits for a key"):
            figures.note(f"{place.name}.{name}.first_ms", sites[1].claim())
            run_sync(sites[1].engine.tidy())
        compare(figures, f"{place.name}.{name}", sites, count, bar=1.5)


def compare(figures: Figures, name: str, sites: Sequence[Site], count: int, *, bar: float | None) -> None:
    """Note how much longer a claim takes in the second; both in turn, so that both see the same machine."""
    spent: list[list[float]] = [[], []]
    with doing(f"{name}: {count} claims from each"):
        for number in range(count + WARM):
            for which in (0, 1) if number % 2 else (1, 0):
                spent[which].append(sites[which].claim())
    without, within = (median(times[WARM:]) for times in spent)
    figures.note(f"{name}.ratio", within / without, at_most=bar)
    figures.note(f"{name}.without_ms", without)
    figures.note(f"{name}.ms", within)
    for site in sites:
        site.close()
