"""No statement walks a table that grows: on an empty database, right after a bulk load, and with statistics or without.

A plan is made once for each connection and kept, so a plan that is good only for a large table, or only for a small one, is bad.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import psycopg
import pytest

from tests.tiers import corners, long
from windlass.clock import ManualClock
from windlass.model import State
from windlass.store import sql
from windlass.store.base import Statement, run_sync
from windlass.store.postgres import BlockingPostgres
from windlass.store.sql import Query
from windlass.store.sqlite import BlockingSqlite
from windlass.testing.servers import PostgresServer

RUNS = 50_000
GROWING = {
    "job_runs",
    "job_journal",
    "job_attempts",
    "job_logs",
    "job_steps",
    "job_waits",
    "job_keys",
    "job_schedules",
    "job_skips",
    "job_minutes",
    "job_audit",
    "job_deliveries",
    "job_limiters",
    "job_rates",
    "job_groups",
    "job_checks",
    "job_announcements",
    "job_notify",
}

POINTS = {"seq", "rowid", "id", "attempt_id", "worker", "scope", "run", "predecessor", "key", "grouped", "callback"}
"""Columns that lead to one row, or to those that belong to one run or group: looking such a value up costs the same in any table."""

WALKS = {
    "heads": {"job_runs_ready": "lane"},
    "places_from": {"job_runs_ready": "lane"},
    "places_before": {"job_runs_ready": "lane"},
    "place_at": {"job_runs_ready": "lane"},
    "count_before": {"job_runs_ready": "lane"},
    "to_announce": {"job_announcements_at": "queue at"},
    "due": {"job_runs_due": "due_at"},
    "next_times": {"job_runs_due": "", "job_gates_wake": "", "job_runs_look": "lease_check_at", "job_schedules_next": "next_at"},
    "recovered_due": {"job_runs_due": "due_at"},
    "overdue": {"job_runs_look": "lease_check_at"},
    "looked_at_late": {"job_runs_look": "lease_check_at"},
    "checks": {"job_checks_pkey": "run"},
    "journal_created": {"job_runs_pkey": "seq"},  # from the last row that the statement before it has inserted
    "list_newest": {"job_runs_pkey": "seq"},
    "list_job": {"job_runs_job": "job"},
    "list_ended": {"job_runs_ended": "state expr"},
    "list_job_ended": {"job_runs_job_ended": "job state"},
    "list_scheduled": {"job_runs_due": "due_at"},
    "list_waiting": {"job_runs_waiting": "seq"},
    "list_live": {"job_runs_look": "lease_check_at"},
    "walk_newest": {"job_runs_pkey": "seq"},
    "walk_job": {"job_runs_job": "job"},
    "walk_queue": {"job_runs_queue": "queue state"},
    "walk_group": {"job_runs_grouped": "grouped"},
    "walk_waiting": {"job_runs_waiting": "seq"},
    "walk_scheduled": {"job_runs_due": "due_at"},
    "walk_ended": {"job_runs_ended": "state expr"},
    "walk_job_ended": {"job_runs_job_ended": "job state"},
    "created_from": {"job_runs_pkey": "seq"},
    "ranked": {"job_runs_queue": "queue state"},
    "ranked_default": {"job_runs_pkey": "seq"},
    "seq_below": {"job_runs_pkey": "seq"},
    "lanes_of_waiting": {"job_runs_waiting": "seq"},
    "lanes_of_scheduled": {"job_runs_due": "due_at"},
    "lanes_in_use": {"job_runs_ready": "lane"},
    "drop_lanes": {"job_runs_ready": "lane"},
    "unused_placeholders": {"job_runs_job": "job"},
    "drop_placeholders": {"job_runs_job": "job"},
    "tail": {"job_journal_xid": "xid", "job_journal_pkey": "entry"},
    "news": {"job_journal_xid": "xid"},
    "drop_minutes": {"job_minutes_pkey": "minute"},
    "copied_upto": {"job_journal_xid": "xid"},
    "settle_journal": {"job_journal_xid": "xid"},
    "minute_behind": {"job_minutes_pkey": "minute"},
    "minutes_since": {"job_minutes_pkey": "minute"},
    "jobs_since": {"job_minutes_pkey": "minute"},
    "due_deliveries": {"job_deliveries_next": "webhook next_at"},
    "next_deliveries": {"job_deliveries_next": "webhook next_at"},
    "drop_webhook": {"job_deliveries_webhook": "webhook"},
    "drop_origins": {"job_deliveries_next": "webhook"},
    "deliveries_of_run": {"job_deliveries_run": "run"},
    "list_deliveries": {"job_deliveries_webhook": "webhook"},
    "list_deliveries_status": {"job_deliveries_status": "webhook status"},
    "deliveries_over": {"job_deliveries_until": "until"},
    "audit_before": {"job_audit_pkey": "id"},
    "old_audit": {"job_audit_at": "at"},
    "groups_newest": {"job_groups_pkey": "seq"},
    "groups_in": {"job_groups_status": "status"},
    "prunable": {"job_runs_ended": "state expr"},  # so that those with a time of their own are not read over
    "prunable_own": {"job_runs_keep": "expr"},
    "expired_keys": {"job_keys_until": "until"},
    "schedules_after": {"job_schedules_key_key": "key", "sqlite_autoindex_job_schedules_1": "key"},
    "schedules_due": {"job_schedules_next": "next_at"},
    "schedule_skips": {"job_skips_schedule": "schedule"},
    "lanes_waiting": {"job_runs_ready": "lane"},
    "late_runs": {"job_runs_due": "due_at"},
    "newest_entry": {"job_journal_pkey": "entry"},
    "lapses": {"job_journal_pkey": "entry"},
    "runtimes": {"job_runs_job_ended": "job state"},
    "limiters_due": {"job_gates_wake": "wake_at"},
    "parked_keys": {"job_runs_parked": "parked"},
    "unpark": {"job_runs_parked": "parked"},
    "unpark_keys": {"job_runs_parked": "parked"},
    "idle_limiters": {"job_runs_parked": ""},  # at worst all that is parked, once a minute
}
"""Statements that follow an index in its order and stop at their limit: the index, and how its key must begin."""

RANGES = {
    "idle_limiters", "drop_minutes", "minute_behind", "copied_upto", "settle_journal", "minutes_since", "jobs_since", "ranked_default",
}  # fmt: skip
"""Those of them that read on to a bound instead, which their caller keeps near."""

PAIRS = {
    "drop_skips": ("schedule", "schedule"),
    "unfinished_of_schedules": ("schedule", "finished_at"),  # a schedule has many runs, of which few have not ended
}
"""Statements that look up all that belongs to a schedule: how the index is entered, and what else must be asked of it."""

WHOLE = {
    "idle_limiters": ("job_limiters", "only keys of the last hour, once a minute"),
    "held_by_workers": ("job_runs_look", "only leases that are held now"),
    "held_by_lives": ("job_runs_look", "only leases that are held now, and a worker asks only at its start and its end"),
    "held_of_queue": ("job_runs_look", "only leases that are held now"),
    "walk_live": ("job_runs_look", "only leases that are held now"),
    "leases": ("job_runs_look", "only leases that are held now, once for each burst and doctor"),
    "lanes_in_use": ("job_runs_look", "only leases that are held now, once a day"),
    "drop_lanes": ("job_runs_look", "only leases that are held now, once a day"),
    "resources_in_use": ("job_limiters", "only keys of the last hour, once a day"),
    "drop_resources": ("job_limiters", "only keys of the last hour, once a day"),
    "held": ("job_runs_look", "only leases that are held now, and a claim asks only when it is repeated"),
}
"""Statements that read all of an index or a table, and why it is short."""

NOT_PLANNED = {
    "lock_lanes": "a lock has no plan",
    "vacuum_runs": "a command has no plan",
}

VALUES: Mapping[str, str | int | None] = {
    **dict.fromkeys(
        (
            "now",
            "count",
            "seq",
            "priority_key",
            "position",
            "at",
            "lease_check_at",
            "entry",
            "after",
            "limit",
            "first",
            "last",
            "lane",
            "slot",
        ),
        1,
    ),
    **dict.fromkeys(
        ("lease", "since", "before", "attempt", "n", "until", "definitions", "expected", "keys", "cores", "memory", "slots"), 1
    ),
    **dict.fromkeys(("offset", "low", "programs"), 1),
    **dict.fromkeys(("created_since", "created_before", "ended_since", "ended_before", "grouped", "schedule"), 1),
    **dict.fromkeys(("begins", "ends", "has"), "a%"),
    "states": '["failed"]',
    **dict.fromkeys(("ids", "ending", "lanes", "predecessors"), "[1, 2, 3]"),
    **dict.fromkeys(("r", "d", "c", "k"), "[]"),
    **dict.fromkeys(("names", "queues", "jobs", "tags"), '["a"]'),
    **dict.fromkeys(("id", "token", "mark", "call", "worker", "name", "handler", "description", "move", "job", "tag", "process"), "a"),
    **dict.fromkeys(("payload", "options", "document"), "{}"),
    **dict.fromkeys(("seen", "upto"), "1:1:"),
    **dict.fromkeys(("max_runtime", "policy", "retry_of", "keep")),
    "read": 1,
    **dict.fromkeys(("key", "kind", "expr", "zone", "missed", "overlap", "code_hash"), "a"),
    **dict.fromkeys(("anchor", "max_missed", "max_age", "jitter", "enabled", "next_at", "rev", "skipped"), 1),
    **dict.fromkeys(("about", "metrics", "schemas"), "{}"),
    "schema": "f00d",
    **dict.fromkeys(("cursor", "status", "error", "reason"), "a"),
    **dict.fromkeys(("owner", "principal"), "a"),
    **dict.fromkeys(("log", "share", "late", "takes", "trusted"), 1),
    "notice": "a",
    "answer": 1,
    "few": 1,
    **dict.fromkeys(("base", "other", "latest"), 1),
    "boot": "a",
    "older": 1,
    **dict.fromkeys(("hash", "scopes", "actor", "what", "subject", "invitation"), "a"),
    **dict.fromkeys(("expires_at", "ttl"), 1),
    **dict.fromkeys(("moved", "aging_priority"), 1),
    **dict.fromkeys(("on_failure", "rule", "scope", "ended", "run", "group", "callback"), "a"),
    **dict.fromkeys(("total", "aging", "capacity", "max_wait", "controls", "weight", "each"), 1),
    **dict.fromkeys(("g", "w", "p", "rates"), "[]"),
    "max_attempts": 3,
    "output": "1",
    "queue": "a",
    "format": "a",
    "state": "failed",
    "xid": "1",
}
"""One value for each parameter. Plans are generic, so only the kind of value counts."""
SETS_OF_NEEDS = {"claim_within", "add_holds", "add_rates"}
TEXT_AFTER = {"parked_keys", "members", "list_members", "results", "jobs_all", "schedules_after", "workers_after", "tokens_after"}


class Access(NamedTuple):
    """How a plan gets at a table that grows."""

    table: str
    way: str | None  # an index; None: it reads the table from end to end
    equal: tuple[str, ...]  # the columns with which the index is entered, in its own order
    bounded: str  # the column after them, where a bound on it is used
    stops: bool  # nothing between it and its limit reads it to the end
    peeks: bool  # without any condition: it may be a look whether there is anything at all
    text: str


def parameters(text: str) -> list[str]:
    return list(dict.fromkeys(re.findall(r"%\((\w+)\)s", text) or re.findall(r"(?<![:\w]):([a-z_]+)", text)))


def value(statement: str, name: str) -> str | int | None:
    if name == "n" and statement in SETS_OF_NEEDS:
        return "[]"
    return "a" if name == "after" and statement in TEXT_AFTER else VALUES[name]


def judge(statement: str, text: str, accesses: Iterable[Access]) -> list[str]:
    """What is wrong with a plan, one line for each access that is."""
    # Whether a table has any row at all is known from its first.
    looks = [access for access in accesses if not (access.peeks and f"exists (select 1 from {access.table})" in text)]
    return [f"{statement}: {reason}: {access.text}" for access in looks if (reason := complaint(statement, access))]


def complaint(statement: str, access: Access) -> str | None:
    if WHOLE.get(statement, ("",))[0] in (access.way, access.table):
        return None
    if access.way is None:
        return f"reads all of {access.table}"
    walk = WALKS.get(statement, {}).get(access.way)
    if walk is not None:
        entered = " ".join((*access.equal, access.bounded))
        return None if (access.stops or statement in RANGES) and entered.startswith(walk) else "walks without an end"
    if statement in PAIRS and access.table in ("job_skips", "job_runs"):
        first, second = PAIRS[statement]
        return None if access.equal[:1] == (first,) and second in access.text else "reads more than it needs"
    return None if access.equal and access.equal[0] in POINTS else "does not look its rows up"


# The tables as they are after a bulk load: runs in all states and what belongs to them.

_STATES = ", ".join(f"'{state}'" for state in State)
_FILL = f"""
insert into job_runs (id, rev, state, job, queue, lane, priority_key, position, payload, due_at, created_at, max_attempts, token, worker,
  lease, claimed_at, lease_until, lease_check_at, finished_at, attempt_id)
select 'run' || n, 1, state, 'job' || (n % 7), case n % 3 when 0 then 'other' else 'default' end, n % 7 + 1, 0, n, '{{}}', n,
  n, 3, 'token' || n, 'worker' || (n % 100), 30, n,
  case when live then n end, case when live then n end, case when ended then n end, case when n % 3 = 0 then 'again' || n end
from (select n, state, state in ('claimed', 'running', 'cancelling') as live,
    state in ('succeeded', 'failed', 'quarantined', 'cancelled', 'skipped') as ended
  from numbers join states on place = n % {len(State)}) as made;
insert into job_journal (run, rev, at, move, state, attempt) select seq, 1, 1, 'create', state, 1 from job_runs;
insert into job_waits (run, predecessor, rule) select seq, seq - 1, 'success' from job_runs where state = 'waiting' and seq > 1;
insert into job_checks (run) select run from job_waits;
insert into job_attempts (run, n, id, outcome, answer, finished_at)
  select seq, 1, 'first' || seq, 'failed', 'queued', 1 from job_runs where attempt_id is not null;
insert into job_logs (run, attempt, n, at, text) select seq, 1, 1, 1, 'line' from job_runs;
insert into job_steps (run, n, key, output, at) select seq, 1, 'key', '1', 1 from job_runs;
insert into job_keys (scope, key, run, unfinished, until)
  select 'key', 'key' || seq, id, seq % 2, case when seq % 2 = 0 then seq end from job_runs;
insert into job_schedules (key, job, kind, expr, zone, anchor, payload, options, missed, max_missed, overlap, jitter, enabled, next_at, rev,
  created_at, updated_at)
  select 'key' || n, 'job', 'interval', '1h', 'UTC', 0, '{{}}', '{{}}', 'all', 1, 'allow', 0, 1, case when n % 5 > 0 then n end, 1, n, n
  from numbers;
insert into job_skips (schedule, first_at, last_at, number, reason, at) select id, 1, 1, 1, 'missed', 1 from job_schedules;
insert into job_announcements (run, queue, rev, at) select seq, queue, 1, seq from job_runs where state = 'queued';
insert into job_audit (at, actor, what, subject) select n, 'ann', 'cancel', 'run ' || n from numbers;
update job_runs set schedule = seq % 50 + 1 where seq % 2 = 0;
insert into job_limiters (key, resource, wake_at, used_at)
  select 'key' || n, 'key', case when n % 3 = 0 then n end, n from numbers where n <= 5000;
insert into job_rates (key, n, tat) select key, 0, 1 from job_limiters;
insert into job_holds (key, run, token, weight) select 'key' || (seq % 5000), seq, token, 1 from job_runs where lease_check_at is not null;
insert into job_slots (id, key, token, weight, state, lease, lease_until, created_at)
  select 'slot' || n, 'key' || (n % 5000), 'a', 1, 'held', 1, n, n from numbers where n <= 10000;
update job_runs set keep = case when seq % 8 = 0 then 4611686018427387904 else 60000 end where seq % 4 = 0;
update job_runs set parked = 'key' || (seq % 5000), lane = -lane where state = 'queued' and seq % 3 = 0;
insert into job_minutes (minute, queue, job, created, started, succeeded, failed, quarantined, cancelled, skipped, attempts, retried,
  returned, lapsed, waited, ran)
  select n / 5, 'default', 'job' || (n % 5), 1, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 1, 1 from numbers;
insert into job_notify (run, url, format) select seq, 'https://example.com', 'standard' from job_runs where seq % 3 = 0;
insert into job_deliveries (id, webhook, run, rev, type, body, status, tries, next_at, created_at, until)
  select 'delivery' || n, 'webhook' || (n % 3), 'run' || n, 1, 'run.failed', '{{}}', case when n % 2 = 0 then 'pending' else 'failed' end,
    0, case when n % 2 = 0 then n end, n, n from numbers;
"""
_NUMBERS = {
    "sqlite": f"""create temp table numbers as
      with recursive s(n) as (select 1 union all select n + 1 from s where n < {RUNS}) select n from s;
      create temp table states as select key as place, value as state from json_each(json_array({_STATES}));""",
    "postgres": f"""create temp table numbers as select n from generate_series(1, {RUNS}) as n;
      create temp table states as select i - 1 as place, state from unnest(array[{_STATES}]) with ordinality as t(state, i);""",
}


def bulk_load(dialect: str) -> str:
    return _NUMBERS[dialect] + _FILL


# SQLite


def _tables(text: str) -> dict[str, str]:
    """What each name in a statement stands for, of the tables that grow."""
    found = re.findall(r"\b(?:from|join|update|into)\s+(job_[a-z]+)\b(?:\s+(?:as\s+)?([a-z])\b)?", text)
    return {name: table for table, alias in found if table in GROWING for name in (table, alias) if name}


_SQLITE_ACCESS = re.compile(r"(SCAN|SEARCH) (\w+)(?: EXISTS)?(?: USING (?:COVERING )?(.*?))?(?: \((.*)\))?(?: LEFT-JOIN)?")

_SQLITE_SMALL = re.compile(r"SCAN (CONSTANT ROW|\(subquery-\d+\)|\w+ VIRTUAL TABLE)")


def sqlite_accesses(text: str, plan: Iterable[tuple[int, int, int, str]]) -> list[Access]:
    """Every access to a table that grows; names are those of PostgreSQL where SQLite has none."""
    rows, tables = list(plan), _tables(text)
    sorting = {parent for _, parent, _, line in rows if line.startswith("USE TEMP B-TREE")}
    found = []
    for _, parent, _, line in rows:
        match = _SQLITE_ACCESS.fullmatch(line)
        assert match or not line.startswith(("SCAN", "SEARCH")) or _SQLITE_SMALL.match(line), line
        if match and match[2] in tables:
            stops = parent not in sorting and re.search(r"\blimit (:|1\b|changes\(\))|\bmin\(", text) is not None
            found.append(_sqlite_access(tables[match[2]], match, stops))
    return found


def _sqlite_access(table: str, match: re.Match[str], stops: bool) -> Access:
    way, condition = match[3], (match[4] or "").replace("<expr>", "expr")
    rowid = {"job_journal": "entry", "job_audit": "id"}.get(table, "seq")
    index = (way.removeprefix("INDEX ") if way.startswith("INDEX ") else f"{table}_pkey") if way else None
    if index and index.startswith("AUTOMATIC"):
        index = None
    equal = tuple(re.findall(r"\b([a-z_]+)=", condition.replace("rowid", rowid)))
    bounded = re.search(r"\b([a-z_]+)(?:,[a-z_,]+\))?[<>]", condition.replace("rowid", rowid))
    return Access(table, index, equal, bounded[1] if bounded else "", stops, match[0].startswith(f"SCAN {table} EXISTS"), match[0])


def sqlite_plans(store_path: Path, load: bool, analyze: bool) -> dict[str, list[Access]]:
    texts = {name: query.text for name, query in QUERIES["sqlite"].items() if query.text}
    queries = {name: Query(f"explain query plan {text}", writes=False) for name, text in texts.items()}
    clock = ManualClock()
    run_sync(BlockingSqlite(store_path, clock).close())
    db = apsw.Connection(str(store_path))
    db.execute((bulk_load("sqlite") if load else "") + ("; analyze" if analyze else ""))
    db.close()
    store = BlockingSqlite(store_path, clock, queries=queries)
    plans = {}
    for name, text in texts.items():
        values = {parameter: value(name, parameter) for parameter in parameters(text)}
        plans[name] = sqlite_accesses(text, run_sync(store.batch("plan", [Statement(name, values)]))[0])
    run_sync(store.close())
    return plans


# PostgreSQL


def postgres_accesses(plan: Mapping[str, Any], indexes: Mapping[str, list[str]]) -> Iterator[Access]:
    """Every access to a table that grows, wherever it is in the plan."""
    yield from _walk(plan, indexes, stops=False)


_EXPRESSION = re.compile(r"CASE WHEN \(?keep IS NULL\)? THEN 0 ELSE 1 END|\(finished_at \+ keep\)|^finished_at \+ keep$")
"""What indexes hold besides columns, as the server writes it."""


def _walk(node: Mapping[str, Any], indexes: Mapping[str, list[str]], stops: bool) -> Iterator[Access]:
    kind = node["Node Type"]
    # A limit ends what it reads; a sort, a count or a copy of it reads to the end first.
    stops = kind == "Limit" or (stops and kind in ("Index Scan", "Index Only Scan", "LockRows", "Result", "Nested Loop", "Append"))
    if node.get("Relation Name") in GROWING and kind != "ModifyTable":
        yield _postgres_access(node, indexes, stops)
    for child in node.get("Plans", ()):
        subplan = child.get("Parent Relationship") in ("InitPlan", "SubPlan")
        yield from _walk(child, indexes, stops and not subplan)


def _postgres_access(node: Mapping[str, Any], indexes: Mapping[str, list[str]], stops: bool) -> Access:
    kind, condition = node["Node Type"], _EXPRESSION.sub("expr", node.get("Index Cond", ""))
    peeks = not condition and "Filter" not in node and node.get("Parent Relationship") == "InitPlan"
    text = f"{kind} on {node['Relation Name']} by {node.get('Index Name')} where {condition or 'anything'}"
    if kind not in ("Index Scan", "Index Only Scan"):
        return Access(node["Relation Name"], None, (), "", stops, peeks, text)
    equal = set(re.findall(r'\("?([a-z_]+)"? = ', condition))
    bounded = set(re.findall(r'\((?:ROW\()?"?([a-z_]+)"?[^()]*\)? [<>]', condition))
    columns = [_EXPRESSION.sub("expr", " ".join(column.split())).strip("() ") for column in indexes[node["Index Name"]]]
    entered = tuple(takewhile(equal.__contains__, columns))
    after = next((column for column in columns[len(entered) : len(entered) + 1] if column in bounded), "")
    return Access(node["Relation Name"], node["Index Name"], entered, after, stops, peeks, text)


_INDEX_COLUMNS = """
select c.relname::text, array(select pg_get_indexdef(i.indexrelid, k, true) from generate_series(1, i.indnkeyatts) as k)
from pg_index i join pg_class c on c.oid = i.indexrelid where c.relname like 'job\\_%'
"""


def _positional(text: str) -> str:
    """A statement as the adapter prepares it."""
    names = parameters(text)
    return re.sub(r"%\((\w+)\)s", lambda found: f"${names.index(found[1]) + 1}", text).replace("%%", "%")


def _explaining(name: str, text: str) -> dict[str, Query]:
    """Three statements by which the adapter's own connection shows the plan it would use: what it prepares has generic plans."""
    given = [value(name, parameter) for parameter in parameters(text)]
    types = ", ".join("bigint" if isinstance(one, int) else "unknown" for one in given)
    nulls = ", ".join("null" for _ in given)
    prepare = f"prepare shown{f'({types})' if given else ''} as {_positional(text)}".replace("%", "%%")
    explain = f"explain (format json) execute shown{f'({nulls})' if given else ''}"
    return {f"prepare {name}": Query(prepare, writes=False), f"explain {name}": Query(explain, writes=False)}


def postgres_plans(url: str, load: bool, analyze: bool) -> dict[str, list[Access]]:
    texts = {name: query.text for name, query in QUERIES["postgres"].items() if query.text and name not in NOT_PLANNED}
    queries = {step: query for name, text in texts.items() for step, query in _explaining(name, text).items()}
    store = BlockingPostgres(url, ManualClock(), queries=queries | {"forget": Query("deallocate shown", writes=False)})
    with psycopg.connect(url, autocommit=True) as db:
        for table in GROWING:
            db.execute(f"alter table {table} set (autovacuum_enabled = off)")  # statistics come when the test says so
        db.execute((bulk_load("postgres") if load else "") + ("; analyze" if analyze else ""))
        indexes: dict[str, list[str]] = dict(db.execute(_INDEX_COLUMNS).fetchall())
    plans = {name: list(postgres_accesses(_plan(store, name), indexes)) for name in texts}
    run_sync(store.close())
    return plans


def _plan(store: BlockingPostgres, name: str) -> Mapping[str, Any]:
    _, [(shown,)], _ = run_sync(store.batch("plan", [Statement(f"prepare {name}"), Statement(f"explain {name}"), Statement("forget")]))
    plan: Mapping[str, Any] = (json.loads(shown) if isinstance(shown, str) else shown)[0]["Plan"]
    return plan


# The tests

SITUATIONS = {
    "empty": (False, False),
    "empty, analyzed": (False, True),
    "loaded": (True, False),
    "loaded, analyzed": (True, True),
}
QUERIES = {dialect: sql.load(dialect) for dialect in ("sqlite", "postgres")}
NAMES = set(QUERIES["sqlite"]) | set(QUERIES["postgres"])


def faults(dialect: str, plans: Mapping[str, list[Access]]) -> list[str]:
    return [fault for name, accesses in sorted(plans.items()) for fault in judge(name, QUERIES[dialect][name].text, accesses)]


@pytest.mark.parametrize("situation", corners(SITUATIONS))
def test_sqlite_looks_rows_up(situation: str, tmp_path: Path) -> None:
    plans = sqlite_plans(tmp_path / "windlass.db", *SITUATIONS[situation])
    assert set(plans) == {name for name, query in QUERIES["sqlite"].items() if query.text}
    assert not (wrong := faults("sqlite", plans)), "\n".join(wrong)


ENDS, ALL = ("empty", "loaded, analyzed"), tuple(SITUATIONS)


@pytest.mark.parametrize(
    ("version", "situations"), [(18, ENDS), pytest.param(18, ALL[1:-1], marks=long), pytest.param(16, ALL, marks=long)]
)
def test_postgres_looks_rows_up(version: int, situations: tuple[str, ...], postgres_server: PostgresServer) -> None:
    with ExitStack() as stack:
        server = postgres_server if version == postgres_server.version else stack.enter_context(PostgresServer(version=version))
        for situation in situations:
            name = situation.replace(", ", "_")
            stack.callback(server.drop_database, name)
            plans = postgres_plans(server.create_database(name), *SITUATIONS[situation])
            assert set(plans) == {name for name, query in QUERIES["postgres"].items() if query.text} - set(NOT_PLANNED)
            assert not (wrong := faults("postgres", plans)), "\n".join([situation, *wrong])


def test_every_exception_is_a_statement() -> None:
    assert set(WALKS) | set(PAIRS) | set(WHOLE) | set(NOT_PLANNED) | TEXT_AFTER | SETS_OF_NEEDS <= NAMES
