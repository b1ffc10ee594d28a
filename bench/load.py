"""Many runs at once, straight into the shipped schema; the same statements on both databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import psycopg

from bench.figures import doing
from bench.raw import PAYLOAD
from windlass.clock import Clock
from windlass.model import POSITION_STEP
from windlass.store import sqlite

SLICE = 50_000

Execute = Callable[[str], object]

# Numbers are written into the text: the drivers spell parameters differently, and there is nobody to quote for.
_QUEUED = """
insert into job_runs (id, rev, state, job, queue, lane, priority_key, position, payload, due_at, created_at, max_attempts)
with recursive n(i) as (select {first} union all select i + 1 from n where i < {last})
select '019a0000-0000-7000-8000-' || substr(cast(1000000000000 + i as text), 2), 1, 'queued', '{job}', '{queue}', {lane}, 0,
  {at} * {step} + i, '{payload}', {at}, {at}, 3
from n"""
_CLAIMED = """
update job_runs set state = 'claimed', rev = 2, mark = 'bulk', token = 'bulk', worker = 'bulk', lease = 30000, claimed_at = {at},
  lease_until = {at} + 30000, lease_check_at = {at} + 30000
where seq between {first} and {last}"""
_ENDED = """
update job_runs set state = 'succeeded', rev = 3, started_at = {at}, finished_at = {at}, lease_until = null, lease_check_at = null,
  output = '"done"'
where seq between {first} and {last}"""

_LIVED = """
insert into job_runs (id, rev, state, job, queue, lane, priority_key, position, payload, due_at, created_at, max_attempts, mark, token,
  worker, lease, claimed_at, started_at, finished_at, output)
with recursive n(i) as (select {first} union all select i + 1 from n where i < {last})
select '019a0000-0000-7000-8000-' || substr(cast(1000000000000 + i as text), 2), 3, 'succeeded', '{job}', '{queue}', {lane}, 0,
  {at} * {position_step} + i, '{payload}', {at} + i * {step} / 1000, {at} + i * {step} / 1000, 3, 'bulk', 'bulk',
  'bulk', 30000, {at} + i * {step} / 1000, {at} + i * {step} / 1000, {at} + i * {step} / 1000, '"done"'
from n"""
_JOURNALED = """
insert into job_journal (run, rev, at, move, state, attempt, worker)
select r.seq, {rev}, r.finished_at, '{move}', '{state}', 1, {worker} from job_runs r where r.seq between {first} and {last}"""
_MOVES = (("create", "queued", "null"), ("claim", "claimed", "'bulk'"), ("succeed", "succeeded", "'bulk'"))


@contextmanager
def sqlite_loader(path: Path, clock: Clock) -> Iterator[Execute]:
    """Statements on a file, each committed, without waiting for the disk."""
    db = sqlite.connect(path, clock)
    try:
        db.execute("pragma synchronous = off; pragma cache_size = -200000")
        yield db.execute
    finally:
        sqlite.disconnect(db)


@contextmanager
def postgres_loader(url: str) -> Iterator[Execute]:
    """Statements on a database, each committed, without waiting for the disk."""
    with psycopg.connect(url, autocommit=True, options="-c synchronous_commit=off") as connection:
        yield lambda statement: connection.execute(statement.encode())


def queued(execute: Execute, count: int, *, job: str, lane: int, at: int, first: int = 1, queue: str = "default") -> None:
    """Runs `first` and on, queued in one lane; in a store without others, these are their keys too."""
    with doing(f"insert {count:,} queued runs") if count > SLICE else nullcontext():
        for start in range(first, first + count, SLICE):
            last = min(start + SLICE, first + count) - 1
            values = {"job": job, "queue": queue, "lane": lane, "at": at, "step": POSITION_STEP, "payload": PAYLOAD}
            execute(_QUEUED.format(first=start, last=last, **values))


def finished(execute: Execute, count: int, *, at: int) -> None:
    """The first runs claimed and ended by updates, as in life."""
    with doing(f"claim and end {count:,} runs") if count > SLICE else nullcontext():
        for start in range(1, count + 1, SLICE):
            for statement in (_CLAIMED, _ENDED):
                execute(statement.format(first=start, last=min(start + SLICE, count + 1) - 1, at=at))


def ended(execute: Execute, count: int, *, job: str, lane: int, at: int, step: int, queue: str = "default") -> None:
    """Runs that have ended one after the other from a time on, a number of microseconds apart, with their entries in the journal."""
    with doing(f"insert {count:,} ended runs"):
        for first in range(1, count + 1, SLICE):
            last = min(first + SLICE, count + 1) - 1
            values = {"job": job, "queue": queue, "lane": lane, "at": at, "step": step, "position_step": POSITION_STEP, "payload": PAYLOAD}
            execute(_LIVED.format(first=first, last=last, **values))
            for rev, (move, state, worker) in enumerate(_MOVES, 1):
                execute(_JOURNALED.format(first=first, last=last, rev=rev, move=move, state=state, worker=worker))
