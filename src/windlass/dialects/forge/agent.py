"""An agent in the environment that the document describes: a worker, and the metrics of its machine."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from windlass.app import App, AsyncApp
from windlass.app.working import SWITCH_INTERVAL, drive, memory_of_machine, signals
from windlass.clock import Clock
from windlass.config import Value
from windlass.config.kinds import NAME, YES_OR_NO, ValueKind, count
from windlass.config.opening import open_transport, solvers_of
from windlass.config.settings import Settings
from windlass.dialects.forge.port import BEAT_EVERY, BEAT_TIMEOUT, LEASE, ForgePort
from windlass.dialects.forge.snapshots import Snapshots
from windlass.errors import BadInput
from windlass.model import WorkerInfo
from windlass.payload import reader
from windlass.worker import Context, Handler, host
from windlass.worker.loop import GRACE, Worker
from windlass.worker.solvers import Solvers
from windlass.worker.stopping import LAST_PART

_LOG = logging.getLogger("windlass.forge")

CACHE = "~/.forge-monitor/solvers"
NOTHING_DONE = {"executed": False, "message": "The job names no solver_url, and this worker has no handler for its type."}
"""The result of a job that names no program and has no handler."""

WITHOUT_MEANING = ("store", "queues", "slots", "lease", "spool")
"""Settings of other workers, which an agent does not take as flags: it has one job at a time, and the hub's queue and lease."""

_INTERVAL = count(100, 86_400_000)


class AgentSettings(Struct, frozen=True):
    """What is set for an agent. Intervals are milliseconds."""

    hub_url: str
    node_id: str
    secret: str
    node_name: str | None = None
    push_interval: int = 5_000
    enabled: bool = False
    cores: int = 0  # 0: those of the machine
    ram_gb: float = 0  # the same
    tags: tuple[str, ...] = ()
    types: tuple[str, ...] = ()  # none: all
    poll_interval: int = 5_000
    cache: str = CACHE


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and "@" not in parts.netloc
        usable = usable and not parts.query and not parts.fragment
    except ValueError:
        usable = False
    if not usable or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("an address such as https://hub.example.com, with a path if the hub has one")
    return text.removesuffix("/")


def _secret(text: str) -> str:
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("a text of printable ASCII characters without spaces")
    return text


def _header(text: str) -> str:
    if not text.isascii() or not text.isprintable() or len(text) > 128:
        raise ValueError("at most 128 printable ASCII characters, because it is sent as a header")
    return text


def _texts(text: str) -> tuple[str, ...]:
    try:
        return reader(tuple[str, ...])(text)
    except msgspec.DecodeError:
        raise ValueError('a JSON array of texts, such as ["gpu"]') from None


def _gigabytes(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= 2**20:
        raise ValueError("a number of gigabytes, such as 16 or 0.5")
    return number


def _of(kind: ValueKind) -> Callable[[str], Any]:
    return lambda text: kind.read(kind.from_text(text))


class Variable(NamedTuple):
    """A variable of the document: the field that it sets, how it is read, and windlass's own setting of the same meaning."""

    field: str
    read: Callable[[str], Any]
    setting: str = ""
    convert: Callable[[Any], Any] = lambda value: value  # of the value of that setting
    required: bool = False


AGENT_VARIABLES = {
    "HUB_URL": Variable("hub_url", _url, "hub", _url, required=True),
    "NODE_ID": Variable("node_id", _of(NAME), "name", required=True),
    "FORGE_INGEST_SECRET": Variable("secret", _secret, "hub_token", required=True),
    "NODE_NAME": Variable("node_name", _header),
    "PUSH_INTERVAL_MS": Variable("push_interval", _of(_INTERVAL)),
    "WORKER_ENABLED": Variable("enabled", _of(YES_OR_NO)),
    "WORKER_CORES": Variable("cores", _of(count(1, 2**20)), "cores"),
    "WORKER_RAM_GB": Variable("ram_gb", _gigabytes, "memory", lambda mib: mib / 1024),
    "WORKER_TAGS": Variable("tags", _texts, "tags"),
    "WORKER_TYPES": Variable("types", _texts, "jobs"),
    "JOB_POLL_INTERVAL_MS": Variable("poll_interval", _of(_INTERVAL)),
    "SOLVER_CACHE_DIR": Variable("cache", str, "solver_cache"),
}


def read_environment(environment: Mapping[str, str], values: Mapping[str, Value]) -> AgentSettings:
    """The agent's settings: windlass's own before the document's variables. All that is missing or cannot be read is named at once."""
    fields, problems = dict[str, Any](), list[str]()
    for name, variable in AGENT_VARIABLES.items():
        text, own = environment.get(name), values.get(variable.setting)
        if text and own is not None:
            _LOG.info("%s is not used, because %s is set by %s.", name, variable.setting, own.source)
        try:
            if own is not None:
                fields[variable.field] = variable.convert(own.value)
            elif text:
                fields[variable.field] = variable.read(text)
            elif variable.required:
                problems.append(f"{name} is not set")
        except ValueError as requirement:
            problems.append(f"{name if own is None else own.source} must be {requirement}")
    if problems:
        raise BadInput(
            f"The agent cannot start: {'; '.join(problems)}.",
            hint="Correct the environment; docs/dialects/forge-agent.md has every variable.",
        )
    return AgentSettings(**fields)


def work(app: App | AsyncApp, values: Mapping[str, Value], environment: Mapping[str, str], clock: Clock, *, burst: bool = False) -> bool:
    """Work for a hub until a signal, or with `burst` until no job is left; whether the process must be replaced."""
    agent = read_environment(environment, values)
    settings = Settings(**{name: value for name, (value, _) in values.items()})
    sys.setswitchinterval(SWITCH_INTERVAL)
    return drive(_work(app, agent, settings, clock, burst))


async def _work(app: App | AsyncApp, agent: AgentSettings, settings: Settings, clock: Clock, burst: bool) -> bool:
    async with agent_worker(app, agent, settings, clock) as worker:
        if not agent.enabled:
            _LOG.warning("WORKER_ENABLED is not true: metrics are sent to %s, and no job is claimed.", agent.hub_url)
            await _until_stopped(burst)
            return False
        _LOG.info("Agent %s asks %s for a job every %g s.", agent.node_id, agent.hub_url, agent.poll_interval / 1000)
        with signals(worker.stop):
            await worker.run(until_idle=burst)
        return worker.needs_restart


@asynccontextmanager
async def agent_worker(app: App | AsyncApp, agent: AgentSettings, settings: Settings, clock: Clock) -> AsyncIterator[Worker]:
    """The worker of an agent, not yet running; metrics are sent until the end of the block."""
    if app.planned:
        _LOG.warning("The app's schedules are not created, because a hub of this protocol has none: %s.", ", ".join(sorted(app.planned)))
    for job in app.jobs.values():
        if job.signature is not None:
            job.signature.check()
    solvers = await asyncio.to_thread(_solvers, agent, settings)
    async with _ports(agent, settings, clock) as (port, heartbeat):
        snapshots = Snapshots(partial(port.send_metrics, agent.node_id), host.metrics, clock, agent.push_interval / 1000)
        pushing = asyncio.create_task(snapshots.run())
        try:
            yield Worker(
                port,
                {job.handler.name: job.handler for job in app.jobs.values()},
                clock,
                WorkerInfo(agent.node_id, tags=agent.tags, cores=_cores(agent), memory=round(_ram_gb(agent) * 1024), slots=1),
                heartbeat=heartbeat,
                lease=LEASE,
                beat_every=BEAT_EVERY,
                # A job may go on for 30 seconds; what is stopped then has a moment of its own to end.
                grace=GRACE + LAST_PART if settings.grace is None else settings.grace,
                fallback=Handler("", "async", _nothing),
                solvers=solvers,
            )
        finally:
            pushing.cancel()
            await asyncio.gather(pushing, return_exceptions=True)


def _solvers(agent: AgentSettings, settings: Settings) -> Solvers | None:
    return solvers_of(replace(settings, solvers=agent.enabled, solver_cache=os.path.expanduser(agent.cache)), raw=True)


@asynccontextmanager
async def _ports(agent: AgentSettings, settings: Settings, clock: Clock) -> AsyncIterator[tuple[ForgePort, ForgePort]]:
    """A port for the worker's loop, and one for its heartbeat thread."""
    hub, registered = replace(settings, hub_token=agent.secret), threading.Event()
    about = {"cores": _cores(agent), "ram_gb": _ram_gb(agent), "tags": agent.tags} | ({"name": agent.node_name} if agent.node_name else {})
    details: dict[str, Any] = {"about": about, "types": agent.types, "poll_every": agent.poll_interval / 1000, "registered": registered}
    loop = ForgePort(open_transport(hub, agent.hub_url, blocking=False), clock, agent.node_id, **details)
    heartbeat = ForgePort(open_transport(hub, agent.hub_url, blocking=True), clock, agent.node_id, timeout=BEAT_TIMEOUT, **details)
    try:
        yield loop, heartbeat
    finally:
        await heartbeat.close()
        await loop.close()


async def _nothing(context: Context) -> Any:
    return NOTHING_DONE


async def _until_stopped(burst: bool) -> None:
    stopped = asyncio.Event()

    async def stop(*, drain: bool) -> None:
        stopped.set()

    with signals(stop):
        if not burst:
            await stopped.wait()


def _cores(agent: AgentSettings) -> int:
    return agent.cores or os.cpu_count() or 1


def _ram_gb(agent: AgentSettings) -> float:
    return agent.ram_gb or round(memory_of_machine() / 1024, 1)
