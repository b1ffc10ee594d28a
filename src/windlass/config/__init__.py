"""Where settings come from: arguments before WINDLASS_* variables before windlass.toml. `settings` has the table of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from windlass.config.settings import PREFIX, SETTINGS, Settings, Table, variable
from windlass.errors import BadInput, nearest

FILE = "windlass.toml"
OTHER_VARIABLES = ("WINDLASS_CONFIG", "WINDLASS_DEBUG", "WINDLASS_FAULTS")
# In the environment of commands that a worker executes, and of the child of `windlass work --reload`.
PASSED_DOWN = (
    "WINDLASS_RUN_ID", "WINDLASS_JOB", "WINDLASS_ATTEMPT", "WINDLASS_TOKEN", "WINDLASS_SCHEDULED_FOR", "WINDLASS_SUPERVISED",
)  # fmt: skip


class Value(NamedTuple):
    """The value of a setting, and where it comes from."""

    value: Any
    source: str


def _read(name: str, raw: Any, source: str, table: Table) -> Value:
    kind = table[name].kind
    try:
        return Value(kind.read(raw), source)
    except ValueError as requirement:
        raise BadInput(f"{source} is {kind.mask(raw)!r:.80}; it must be {requirement}.", hint=f"Correct {source}.") from None


def read_text(name: str, text: str, source: str, table: Table = SETTINGS) -> Value:
    """The value of a setting that is written as the text of a variable is."""
    return _read(name, table[name].kind.from_text(text), source, table)


def _unknown(what: str, name: str, names: Iterable[str], otherwise: str = "") -> BadInput:
    """The error for an unknown name, with the nearest known one."""
    short = {known.removeprefix(PREFIX): known for known in names}  # the prefix would make all of them alike
    near = nearest(name.removeprefix(PREFIX), short)
    hint = f"Did you mean {short[near]}?" if near else f"{otherwise} There are: {', '.join(short.values())}.".strip()
    return BadInput(f"There is no {what} {name}.", hint=hint)


def _from_variables(environment: Mapping[str, str], table: Table) -> dict[str, Value]:
    names = {variable(name): name for name in table}
    values = {}
    for key, text in environment.items():
        if not key.startswith(PREFIX) or key in (*OTHER_VARIABLES, *PASSED_DOWN):
            continue
        if key not in names:
            raise _unknown("setting", key, [*names, *OTHER_VARIABLES], "Unset it.")
        if text:  # many tools write an empty variable for "not set"
            values[names[key]] = read_text(names[key], text, key, table)
    return values


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
    import tomllib  # here, because most commands find no file, and `windlass --help` looks for none

    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"Cannot read {path}: {error}.", hint='Write lines such as store = "shop.db".') from None
    except OSError as error:
        raise BadInput(f"Cannot read {path}: {error.strerror}.", hint="Let the user that runs windlass read it.") from None


def _from_file(path: str, table: Table) -> dict[str, Value]:
    """The settings in a file; relative paths in it start at its own folder."""
    folder = os.path.dirname(os.path.abspath(path))
    values = {}
    for key, raw in _parsed(path).items():
        if key not in table:
            raise _unknown(f"setting in {path} called", key, table, "Remove it.")
        value, source = _read(key, raw, f"{path}: {key}", table)
        resolve = table[key].kind.resolve
        values[key] = Value(resolve(value, folder) if resolve else value, source)
    return values


def _from_arguments(overrides: Mapping[str, Any], table: Table) -> dict[str, Value]:
    for name in overrides:
        if name not in table:
            raise _unknown("setting called", name, table)
    return {name: _read(name, raw, f"the argument {name}", table) for name, raw in overrides.items() if raw is not None}


def lookup(
    overrides: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    folder: str | None = None,
    table: Table = SETTINGS,
) -> dict[str, Value]:
    """Every setting that has a value, with its source; None in `overrides` is no value."""
    environment, folder = os.environ if environment is None else environment, folder or os.getcwd()
    arguments = _from_arguments(overrides or {}, table)
    path = find_file(environment, folder)
    return (_from_file(path, table) if path else {}) | _from_variables(environment, table) | arguments


def load(
    overrides: Mapping[str, Any] | None = None, *, environment: Mapping[str, str] | None = None, folder: str | None = None
) -> Settings:
    """The settings from arguments first, then variables, then the file; `filled()` adds the defaults."""
    return Settings(**{name: value for name, (value, _) in lookup(overrides, environment=environment, folder=folder).items()})
