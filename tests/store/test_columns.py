"""The lists of columns: each fits its table, and what joins a list is in every statement that names it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import apsw
import pytest
from msgspec.structs import replace

from windlass.model import Counts, Run
from windlass.store import columns, sql
from windlass.store.columns import COUNTS, LISTS, WRITTEN_BACK
from windlass.store.creation import Kind, NewRow, plain

RUNS = "job_runs"
TABLES = {
    **dict.fromkeys(("run", "own", "plain", "common", "written_back", "patched"), (RUNS,)),
    **dict.fromkeys(("key", "holder"), ("job_keys",)),
    **dict.fromkeys(("attempt", "closed"), ("job_attempts",)),
    "group": ("job_groups",),
    "job": ("jobs",),
    **dict.fromkeys(("schedule", "schedule_written"), ("job_schedules",)),
    "slot": ("job_slots",),
    **dict.fromkeys(("webhook", "webhook_added", "webhook_edited"), ("webhooks",)),
    "delivery": ("job_deliveries",),
    **dict.fromkeys(("worker", "worker_says"), ("workers",)),
    "counts": ("job_minutes", "job_totals"),
    "unfinished": ("job_totals",),
}
"""Whose columns the lists name. Those of sets that hold more than columns are not here."""


@pytest.fixture(scope="module")
def tables() -> Iterator[apsw.Connection]:
    db = apsw.Connection(":memory:")
    for step in sql.migrations("sqlite"):
        db.execute(step)
    yield db
    db.close()


def kinds(db: apsw.Connection, table: str) -> dict[str, str]:
    """The columns of a table, and whether they hold numbers or texts."""
    return {name: {"INTEGER": "int", "TEXT": "text"}[kind.upper()] for _, name, kind, *_ in db.execute(f"pragma table_info({table})")}


def test_every_list_is_that_of_a_table_or_of_a_set() -> None:
    assert LISTS.keys() - TABLES.keys() == {"new", "asked_key"}


@pytest.mark.parametrize(("listing", "table"), [(listing, table) for listing, names in TABLES.items() for table in names])
def test_a_list_has_the_names_and_types_of_its_table(tables: apsw.Connection, listing: str, table: str) -> None:
    there = kinds(tables, table)
    assert {column.name: column.kind for column in columns.columns(listing)}.items() <= there.items()


def test_a_run_has_all_columns_of_its_table(tables: apsw.Connection) -> None:
    assert {*Run.__struct_fields__, "mark"} == kinds(tables, RUNS).keys()


class _Run(Run, frozen=True):
    colour: str | None = None
    depth: int | None = None


class _Row(NewRow, frozen=True):
    colour: str | None = None


class _Counts(Counts, frozen=True):
    reddened: int = 0


_KIND = type("_Kind", (), {"__annotations__": Kind.__annotations__ | {"depth": int | None}, "__module__": Kind.__module__})


@pytest.fixture
def wider(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A run with two columns more, one from its creation on for itself, one for all of its kind, and one more number that is counted."""
    own, common = LISTS["own"][1], LISTS["common"][1]
    joined = {
        "run": (_Run, _Run.__struct_fields__),
        "new": (_Row, _Row.__struct_fields__),
        "own": (_Row, (*own, "colour")),
        "common": (_KIND, (*common, "depth")),
        "written_back": (_Run, (*WRITTEN_BACK, "depth")),
        "counts": (_Counts, (*COUNTS, "reddened")),
    }
    for name, listing in joined.items():
        monkeypatch.setitem(LISTS, name, listing)
    columns.columns.cache_clear()
    yield
    columns.columns.cache_clear()


@pytest.mark.usefixtures("wider")
@pytest.mark.parametrize(("dialect", "depth"), [("sqlite", "cast(:depth as integer)"), ("postgres", "cast(%(depth)s as bigint)")])
def test_what_joins_a_list_is_in_every_statement_that_names_it(dialect: str, depth: str) -> None:
    texts = {name: query.text for name, query in sql.load(dialect).items()}
    assert {name for name, text in texts.items() if "colour" in text} >= {"create", "find", "find_seqs", "claimed", "held", "members"}
    create, back = texts["create"], texts["write_back"]
    assert create.index("colour,") < create.index("depth,") < create.index("r.colour,") < create.index(depth) < create.index("as colour")
    assert "depth = r.depth" in back
    assert "as depth" in back
    assert "reddened = job_minutes.reddened + excluded.reddened" in texts["add_minutes"]
    assert "sum(reddened)" in texts["whole_totals"]
    assert all("reddened" in texts[name] for name in ("add_totals", "keep_totals", "totals", "minutes_since", "jobs_since"))


@pytest.mark.usefixtures("wider")
def test_such_statements_run(tables: apsw.Connection) -> None:
    """SQLite takes each of them, once the tables have the columns."""
    tables.execute("begin")
    tables.execute("alter table job_runs add column colour text; alter table job_runs add column depth integer")
    for table in TABLES["counts"]:
        tables.execute(f"alter table {table} add column reddened integer not null default 0")
    queries = sql.load("sqlite")
    try:
        for name in ("create", "find", "write_back", "add_minutes", "add_totals", "keep_totals", "totals", "minutes_since"):
            tables.execute(f"explain {queries[name].text}", dict.fromkeys(re.findall(r"(?<![:\w]):([a-z_]+)", queries[name].text)))
    finally:
        tables.execute("rollback")


# Rows of a creation


@pytest.mark.parametrize("field", NewRow.__struct_fields__[5:])
def test_nothing_of_a_new_run_is_left_out_but_what_is_null_in_all_rows(field: str) -> None:
    short = NewRow("a", 1, 2, "{}")
    assert plain([short, short]) == [("a", 1, 2, "{}")] * 2
    assert plain([short, replace(short, **{field: 3})]) is None
