"""Protocols of other systems over the same engine: each is words, verbs and a table of routes. Importing one needs no web framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, get_type_hints

import msgspec

from windlass.api.verbs import Verbs
from windlass.clock import Clock
from windlass.config.opening import needing
from windlass.dialects.base import Dialect
from windlass.errors import BadInput, nearest
from windlass.model import Run
from windlass.payload import convert
from windlass.webhooks import Format

NAMES: tuple[str, ...] = ("forge", "guards", "kumofire", "so1", "zerog")
"""Every dialect, by the name of its package. A package has `Settings`, `show`, `WORDS` and `VARIABLES`, and may have a webhook format:
`FORMAT` in its module `webhooks`."""

WITH_ROUTES = ("forge", "guards", "so1")
"""Those that a hub serves. Their packages have `mount`; the others are libraries, or parts that run as processes."""
WITH_PARTS = ("kumofire",)
"""Those whose document describes a dispatcher and consumers. Their packages have a module `parts`, with `dispatch` and `consume`."""
WITH_AGENTS = ("forge",)
"""Those whose document describes a worker. Their packages have a module `agent`, with `work` and `WITHOUT_MEANING`."""
WITH_HUBS = ("forge",)
"""Those whose document describes the environment of a hub. Their packages have a module `hosting`."""


def package_of(name: str) -> Any:
    """The package of a dialect."""
    return import_module(f"windlass.dialects.{_known(name, NAMES)}")


def agent_of(name: str) -> Any:
    """The module of a dialect's agent, which works for any hub that speaks it."""
    module = f"windlass.dialects.{_known(name, WITH_AGENTS, 'with an agent')}.agent"
    with needing("A hub is reached through httpx", "remote"):
        return import_module(module)


def parts_of(name: str) -> Any:
    """The module with the parts of a dialect."""
    return import_module(f"windlass.dialects.{_known(name, WITH_PARTS, 'with a dispatcher and consumers')}.parts")


def hosting_of(name: str) -> Any:
    """The module with the environment of a dialect's hub; None if its document has none."""
    return import_module(f"windlass.dialects.{name}.hosting") if name in WITH_HUBS else None


def formats() -> list[Format]:
    """The webhook formats of all dialects that have one, whether or not they are mounted."""
    modules = [f"windlass.dialects.{name}.webhooks" for name in NAMES]
    return [import_module(module).FORMAT for module in modules if find_spec(module) is not None]


def _known(name: str, names: Sequence[str], which: str = "") -> str:
    if name in names:
        return name
    near = nearest(name, names)
    hint = f"Did you mean {near}?" if near else f"There are: {', '.join(names)}."
    raise BadInput(f"There is no dialect {which and f'{which} '}called {name!r:.80}.", hint=hint)


def settings_of(name: str, table: Mapping[str, Any], environment: Mapping[str, str]) -> Any:
    """The settings of a dialect: from its table [dialects.NAME], else from the variables that its document names."""
    package = package_of(name)
    kinds = get_type_hints(package.Settings)
    texts = {field: environment[variable] for variable, field in package.VARIABLES.items() if environment.get(variable)}
    try:
        variables = {field: convert(text, kinds[field], strict=False) for field, text in texts.items()}
        return convert(variables | dict(table), package.Settings)
    except msgspec.ValidationError as error:
        raise BadInput(f"[dialects.{name}] cannot be read: {error}.", hint=f"docs/dialects/{name}.md lists its settings.") from None


def mount_all(tables: Mapping[str, Any], root: str | None, environment: Mapping[str, str], clock: Clock) -> list[Dialect]:
    """The dialects that have a table, or are to be mounted at the root."""
    if root is not None:
        _known(_known(root, NAMES), WITH_ROUTES, "with routes")
    names = dict.fromkeys((*tables, *([] if root is None else [root])))
    settings = {name: settings_of(name, tables.get(name, {}), environment) for name in names}
    return [package_of(name).mount(settings[name], clock) for name in names if name in WITH_ROUTES]


async def show(name: str, verbs: Verbs, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Runs in the words of a dialect."""
    shown: list[dict[str, Any]] = await package_of(name).show(verbs, runs)
    return shown
