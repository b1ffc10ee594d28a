"""Either store on PostgreSQL, called plainly, with tables and statements of its own. Child processes import it too: it needs no pytest."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from windlass.clock import ManualClock, SystemClock
from windlass.store.base import Row, Statement, Value, run_sync
from windlass.store.postgres import AsyncPostgres, BlockingPostgres
from windlass.store.sql import Query

T = TypeVar("T")

STEPS = [
    """
    create table schema_version (version bigint primary key, applied_at bigint not null);
    create table things (id bigint primary key, word text unique);
    create function fail(code text) returns int language plpgsql as $$ begin raise exception 'as asked' using errcode = code; end $$;
    """
]
MORE_STEPS = [*STEPS, "alter table things add column size bigint; insert into things (id, word) values (-1, 'second step')"]


def _query(text: str, *, writes: bool = False) -> Query:
    return Query(text, writes)


QUERIES = {
    "put": _query("insert into things (id, word) values (%(id)s, %(word)s)", writes=True),
    "put_slowly": _query("insert into things (id, word) select %(id)s, %(word)s from pg_sleep(%(ms)s / 1000.0)", writes=True),
    "put_all": _query(
        "insert into things (id, word) select r.id, r.word from json_to_recordset(%(r)s::json) as r(id bigint, word text)", writes=True
    ),
    "rename": _query("update things set word = %(word)s where id = %(id)s", writes=True),
    "lock": _query("select id from things where id = %(id)s for update", writes=True),
    "bad": _query("insert into things (id, word) select fail(%(code)s), 'bad'", writes=True),
    "bad_kind": _query("update things set word = %(word)s where id = %(id)s"),
    "missing": _query("select * from nowhere"),
    "all": _query("select id, word from things order by id"),
    "get": _query("select word from things where id = %(id)s"),
    "sum": _query("select count(*), sum(id), sum(id) / 2.0 from things"),
    "explain_get": _query("explain select word from things where id = %(id)s"),
    "explain_range": _query("explain select word from things where id > %(id)s"),
    "explain_itself": _query("explain select 1 from things a join things b on a.word = b.word || 'x'"),
    "explain_join": _query("explain select t.word from json_to_recordset(%(r)s::json) as r(id bigint) join things t on t.id = r.id"),
    "nap": _query("select 1 from pg_sleep(%(ms)s / 1000.0)"),
    "pid": _query("select pg_backend_pid()"),
    "echo": _query("select %(text)s::text"),
    "setting": _query("select current_setting(%(name)s)"),
    "prepared": _query("select count(*) from pg_prepared_statements"),
    "snapshot": _query("select pg_current_snapshot()::text"),
    "news": _query("select %(seen)s::text, %(count)s::bigint where false"),
    "percent": _query("select 7 %% 4, '%%'"),
    "elsewhere": _query(""),
}


def put(number: int, word: str | None = None) -> Statement:
    return Statement("put", {"id": number, "word": f"word {number}" if word is None else word})


def put_slowly(number: int, ms: int) -> Statement:
    return Statement("put_slowly", {"id": number, "word": f"word {number}", "ms": ms})


def ask(name: str, /, **values: Value) -> Statement:
    return Statement(name, values)


SAMPLE = [put(1), ask("all"), ask("rename", id=0, word="renamed")]
"""A batch that reads and writes, for processes that are killed in it."""


class Driven:
    """Either store, called plainly."""

    def __init__(self, kind: str, url: str, clock: SystemClock | ManualClock | None = None, **options: Any) -> None:
        options = {"queries": QUERIES, "steps": STEPS} | options
        self._loop = asyncio.Runner() if kind == "async" else None
        self.kind, clock = kind, clock or SystemClock()
        self.store: AsyncPostgres | BlockingPostgres
        try:
            self.store = self.drive(AsyncPostgres(url, clock, **options).open()) if self._loop else BlockingPostgres(url, clock, **options)
        except BaseException:
            self._end()
            raise

    def drive(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(work) if self._loop else run_sync(work)

    def __call__(self, *statements: Statement, verb: str = "test") -> list[list[Row]]:
        return self.drive(self.store.batch(verb, statements))

    def pid(self) -> int:
        return int(self(ask("pid"))[0][0][0])

    def close(self) -> None:
        self.drive(self.store.close())
        self._end()

    def _end(self) -> None:
        if self._loop:
            self._loop.close()


@contextlib.contextmanager
def driven(kind: str, url: str, **options: Any) -> Iterator[Driven]:
    store = Driven(kind, url, **options)
    try:
        yield store
    finally:
        store.close()
