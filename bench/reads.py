"""The reading routes of a hub: how many requests a second each answers, on a store with a few records of each kind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.figures import Figures, say
from bench.hub import Exchange, Line, per_second, served
from windlass.api.verbs import NATIVE
from windlass.clock import SystemClock
from windlass.engine import Engine
from windlass.model import Member, NewGroup, NewRun
from windlass.store.base import run_sync
from windlass.store.sqlite import BlockingSqlite

SECONDS, QUICK = 1.0, 0.2
JOB = "noop"
STREAMS = ("follow_events", "watch_run")
UNFILLED = ("delivery_id",)  # nothing is sent here


def fill(path: Path) -> tuple[str, Mapping[str, str]]:
    """A store with a few records of each kind: the secret of a token, and what the parameters of paths can be."""
    store = BlockingSqlite(str(path), clock := SystemClock())
    engine = Engine(store, clock)
    run_sync(engine.define(JOB))
    created = run_sync(engine.create([NewRun(JOB, {"n": n}) for n in range(20)]))
    group = run_sync(engine.create_group(NewGroup(tuple(Member(NewRun(JOB)) for _ in range(20)))))
    run_sync(engine.schedule("nightly", JOB, cron="0 3 * * *"))
    run_sync(engine.set_resource(JOB, capacity=1))
    webhook = run_sync(engine.add_webhook("https://example.com/windlass"))
    token, secret = run_sync(engine.create_token("bench", ["admin"]))
    run_sync(store.close())
    ids = {"run_id": created[0].id, "group_id": group.id, "key": "nightly", "name": JOB, "webhook_id": webhook.id, "token_id": token.id}
    return secret, ids


def paths(ids: Mapping[str, str]) -> Iterator[str]:
    """Every reading route of the table but the streams."""
    for row in NATIVE:
        if row.method == "GET" and row.name not in STREAMS and not set(row.names) & set(UNFILLED):
            yield f"/api/v1{row.template.format(**ids)}"


def getting(path: str, token: str) -> Exchange:
    """One request for a path."""

    async def get(line: Line) -> None:
        await line.get(path, token=token)

    return get


def measure(figures: Figures, *, quick: bool) -> None:
    """The median over all reading routes, and the slowest of them."""
    with TemporaryDirectory() as folder:
        secret, ids = fill(path := Path(folder) / "hub.db")
        with served("hub", str(path)) as port:
            rates = {route: asyncio.run(per_second(port, getting(route, secret), QUICK if quick else SECONDS)) for route in paths(ids)}
    for route, rate in sorted(rates.items(), key=lambda item: item[1]):
        say(f"  {rate:9,.0f}/s  {route}")
    figures.note("hub.reads.per_second", median(rates.values()))
    figures.note("hub.reads.slowest_per_second", min(rates.values()))
