"""What is set where: arguments before WINDLASS_* variables before windlass.toml before defaults; and the store that an address names."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from msgspec import Struct
from msgspec.structs import asdict

from windlass.clock import Clock
from windlass.durations import A_DURATION as A_DURATION
from windlass.durations import duration as duration
from windlass.durations import keep as keep
from windlass.durations import spelled as spelled
from windlass.egress import Egress
from windlass.engine import Engine
from windlass.engine.checks import SHORTEST_KEEP
from windlass.errors import BadInput, StoreError, StoreUnreachable
from windlass.extras import install
from windlass.model import FOREVER, Limits
from windlass.store.base import Store
from windlass.worker.solvers import Solvers

if TYPE_CHECKING:
    from windlass.client import RemotePort

FILE = "windlass.toml"
PREFIX = "WINDLASS_"
OTHER_VARIABLES = ("WINDLASS_CONFIG", "WINDLASS_DEBUG", "WINDLASS_FAULTS")
# What a worker tells the commands it runs, and `windlass work --reload` its child.
PASSED_DOWN = (
    "WINDLASS_RUN_ID", "WINDLASS_JOB", "WINDLASS_ATTEMPT", "WINDLASS_TOKEN", "WINDLASS_SCHEDULED_FOR", "WINDLASS_SUPERVISED",
)  # fmt: skip
LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
MEMORY = ":memory:"


class Settings(Struct, frozen=True):
    """What was said; None is what nobody said. Durations are milliseconds."""

    store: str | None = None
    pooled: bool | None = None
    listen_store: str | None = None
    pool_size: int | None = None
    hub: str | None = None
    hub_token: str | None = None
    hub_ca: str | None = None
    app: str | None = None
    name: str | None = None
    queues: tuple[str, ...] | None = None
    jobs: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None
    slots: int | None = None
    lease: int | None = None
    grace: int | None = None
    cores: int | None = None
    memory: int | None = None  # MiB
    log_level: str | None = None
    log_format: str | None = None
    keep_succeeded: int | None = None
    keep_others: int | None = None
    spool: str | None = None
    host: str | None = None
    port: int | None = None
    connections: int | None = None
    allow: tuple[str, ...] | None = None
    plain_http: bool | None = None
    solvers: bool | None = None
    solver_hosts: tuple[str, ...] | None = None
    solver_allow: tuple[str, ...] | None = None
    solver_plain_http: bool | None = None
    solver_cache: str | None = None
    solver_memory: int | None = None  # MiB
    solver_processes: int | None = None
    solver_file_size: int | None = None  # MiB

    def filled(self) -> Settings:
        """The same with defaults for what nobody said; what has no default stays None."""
        return Settings(**asdict(DEFAULTS) | _known(asdict(self)))


SLOTS = max(4, os.cpu_count() or 1)
"""Runs that a worker executes at once: one for each core, and four at least, so that handlers that wait do not wait for each other."""

DEFAULTS = Settings(
    store="windlass.db",
    slots=SLOTS,
    lease=30_000,
    grace=30_000,
    log_level="info",
    log_format="text",
    keep_succeeded=Limits().keep_succeeded,
    keep_others=Limits().keep_others,
    host="127.0.0.1",
    port=8080,
)


def _known(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


# Reading values. Each reader takes what TOML can say and raises ValueError with what it wanted.

_NAME = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,128}")
_SIZE = re.compile(r"([0-9]{1,12}) ?(M|MiB|G|GiB)")


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("a text")
    return value


def _name(value: Any) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError("a text of 1 to 128 printable characters")
    return value


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise ValueError('a list of names, such as ["mail", "reports"], or, in a variable, mail,reports')
    return tuple(_name(item) for item in value)


def _count(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"a whole number from {low:,} to {high:,}")
        return value

    return read


def _between(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        ms = duration(value)
        if not low <= ms <= high:
            raise ValueError(f"a duration from {spelled(low)} to {spelled(high)}")
        return ms

    return read


def _keep(value: Any) -> int:
    ms = keep(value)
    if ms == "forever":
        return FOREVER
    if ms < SHORTEST_KEEP:
        raise ValueError(f'a duration of {spelled(SHORTEST_KEEP)} at least, or "forever"')
    return ms


def _memory(value: Any) -> int:
    sized = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    mib = int(sized[1]) * (1024 if sized[2].startswith("G") else 1) if sized else value
    if type(mib) is not int or not 0 <= mib <= 2**40:
        raise ValueError('a number of MiB, or a text such as "512MiB" or "2GiB"')
    return mib


def _yes_or_no(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _one_of(words: tuple[str, ...]) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return str(value)

    return read


# From the text of a variable to what TOML would have said.


def _whole(text: str) -> Any:
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text.strip()) else text


def _flag(text: str) -> Any:
    return {"true": True, "1": True, "false": False, "0": False}.get(text.strip().lower(), text)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _same(text: str) -> str:
    return text


class Field(NamedTuple):
    """How a setting is read, from the text of a variable and from what TOML says, and what it is for."""

    from_text: Callable[[str], Any]
    read: Callable[[Any], Any]
    meaning: str


FIELDS: Mapping[str, Field] = {
    "store": Field(_same, _text, "where the runs are: a file, or postgresql://..."),
    "pooled": Field(_flag, _yes_or_no, "whether a pooler that shares connections by transaction is before PostgreSQL"),
    "listen_store": Field(_same, _text, "where PostgreSQL itself is reached, past the pooler, to hear of work: postgresql://..."),
    "pool_size": Field(_whole, _count(1, 1_000), "how many connections to PostgreSQL a store has at once"),
    "hub": Field(_same, _text, "a hub to ask instead of a store: https://..."),
    "hub_token": Field(_same, _text, "who one is to the hub"),
    "hub_ca": Field(_same, _text, "a file with the certificates by which the hub's is checked"),
    "app": Field(_same, _text, "what `windlass work` serves: module:attribute"),
    "name": Field(_same, _name, "the worker's name"),
    "queues": Field(_split, _names, "the queues the worker takes from; all when nobody says"),
    "jobs": Field(_split, _names, "the jobs the worker takes; all of the app's when nobody says"),
    "tags": Field(_split, _names, "what the worker has, for jobs that require it"),
    "slots": Field(_whole, _count(1, 2**20), "how many runs the worker executes at once"),
    "lease": Field(_same, _between(1, Limits().lease), "how long a run stays with a worker that is not heard of"),
    "grace": Field(_same, _between(0, Limits().duration), "how long a stopping worker waits for what runs"),
    "cores": Field(_whole, _count(0, 2**20), "cores the worker offers to jobs that require them"),
    "memory": Field(_whole, _memory, "memory (MiB) the worker offers to jobs that require it"),
    "log_level": Field(_same, _one_of(LEVELS), "how much the worker says"),
    "log_format": Field(_same, _one_of(FORMATS), "how it says it: as text, or as one JSON object a line"),
    "keep_succeeded": Field(_same, _keep, "how long succeeded runs are kept, if the store was told nothing yet"),
    "keep_others": Field(_same, _keep, "how long other ended runs are kept, if the store was told nothing yet"),
    "host": Field(_same, _text, "the address a hub listens on"),
    "port": Field(_whole, _count(0, 65_535), "the port a hub listens on; 0: any free one"),
    "connections": Field(_whole, _count(1, 2**20), "how many connections a hub has at most"),
    "plain_http": Field(_flag, _yes_or_no, "whether a hub may send webhooks without encryption"),
    "allow": Field(_split, _names, "networks and hosts inside the network that a hub may send webhooks to"),
    "spool": Field(_same, _text, "the folder where a worker keeps reports that the hub has not taken yet"),
    "solvers": Field(_flag, _yes_or_no, "whether the worker executes programs that runs bring along"),
    "solver_hosts": Field(_split, _names, "the hosts such programs are fetched from; any when nobody says"),
    "solver_allow": Field(_split, _names, "networks and hosts inside the network that they may be fetched from"),
    "solver_plain_http": Field(_flag, _yes_or_no, "whether they may be fetched without encryption"),
    "solver_cache": Field(_same, _text, "the folder they are kept in"),
    "solver_memory": Field(_whole, _memory, "memory (MiB) each of them may have; 0 is no limit"),
    "solver_processes": Field(_whole, _count(0, 2**22), "processes and threads that their user may have; 0 is no limit"),
    "solver_file_size": Field(_whole, _memory, "size (MiB) of a file that they write; 0 is no limit"),
}


# Where it is said


class Said(NamedTuple):
    """A value, and where it was said."""

    value: Any
    source: str


def _read(name: str, raw: Any, source: str) -> Said:
    try:
        return Said(FIELDS[name].read(raw), source)
    except ValueError as wanted:
        raise BadInput(f"{source} is {_shown_value(name, raw)}; it must be {wanted}.", hint=f"Correct {source}.") from None


SECRETS = ("hub_token",)
ADDRESSES = ("store", "listen_store")
PATHS = ("hub_ca", "spool", "solver_cache")


def _shown_value(name: str, raw: Any) -> str:
    if name in SECRETS:
        return "***"
    return f"{shown(raw) if name in ADDRESSES and isinstance(raw, str) else raw!r:.80}"


def _unknown(what: str, given: str, known: Iterable[str], otherwise: str = "") -> BadInput:
    """The error for a name that is none, with the nearest that is one."""
    short = {name.removeprefix(PREFIX): name for name in known}  # what all have in common must not make them alike
    near = difflib.get_close_matches(given.removeprefix(PREFIX), list(short), n=1)
    hint = f"Did you mean {short[near[0]]}?" if near else f"{otherwise} There are: {', '.join(short.values())}.".strip()
    return BadInput(f"There is no {what} {given}.", hint=hint)


def _from_variables(environment: Mapping[str, str]) -> dict[str, Said]:
    known = {PREFIX + name.upper(): name for name in FIELDS}
    said = {}
    for variable, text in environment.items():
        if not variable.startswith(PREFIX) or variable in (*OTHER_VARIABLES, *PASSED_DOWN):
            continue
        if variable not in known:
            raise _unknown("setting", variable, [*known, *OTHER_VARIABLES], "Unset it.")
        if text:  # an empty variable is how many tools say "not set"
            said[known[variable]] = _read(known[variable], FIELDS[known[variable]].from_text(text), variable)
    return said


def find_file(environment: Mapping[str, str], folder: str) -> str | None:
    """The file of settings: the one that WINDLASS_CONFIG names, else windlass.toml in this folder or the nearest above."""
    if named := environment.get("WINDLASS_CONFIG"):
        path = os.path.join(folder, named)
        if not os.path.isfile(path):
            raise BadInput(f"WINDLASS_CONFIG names {named}, which is no file.", hint="Correct the path, or unset it.")
        return path
    while not os.path.isfile(os.path.join(folder, FILE)):
        if folder == (folder := os.path.dirname(folder)):
            return None
    return os.path.join(folder, FILE)


def _parsed(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"Cannot read {path}: {error}.", hint='Write lines such as store = "shop.db".') from None
    except OSError as error:
        raise BadInput(f"Cannot read {path}: {error.strerror}.", hint="Let the user that runs windlass read it.") from None


def _from_file(path: str | None) -> dict[str, Said]:
    said = {}
    for key, raw in (_parsed(path) if path else {}).items():
        if key not in FIELDS:
            raise _unknown(f"setting in {path} called", key, FIELDS, "Remove it.")
        said[key] = _read(key, raw, f"{path}: {key}")
    if path and "store" in said:
        value, source = said["store"]
        said["store"] = Said(_beside(path, value), source)
    for name in said.keys() & set(PATHS):
        value, source = said[name]
        said[name] = Said(os.path.join(os.path.dirname(os.path.abspath(path or "")), value), source)
    return said


def _beside(path: str, address: str) -> str:
    """A relative path in the file is meant from the file's own folder, wherever the command is given."""
    where = located(address)
    if where.kind != "sqlite" or where.place == MEMORY:
        return address
    return os.path.join(os.path.dirname(os.path.abspath(path)), where.place)


def look(
    overrides: Mapping[str, Any] | None = None, *, environment: Mapping[str, str] | None = None, folder: str | None = None
) -> dict[str, Said]:
    """Every setting that somebody said, with where it was said; None in `overrides` is not said."""
    environment, folder = os.environ if environment is None else environment, folder or os.getcwd()
    arguments = {name: _read(name, raw, _argument(name)) for name, raw in (overrides or {}).items() if raw is not None}
    return _from_file(find_file(environment, folder)) | _from_variables(environment) | arguments


def _argument(name: str) -> str:
    if name not in FIELDS:
        raise _unknown("setting called", name, FIELDS)
    return f"the argument {name}"


def load(
    overrides: Mapping[str, Any] | None = None, *, environment: Mapping[str, str] | None = None, folder: str | None = None
) -> Settings:
    """What was said, arguments first, then variables, then the file; `filled()` adds the defaults."""
    return Settings(**{name: said.value for name, said in look(overrides, environment=environment, folder=folder).items()})


def keeps_of(settings: Settings) -> dict[str, int]:
    """What the settings say of retention, for a store that was told nothing yet."""
    return _known({"keep_succeeded": settings.keep_succeeded, "keep_others": settings.keep_others})


def solvers_of(settings: Settings) -> Solvers | None:
    """What executes the programs that runs bring along, if the settings say that the worker does."""
    if not settings.solvers:
        return None
    egress = Egress(allow=settings.solver_allow or (), only=settings.solver_hosts, plain_http=settings.solver_plain_http or False)
    limits = {name: getattr(settings, f"solver_{name}") for name in ("memory", "processes", "file_size")}
    return Solvers(egress, cache=settings.solver_cache, **_known(limits))


# Stores


class Address(NamedTuple):
    """A kind of store, or a hub, and the path or address its driver wants."""

    kind: str
    place: str


def located(address: str) -> Address:
    """What an address names: a path, sqlite:///path, :memory:, postgresql://..., or a hub's https://..."""
    scheme, separator, rest = address.partition("://")
    if not separator:
        return Address("sqlite", address)
    match scheme:
        case "sqlite":
            return Address("sqlite", rest.removeprefix("/") or MEMORY)
        case "postgresql" | "postgres":
            return Address("postgres", address)
        case "http" | "https":
            return Address("hub", address)
        case _:
            raise BadInput(
                f"There is no store of the kind {scheme!r:.40}.",
                hint="Name a file (shop.db, sqlite:///shop.db), postgresql://host/database, or a hub: https://host.",
            )


def shown(address: str) -> str:
    """An address without its password."""
    scheme, separator, rest = address.partition("://")
    if not separator:
        return address
    account, at, server = rest.rpartition("@")
    user, colon, _ = account.partition(":")
    place, question, query = f"{user}:***@{server}".partition("?") if colon else f"{account}{at}{server}".partition("?")
    return f"{scheme}://{place}{question}{'&'.join(map(_shown_parameter, query.split('&')))}"


def _shown_parameter(parameter: str) -> str:
    name, equals, _ = parameter.partition("=")
    hidden = "password" in unquote(name).lower() or unquote(name) == "listen_store"
    return f"{name}=***" if equals and hidden else parameter


_USED = {"pooled": "pooled", "listen_store": "listen", "pool_size": "size"}
"""What an address may say besides what the driver knows, and what a store calls it."""


def _server_at(place: str, settings: Settings) -> tuple[str, dict[str, Any]]:
    """The address that the driver wants, and how the server behind it is used: as the address says, else as is set."""
    scheme, _, rest = place.partition("://")
    account, at, _ = rest.partition("/")[0].rpartition("@")  # a password may have a question mark in it
    server, _, query = rest[len(account + at) :].partition("?")
    kept, used = [], {name: getattr(settings, name) for name in _USED}
    for parameter in query.split("&") if query else ():
        name, _, text = parameter.partition("=")
        if name in _USED:
            used[name] = _read(name, FIELDS[name].from_text(unquote(text)), f"{name} in the store's address").value
        else:
            kept.append(parameter)
    address = f"{scheme}://{account}{at}{server}{'?' if kept else ''}{'&'.join(kept)}"
    return address, {_USED[name]: value for name, value in used.items() if value is not None}


def open_store(
    address: str, clock: Clock, *, blocking: bool, create: bool = True, patience: float = 30.0, settings: Settings | None = None
) -> Store:
    """The store that an address names, used as the settings say; with create=False a file that does not exist is an error.

    `patience` is how many seconds a server that is away is waited for.
    """
    kind, place = _store_at(address)
    if kind == "postgres":
        with _needing_psycopg():
            from windlass.store import postgres
        server, used = _server_at(place, settings or Settings())
        return (postgres.BlockingPostgres if blocking else postgres.AsyncPostgres)(server, clock, patience=patience, **used)
    if not create and place != MEMORY and not os.path.exists(place):
        raise StoreUnreachable(f"There is no file {place}.", hint=f"Check the path, or make it: windlass migrate --store {place}")
    from windlass.store import sqlite

    return sqlite.BlockingSqlite(place, clock) if blocking else sqlite.AsyncSqlite(place, clock)


def _store_at(address: str) -> Address:
    found = located(address)
    if found.kind == "hub":
        raise BadInput(f"{shown(address)} is a hub, and this needs the store itself.", hint="Name the store, such as --store shop.db.")
    return found


def open_hub(settings: Settings, address: str, clock: Clock, *, blocking: bool, **how: float) -> RemotePort:
    """The hub at an address, as the one whom the settings name."""
    try:
        from windlass.client import AsyncTransport, BlockingTransport, RemotePort
    except ImportError as error:
        if (error.name or "").startswith("windlass"):
            raise
        raise StoreError("A hub is asked through httpx, which is not installed.", hint=install("remote")) from error
    kind = BlockingTransport if blocking else AsyncTransport
    return RemotePort(kind(address, token=settings.hub_token, ca_file=settings.hub_ca), clock, **how)


def open_engine(
    settings: Settings,
    address: str,
    clock: Clock,
    *,
    blocking: bool,
    limits: Limits | None = None,
    create: bool = True,
    patience: float = 30.0,
) -> Engine | RemotePort:
    """The verbs of the store or the hub that an address names."""
    if located(address).kind == "hub":
        return open_hub(settings, address, clock, blocking=blocking, patience=patience)
    store = open_store(address, clock, blocking=blocking, create=create, patience=patience, settings=settings)
    return Engine(store, clock, limits, keeps=keeps_of(settings))


def migrate_store(address: str, clock: Clock, *, patience: float = 30.0, settings: Settings | None = None) -> tuple[int, int]:
    """Make the store, or bring its schema up to date; the versions before and after."""
    kind, place = _store_at(address)
    if kind == "postgres":
        with _needing_psycopg():
            from windlass.store import postgres
        server, used = _server_at(place, settings or Settings())
        return postgres.migrate(server, clock, patience=patience, pooled=used.get("pooled", False))
    from windlass.store import sqlite

    return sqlite.migrate(place, clock)


@contextmanager
def _needing_psycopg() -> Iterator[None]:
    """Say what to install where the driver is missing."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").startswith("windlass"):
            raise
        raise StoreError("PostgreSQL needs the driver psycopg, which is not installed.", hint=install("postgres")) from error
