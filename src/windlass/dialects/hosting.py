"""A hub in the environment that a dialect's document describes for it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from windlass.config import Value, read_text
from windlass.config.settings import SETTINGS
from windlass.dialects import hosting_of

_LOG = logging.getLogger("windlass.hub")


class HubVariable(NamedTuple):
    """A variable of a document: the setting that it stands for, and its default there."""

    setting: str
    default: Any


def hub_values(dialect: str | None, values: Mapping[str, Value], environment: Mapping[str, str]) -> dict[str, Value]:
    """Values for the settings that nothing else sets, from the variables of the dialect at the hub's root, or their defaults."""
    hosting = None if dialect is None else hosting_of(dialect)
    if hosting is None:
        return {}
    chosen = {}
    for name, variable in hosting.HUB_VARIABLES.items():
        text, own = environment.get(name), values.get(variable.setting)
        if own is not None:
            if text:
                _LOG.info("%s is not used, because %s is set by %s.", name, variable.setting, own.source)
        elif text:
            chosen[variable.setting] = read_text(variable.setting, text, name)
        else:
            chosen[variable.setting] = Value(variable.default, f"the default of {name}")
        if variable.setting in chosen:
            value, source = chosen[variable.setting]
            _LOG.info("%s is %s, by %s.", variable.setting, SETTINGS[variable.setting].kind.words(value), source)
    return chosen


def host_value(dialect: str | None, values: Mapping[str, Value], *, guarded: bool) -> dict[str, Value]:
    """Where a hub listens whose dialect has its credentials, unless that is set."""
    hosting = None if dialect is None else hosting_of(dialect)
    if hosting is None or not guarded or "host" in values:
        return {}
    _LOG.info("host is %s, because the credentials of the dialect %s are set.", hosting.HOST, dialect)
    return {"host": Value(hosting.HOST, f"the dialect {dialect}")}


def check_hub(dialect: str | None, address: str, environment: Mapping[str, str]) -> None:
    """Refuse what the dialect at the hub's root cannot be served with, such as a store that another program of it has made."""
    hosting = None if dialect is None else hosting_of(dialect)
    if hosting is not None:
        hosting.check(address, environment)
