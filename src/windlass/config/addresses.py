"""Addresses of stores and hubs: what they name, and how they are shown."""

from __future__ import annotations

import os
from typing import NamedTuple
from urllib.parse import unquote

from windlass.errors import BadInput

MEMORY = ":memory:"


class Address(NamedTuple):
    """A kind of store, or a hub, and the path or address that its driver takes."""

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


def from_folder(address: str, folder: str) -> str:
    """The same address, with a relative path resolved from a folder."""
    kind, place = located(address)
    return address if kind != "sqlite" or place == MEMORY else os.path.join(folder, place)


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
