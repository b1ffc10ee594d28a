"""The table of settings. The readers of files and variables, `windlass config`, the flags of commands and the docs are made from it."""

import os
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, get_type_hints

from msgspec import Struct
from msgspec.structs import asdict

from windlass.config.kinds import (
    ADDRESS,
    KEEP,
    LIST,
    NAME,
    PATH,
    REPEATED,
    SECRET,
    SIZE,
    STORE,
    TABLES,
    TEXT,
    YES_OR_NO,
    ValueKind,
    choice,
    count,
    span,
)  # fmt: skip
from windlass.model import Limits

PREFIX = "WINDLASS_"
SLOTS = max(4, os.cpu_count() or 1)
"""Runs that a worker executes at once: one for each core, and four at least, so that handlers that wait do not wait for each other."""

EVERY = ("",)
"""Every command."""
WORK, UP, HUB, DISPATCH, CONSUME = "work", "up", "hub", "dispatch", "consume"
LASTING = (WORK, UP, HUB, DISPATCH, CONSUME)
"""Commands that run until a signal."""


class Setting(NamedTuple):
    """A row of the table; the name and the type are those of the field."""

    kind: ValueKind
    help: str
    flag: str = ""  # without dashes it is a positional argument; empty: there is none
    commands: tuple[str, ...] = ()  # those that take the flag
    metavar: str = ""
    default: Any = None
    otherwise: str = ""  # for the docs: what holds where there is no default, or what the default is made from
    page: str = ""  # of the docs, with more


class Settings(Struct, frozen=True):
    """All settings; None: not set. Durations are milliseconds, sizes MiB."""

    # fmt: off
    store: Annotated[str | None, Setting(
        STORE, "the store: a file, or postgresql://user@host/database", "--store", EVERY, default="windlass.db", page="stores.md",
    )] = None
    pooled: Annotated[bool | None, Setting(
        YES_OR_NO, "whether a pooler that shares connections by transaction is in front of PostgreSQL",
        otherwise="false", page="stores.md#behind-a-pooler",
    )] = None
    listen_store: Annotated[str | None, Setting(
        ADDRESS, "the address of PostgreSQL itself, past the pooler, for notifications: postgresql://...",
    )] = None
    pool_size: Annotated[int | None, Setting(
        count(1, 1_000), "how many connections to PostgreSQL a store has at most", otherwise="10",
    )] = None
    hub: Annotated[str | None, Setting(
        TEXT, "a hub to use instead of a store; its token is in WINDLASS_HUB_TOKEN", "--hub", EVERY, metavar="URL", page="client.md",
    )] = None
    hub_token: Annotated[str | None, Setting(SECRET, "the token for the hub", page="access.md")] = None
    hub_ca: Annotated[str | None, Setting(
        PATH, "a file with the certificates that verify the hub's", otherwise="those of httpx",
    )] = None
    app: Annotated[str | None, Setting(
        TEXT, "the app of the worker: module:attribute, such as shop:app", "app", (WORK, UP), metavar="MODULE:APP",
    )] = None
    name: Annotated[str | None, Setting(NAME, "the name of the worker", "--name", (WORK,), otherwise="a new one at each start")] = None
    queues: Annotated[tuple[str, ...] | None, Setting(
        REPEATED, "queues from which the worker takes runs", "--queue", (WORK,), metavar="QUEUE", otherwise="all",
    )] = None
    jobs: Annotated[tuple[str, ...] | None, Setting(
        REPEATED, "jobs that the worker executes", "--job", (WORK,), metavar="JOB", otherwise="all of the app",
    )] = None
    tags: Annotated[tuple[str, ...] | None, Setting(
        REPEATED, "tags of the worker, for jobs that require them", "--tag", (WORK,), metavar="TAG", otherwise="none",
    )] = None
    slots: Annotated[int | None, Setting(
        count(1, 2**20), "the number of runs that the worker executes at once",
        "--slots", (WORK, UP, CONSUME), default=SLOTS, otherwise="one for each core, 4 at least",
    )] = None
    lease: Annotated[int | None, Setting(
        span(1, Limits().lease), "how long a run stays with a worker without a heartbeat, such as 30s", "--lease", (WORK,), default=30_000,
    )] = None
    grace: Annotated[int | None, Setting(
        span(0, Limits().duration), "how long a worker that stops waits for its runs", "--grace", (WORK, CONSUME), default=30_000,
    )] = None
    cores: Annotated[int | None, Setting(
        count(0, 2**20), "cores of the worker, for jobs that require them", "--cores", (WORK,), otherwise="those of the machine",
    )] = None
    memory: Annotated[int | None, Setting(
        SIZE, "memory of the worker, for jobs that require it: in MiB, or as 2GiB", "--memory", (WORK,), otherwise="that of the machine",
    )] = None
    log_level: Annotated[str | None, Setting(
        choice("debug", "info", "warning", "error"), "the lowest level that is logged", "--log-level", LASTING, default="info",
    )] = None
    log_format: Annotated[str | None, Setting(
        choice("text", "json"), "log as text, or as one JSON object a line",
        "--log-format", LASTING, default="text", page="logging-and-progress.md",
    )] = None
    keep_succeeded: Annotated[int | None, Setting(
        KEEP, "how long succeeded runs are kept, or forever; in effect while the store has no value of its own",
        default=Limits().keep_succeeded, page="#what-the-store-keeps",
    )] = None
    keep_others: Annotated[int | None, Setting(
        KEEP, "the same for runs that ended in another way", default=Limits().keep_others, page="#what-the-store-keeps",
    )] = None
    spool: Annotated[str | None, Setting(
        PATH, "the folder for reports that the hub has not accepted yet", "--spool", (WORK,), otherwise="~/.local/state/windlass/reports",
    )] = None
    host: Annotated[str | None, Setting(TEXT, "the address on which the hub listens", "--host", (UP, HUB), default="127.0.0.1")] = None
    port: Annotated[int | None, Setting(
        count(0, 65_535), "the port on which the hub listens; 0 is any free one", "--port", (UP, HUB), default=8080,
    )] = None
    connections: Annotated[int | None, Setting(
        count(1, 2**20), "how many connections a hub has at most, each of which is an open file",
        otherwise="10,000, or as many as the process may open",
    )] = None
    allow: Annotated[tuple[str, ...] | None, Setting(
        REPEATED, "networks and hosts inside the network to which webhooks may be sent",
        "--allow", (UP, HUB), metavar="NETWORK", otherwise="none", page="webhooks.md",
    )] = None
    plain_http: Annotated[bool | None, Setting(
        YES_OR_NO, "send webhooks without encryption, too", "--plain-http", (UP, HUB), otherwise="false",
    )] = None
    notify: Annotated[tuple[str, ...] | None, Setting(
        REPEATED, "hosts that runs may notify which a token without the scope admin creates; * for all hosts",
        "--notify", (UP, HUB), metavar="HOST", otherwise="none", page="webhooks.md",
    )] = None
    dialects: Annotated[dict[str, dict[str, Any]] | None, Setting(
        TABLES, "the protocols of other systems that a hub serves below /dialects, each with its own settings, as [dialects.forge]",
        otherwise="none", page="dialects/index.md",
    )] = None
    dialect: Annotated[tuple[str, ...] | None, Setting(
        REPEATED, "the one of them that the hub serves at its root as well",
        "--dialect", (UP, HUB), metavar="NAME", otherwise="none", page="dialects/index.md",
    )] = None
    solvers: Annotated[bool | None, Setting(
        YES_OR_NO, "execute programs that runs bring along", "--solvers", (WORK,), otherwise="false", page="solvers.md",
    )] = None
    solver_hosts: Annotated[tuple[str, ...] | None, Setting(
        LIST, "the hosts from which such programs are downloaded", "--solver-hosts", (WORK,), otherwise="any",
    )] = None
    solver_allow: Annotated[tuple[str, ...] | None, Setting(
        LIST, "networks and hosts inside the network from which they may be downloaded", "--solver-allow", (WORK,), otherwise="none",
    )] = None
    solver_plain_http: Annotated[bool | None, Setting(
        YES_OR_NO, "download them without encryption, too", "--solver-plain-http", (WORK,), otherwise="false",
    )] = None
    solver_unchecked: Annotated[bool | None, Setting(
        YES_OR_NO, "execute also those that a run names without a checksum", "--solver-unchecked", (WORK,), otherwise="false",
    )] = None
    solver_cache: Annotated[str | None, Setting(
        PATH, "the folder in which they are cached", "--solver-cache", (WORK,), otherwise="~/.cache/windlass/solvers",
    )] = None
    solver_memory: Annotated[int | None, Setting(
        SIZE, "memory of each of them at most: in MiB, or as 512MiB; 0 is no limit", "--solver-memory", (WORK,), otherwise="1,024",
    )] = None
    solver_processes: Annotated[int | None, Setting(
        count(0, 2**22), "processes and threads of their user at most; 0 is no limit", "--solver-processes", (WORK,), otherwise="16,384",
    )] = None
    solver_file_size: Annotated[int | None, Setting(
        SIZE, "size of a file that they write at most: in MiB, or as 1GiB; 0 is no limit", "--solver-file-size", (WORK,), otherwise="8,192",
    )] = None
    # fmt: on

    def filled(self) -> "Settings":
        """The same with defaults for settings that are not set; those without a default stay None."""
        return Settings(**asdict(DEFAULTS) | without_none(asdict(self)))


Table = Mapping[str, Setting]


def table_of(record: type[Settings]) -> Table:
    """The rows of a record of settings, by name."""
    hints = get_type_hints(record, include_extras=True)
    return {name: hints[name].__metadata__[0] for name in record.__struct_fields__}


def without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of these values that are set."""
    return {name: value for name, value in values.items() if value is not None}


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper()


SETTINGS = table_of(Settings)
DEFAULTS = Settings(**{name: setting.default for name, setting in SETTINGS.items()})
