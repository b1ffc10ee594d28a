"""The command line: commands, options, and help with examples."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import datetime
from typing import Any, get_args

from windlass import __version__, config
from windlass.cli import about, controls, doctor, groups, hub, moves, runs, schedules, slots, stats, stores, tokens, webhooks, work
from windlass.cli.codes import MEANINGS
from windlass.cli.shell import Shell
from windlass.config import FORMATS, LEVELS
from windlass.engine.access import OVERLAP
from windlass.engine.moves import DEEPEST
from windlass.engine.webhooks import SECRET_OVERLAP
from windlass.model import SCOPES, GroupStatus, Keep, Limits, State

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


def _place(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text[:10]) > DEEPEST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to {DEEPEST:,}")
    return int(text)


def _words(text: str) -> list[str]:
    return [word for part in text.split(",") if (word := part.strip())]


def _keep(text: str) -> Keep:
    try:
        return config.keep(text)
    except ValueError as wanted:
        raise argparse.ArgumentTypeError(f"{text!r} is neither {wanted} nor forever") from None


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
    common.add_argument("--hub", default=argparse.SUPPRESS, metavar="URL", help="ask a hub instead of a store, as WINDLASS_HUB_TOKEN says")
    common.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON document")
    return common


class _Commands:
    """Adds commands, each with its examples."""

    def __init__(self, parser: argparse.ArgumentParser, *, dest: str = "command", required: bool = True) -> None:
        self._subparsers = parser.add_subparsers(title="commands", dest=dest, metavar="COMMAND", required=required, parser_class=_Parser)

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
    _add_hub(commands)
    _add_enqueue(commands)
    _add_lists(commands)
    _add_one_run(commands)
    _add_groups(commands)
    _add_controls(commands)
    _add_slots(commands)
    _add_stats(commands)
    _add_schedules(commands)
    _add_webhooks(commands)
    _add_tokens(commands)
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
        windlass work shop:app --hub https://hub.example.com
        windlass work shop:app --solvers --solver-hosts files.example.com
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
    parser.add_argument("--log-format", choices=FORMATS, help="as text, or as one JSON object a line")
    parser.add_argument("--spool", metavar="FOLDER", help="with --hub: where reports are kept that the hub has not taken yet")
    _add_solvers(parser)
    parser.add_argument("--burst", action="store_true", help="stop when nothing is left to do")
    parser.add_argument("--reload", action="store_true", help="for development: start anew when a Python file changes")
    parser.add_argument("--reload-folder", action="append", metavar="FOLDER", help="where to look for changes (default: here)")


def _add_hub(commands: _Commands) -> None:
    parser = commands.add(
        "up",
        hub.up,
        """
        windlass up shop:app
        windlass up shop:app --store shop.db --port 9000 --reload
        windlass up
        """,
        about="Serve everything from one file: the HTTP API, the page, and a worker for an app",
    )
    parser.add_argument("app", nargs="?", metavar="MODULE:APP", help="what the worker serves; without one there is no worker")
    parser.add_argument("--slots", type=int, metavar="N", help="how many runs the worker executes at once")
    parser.add_argument("--reload", action="store_true", help="for development: start the worker anew when a Python file changes")
    _add_address(parser)
    parser = commands.add(
        "hub",
        hub.hub,
        """
        windlass hub --store shop.db
        windlass hub --store postgresql://shop@db/shop --host 0.0.0.0
        """,
        about="Serve the HTTP API and the page until told to stop",
    )
    _add_address(parser)


def _add_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help="the address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, metavar="N", help="the port to listen on (default: 8080); 0 is any free one")
    parser.add_argument(
        "--allow", action="append", metavar="NETWORK", help="let webhooks go to this inner network or host; may be repeated"
    )
    parser.add_argument("--plain-http", action="store_true", default=None, help="let webhooks go out without encryption, too")
    parser.add_argument("--log-level", choices=LEVELS, help="how much to say")
    parser.add_argument("--log-format", choices=FORMATS, help="as text, or as one JSON object a line")


def _add_solvers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--solvers", action="store_true", default=None, help="execute programs that runs bring along")
    parser.add_argument("--solver-hosts", type=_words, metavar="A,B", help="fetch them from these hosts only")
    parser.add_argument("--solver-allow", type=_words, metavar="A,B", help="networks and hosts inside the network to fetch them from")
    parser.add_argument("--solver-plain-http", action="store_true", default=None, help="fetch them without encryption, too")
    parser.add_argument("--solver-cache", metavar="FOLDER", help="keep them here")
    parser.add_argument("--solver-memory", metavar="SIZE", help="memory each of them may have, such as 512MiB")
    parser.add_argument("--solver-processes", type=int, metavar="N", help="processes and threads that their user may have")
    parser.add_argument("--solver-file-size", metavar="SIZE", help="size of a file that they write, such as 1GiB")


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
    parser.add_argument("--keep", type=_keep, metavar="TIME", help="keep it for so long after its end, or forever")
    parser.add_argument("--solver-url", metavar="URL", help="a program to execute, instead of the job's own code")
    parser.add_argument("--solver-checksum", metavar="SHA256", help="what that program's SHA-256 must be")
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
        windlass jobs show thumbnail
        windlass jobs drop misspelt
        """,
    )
    parser.add_argument("--limit", type=_count, default=100, metavar="N", help="at most so many (default: 100)")
    parser.add_argument("--after", default="", metavar="NAME", help="only those behind this name")
    below = _Commands(parser, dest="action", required=False)
    below.add("show", runs.show_job, "windlass jobs show thumbnail").add_argument("name", metavar="NAME")
    below.add("drop", controls.drop_job, "windlass jobs drop misspelt").add_argument("name", metavar="NAME")


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
    parser = commands.add("move", moves.move, "windlass move ID --top\nwindlass move ID --before OTHER\nwindlass move ID --place 3")
    parser.add_argument("id", metavar="ID")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--top", dest="to", action="store_const", const="top", help="before all that are queued")
    where.add_argument("--bottom", dest="to", action="store_const", const="bottom", help="behind all that are queued")
    where.add_argument("--before", metavar="OTHER", help="just before another run of its queue")
    where.add_argument("--after", metavar="OTHER", help="just behind another run of its queue")
    where.add_argument("--place", type=_place, metavar="N", help="behind N others; 0 is the head")
    parser = commands.add("rerun", runs.rerun, "windlass rerun ID", about="Make a new run from an ended one, and print its id")
    parser.add_argument("id", metavar="ID")


def _add_groups(commands: _Commands) -> None:
    parser = commands.add(
        "groups",
        groups.list_all,
        """
        windlass groups list --status running
        windlass groups show ID
        windlass groups cancel ID --reason 'wrong input'
        """,
        about="List, show, cancel and rerun groups of runs",
    )
    below = _Commands(parser, dest="action")
    parser = below.add("list", groups.list_all, "windlass groups list\nwindlass groups list --status partial --json")
    parser.add_argument("--status", choices=get_args(GroupStatus), metavar="STATUS", help=", ".join(get_args(GroupStatus)))
    parser.add_argument("--limit", type=_count, default=20, metavar="N", help="at most so many (default: 20)")
    parser.add_argument("--after", metavar="ID", help="only those behind this group")
    parser = below.add("show", groups.show, "windlass groups show ID\nwindlass groups show ID --limit 1000 --json")
    parser.add_argument("id", metavar="ID")
    parser.add_argument("--limit", type=_count, default=20, metavar="N", help="at most so many runs (default: 20)")
    parser.add_argument("--after", metavar="RUN", help="only the runs behind this one")
    parser = below.add("cancel", groups.cancel, "windlass groups cancel ID\nwindlass groups cancel ID --reason 'wrong input'")
    parser.add_argument("id", metavar="ID")
    parser.add_argument("--reason", help="why; it is kept with the group and its runs")
    below.add("rerun", groups.rerun, "windlass groups rerun ID").add_argument("id", metavar="ID")


def _what_is_paused(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--queue", metavar="NAME", help="this queue")
    what.add_argument("--job", metavar="NAME", help="this job")
    what.add_argument("--all", action="store_true", help="everything")


def _capacity(text: str) -> int | None:
    if text == "none":
        return None
    if not text.isascii() or not text.isdigit() or int(text[:11]) > 2**31 - 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number, or none")
    return int(text)


def _add_controls(commands: _Commands) -> None:
    parser = commands.add("pause", controls.pause, "windlass pause --queue mail --reason 'the mail server moves'\nwindlass pause --all")
    _what_is_paused(parser)
    parser.add_argument("--reason", help="why; whoever asks is told")
    _what_is_paused(commands.add("resume", controls.resume, "windlass resume --queue mail\nwindlass resume --all"))
    commands.add("pauses", controls.pauses, "windlass pauses\nwindlass pauses --json")
    parser = commands.add(
        "queues",
        controls.list_queues,
        """
        windlass queues
        windlass queues set mail --ageing 60s
        """,
        about="List the queues for which something is set, and let waiting count",
    )
    below = _Commands(parser, dest="action", required=False)
    below.add("list", controls.list_queues, "windlass queues list\nwindlass queues list --json")
    parser = below.add("set", controls.set_queue, "windlass queues set mail --ageing 60s\nwindlass queues set mail --ageing none")
    parser.add_argument("name", metavar="NAME")
    help_ = "a wait of so long is worth one step of priority; none: priorities alone count"
    parser.add_argument("--ageing", type=_age, required=True, metavar="TIME", help=help_)
    parser = commands.add(
        "retention",
        controls.show_retention,
        """
        windlass retention
        windlass retention set --succeeded 7d --others forever
        """,
        about="Show and set how long ended runs are kept",
    )
    below = _Commands(parser, dest="action", required=False)
    below.add("show", controls.show_retention, "windlass retention show\nwindlass retention show --json")
    parser = below.add("set", controls.set_retention, "windlass retention set --succeeded 7d\nwindlass retention set --others forever")
    parser.add_argument("--succeeded", type=_keep, metavar="TIME", help="keep runs for so long that succeeded, or forever")
    parser.add_argument("--others", type=_keep, metavar="TIME", help="keep runs for so long that ended otherwise, or forever")
    parser = commands.add(
        "resources",
        controls.list_resources,
        """
        windlass resources
        windlass resources set ollama --capacity 1
        windlass resources set api --rate 100/minute --rate 5/second
        """,
        about="List, set and forget what jobs share, and see who occupies it",
    )
    below = _Commands(parser, dest="action", required=False)
    below.add("list", controls.list_resources, "windlass resources list\nwindlass resources list --json")
    parser = below.add("show", controls.show_resource, "windlass resources show ollama\nwindlass resources show customer --key 42")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--key", help="who occupies it under this key")
    _add_set_resource(below)
    below.add("drop", controls.drop_resource, "windlass resources drop ollama").add_argument("name", metavar="NAME")
    parser = commands.add(
        "lanes",
        controls.list_lanes,
        """
        windlass lanes
        windlass lanes --after 100 --json
        windlass lanes drop 12 13
        """,
        about="List and remove lanes: the sets of runs that the same workers may take",
    )
    parser.add_argument("--limit", type=_count, default=100, metavar="N", help="at most so many (default: 100)")
    parser.add_argument("--after", type=int, default=0, metavar="LANE", help="only those behind this number")
    below = _Commands(parser, dest="action", required=False)
    below.add("drop", controls.drop_lane, "windlass lanes drop 12 13").add_argument("lanes", type=int, nargs="+", metavar="LANE")


def _add_set_resource(commands: _Commands) -> None:
    parser = commands.add(
        "set",
        controls.set_resource,
        """
        windlass resources set ollama --capacity 1
        windlass resources set api --rate 100/minute --rate 5/second
        windlass resources set api --capacity none --no-rate
        """,
    )
    parser.add_argument("name", metavar="NAME")

    def say(name: str, **how: Any) -> None:
        parser.add_argument(name, default=argparse.SUPPRESS, **how)

    say("--capacity", type=_capacity, metavar="N", help="so much of it can be occupied at once; none: any number")
    say("--rate", dest="rates", action="append", metavar="N/TIME", help="so many in a second, minute, hour, day or 30s; may be repeated")
    say("--no-rate", dest="rates", action="store_const", const=None, help="as often as there is room")
    say("--max-wait", type=_duration, metavar="TIME", help="what lacks several resources for so long has them kept for it (default: 1m)")


def _add_slots(commands: _Commands) -> None:
    parser = commands.add(
        "slot",
        slots.slot,
        """
        windlass slot ollama -- curl http://127.0.0.1:11434/api/generate -d @question.json
        windlass slot --timeout 30s ollama -- ./ask.sh
        """,
    )
    parser.add_argument("resource", metavar="RESOURCE")
    parser.add_argument("argv", nargs="*", metavar="COMMAND", help="behind two dashes: what to run")
    parser.add_argument("--timeout", type=_duration, metavar="TIME", help="wait no longer than this (exit code 124)")
    parser.add_argument("--key", help="the slot is one of this key's")
    parser.add_argument("--weight", type=int, default=1, metavar="N", help="how much of it is needed (default: 1)")
    parser.add_argument("--lease", type=_duration, metavar="TIME", help="when it is free if this process dies (default: 30s)")
    parser = commands.add("slots", slots.slots, "windlass slots\nwindlass slots --json")
    parser.add_argument("--limit", type=_count, default=100, metavar="N", help="at most so many (default: 100)")


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


def _add_webhooks(commands: _Commands) -> None:
    parser = commands.add(
        "webhooks",
        webhooks.list_all,
        """
        windlass webhooks add https://example.com/windlass
        windlass webhooks list
        windlass webhooks deliveries ID --status failed
        """,
        about="List, make and change the endpoints that are told of changes, and see what they were told",
    )
    below = _Commands(parser, dest="action")
    below.add("list", webhooks.list_all, "windlass webhooks list\nwindlass webhooks list --json")
    parser = below.add(
        "add",
        webhooks.add,
        """
        windlass webhooks add https://example.com/windlass
        windlass webhooks add https://example.com/windlass --job mail --state failed --name alarms
        windlass webhooks add https://example.com/windlass --delay 5s --delay 5m --delay 1h --delay 1d
        """,
    )
    parser.add_argument("url", metavar="URL", help="where to; only addresses outside the network are used, unless the hub allows others")
    parser.add_argument("--secret", default=argparse.SUPPRESS, help="whsec_ and 24 to 64 bytes in base64 (default: a new one)")
    _webhook_words(parser)
    parser = below.add(
        "set",
        webhooks.change,
        """
        windlass webhooks set ID --enabled
        windlass webhooks set ID --url https://example.com/other --any-job
        """,
    )
    parser.add_argument("id", metavar="ID")
    parser.add_argument("--url", default=argparse.SUPPRESS, help="another address")
    parser.add_argument("--any-job", dest="jobs", action="store_const", const=None, default=argparse.SUPPRESS, help="of every job")
    parser.add_argument("--any-queue", dest="queues", action="store_const", const=None, default=argparse.SUPPRESS, help="of every queue")
    parser.add_argument("--enabled", action="store_true", default=argparse.SUPPRESS, help="tell it again, of what happens from now on")
    _webhook_words(parser)
    below.add("remove", webhooks.remove, "windlass webhooks remove ID").add_argument("id", metavar="ID")
    parser = below.add("rotate", webhooks.rotate, "windlass webhooks rotate ID\nwindlass webhooks rotate ID --overlap 0s")
    parser.add_argument("id", metavar="ID")
    parser.add_argument("--overlap", type=_duration, default=SECRET_OVERLAP, metavar="TIME", help="both sign for so long (default: 1d)")
    parser = below.add(
        "deliveries", webhooks.deliveries, "windlass webhooks deliveries ID --status failed\nwindlass webhooks deliveries ID --json"
    )
    parser.add_argument("id", metavar="ID", help="the webhook's id")
    parser.add_argument("--status", choices=("pending", "delivered", "failed"), help="only these")
    parser.add_argument("--limit", type=_count, default=20, metavar="N", help="at most so many (default: 20)")
    parser.add_argument("--cursor", help="go on where another list ended")
    below.add("resend", webhooks.resend, "windlass webhooks resend ID").add_argument("id", metavar="ID", help="the delivery's id")


def _webhook_words(parser: argparse.ArgumentParser) -> None:
    def say(name: str, **how: Any) -> None:
        parser.add_argument(name, default=argparse.SUPPRESS, **how)

    say("--name", help="what it is called (default: its host)")
    say("--job", dest="jobs", action="append", metavar="JOB", help="only of this job; may be repeated")
    say("--queue", dest="queues", action="append", metavar="QUEUE", help="only of this queue; may be repeated")
    say("--state", dest="states", action="append", choices=list(State), metavar="STATE", help="when a run becomes so (default: every end)")
    say(
        "--delay",
        dest="delays",
        action="append",
        type=_duration,
        metavar="TIME",
        help="before the next try; may be repeated (default: 5s, 1m)",
    )
    say("--disabled", dest="enabled", action="store_false", help="do not tell it anything until it is enabled")


def _minutes(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:10]) <= Limits().minutes:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {Limits().minutes:,}")
    return int(text)


def _add_stats(commands: _Commands) -> None:
    parser = commands.add(
        "workers",
        stats.workers,
        """
        windlass workers
        windlass workers --json
        windlass workers drop old-host
        """,
    )
    parser.add_argument("--limit", type=_count, default=100, metavar="N", help="at most so many (default: 100)")
    parser.add_argument("--after", default="", metavar="NAME", help="only those behind this name")
    below = _Commands(parser, dest="action", required=False)
    below.add("drop", controls.drop_worker, "windlass workers drop old-host").add_argument("name", metavar="NAME")
    parser = commands.add(
        "stats",
        stats.stats,
        """
        windlass stats
        windlass stats --minutes 1440 --json
        """,
    )
    parser.add_argument("--minutes", type=_minutes, default=60, metavar="N", help="how far to look back (default: 60)")
    parser = commands.add(
        "doctor",
        doctor.doctor,
        """
        windlass doctor
        windlass doctor --hub https://hub.example.com
        windlass doctor --store shop.db --deep
        windlass doctor --json
        """,
    )
    parser.add_argument("--deep", action="store_true", help="also read every page of a SQLite file, which takes a while")


def _add_tokens(commands: _Commands) -> None:
    parser = commands.add(
        "tokens",
        tokens.list_all,
        """
        windlass tokens create ops --scopes admin
        windlass tokens create shop --scopes read,submit --expires 90d
        windlass tokens list
        """,
        about="Make, list, rotate and revoke the tokens that a hub asks for",
    )
    below = _Commands(parser, dest="action")
    parser = below.add(
        "create",
        tokens.create,
        """
        windlass tokens create shop --scopes read,submit --expires 90d
        windlass tokens create worker-7 --scopes work --worker worker-7 --principal fleet
        """,
    )
    parser.add_argument("whose", metavar="NAME", help="whose it is; the audit names them so")
    parser.add_argument("--scopes", type=_words, required=True, metavar="A,B", help=f"some of {', '.join(SCOPES)}; admin may do all")
    parser.add_argument("--worker", metavar="NAME", help="good for this worker only, and for those whose names begin with it and a dot")
    parser.add_argument("--principal", metavar="NAME", help="to whom belongs what code defines with it (default: its own name)")
    parser.add_argument("--expires", type=_duration, metavar="TIME", help="good for so long, such as 90d (default: until it is revoked)")
    parser = below.add("list", tokens.list_all, "windlass tokens list\nwindlass tokens list --json")
    parser.add_argument("--limit", type=_count, default=100, metavar="N", help="at most so many (default: 100)")
    parser.add_argument("--after", default="", metavar="ID", help="only those behind this one")
    parser = below.add("rotate", tokens.rotate, "windlass tokens rotate ID\nwindlass tokens rotate ID --overlap 1h")
    parser.add_argument("id", metavar="ID")
    parser.add_argument("--overlap", type=_duration, default=OVERLAP, metavar="TIME", help="both are good for so long (default: 1d)")
    below.add("revoke", tokens.revoke, "windlass tokens revoke ID").add_argument("id", metavar="ID")
    parser = commands.add("audit", tokens.audit, "windlass audit\nwindlass audit --limit 100 --json")
    parser.add_argument("--limit", type=_count, default=20, metavar="N", help="at most so many (default: 20)")
    parser.add_argument("--cursor", help="go on where another page ended")


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
