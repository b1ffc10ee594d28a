"""Loads the statements in `queries/` and the schema for one database. All differences between databases are in `DIALECTS`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from windlass import machine
from windlass.model import Run, State
from windlass.store.columns import LARGE, LISTS, USUAL, columns

_BLOCK = re.compile(r"^-- (name|fragment): (\w+)(?: after (\w+))?(?: (\w+))?\n(.*?)(?=^-- (?:name|fragment): |\Z)", re.S | re.M)
_COMMENT = re.compile(r"^\s*--.*\n", re.M)
_FRAGMENT = re.compile(r"\{(\w+)(?::\s*([^}]*))?\}")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
_ALONE = re.compile(r"^vacuum\b", re.I)
_WRITES = re.compile(r"\b(insert into|update|delete from) \w+|\bfor (no key update|update|share)\b|^lock table", re.I)

_JOURNALS = re.compile(r"\binsert into job_journal\b", re.I)

_TYPES = {"int": "bigint", "text": "text"}

Fragment = Callable[[str], str]


class Query(NamedTuple):
    """The text of a statement for one database, and whether it needs a write transaction.

    Where the statement that it comes after has returned no rows in the same batch, it need not be run. One that is `alone` takes its
    time, and cannot be part of a transaction. One that `journals` adds to the journal.
    """

    text: str
    writes: bool
    after: str = ""
    alone: bool = False
    journals: bool = False


def _set(listing: str) -> tuple[str, list[tuple[str, str]]]:
    """`r: seq int, token text, *counts`: the parameter, which is also the alias, and the columns of a set, those of a list among them."""
    alias, _, text = listing.partition(":")
    pairs: list[tuple[str, str]] = []
    for column in map(str.strip, text.split(",")):
        name, _, kind = column.partition(" ")
        pairs += [(each.name, each.kind) for each in columns(name[1:])] if name[0] == "*" else [(name, kind)]
    return alias, pairs


def _each(listing: str, between: str = ", ") -> str:
    """`counts: sum(@)`: a text for each column of a list, whose name replaces every `@`."""
    name, _, text = listing.partition(":")
    return between.join(text.strip().replace("@", column) for column in LISTS[name][1])


def _names(listing: str) -> Fragment:
    """The columns of a list, prefixed with the alias of a table where one is given."""
    return lambda alias: _each(f"{listing}: {alias}.@" if alias else f"{listing}: @")


def _params(integer: str) -> Fragment:
    """Parameters for a list. In a select, PostgreSQL takes a parameter that is null for a text."""
    return lambda listing: ", ".join(
        f"cast(:{name} as {integer})" if kind == "int" and nullable else f":{name}" for name, kind, nullable in columns(listing)
    )


def _sqlite_rows(listing: str) -> str:
    alias, pairs = _set(listing)
    picked = ", ".join(f"value ->> {place} as {name}" for place, (name, _) in enumerate(pairs))
    return f"(select {picked} from json_each(:{alias})) as {alias}"


def _postgres_rows(listing: str) -> str:
    alias, pairs = _set(listing)
    typed = ", ".join(f"(v ->> {place})::{_TYPES[kind]} as {name}" for place, (name, kind) in enumerate(pairs))
    return f"(select {typed} from jsonb_array_elements(:{alias}::jsonb) as s(v)) as {alias}"


def _states(listing: str) -> str:
    """`{from: succeed}`: the states from which a move is allowed, as literals, read from the machine."""
    command, _, target = listing.partition(" ")
    states = [f"'{state}'" for state in machine.sources(command, target or None)]
    # SQLite uses a partial index only for the very form of its condition: `in` with one state would not match it.
    return f"= {states[0]}" if len(states) == 1 else f"in ({', '.join(states)})"


def _text(value: str) -> Fragment:
    return lambda _: value


def _claimed(some: str, array: str) -> Fragment:
    """The columns of a run that has been claimed. Those that few such runs have are one, as a JSON array, because each costs time."""

    def names(_: str) -> str:
        rare = ", ".join(LISTS["run"][1][len(USUAL) :])
        return f"{', '.join(USUAL)}, case when {some.format(rare)} then {array.format(rare)} end"

    return names


_BARE = {"payload": "'null'", "output": "null", "meta": "null"}
"""Replacements for the columns of a run that a decision about a move does not need."""


_COMMON: dict[str, Fragment] = {name: _names(name) for name in LISTS} | {
    "from": _states,
    "each": _each,
    "all": lambda listing: _each(listing, " and "),
    "run_within": lambda limit: ", ".join(
        (
            *(f"case when octet_length({name}) <= :{limit} then {name} end" if name in LARGE else name for name in Run.__struct_fields__),
            *(f"case when octet_length({name}) > :{limit} then octet_length({name}) end" for name in LARGE),
        )
    ),
    "run_bare": lambda _: ", ".join(_BARE.get(name, name) for name in Run.__struct_fields__),
    "priority": lambda alias: f"coalesce({alias}.aging_priority, -{alias}.priority_key)",
    "ended": lambda _: ", ".join(f"'{state}'" for state in machine.ENDED),
    "live": lambda _: ", ".join(f"'{state}'" for state in machine.LIVE),
}

DIALECTS: dict[str, dict[str, Fragment]] = {
    "sqlite": _COMMON
    | {
        "rows": _sqlite_rows,
        "in": lambda name: f"in (select value from json_each(:{name}))",
        "in_texts": lambda name: f"in (select value from json_each(:{name}))",
        "probe": lambda name: f"= {name}",
        "among": lambda select: f"in ({select})",
        "using": lambda name: f"indexed by {name}",
        "lower": lambda text: f"lower({text})",  # of ASCII letters
        "member": lambda of: "{} ->> '{}'".format(*of.split()),
        "lower_member": lambda of: "lower({} ->> '{}')".format(*of.split()),
        "greatest": _text("max"),
        "least": _text("min"),
        "skip_locked": _text(""),
        "skip_changing": _text(""),
        "skip_referenced": _text(""),
        "serial": _text("integer primary key autoincrement"),
        "int": _text("integer"),
        "params": _params("integer"),
        "strict": _text("strict"),
        "clustered": _text("strict, without rowid"),
        "xid": _text(""),
        "xid_index": _text(""),
        "vacuum_often": _text(""),
        "unreferenced": _text(""),
        "and_server_time": _text(""),
        "run_claimed": _claimed("coalesce({}) is not null", "json_array({})"),
    },
    "postgres": _COMMON
    | {
        "rows": _postgres_rows,
        # No join, so the only possible plan is a lookup for each, whatever the statistics are.
        "in": lambda name: f"= any (array(select value::bigint from json_array_elements_text(:{name}::json)))",
        "in_texts": lambda name: f"= any (array(select value from json_array_elements_text(:{name}::json)))",
        # An equality that can only be a lookup: for a plain one the planner may scan a whole index that it takes for short.
        "probe": lambda name: f"= any (array[{name}])",
        "among": lambda select: f"= any (array({select}))",
        "using": _text(""),
        "lower": lambda text: f'lower({text} collate "C")',
        "member": lambda of: "{}::json ->> '{}'".format(*of.split()),
        "lower_member": lambda of: "lower(({}::json ->> '{}') collate \"C\")".format(*of.split()),
        "greatest": _text("greatest"),
        "least": _text("least"),
        # Weak enough for a row that a foreign key references: a run that an open transaction has made another one wait for.
        "skip_locked": lambda alias: f"for no key update {f'of {alias} ' if alias else ''}skip locked",
        # Skips rows that another transaction is about to change; the next one skips rows locked in any way, also by a foreign key.
        "skip_changing": _text("for share skip locked"),
        "skip_referenced": _text("for update skip locked"),
        "serial": _text("bigint generated by default as identity primary key"),
        "int": _text("bigint"),
        "params": _params("bigint"),
        "strict": _text(""),
        "clustered": _text(""),
        "xid": _text(", xid xid8 not null default pg_current_xact_id()"),
        "vacuum_often": lambda table: (
            f"alter table {table} set (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.01,"
            " autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);"
        ),
        "unreferenced": lambda table: f"alter table {table} drop constraint {table}_run_fkey;",
        # For servers with many clients: the time in a lease is compared with it.
        "and_server_time": _text(", cast(date_part('epoch', clock_timestamp()) * 1000 as bigint)"),
        "xid_index": _text("create index job_journal_xid on job_journal (xid, entry);"),
        "run_claimed": _claimed("num_nonnulls({}) > 0", "json_build_array({})::text"),
    },
}


def _part(match: re.Match[str], fragments: Mapping[str, Fragment], shared: Mapping[str, str]) -> str:
    """A part by its name, with the word that replaces `@` in it; or the set that a part selects, or its rows for each state in turn."""
    if match[1] == "among":
        return fragments["among"](shared[match[2].strip()])
    if match[1] == "in_each_state":
        part = shared[match[2].strip()]
        return " union all ".join(f"select * from ({part.replace('@', state)}) as {state}" for state in State)
    return shared[match[1]].replace("@", (match[2] or "@").strip()) if match[1] in shared else match[0]


def render(text: str, dialect: str, parts: Mapping[str, str] | None = None) -> str:
    """Fill in the parts that several statements share, then the differences between databases."""
    fragments, shared = DIALECTS[dialect], parts or {}
    whole, before = text, ""
    while whole != before:  # a part may name another
        whole, before = _FRAGMENT.sub(lambda match: _part(match, fragments, shared), whole), whole
    return _FRAGMENT.sub(lambda match: fragments[match[1]]((match[2] or "").strip()), whole)


def _bound(text: str, dialect: str) -> str:
    if dialect == "sqlite":
        return text
    return _PARAMETER.sub(r"%(\1)s", text.replace("%", "%%"))


def load(dialect: str) -> Mapping[str, Query]:
    """All named statements for one database. One for another database only has no text, and a batch skips it."""
    text = "\n".join(_texts("queries"))
    blocks = [(*head, _COMMENT.sub("", body).strip()) for *head, body in _BLOCK.findall(text)]
    counts = Counter((kind, name, only) for kind, name, _, only, _ in blocks)
    if twice := [name for (_, name, _), number in counts.items() if number > 1]:
        raise ValueError(f"{', '.join(twice)}: two statements or parts of the same name")
    parts = {name: body for kind, name, _, only, body in blocks if kind == "fragment" and only in ("", dialect)}
    queries = {name: Query("", writes=False) for kind, name, *_ in blocks if kind == "name"}
    for kind, name, after, only, body in blocks:
        if kind == "name" and only in ("", dialect):
            rendered = render(body, dialect, parts)
            text, flags = _bound(rendered, dialect), [bool(sign.search(rendered)) for sign in (_WRITES, _ALONE, _JOURNALS)]
            queries[name] = Query(text, flags[0], after, *flags[1:])
    return queries


@cache
def migrations(dialect: str) -> list[str]:
    """The schema's steps in order; step n brings the schema to version n."""
    return [render(_COMMENT.sub("", text), dialect) for text in _texts("schema")]


def _texts(folder: str) -> list[str]:
    """The texts of a folder, in the order of their names."""
    entries = (entry for entry in files("windlass.store").joinpath(folder).iterdir() if entry.name.endswith(".sql"))
    return [entry.read_text(encoding="utf-8") for entry in sorted(entries, key=lambda entry: entry.name)]
