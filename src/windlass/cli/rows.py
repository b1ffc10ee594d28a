"""Rows of the command line: a command stands beside the function that it calls, with its options, its help and its examples."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from windlass.config.settings import SETTINGS, Setting, Table

if TYPE_CHECKING:
    from windlass.cli.context import CommandContext

WORK, LOOK, CHANGE, OPERATE = TOPICS = ("work", "look", "change", "operate")
"""The headings of the help, in its order."""

AREAS = (
    "runs", "work", "hub", "slots", "parts", "jobs", "stats", "groups", "schedules", "stores", "controls", "webhooks", "tokens", "doctor",
    "about", "dialects", "completion",
)  # fmt: skip
"""The modules with commands, in the order of the help. `docs/generate.py` writes index.py from them."""

Function = Callable[["CommandContext"], int]


class Option(NamedTuple):
    """An option or a positional argument, with its details for argparse."""

    names: tuple[str, ...]
    details: dict[str, Any]


class OneOf(NamedTuple):
    """Options that exclude each other."""

    options: tuple[Option, ...]
    required: bool


class CommandRow(NamedTuple):
    """A command, or a group of them; a group may have a function of its own."""

    name: str
    help: str
    examples: str
    options: tuple[Option | OneOf, ...]
    function: Function | None
    commands: Commands | None = None
    topic: str = ""  # where the help lists it
    meant_by: tuple[str, ...] = ()  # words by which other tools call it; they are suggested from, and never run

    def all_options(self) -> Iterator[Option]:
        """Its options, also those that exclude each other."""
        for option in self.options:
            yield from option.options if isinstance(option, OneOf) else (option,)


class Commands:
    """The rows of a module, or of a group."""

    def __init__(self) -> None:
        self.rows: dict[str, CommandRow] = {}

    def add(
        self, name: str, *options: Option | OneOf, examples: str, help: str = "", topic: str = "", meant_by: tuple[str, ...] = ()
    ) -> Callable[[Function], Function]:
        """Make a function a command; without other help its docstring is the help."""

        def keep(function: Function) -> Function:
            self.rows[name] = CommandRow(name, help or _summary(function), examples, options, function, topic=topic, meant_by=meant_by)
            return function

        return keep

    def group(
        self,
        name: str,
        *options: Option | OneOf,
        examples: str,
        help: str = "",
        topic: str = "",
        meant_by: tuple[str, ...] = (),
        function: Function | None = None,
    ) -> Commands:
        """Further commands under a name; the function is called where none of them is given."""
        below = Commands()
        self.rows[name] = CommandRow(name, help or _summary(function), examples, options, function, below, topic, meant_by)
        return below


def _summary(function: Function | None) -> str:
    return (function.__doc__ or "").strip().rstrip(".")


def option(*names: str, **details: Any) -> Option:
    """An option, or without dashes a positional argument."""
    return Option(names, details)


def edit(*names: str, **details: Any) -> Option:
    """An option of a command that leaves unchanged what is not given: without it the arguments have no such name."""
    return Option(names, {"default": argparse.SUPPRESS} | details)


def one_of(*options: Option, required: bool = False) -> OneOf:
    """Options of which one at most can be given, or exactly one must be."""
    return OneOf(options, required)


def settings_of(command: str, table: Table = SETTINGS) -> tuple[Option, ...]:
    """The flags of the settings that a command takes; "" for those of every command."""
    return tuple(_flag(name, setting) for name, setting in table.items() if command in setting.commands)


def _flag(name: str, setting: Setting) -> Option:
    details: dict[str, Any] = {"default": argparse.SUPPRESS, **setting.kind.flag, "help": _help(setting)}
    details |= {"metavar": setting.metavar} if setting.metavar else {}
    return Option((setting.flag,), details | ({"dest": name} if setting.flag.startswith("-") else {"nargs": "?"}))


def _help(setting: Setting) -> str:
    default = setting.otherwise or ("" if setting.default is None else setting.kind.words(setting.default))
    repeated = "; may be repeated" if setting.kind.flag.get("action") == "append" else ""
    shown = default and default != "false"
    return f"{setting.help}{repeated}{f' (default: {default})' if shown else ''}".replace("%", "%%")


COMMON = (
    *settings_of(""),
    option("--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON document"),
)
"""The options of every command; they can stand before it and after it."""


def rows_of(module: str) -> dict[str, CommandRow]:
    """The commands of a module."""
    rows: dict[str, CommandRow] = import_module(f"windlass.cli.{module}").COMMANDS.rows
    return rows


def all_rows() -> Iterator[tuple[str, CommandRow]]:
    """Every command with its module, in the order of the help."""
    for module in AREAS:
        for row in rows_of(module).values():
            yield module, row
