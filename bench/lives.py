"""The whole life of runs, by the engine and by hand: how fast, and how many bytes are left."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple, Protocol

from bench.drain import BATCH
from bench.figures import Figures, doing, say
from bench.places import Place, open_postgres
from bench.raw import JOB, OUTPUT, PAYLOAD_VALUE, WORKER, Raw
from bench.sizes import Sizes
from windlass.clock import SystemClock
from windlass.engine import Engine, Outcome
from windlass.machine import Succeed
from windlass.model import NewRun, Run, WorkerInfo
from windlass.store.base import Store, run_sync


class Life(Protocol):
    """Makes, claims and ends a batch of runs."""

    def prepare(self) -> None: ...

    def create(self) -> None: ...

    def claim(self) -> int: ...

    def end(self) -> None: ...

    def close(self) -> None: ...


class EngineLife:
    """Through the engine's verbs."""

    def __init__(self, store: Store) -> None:
        self.store, self.engine = store, Engine(store, SystemClock())
        self.worker, self._runs = WorkerInfo(WORKER, slots=BATCH), list[Run]()
        run_sync(self.engine.define(JOB))

    def prepare(self) -> None:
        self._news = [NewRun(JOB, PAYLOAD_VALUE) for _ in range(BATCH)]

    def create(self) -> None:
        run_sync(self.engine.create(self._news))

    def claim(self) -> int:
        self._runs = run_sync(self.engine.claim(self.worker, count=BATCH))
        return len(self._runs)

    def end(self) -> None:
        run_sync(self.engine.report_many([Outcome(run.id, Succeed(token=run.token, output=OUTPUT), run.seq) for run in self._runs]))

    def close(self) -> None:
        run_sync(self.store.close())


class RawLife:
    """By hand."""

    def __init__(self, raw: Raw) -> None:
        self.raw, self._clock = raw, SystemClock()

    def prepare(self) -> None:
        self._ids = [self._clock.new_id() for _ in range(BATCH)]

    def create(self) -> None:
        self.raw.create(self._ids)

    def claim(self) -> int:
        self._claimed = self.raw.claim(BATCH)
        return len(self._claimed.rows)

    def end(self) -> None:
        self.raw.end([row[0] for row in self._claimed.rows], self._claimed.token)

    def close(self) -> None:
        self.raw.close()


class Turn(NamedTuple):
    """Seconds of one batch."""

    create: float
    claim: float
    end: float
    cpu: float

    @property
    def total(self) -> float:
        return self.create + self.claim + self.end


def take_turn(life: Life) -> Turn:
    """One batch from its creation to its end."""
    life.prepare()
    cpu, begun = time.process_time(), time.perf_counter()
    life.create()
    created = time.perf_counter()
    count = life.claim()
    claimed = time.perf_counter()
    life.end()
    ended, cpu = time.perf_counter(), time.process_time() - cpu
    if count != BATCH:
        raise RuntimeError(f"{type(life).__name__} claimed {count} runs of {BATCH}")
    return Turn(created - begun, claimed - created, ended - claimed, cpu)


def lives(figures: Figures, place: Place, sizes: Sizes) -> None:
    """Engine, raw loop and minimal table in turn, on databases of their own that grow alike."""
    say(f"\n{place.name}: create, claim, end in batches of {BATCH}, {sizes.rounds} rounds of {sizes.turns} batches each")
    contenders = contend(place)
    rounds: list[dict[str, list[Turn]]] = []
    for number in range(sizes.rounds + 1):
        turns: dict[str, list[Turn]] = {name: [] for name in contenders}
        for turn in range(sizes.turns if number else 2):  # round 0 warms up
            for name in sorted(contenders, reverse=turn % 2 == 1):
                turns[name].append(take_turn(contenders[name]))
        if number:
            rounds.append(turns)
            say(f"  round {number}: " + ", ".join(f"{name} {per_second(turns[name]):,.0f}/s" for name in sorted(turns)))
    for life in contenders.values():
        life.close()
    note_lives(figures, place.name, rounds)


def contend(place: Place) -> dict[str, Life]:
    """Who is compared."""
    by_hand, minimal = place.make(), place.make()
    EngineLife(place.store(by_hand)).close()  # the schema, and the lane
    return {
        "engine": EngineLife(place.store(place.make())),
        "raw": RawLife(place.raw(by_hand)),
        "minimal": RawLife(place.minimal(minimal)),
    }


def per_second(turns: Sequence[Turn]) -> float:
    return BATCH * len(turns) / sum(turn.total for turn in turns)


def note_lives(figures: Figures, name: str, rounds: Sequence[dict[str, list[Turn]]]) -> None:
    ratios = sorted(per_second(turns["engine"]) / per_second(turns["raw"]) for turns in rounds)
    figures.note(f"{name}.engine.ratio", median(ratios), at_least=0.5)
    figures.note(f"{name}.engine.ratio_low", ratios[0])
    figures.note(f"{name}.engine.ratio_high", ratios[-1])
    speeds = {actor: median(per_second(turns[actor]) for turns in rounds) for actor in ("engine", "raw", "minimal")}
    figures.note(f"{name}.engine.per_s", speeds["engine"])
    figures.note(f"{name}.engine.raw_per_s", speeds["raw"])
    figures.note(f"{name}.schema.minimal_per_s", speeds["minimal"])
    figures.note(f"{name}.schema.ratio", speeds["raw"] / speeds["minimal"])
    for actor in ("engine", "raw"):
        turns = [turn for one in rounds for turn in one[actor]]
        steps: dict[str, Callable[[Turn], float]] = {
            "create": lambda turn: turn.create,
            "claim": lambda turn: turn.claim,
            "end": lambda turn: turn.end,
            "own_cpu": lambda turn: turn.cpu,
        }
        for step, seconds in steps.items():
            figures.note(f"{name}.{actor}.{step}_ms_per_{BATCH}", 1000 * median(map(seconds, turns)))


def size_of_a_run(figures: Figures, place: Place, sizes: Sizes) -> None:
    """What is left of runs with a payload of 100 bytes after their whole life."""
    address = place.make()
    life = EngineLife(place.store(address))
    empty = place.bytes_used(address)
    with doing(f"{place.name}: {sizes.lives:,} whole lives"):
        for number in range(sizes.lives // BATCH):
            take_turn(life)
            if number % 10 == 9:
                place.vacuum(address)
    life.close()
    figures.note(f"{place.name}.bytes_per_run", (place.bytes_used(address) - empty) / sizes.lives)
    figures.note(f"{place.name}.bytes_per_run_packed", (place.bytes_used(address, packed=True) - empty) / sizes.lives)


def log_of_a_run(figures: Figures, sizes: Sizes) -> None:
    """What PostgreSQL writes to its log of changes for the whole life of a run, without the images of whole pages."""
    with open_postgres(full_page_writes="off", autovacuum="off") as place:
        life = EngineLife(place.store(place.make()))
        take_turn(life)  # makes the lane
        before = place.wal_bytes()
        with doing(f"postgres: the log of {sizes.lives:,} whole lives"):
            for _ in range(sizes.lives // BATCH):
                take_turn(life)
        figures.note("postgres.wal_bytes", (place.wal_bytes() - before) / sizes.lives, at_most=2_700)
        life.close()
