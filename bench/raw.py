"""The bar: the life of a run as an expert would write it by hand for one connection, with the shipped schema and journal but no engine.

Sets travel as JSON, which was faster than executemany with both drivers (500 inserts with their entries: SQLite 3.5 ms against 5.5,
PostgreSQL 9.6 ms against 28), and than arrays and COPY. On PostgreSQL each step is one statement, so that each commit is one round trip,
and a run is found by the form that the engine uses, `= any (array[...])`, under the engine's settings of the planner: a plan is made once,
on an empty table, and without these two the end of 500 runs takes 2 to 4 times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import apsw
import msgspec
import psycopg

from windlass.clock import Clock
from windlass.model import POSITION_STEP, Run
from windlass.store import sqlite
from windlass.store.base import Row
from windlass.store.sqlite.sessions import CHECKPOINT_EVERY

LEASE = 30_000
JOB, QUEUE, WORKER, LANE = "mail", "default", "w1", 1
PAYLOAD_VALUE = {"to": "x" * 91}
PAYLOAD, OUTPUT = msgspec.json.encode(PAYLOAD_VALUE).decode(), '"done"'  # 100 bytes, and a few

_encode = msgspec.json.Encoder().encode
_COLUMNS = ", ".join(Run.__struct_fields__)
_COLUMNS_R = ", ".join(f"r.{name}" for name in Run.__struct_fields__)


class Claimed(NamedTuple):
    """What a claim gave: whole rows, and the token that holds them."""

    rows: list[Row]
    token: str


class Raw(Protocol):
    """The three steps of a life, each one commit."""

    def create(self, ids: Sequence[str]) -> None: ...

    def claim(self, count: int) -> Claimed: ...

    def end(self, seqs: Sequence[int], token: str) -> None: ...

    def close(self) -> None: ...


def _json(rows: Any) -> str:
    return _encode(rows).decode()


# SQLite

_CREATE = f"""
insert into job_runs (id, rev, state, job, queue, lane, priority_key, position, payload, due_at, created_at, max_attempts)
select value ->> 0, 1, 'queued', '{JOB}', '{QUEUE}', {LANE}, 0, :now * {POSITION_STEP} + key, value ->> 1, :now, :now, 3
from json_each(:rows)"""
_CREATED = """
insert into job_journal (run, rev, at, move, state, attempt) select seq, 1, :now, 'create', 'queued', 1 from job_runs where seq > :last"""
# Writing the journal first makes it the list of what is claimed: no ids go back and forth.
_CHOOSE = f"""
insert into job_journal (run, rev, at, move, state, attempt, worker)
select seq, rev + 1, :now, 'claim', 'claimed', attempt, '{WORKER}' from job_runs
where state = 'queued' and lane = {LANE} order by priority_key, position, seq limit :count"""
_CLAIM = f"""
update job_runs set state = 'claimed', rev = job_runs.rev + 1, mark = :token, token = :token, worker = '{WORKER}', lease = {LEASE},
  claimed_at = max(:now, created_at), lease_until = :now + {LEASE}, lease_check_at = :now + min({LEASE}, coalesce(max_runtime, {LEASE}))
from job_journal e where e.entry > :last and job_runs.seq = e.run"""
_CLAIMED = f"select {_COLUMNS_R} from job_journal e join job_runs r on r.seq = e.run where e.entry > :last order by e.entry"
_END = """
update job_runs set state = 'succeeded', rev = rev + 1, mark = :mark, started_at = coalesce(started_at, claimed_at),
  finished_at = max(:now, coalesce(started_at, claimed_at)), slot = null, lease_until = null, lease_check_at = null, error = null,
  output = r.output
from (select value ->> 0 as seq, value ->> 1 as token, value ->> 2 as output from json_each(:rows)) as r
where job_runs.seq = r.seq and job_runs.token = r.token and state in ('claimed', 'running')"""
_ENDED = """
insert into job_journal (run, rev, at, move, state, attempt, worker)
select seq, rev, :now, 'succeed', state, attempt, worker from job_runs where seq in (select value from json_each(:ids)) and mark = :mark"""


class RawSqlite:
    """One connection to a file that has the schema."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._clock = clock
        self._db = sqlite.connect(path, clock)
        self._db.execute(f"pragma wal_autocheckpoint = {CHECKPOINT_EVERY}")
        self._execute = self._db.cursor().execute

    def create(self, ids: Sequence[str]) -> None:
        rows, now = _json([(identity, PAYLOAD) for identity in ids]), self._clock.now()
        self._execute("begin immediate")
        last = self._execute("select max(seq) from job_runs").get or 0
        self._execute(_CREATE, {"rows": rows, "now": now})
        self._execute(_CREATED, {"last": last, "now": now})
        self._execute("commit")

    def claim(self, count: int) -> Claimed:
        now, token = self._clock.now(), self._clock.nonce()
        self._execute("begin immediate")
        last = self._execute("select max(entry) from job_journal").get or 0
        self._execute(_CHOOSE, {"now": now, "count": count})
        self._execute(_CLAIM, {"now": now, "token": token, "last": last})
        rows = self._execute(_CLAIMED, {"last": last}).fetchall()
        self._execute("commit")
        return Claimed(rows, token)

    def end(self, seqs: Sequence[int], token: str) -> None:
        rows, now, mark = _json([(seq, token, OUTPUT) for seq in seqs]), self._clock.now(), self._clock.nonce()
        self._execute("begin immediate")
        self._execute(_END, {"rows": rows, "now": now, "mark": mark})
        self._execute(_ENDED, {"ids": _json(seqs), "now": now, "mark": mark})
        self._execute("commit")

    def close(self) -> None:
        sqlite.disconnect(self._db)


# PostgreSQL

_PG_CREATE = f"""
with made as (
  insert into job_runs (id, rev, state, job, queue, lane, priority_key, position, payload, due_at, created_at, max_attempts)
  select n.row ->> 0, 1, 'queued', '{JOB}', '{QUEUE}', {LANE}, 0, %(now)s * {POSITION_STEP} + n.i, n.row ->> 1, %(now)s, %(now)s, 3
  from json_array_elements(%(rows)s::json) with ordinality as n(row, i)
  returning seq)
insert into job_journal (run, rev, at, move, state, attempt) select seq, 1, %(now)s, 'create', 'queued', 1 from made"""
_PG_CLAIM = f"""
with chosen as materialized (
  select seq from job_runs where state = 'queued' and lane = {LANE} order by priority_key, position, seq
  limit %(count)s for update skip locked),
claimed as (
  update job_runs r set state = 'claimed', rev = rev + 1, mark = %(token)s, token = %(token)s, worker = '{WORKER}', lease = {LEASE},
    claimed_at = greatest(%(now)s, created_at), lease_until = %(now)s + {LEASE},
    lease_check_at = %(now)s + least({LEASE}, coalesce(max_runtime, {LEASE}))
  from chosen where r.seq = any (array[chosen.seq]) returning {_COLUMNS_R}),
journaled as (
  insert into job_journal (run, rev, at, move, state, attempt, worker)
  select seq, rev, %(now)s, 'claim', state, attempt, worker from claimed)
select {_COLUMNS} from claimed order by priority_key, position, seq"""
_PG_END = """
with ended as (
  update job_runs r set state = 'succeeded', rev = rev + 1, mark = %(mark)s, started_at = coalesce(started_at, claimed_at),
    finished_at = greatest(%(now)s, coalesce(started_at, claimed_at)), slot = null, lease_until = null, lease_check_at = null, error = null,
    output = n.output
  from (select (v ->> 0)::bigint as seq, v ->> 1 as token, v ->> 2 as output from jsonb_array_elements(%(rows)s::jsonb) as s(v)) as n
  where r.seq = any (array[n.seq]) and r.token = n.token and state in ('claimed', 'running')
  returning r.seq, r.rev, r.attempt, r.worker)
insert into job_journal (run, rev, at, move, state, attempt, worker)
select seq, rev, %(now)s, 'succeed', 'succeeded', attempt, worker from ended"""


_PLANNER = ("enable_seqscan=off", "enable_bitmapscan=off", "enable_hashjoin=off", "enable_mergejoin=off", "jit=off")
_PG_OPTIONS = " ".join(f"-c {setting}" for setting in (*_PLANNER, "plan_cache_mode=force_generic_plan"))


class RawPostgres:
    """One connection to a database that has the schema; statements are prepared, answers to the claim come in binary."""

    def __init__(self, url: str, clock: Clock) -> None:
        self._clock = clock
        self._connection = psycopg.connect(url, autocommit=True, prepare_threshold=0, options=_PG_OPTIONS)
        self._cursor = self._connection.cursor(binary=True)

    def create(self, ids: Sequence[str]) -> None:
        self._connection.execute(_PG_CREATE, {"rows": _json([(identity, PAYLOAD) for identity in ids]), "now": self._clock.now()})

    def claim(self, count: int) -> Claimed:
        token = self._clock.nonce()
        self._cursor.execute(_PG_CLAIM, {"count": count, "token": token, "now": self._clock.now()})
        return Claimed(self._cursor.fetchall(), token)

    def end(self, seqs: Sequence[int], token: str) -> None:
        rows = _json([(seq, token, OUTPUT) for seq in seqs])
        self._connection.execute(_PG_END, {"rows": rows, "now": self._clock.now(), "mark": self._clock.nonce()})

    def close(self) -> None:
        self._connection.close()


# A minimal table, to see what the schema costs

_MINIMAL = """
create table runs (seq {serial}, state text not null, payload text not null);
create index runs_ready on runs (seq) where state = 'queued'"""


class MinimalSqlite:
    """A run inserted, claimed, ended, and nothing else."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._db = sqlite.connect(path, clock)
        self._execute = self._db.cursor().execute
        self._execute(_MINIMAL.format(serial="integer primary key"))

    def _commit(self, statement: str, values: apsw.Bindings) -> list[Row]:
        self._execute("begin immediate")
        rows = self._execute(statement, values).fetchall()
        self._execute("commit")
        return rows

    def create(self, ids: Sequence[str]) -> None:
        self._commit("insert into runs (state, payload) select 'queued', value from json_each(?)", (_json([PAYLOAD] * len(ids)),))

    def claim(self, count: int) -> Claimed:
        chosen = "select seq from runs where state = 'queued' order by seq limit ?"
        return Claimed(self._commit(f"update runs set state = 'claimed' where seq in ({chosen}) returning seq, payload", (count,)), "")

    def end(self, seqs: Sequence[int], token: str) -> None:
        self._commit("update runs set state = 'succeeded' where seq in (select value from json_each(?))", (_json(seqs),))

    def close(self) -> None:
        sqlite.disconnect(self._db)


class MinimalPostgres:
    """The same in PostgreSQL."""

    def __init__(self, url: str, clock: Clock) -> None:
        self._connection = psycopg.connect(url, autocommit=True, prepare_threshold=0)
        for statement in _MINIMAL.format(serial="bigint generated by default as identity primary key").split(";"):
            self._connection.execute(statement.encode())

    def create(self, ids: Sequence[str]) -> None:
        rows = _json([PAYLOAD] * len(ids))
        self._connection.execute(
            "insert into runs (state, payload) select 'queued', value from json_array_elements_text(%s::json)", (rows,)
        )

    def claim(self, count: int) -> Claimed:
        chosen = "select seq from runs where state = 'queued' order by seq limit %s for update skip locked"
        claim = "update runs r set state = 'claimed' from chosen c where r.seq = c.seq returning r.seq, payload"
        statement = f"with chosen as materialized ({chosen}) {claim}"
        return Claimed(self._connection.execute(statement.encode(), (count,)).fetchall(), "")

    def end(self, seqs: Sequence[int], token: str) -> None:
        ended = "update runs set state = 'succeeded' from json_array_elements_text(%s::json) as n where seq = n.value::bigint"
        self._connection.execute(ended.encode(), (_json(seqs),))

    def close(self) -> None:
        self._connection.close()
