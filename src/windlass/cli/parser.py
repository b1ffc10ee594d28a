"""Parses the command line. A command's module is imported when the command is given, so that `windlass --help` needs none of them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from windlass import __version__
from windlass.cli.codes import MEANINGS
from windlass.cli.index import INDEX
from windlass.cli.rows import COMMON, CommandRow, OneOf, Option, rows_of

TOP = """commands for a durable job queue

  windlass migrate --store shop.db       create the store
  windlass work shop:app                 execute runs
  windlass enqueue mail to=ann           enqueue a run
  windlass runs                          list the runs
"""


class CommandParser(argparse.ArgumentParser):
    """The parser of one command; it gets its options from the row when it is first used."""

    def __init__(self, *, row: Callable[[], CommandRow] | None = None, **details: Any) -> None:
        super().__init__(**details, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)
        self._row = row

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self._row is not None:
            row, self._row = self._row(), None
            _fill(self, row)
        return super().parse_known_args(args, namespace)


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    codes = "\n".join(f"  {code:>3}  {meaning}" for code, meaning in MEANINGS.items())
    parser = CommandParser(prog="windlass", description=TOP, epilog=f"exit codes:\n{codes}")
    _add_options(parser, COMMON)
    parser.add_argument("--version", action="version", version=f"windlass {__version__}")
    commands = _subparsers(parser, "command", required=True)
    for name, module, text in INDEX:
        commands.add_parser(name, help=text, row=partial(_row, module, name))
    return parser


def _row(module: str, name: str) -> CommandRow:
    return rows_of(module)[name]


def _subparsers(parser: argparse.ArgumentParser, dest: str, *, required: bool) -> Any:
    return parser.add_subparsers(title="commands", dest=dest, metavar="COMMAND", required=required, parser_class=CommandParser)


def _fill(parser: argparse.ArgumentParser, row: CommandRow) -> None:
    lines = "\n".join(f"  {example.strip()}" for example in row.examples.strip().splitlines())
    parser.description, parser.epilog = row.help, f"examples:\n{lines}"
    _add_options(parser, COMMON)
    _add_options(parser, row.options)
    if row.function is not None:
        parser.set_defaults(run=row.function)
    if row.commands is not None:
        below = _subparsers(parser, "action", required=row.function is None)
        for name, inner in row.commands.rows.items():
            below.add_parser(name, help=inner.help, row=partial(row.commands.rows.__getitem__, name))


def _add_options(parser: argparse.ArgumentParser, options: Iterable[Option | OneOf]) -> None:
    for option in options:
        if isinstance(option, OneOf):
            group = parser.add_mutually_exclusive_group(required=option.required)
            for names, details in option.options:
                group.add_argument(*names, **details)
        else:
            parser.add_argument(*option.names, **option.details)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command line; argparse ends the process where it cannot be read."""
    parser = make_parser()
    before = words[: words.index("--")] if "--" in words else words
    arguments, rest = parser.parse_known_args(before if "slot" in before else words)
    if arguments.command == "slot":
        arguments.argv += words[len(before) + 1 :]  # as they are; argparse would take dashes out
    elif "slot" in before:
        arguments, rest = parser.parse_known_args(words)
    if rest and getattr(arguments, "payload", None) is not None and not any(word.startswith("-") for word in rest if word != "-"):
        arguments.payload += rest  # argparse stops taking them at the first option
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    arguments.words = words
    return arguments
