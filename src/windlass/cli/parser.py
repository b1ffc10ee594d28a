"""Parses the command line. A command's module is imported when the command is given, so that `windlass --help` needs none of them."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

from windlass import __version__
from windlass.cli.codes import MEANINGS, USAGE
from windlass.cli.index import INDEX
from windlass.cli.rows import COMMON, TOPICS, CommandRow, OneOf, Option, rows_of
from windlass.errors import BadInput, nearest

TOP = """commands for a durable job queue

  windlass migrate --store shop.db       create the store
  windlass work shop:app                 execute runs
  windlass enqueue mail to=ann           enqueue a run
  windlass runs                          list the runs
"""
COMMANDS = "commands"  # the heading of the commands of a group


class Below(NamedTuple):
    """A command of a parser, as far as help and suggestions need it."""

    name: str
    help: str
    topic: str
    meant_by: tuple[str, ...]
    row: Callable[[], CommandRow]


class CommandParser(argparse.ArgumentParser):
    """The parser of one command, which gets its options from the row when it is first used, and tells what may be meant by a wrong word."""

    def __init__(self, *, row: Callable[[], CommandRow] | None = None, closing: str = "", **details: Any) -> None:
        super().__init__(**details, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.color = False  # Python 3.14 has colours of its own
        self._row, self._closing = row, closing
        self.commands: dict[str, Below] = {}
        self.flags: dict[str, argparse.Action] = {}
        self.set_defaults(parser=self)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self._row is not None:
            row, self._row = self._row(), None
            self._fill(row)
        return super().parse_known_args(args, namespace)

    def add_options(self, options: Iterable[Option | OneOf]) -> None:
        """Take these options."""
        for one in options:
            if isinstance(one, OneOf):
                group = self.add_mutually_exclusive_group(required=one.required)
                added = [group.add_argument(*names, **details) for names, details in one.options]
            else:
                added = [self.add_argument(*one.names, **one.details)]
            self.flags |= {name: action for action in added for name in action.option_strings}

    def add_commands(self, dest: str, commands: Iterable[Below], *, required: bool = True) -> None:
        """Take one of these commands; the help lists them below their topics."""
        self.commands = {below.name: below for below in commands}
        self.usage = f"{self.prog} [OPTIONS] {'COMMAND ...' if required else '[COMMAND ...]'}"
        add = self.add_subparsers(dest=dest, help=argparse.SUPPRESS, metavar="COMMAND", prog=self.prog, parser_class=CommandParser)
        for below in self.commands.values():
            add.add_parser(below.name, row=below.row)

    def _fill(self, row: CommandRow) -> None:
        lines = "\n".join(f"  {example.strip()}" for example in row.examples.strip().splitlines())
        self.description, self._closing = row.help, f"examples:\n{lines}"
        self.add_options(COMMON)
        self.add_options(row.options)
        if row.function is not None:
            self.set_defaults(run=row.function)
        if row.commands is not None:
            rows = row.commands.rows
            below = [Below(one.name, one.help, COMMANDS, one.meant_by, partial(rows.__getitem__, one.name)) for one in rows.values()]
            self.add_commands("action", below, required=row.function is None)

    def format_help(self) -> str:
        topics = dict.fromkeys(topic for topic in (*TOPICS, COMMANDS) if any(below.topic == topic for below in self.commands.values()))
        listed = [_listed(topic, [below for below in self.commands.values() if below.topic == topic]) for topic in topics]
        self.epilog = "\n\n".join((*listed, self._closing))
        return super().format_help()

    def print_help(self, file: Any = None) -> None:
        file = file or sys.stdout
        text = self.format_help()
        plain = "NO_COLOR" in os.environ or not file.isatty()
        file.write(text if plain else re.sub(r"(?m)^([a-z ]+:)", "\x1b[1m\\1\x1b[0m", text))

    # What cannot be read

    def error(self, message: str) -> NoReturn:
        needs = message.partition("the following arguments are required: ")[2]
        raise self._bad(f"{self.prog} needs {needs}" if needs else message.removeprefix("argument "))

    def unknown(self, words: Sequence[str]) -> NoReturn:
        """Say which of these words is none of the command's."""
        name = next((word.partition("=")[0] for word in words if word.startswith("-") and word != "-"), None)
        if name is None:
            raise self._bad(f"{self.prog} does not take {words[0]!r}")
        flags = {flag.lstrip("-"): flag for flag in self.flags}
        near = nearest(name.lstrip("-"), flags, cutoff=0.65)
        meant = f"{flags[near]} may be meant: {self.flags[flags[near]].help}" if near else ""
        raise self._bad(f"{self.prog} has no option {name}", meant)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        if self.commands and action.nargs == argparse.PARSER:
            raise self._no_command(str(value))
        name, taken = "/".join(action.option_strings) or action.metavar or action.dest, [str(choice) for choice in action.choices]
        meant = nearest(str(value), taken)
        raise self._bad(f"{name} does not take {value!r}", f"{meant!r} may be meant" if meant else "", f"It takes {', '.join(taken)}.")

    def _no_command(self, word: str) -> BadInput:
        meant = [below for below in self.commands.values() if word.lower() in below.meant_by]
        if not meant and (near := nearest(word, self.commands, cutoff=0.75)):
            meant = [self.commands[near]]
        likely = "; or ".join(f"{self.prog} {below.name}: {below.help[0].lower()}{below.help[1:]}" for below in meant)
        return self._bad(f"{self.prog} has no command {word!r}", f"Try {likely}" if likely else "", "{} lists the commands.")

    def _bad(self, message: str, meant: str = "", more: str = "{} has examples.") -> BadInput:
        next_step = more.format(f"{self.prog} --help")
        return BadInput(f"{message}.", hint=f"{meant.rstrip('.')}. {next_step}" if meant else next_step)


def _listed(topic: str, commands: Sequence[Below]) -> str:
    """The commands of a topic with their help, as wide as the terminal."""
    width, indent = max(40, shutil.get_terminal_size().columns - 2), 14
    lines = [
        textwrap.fill(below.help, width, initial_indent=f"  {below.name:<{indent - 3}} ", subsequent_indent=" " * indent)
        for below in commands
    ]
    return "\n".join((f"{topic}:", *lines))


def make_parser() -> CommandParser:
    """The parser of the whole command line."""
    codes = "\n".join(f"  {code:>3}  {meaning}" for code, meaning in MEANINGS.items())
    parser = CommandParser(prog="windlass", description=TOP, closing=f"exit codes:\n{codes}")
    parser.add_options(COMMON)
    parser.add_argument("--version", action="version", version=f"windlass {__version__}", help="show the version and exit")
    parser.add_commands(
        "command", (Below(name, text, topic, meant_by, partial(_row, module, name)) for name, module, topic, text, meant_by in INDEX)
    )
    return parser


def _row(module: str, name: str) -> CommandRow:
    return rows_of(module)[name]


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command line; `--help` and `--version` end the process, and so does a line without a command, after the help."""
    top = make_parser()
    _check_before_command(top, words)
    before = words[: words.index("--")] if "--" in words else words
    arguments: argparse.Namespace
    arguments, rest = top.parse_known_args(before if "slot" in before else words)
    if arguments.command == "slot":
        arguments.argv += words[len(before) + 1 :]  # as they are; argparse would take dashes out
    elif "slot" in before:
        arguments, rest = top.parse_known_args(words)
    if rest and getattr(arguments, "payload", None) is not None and not any(word.startswith("-") for word in rest if word != "-"):
        arguments.payload += rest  # argparse stops taking them at the first option
    elif rest:
        arguments.parser.unknown(rest)
    if not hasattr(arguments, "run"):
        arguments.parser.print_help()
        arguments.parser.exit(USAGE)
    arguments.words = words
    return arguments


def _check_before_command(top: CommandParser, words: Sequence[str]) -> None:
    """An option that stands before its command would have its value taken for the command."""
    following = iter(words)
    for word in following:
        name, _, value = word.partition("=")
        if not word.startswith("-"):
            return
        if name not in top.flags and name not in ("-h", "--help", "--version"):
            raise BadInput(
                f"{name} cannot stand before the command.",
                hint=f"Write it after the command: windlass COMMAND {name}. windlass --help lists the commands.",
            )
        if name in top.flags and top.flags[name].nargs is None and not value:
            next(following, None)
