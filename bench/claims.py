"""Claims: how long they take in large tables, and whether fifty at once all get something."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median
from typing import NamedTuple

from bench import load
from bench.figures import Figures, doing, say
from bench.places import Place, Times
from bench.raw import JOB, PAYLOAD_VALUE, WORKER
from bench.sizes import Sizes
from windlass.clock import SystemClock
from windlass.engine import Engine, Outcome
from windlass.machine import Succeed
from windlass.model import NewRun, WorkerInfo
from windlass.store.base import Store, run_sync

SMALL = 1_000
CLAIM = 10
FIFTY = 50
BULK = "bulk"


class Site:
    """A store with a number of runs, of which a worker claims some."""

    def __init__(self, store: Store, times: Times) -> None:
        self.store, self._times = store, times
        self.engine = Engine(store, SystemClock())
        for job in (BULK, JOB):
            run_sync(self.engine.define(job))

    def lane(self, job: str) -> int:
        return self.engine.parts.ground.lanes.ids["default", job, ""]

    def claim(self, job: str) -> float:
        """The time of a claim's statements in milliseconds; what was claimed is ended, and as much created anew."""
        run_sync(self.engine.create([NewRun(job, PAYLOAD_VALUE) for _ in range(CLAIM)]))
        self._times.take()
        runs = run_sync(self.engine.claim(WorkerInfo(WORKER, jobs=(job,), slots=CLAIM), count=CLAIM))
        spent = self._times.take()
        if len(runs) != CLAIM:
            raise RuntimeError(f"claimed {len(runs)} runs of {CLAIM}")
        run_sync(self.engine.report_many([Outcome(run.id, Succeed(token=run.token), run.seq) for run in runs]))
        return spent

    def close(self) -> None:
        run_sync(self.store.close())


class Pair(NamedTuple):
    """The same, with few runs and with many."""

    few: Site
    many: Site

    def compare(self, figures: Figures, name: str, job: str, count: int, *, bar: float | None = 1.3) -> None:
        """Note how much longer a claim takes among many; both in turn, so that both see the same machine."""
        spent: dict[Site, list[float]] = {self.few: [], self.many: []}
        with doing(f"{name}: {count} claims of {CLAIM} from each"):
            for number in range(count + CLAIM):
                for site in self if number % 2 else reversed(self):
                    spent[site].append(site.claim(job))
        few, many = (sorted(spent[site][CLAIM:]) for site in self)
        figures.note(f"{name}.ratio", median(many) / median(few), at_most=bar)
        figures.note(f"{name}.few_ms", median(few))
        figures.note(f"{name}.many_ms", median(many))

    def close(self) -> None:
        self.few.close()
        self.many.close()


def claims_among_queued(figures: Figures, place: Place, sizes: Sizes) -> None:
    """Many queued in the lane of the claim, and the same many in front of it in a lane that is not the worker's."""
    say(f"\n{place.name}: claims among {sizes.rows:,} queued runs and among {SMALL:,}")
    pair = Pair(*(queued_site(place, rows) for rows in (SMALL, sizes.rows)))
    pair.compare(figures, f"{place.name}.claim_waiting_1m", BULK, sizes.claims)
    pair.compare(figures, f"{place.name}.claim_other_lane_1m", JOB, sizes.claims)
    pair.close()


def queued_site(place: Place, rows: int) -> Site:
    address = place.make()
    site = Site(*place.timed_store(address))
    at = SystemClock().now() - 60_000
    with place.loader(address) as execute:
        load.queued(execute, rows, job=BULK, lane=site.lane(BULK), at=at)
        load.queued(execute, SMALL, job=JOB, lane=site.lane(JOB), at=at, first=rows + 1)
    return site


def claims_among_finished(figures: Figures, place: Place, sizes: Sizes) -> None:
    """Many that were queued in the lane of the claim, then claimed and ended: after the engine has tidied up, and before."""
    say(f"\n{place.name}: claims among {sizes.rows:,} finished runs and among {SMALL:,}")
    pair = Pair(*(finished_site(place, rows) for rows in (SMALL, sizes.rows)))
    if place.leaves_dead_rows:
        pair.compare(figures, f"{place.name}.claim_finished_1m_untidied", JOB, sizes.claims_untidied, bar=None)
        if not run_sync(pair.many.engine.tidy()):
            raise RuntimeError("the engine found nothing to tidy")
    pair.compare(figures, f"{place.name}.claim_finished_1m", JOB, sizes.claims)
    pair.close()


def finished_site(place: Place, rows: int) -> Site:
    address = place.make()
    site = Site(*place.timed_store(address))
    at = SystemClock().now() - 60_000
    with place.loader(address) as execute:
        load.queued(execute, rows, job=JOB, lane=site.lane(JOB), at=at)
        load.finished(execute, rows, at=at)
        load.queued(execute, SMALL, job=JOB, lane=site.lane(JOB), at=at, first=rows + 1)
    return site


def fifty_claims(figures: Figures, place: Place, sizes: Sizes) -> None:
    """Fifty claims of one run on fifty queued runs, all at the same moment: how many came back empty."""
    address, empty = place.make(), 0
    with doing(f"{place.name}: {sizes.fifties} rounds of {FIFTY} concurrent claims"), ExitStack() as stack:
        stores = [place.store(address) for _ in range(FIFTY)]
        for store in stores:
            stack.callback(close, store)
        engines = [Engine(store, SystemClock()) for store in stores]
        run_sync(engines[0].define(JOB))
        for _ in range(sizes.fifties):
            run_sync(engines[0].create([NewRun(JOB) for _ in range(FIFTY)]))
            empty += FIFTY - len(set(claim_at_once(engines)))
    figures.note(f"{place.name}.fifty_claims.empty", empty, at_most=0)


def close(store: Store) -> None:
    run_sync(store.close())


def claim_at_once(engines: Sequence[Engine]) -> list[str]:
    """The ids that these engines get when each claims one run at the same moment."""
    taken: list[str] = []
    barrier = threading.Barrier(len(engines))

    def claim(number: int) -> None:
        barrier.wait()
        runs = run_sync(engines[number].claim(WorkerInfo(f"w{number}", slots=2), count=1))
        taken.extend(run.id for run in runs)

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(len(engines))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return taken
