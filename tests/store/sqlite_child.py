"""What test_sqlite.py does in other processes: python sqlite_child.py COMMAND PATH [KIND] [COUNT]."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from typing import Any

from windlass.clock import SystemClock
from windlass.errors import WindlassError
from windlass.store import sqlite
from windlass.store.base import Row, Statement, run_sync
from windlass.store.sql import Query
from windlass.store.sqlite import AsyncSqlite, BlockingSqlite, sessions

STEPS = [
    """
    create table schema_version (version integer primary key, applied_at integer not null);
    create table one (id integer primary key, text text)
    """,
    "create table two (id integer primary key, one integer not null references one); create table counter (n integer not null)",
    "insert into counter values (0)",
]

QUERIES: dict[str, Query] = {
    "put_one": Query("insert into one (id, text) values (:id, :text)", True),
    "put_two": Query("insert into two (id, one) values (:id, :id)", True),
    "drop_one": Query("delete from one where id = :id returning id", True),
    "count_up": Query("update counter set n = n + 1 returning n", True),
    "counter": Query("select n from counter", False),
    "ones": Query("select id from one order by id", False),
    "twos": Query("select id from two order by id", False),
    "allow_pages": Query("pragma max_page_count = 40", True),
    "synchronous": Query("pragma synchronous", False),
    "elsewhere": Query("", writes=False),
}

Store = AsyncSqlite | BlockingSqlite


def open_store(path: str, kind: str = "blocking") -> Store:
    made = AsyncSqlite if kind == "async" else BlockingSqlite
    return made(path, SystemClock(), queries=QUERIES, steps=STEPS)


def pair(number: int) -> list[Statement]:
    """Two rows that must be there together or not at all."""
    return [Statement("put_one", {"id": number, "text": "x" * 500}), Statement("put_two", {"id": number})]


def say(*words: object) -> None:
    print(*words, flush=True)


async def write(store: Store, count: int) -> None:
    async def one(number: int) -> None:
        await store.batch("pair", pair(number))
        say(number)

    say("ready")
    for first in range(1, count + 1, 8):  # eight at once: the async store joins them
        await asyncio.gather(*(one(number) for number in range(first, first + 8)))


async def add(store: Store, count: int) -> None:
    for _ in range(count):
        await store.batch("add", [Statement("count_up")])


async def read(store: Store) -> list[list[Row]]:
    return await store.batch("read", [Statement("ones"), Statement("twos")])


def refusal(call: Coroutine[Any, Any, object]) -> str:
    try:
        run_sync(call)
    except WindlassError as error:
        return type(error).__name__
    return "nothing refused"


def try_open(path: str) -> None:
    try:
        asyncio.run(open_store(path).close())
    except WindlassError as error:
        say(type(error).__name__, error)
    else:
        say("opened")


def fork(path: str, kind: str) -> None:
    store = open_store(path, kind)
    if (child := os.fork()) == 0:
        say(refusal(store.batch("read", [Statement("ones")])))
        run_sync(store.close())
        try_open(path)
        os._exit(0)
    os.waitpid(child, 0)
    asyncio.run(store.batch("pair", pair(1)))
    asyncio.run(store.close())


def main(command: str, path: str, kind: str = "blocking", count: str = "1") -> None:
    sessions.CHECKPOINT_EVERY = 20  # so that its fault points are reached soon
    if command == "wait_and_open":
        say("ready")
        sys.stdin.readline()
        try_open(path)
    elif command == "open_as_nobody":
        if os.geteuid() == 0:  # to whom permissions mean nothing
            os.setuid(65534)
        try_open(path)
    elif command == "open":
        try_open(path)
    elif command == "fork":
        fork(path, kind)
    elif command == "migrate":
        say(*sqlite.migrate(path, SystemClock(), STEPS))
    else:
        asyncio.run(with_store(command, open_store(path, kind), int(count)))


async def with_store(command: str, store: Store, count: int) -> None:
    if command == "hold":
        await read(store)
        say("ready")
        sys.stdin.readline()
    else:
        await {"write": write, "add": add}[command](store, count)
    await store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
