"""The command line: commands, options, and help with examples."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import datetime
from typing import Any

from windlass import __version__, config
from windlass.cli import about, runs, schedules, stores, work
from windlass.cli.codes import MEANINGS
from windlass.cli.shell import Shell
from windlass.config import LEVELS
from windlass.model import State

Command = Callable[[Shell], int]

TOP = """commands for a durable job queue

  windlass migrate --store shop.db       make the store
  windlass work shop:app                 do the work
  windlass enqueue mail to=ann           ask for a run
  windlass runs                          see what became of it
"""


def _duration(text: str) -> int:
    try:
        return config.duration(text)
    except ValueError as wanted:
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}") from None


def _instant(text: str) -> int:
    """The milliseconds of an ISO 8601 time; one without a zone is on the reader's own clock."""
    try:
        return round(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 2026-01-31T09:00 or 2026-01-31T09:00:00Z") from None


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:10]) <= 1_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 1,000")
    return int(text)


def _age(text: str) -> int | None:
    return None if text == "none" else _duration(text)


def _downtime(text: str) -> tuple[int, int]:
    start, dots, end = text.partition("..")
    if not dots or (span := (_instant(start), _instant(end)))[0] >= span[1]:
        raise argparse.ArgumentTypeError(f"{text!r} is not a span of time such as 2026-01-31T09:00..2026-01-31T18:00")
    return span


class _Parser(argparse.ArgumentParser):
    def __init__(self, **how: Any) -> None:
        super().__init__(**how, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)


def _common() -> _Parser:
    # Suppressed where not said, so that they can stand before the command and after it.
    common = _Parser(add_help=False)
    common.add_argument("--store", default=argparse.SUPPRESS, help="a file, or postgresql://user@host/database")
    common.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON document")
    return common


class _Commands:
    """Adds commands, each with its examples."""

    def __init__(self, parser: argparse.ArgumentParser, *, dest: str = "command") -> None:
        self._subparsers = parser.add_subparsers(title="commands", dest=dest, metavar="COMMAND", required=True, parser_class=_Parser)

    def add(self, name: str, command: Command, examples: str, *, about: str | None = None) -> argparse.ArgumentParser:
        what = about or (command.__doc__ or "").strip().rstrip(".")
        lines = "\n".join(f"  {example.strip()}" for example in examples.strip().splitlines())
        made: argparse.ArgumentParser = self._subparsers.add_parser(
            name, help=what, description=what, epilog=f"examples:\n{lines}", parents=[_common()]
        )
        made.set_defaults(run=command)
        return made


def _one_run(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("id", nargs="?", metavar="ID", help="the run's id, or the id of one of its attempts")
    which.add_argument("--last", action="store_true", help="the newest run")


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    codes = "\n".join(f"  {code:>3}  {meaning}" for code, meaning in MEANINGS.items())
    parser = _Parser(prog="windlass", description=TOP, epilog=f"exit codes:\n{codes}", parents=[_common()])
    parser.add_argument("--version", action="version", version=f"windlass {__version__}")
    commands = _Commands(parser)
    _add_store(commands)
    _add_work(commands)
    _add_enqueue(commands)
    _add_lists(commands)
    _add_one_run(commands)
    _add_schedules(commands)
    _add_copies(commands)
    _add_about(commands)
    return parser


def _add_store(commands: _Commands) -> None:
    commands.add(
        "migrate",
        stores.migrate,
        """
        windlass migrate --store shop.db
        windlass migrate --store postgresql://shop@db/shop
        """,
    )


def _add_work(commands: _Commands) -> None:
    parser = commands.add(
        "work",
        work.work,
        """
        windlass work shop:app
        windlass work shop:app --slots 8 --queue mail --queue reports
        windlass work shop:app --reload
        windlass work shop:app --burst
        """,
        about="Execute an app's jobs until told to stop: Ctrl-C or SIGTERM drains, a second one aborts",
    )
    parser.add_argument("app", nargs="?", metavar="MODULE:APP", help="where the app is, such as shop:app")
    parser.add_argument("--name", help="the worker's name")
    parser.add_argument("--slots", type=int, metavar="N", help="how many runs at once")
    parser.add_argument("--queue", dest="queues", action="append", metavar="QUEUE", help="take from this queue; may be repeated")
    parser.add_argument("--job", dest="jobs", action="append", metavar="JOB", help="take this job only; may be repeated")
    parser.add_argument("--tag", dest="tags", action="append", metavar="TAG", help="what this worker has; may be repeated")
    parser.add_argument("--cores", type=int, metavar="N", help="cores offered to jobs that require them")
    parser.add_argument("--memory", metavar="SIZE", help="memory offered to jobs that require it, such as 2GiB")
    parser.add_argument("--lease", metavar="TIME", help="how long a run stays with a worker that is not heard of, such as 30s")
    parser.add_argument("--grace", metavar="TIME", help="how long to wait for what runs when told to stop")
    parser.add_argument("--log-level", choices=LEVELS, help="how much to say")
    parser.add_argument("--burst", action="store_true", help="stop when nothing is left to do")
    parser.add_argument("--reload", action="store_true", help="for development: start anew when a Python file changes")
    parser.add_argument("--reload-folder", action="append", metavar="FOLDER", help="where to look for changes (default: here)")


def _add_enqueue(commands: _Commands) -> None:
    parser = commands.add(
        "enqueue",
        runs.enqueue,
        """
        windlass enqueue mail to=ann@example.com copies=2
        windlass enqueue mail '{"to": "ann@example.com"}' --delay 5m
        cat order.json | windlass enqueue order - --key order-17
        windlass enqueue report --wait --timeout 10m
        """,
        about="Ask for a run, and print its id; with --wait, its output",
    )
    parser.add_argument("job", metavar="NAME", help="the job's name")
    parser.add_argument(
        "payload",
        nargs="*",
        metavar="PAYLOAD",
        help="one JSON text, key=value pairs (values are JSON where they can be), or - for standard input",
    )
    parser.add_argument("--queue", help="another queue than the job's")
    parser.add_argument("--priority", type=int, metavar="N", help="a larger one goes first")
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--delay", type=_duration, metavar="TIME", help="not before this has passed, such as 30s, 5m, 2h")
    when.add_argument("--at", type=_instant, metavar="TIME", help="not before this time, such as 2026-01-31T09:00 or ...T09:00Z")
    parser.add_argument("--key", help="at most one unfinished run has it; a second call prints the id of the first")
    parser.add_argument("--after", action="append", metavar="ID", help="wait until this run has succeeded; may be repeated")
    parser.add_argument("--max-attempts", type=int, metavar="N", help="executions in all")
    parser.add_argument("--undefined", choices=("refuse", "wait"), default="refuse", help="what to do when nobody has defined the job")
    parser.add_argument("--wait", action="store_true", help="wait for the end; the exit code says how it ended")
    parser.add_argument("--timeout", type=_duration, metavar="TIME", help="with --wait: no longer than this (exit code 124)")


def _add_lists(commands: _Commands) -> None:
    parser = commands.add(
        "runs",
        runs.runs,
        """
        windlass runs
        windlass runs --state failed --limit 100
        windlass runs --job mail --json
        windlass runs --watch
        """,
        about="List runs, newest first",
    )
    parser.add_argument("--state", choices=[state.value for state in State], metavar="STATE", help=", ".join(State))
    parser.add_argument("--job", metavar="NAME", help="of this job")
    parser.add_argument("--queue", metavar="NAME", help="of this queue; with --state queued")
    parser.add_argument("--limit", type=_count, default=20, metavar="N", help="at most so many (default: 20)")
    parser.add_argument("--cursor", help="go on where another page ended")
    parser.add_argument("--watch", action="store_true", help="draw them again every second, until Ctrl-C")
    parser = commands.add(
        "jobs",
        runs.jobs,
        """
        windlass jobs
        windlass jobs --json
        """,
    )
    parser.add_argument("--limit", type=_count, default=100, metavar="N", help="at most so many (default: 100)")
    parser.add_argument("--after", default="", metavar="NAME", help="only those behind this name")


def _add_one_run(commands: _Commands) -> None:
    parser = commands.add("show", runs.show, "windlass show ID\nwindlass show --last\nwindlass show ID --json")
    _one_run(parser)
    parser.add_argument("--tail", type=_count, default=10, metavar="N", help="so many lines of its log (default: 10)")
    parser = commands.add(
        "logs", runs.logs, "windlass logs ID\nwindlass logs ID --follow\nwindlass logs --last -f --json", about="Print the log of a run"
    )
    _one_run(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run has ended; the exit code says how it ended")
    parser.add_argument("--tail", type=_count, metavar="N", help="begin with the last N lines (default: all)")
    parser = commands.add("why", runs.why, "windlass why ID\nwindlass why --last", about="Say what holds a run back")
    _one_run(parser)
    parser = commands.add("cancel", runs.cancel, "windlass cancel ID\nwindlass cancel ID --reason 'ordered twice'")
    parser.add_argument("id", metavar="ID")
    parser.add_argument("--reason", help="why; it is kept with the run")
    parser = commands.add("rerun", runs.rerun, "windlass rerun ID", about="Make a new run from an ended one, and print its id")
    parser.add_argument("id", metavar="ID")


def _add_schedules(commands: _Commands) -> None:
    parser = commands.add(
        "schedules",
        schedules.list_all,
        """
        windlass schedules list
        windlass schedules add nightly report --cron '0 3 * * *' --zone Europe/Paris
        windlass schedules preview nightly --count 20
        """,
        about="List, make, change and preview the rules that make runs",
    )
    below = _Commands(parser, dest="action")
    _add_schedule_lists(below)
    parser = below.add(
        "add",
        schedules.add,
        """
        windlass schedules add nightly report --cron '0 3 * * *' --zone Europe/Paris
        windlass schedules add poll fetch --every 15m --overlap skip --payload '{"from": "hub"}'
        windlass schedules add launch mail --at 2030-01-31T09:00 --zone Asia/Tokyo
        """,
    )
    parser.add_argument("key", metavar="KEY", help="what it is called; the same key again updates it")
    parser.add_argument("job", metavar="JOB", help="the job it makes runs of")
    parser.add_argument("--new", action="store_true", help="refuse a key that is there already")
    _schedule_words(parser, required=True)
    parser = below.add(
        "set",
        schedules.change,
        """
        windlass schedules set nightly --cron '30 3 * * *'
        windlass schedules set poll --missed all --most 10 --max-age 2h
        windlass schedules set poll --max-age none
        """,
    )
    parser.add_argument("key", metavar="KEY")
    parser.add_argument("--job", default=argparse.SUPPRESS, help="another job")
    _schedule_words(parser, required=False)
    for name, command in (("enable", schedules.enable), ("disable", schedules.disable), ("trigger", schedules.trigger)):
        below.add(name, command, f"windlass schedules {name} nightly").add_argument("key", metavar="KEY")
    below.add("remove", schedules.remove, "windlass schedules remove nightly").add_argument("key", metavar="KEY")


def _add_schedule_lists(commands: _Commands) -> None:
    parser = commands.add("list", schedules.list_all, "windlass schedules list\nwindlass schedules list --json")
    parser.add_argument("--limit", type=_count, default=100, metavar="N", help="at most so many (default: 100)")
    parser.add_argument("--after", default="", metavar="KEY", help="only those behind this key")
    parser = commands.add(
        "preview",
        schedules.preview,
        """
        windlass schedules preview nightly
        windlass schedules preview nightly --count 20 --from 2027-03-25
        windlass schedules preview nightly --down 2026-12-24T18:00..2027-01-02T08:00
        """,
    )
    parser.add_argument("key", metavar="KEY")
    parser.add_argument("--count", type=_count, default=10, metavar="N", help="so many instants (default: 10)")
    parser.add_argument("--from", dest="start", type=_instant, metavar="TIME", help="from this time on (default: now)")
    parser.add_argument("--down", type=_downtime, metavar="FROM..TO", help="what would happen if nothing had run from one time to another")
    parser = commands.add("skips", schedules.skips, "windlass schedules skips nightly\nwindlass schedules skips nightly --json")
    parser.add_argument("key", metavar="KEY")
    parser.add_argument("--limit", type=_count, default=20, metavar="N", help="at most so many (default: 20)")


def _schedule_words(parser: argparse.ArgumentParser, *, required: bool) -> None:
    # Suppressed where not said: what is left out must stay as it is.
    rule = parser.add_mutually_exclusive_group(required=required)
    rule.add_argument("--cron", default=argparse.SUPPRESS, metavar="EXPR", help="five fields, such as '0 3 * * *', or @daily")
    rule.add_argument("--every", default=argparse.SUPPRESS, metavar="TIME", help="an interval, such as 15m or 1h30m")
    rule.add_argument("--at", default=argparse.SUPPRESS, metavar="TIME", help="once; without an offset it is a time in the zone")

    def say(name: str, **how: Any) -> None:
        parser.add_argument(name, default=argparse.SUPPRESS, **how)

    say("--zone", help="whose clocks count, such as Europe/Paris (default: UTC)")
    say("--payload", dest="overrides", metavar="JSON", help="an object, laid over the job's template")
    say("--missed", choices=("skip", "latest", "all"), help="what becomes of instants when nothing ran (default: latest)")
    say("--most", type=int, metavar="N", help="of those, so many are caught up at most (default: 100)")
    say("--max-age", type=_age, metavar="TIME", help="none is caught up that is older than this; none: however old")
    say("--overlap", choices=("allow", "skip", "queue", "cancel"), help="when the run before has not ended (default: allow)")
    say("--jitter", type=_duration, metavar="TIME", help="start up to so much later, each run differently")
    say("--disabled", dest="enabled", action="store_false", help="do not fire until it is enabled")


def _add_copies(commands: _Commands) -> None:
    parser = commands.add("backup", stores.backup, "windlass backup shop-monday.db --store shop.db")
    parser.add_argument("target", metavar="FILE", help="a file that does not exist yet")
    parser = commands.add(
        "restore", stores.restore, "windlass restore shop-monday.db --store shop.db\nwindlass restore shop-monday.db --replace"
    )
    parser.add_argument("source", metavar="FILE", help="a backup")
    parser.add_argument("--replace", action="store_true", help="replace the store's file if there is one")


def _add_about(commands: _Commands) -> None:
    commands.add("config", about.show_config, "windlass config\nwindlass config --json")
    parser = commands.add("faults", about.list_faults, "windlass faults list")
    parser.add_argument("what", choices=("list",), help="list the names that WINDLASS_FAULTS knows")
