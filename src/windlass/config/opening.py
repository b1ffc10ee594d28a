"""Opens what an address names: a store, a hub, or the engine on either."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from windlass.clock import Clock
from windlass.config import read_text
from windlass.config.addresses import MEMORY, Address, located, shown
from windlass.config.settings import Settings, without_none
from windlass.egress import Egress
from windlass.engine import Engine
from windlass.errors import BadInput, StoreError, StoreUnreachable
from windlass.extras import install
from windlass.model import Limits
from windlass.store.base import Store

if TYPE_CHECKING:
    from windlass.client import AsyncTransport, BlockingTransport, RemotePort
    from windlass.worker.solvers import Solvers

_PARAMETERS = {"pooled": "pooled", "listen_store": "listen", "pool_size": "size"}
"""Settings that an address may have as parameters, and what a store calls them."""


def _server_at(place: str, settings: Settings) -> tuple[str, dict[str, Any]]:
    """The address for the driver, and how the server is used: by the parameters of the address, else by the settings."""
    scheme, _, rest = place.partition("://")
    account, at, _ = rest.partition("/")[0].rpartition("@")  # a password may have a question mark in it
    server, _, query = rest[len(account + at) :].partition("?")
    kept, used = [], {name: getattr(settings, name) for name in _PARAMETERS}
    for parameter in query.split("&") if query else ():
        name, _, text = parameter.partition("=")
        if name in _PARAMETERS:
            used[name] = read_text(name, unquote(text), f"{name} in the store's address").value
        else:
            kept.append(parameter)
    address = f"{scheme}://{account}{at}{server}{'?' if kept else ''}{'&'.join(kept)}"
    return address, {_PARAMETERS[name]: value for name, value in without_none(used).items()}


def open_store(
    address: str, clock: Clock, *, blocking: bool, create: bool = True, patience: float = 30.0, settings: Settings | None = None
) -> Store:
    """The store that an address names, used by these settings; with create=False a file that does not exist is an error.

    `patience` is the number of seconds for which an unreachable server is retried.
    """
    kind, place = _store_at(address)
    if kind == "postgres":
        with needing("PostgreSQL needs the driver psycopg", "postgres"):
            from windlass.store import postgres
        server, used = _server_at(place, settings or Settings())
        return (postgres.BlockingPostgres if blocking else postgres.AsyncPostgres)(server, clock, patience=patience, **used)
    if not create and place != MEMORY and not os.path.exists(place):
        raise StoreUnreachable(f"There is no file {place}.", hint=f"Check the path, or make it: windlass migrate --store {place}")
    from windlass.store import sqlite

    return sqlite.BlockingSqlite(place, clock) if blocking else sqlite.AsyncSqlite(place, clock)


def _store_at(address: str) -> Address:
    place = located(address)
    if place.kind == "hub":
        raise BadInput(f"{shown(address)} is a hub, and this needs the store itself.", hint="Name the store, such as --store shop.db.")
    return place


def open_transport(settings: Settings, address: str, *, blocking: bool) -> AsyncTransport | BlockingTransport:
    """A connection to a server, with the token and the certificates of the settings."""
    with needing("A hub is reached through httpx", "remote"):
        from windlass.client import AsyncTransport, BlockingTransport
    kind = BlockingTransport if blocking else AsyncTransport
    return kind(address, token=settings.hub_token, ca_file=settings.hub_ca)


def open_hub(settings: Settings, address: str, clock: Clock, *, blocking: bool, **details: float) -> RemotePort:
    """The hub at an address."""
    transport = open_transport(settings, address, blocking=blocking)
    from windlass.client import RemotePort

    return RemotePort(transport, clock, **details)


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
    """Create the store, or bring its schema up to date; the versions before and after."""
    kind, place = _store_at(address)
    if kind == "postgres":
        with needing("PostgreSQL needs the driver psycopg", "postgres"):
            from windlass.store import postgres
        server, used = _server_at(place, settings or Settings())
        return postgres.migrate(server, clock, patience=patience, pooled=used.get("pooled", False))
    from windlass.store import sqlite

    return sqlite.migrate(place, clock)


def keeps_of(settings: Settings) -> dict[str, int]:
    """The retention in the settings, for a store that has none yet."""
    return without_none({"keep_succeeded": settings.keep_succeeded, "keep_others": settings.keep_others})


def solvers_of(settings: Settings, *, raw: bool = False) -> Solvers | None:
    """The executor of programs that runs bring along, where the settings turn it on."""
    if not settings.solvers:
        return None
    from windlass.worker.solvers import Solvers

    egress = Egress(allow=settings.solver_allow or (), only=settings.solver_hosts, plain_http=settings.solver_plain_http or False)
    limits = {name: getattr(settings, f"solver_{name}") for name in ("memory", "processes", "file_size")}
    unchecked = settings.solver_unchecked or False
    return Solvers(egress, cache=settings.solver_cache, unchecked=unchecked, raw=raw, **without_none(limits))


@contextmanager
def needing(purpose: str, extra: str) -> Iterator[None]:
    """Name what to install where a package is missing."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").startswith("windlass"):
            raise
        raise StoreError(f"{purpose}, which is not installed.", hint=install(extra)) from error
