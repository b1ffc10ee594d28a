"""The moves' part: how many rows a move writes, and how long it takes, among a thousand and among a hundred thousand that wait."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from statistics import median
from typing import Any, NamedTuple, Protocol

import psycopg

from bench.figures import Figures, doing, say
from bench.places import Place, open_postgres, open_sqlite
from windlass.clock import SystemClock
from windlass.engine import Engine
from windlass.model import NewRun
from windlass.store.base import run_sync
from windlass.store.sqlite import BlockingSqlite

FEW, MANY, SLICE = 1_000, 100_000, 10_000
MOVES, QUICK = 200, 50
PLACE = 500
TABLES = ("job_runs", "job_journal", "job_attempts", "job_keys", "job_waits", "job_logs")


class Rows(Protocol):
    """Tells how many rows were written."""

    def take(self) -> int:
        """Since the last call."""


class Spent(NamedTuple):
    """What a move costs."""

    rows: int
    ms: float


def measure(figures: Figures, *, quick: bool) -> None:
    """All figures of moves."""
    with open_sqlite() as sqlite:
        moves_among(figures, sqlite, QUICK if quick else MOVES)
    with open_postgres() as postgres:
        moves_among(figures, postgres, QUICK if quick else MOVES)


def moves_among(figures: Figures, place: Place, count: int) -> None:
    """Note what moves cost: to anywhere, and time and again to the same place, where neighbours must make room in the end."""
    say(f"\n{place.name}: moves among {MANY:,} queued runs and among {FEW:,}")
    for name, waiting in (("move_1k", FEW), ("move_100k", MANY)):
        with doing(f"{name}: {2 * count} moves"):
            anywhere, crowded = _moves(place, waiting, count)
        figures.note(f"{place.name}.{name}.rows", max(spent.rows for spent in anywhere), at_most=2)
        figures.note(f"{place.name}.{name}.ms", median(spent.ms for spent in anywhere))
        figures.note(f"{place.name}.{name}.same_place_rows_mean", sum(spent.rows for spent in crowded) / count, at_most=10)
        figures.note(f"{place.name}.{name}.same_place_rows", max(spent.rows for spent in crowded))
        figures.note(f"{place.name}.{name}.same_place_ms", median(spent.ms for spent in crowded))


def _moves(place: Place, waiting: int, count: int) -> tuple[list[Spent], list[Spent]]:
    address, chance = place.make(), random.Random(7)
    store = place.store(address)
    engine = Engine(store, SystemClock())
    run_sync(engine.define("job"))
    ids: list[str] = []
    while len(ids) < waiting:
        ids += [made.id for made in run_sync(engine.create([NewRun("job") for _ in range(min(SLICE, waiting))]))]
    rows: Rows = SqliteRows(store) if isinstance(store, BlockingSqlite) else PostgresRows(address)

    def spend(run_id: str, **where: Any) -> Spent:
        rows.take()
        begun = time.perf_counter()
        run_sync(engine.move(run_id, **where))
        ms = 1000 * (time.perf_counter() - begun)
        return Spent(rows.take(), ms)

    anywhere = [spend(run_id, **where) for run_id, where in _anywhere(ids, count, chance)]
    crowded = [spend(run_id, place=PLACE) for run_id in chance.sample(ids, count)]
    run_sync(store.close())
    return anywhere, crowded


def _anywhere(ids: list[str], count: int, chance: random.Random) -> Iterator[tuple[str, dict[str, Any]]]:
    for number in range(count):
        run_id, other = chance.sample(ids, 2)
        wheres = ({"to": "top"}, {"to": "bottom"}, {"before": other}, {"after": other}, {"place": chance.randrange(FEW)})
        yield run_id, wheres[number % len(wheres)]


class SqliteRows:
    """As the connection itself counts them."""

    def __init__(self, store: BlockingSqlite) -> None:
        assert store._line is not None
        self._count, self._taken = store._line.db.total_changes, 0

    def take(self) -> int:
        """Since the last call."""
        before, self._taken = self._taken, self._count()
        return self._taken - before


class PostgresRows:
    """By the transaction that every row has been written by."""

    def __init__(self, url: str) -> None:
        self._db, self._last = psycopg.connect(url, autocommit=True), 0
        counts = " + ".join(f"(select count(*) from {table} where xmin::text::bigint > %(last)s)" for table in TABLES)
        self._look = f"select pg_current_xact_id()::text::bigint, {counts}".encode()

    def take(self) -> int:
        """Since the last call."""
        ((self._last, rows),) = self._db.execute(self._look, {"last": self._last}).fetchall()
        return int(rows)
