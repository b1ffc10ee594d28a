"""The commands about schedules."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.table import Table
from rich.text import Text

from windlass import cron, payload
from windlass.answers import Preview
from windlass.api.codec import View
from windlass.api.values import to_rfc3339
from windlass.api.verbs import Verbs
from windlass.api.views import PREVIEW
from windlass.cli import views
from windlass.cli.codes import OK
from windlass.cli.context import CommandContext
from windlass.cli.documents import plain, to_plain
from windlass.cli.output import cell, line, table
from windlass.cli.rows import CHANGE, Commands, edit, one_of, option
from windlass.cli.runs import nearest_job
from windlass.cli.values import after, count, duration, duration_or_none, instant, limit
from windlass.errors import BadInput, NotFound
from windlass.firing import Fire, SkippedInstants, described, edited, rule_of
from windlass.model import Limits, Schedule
from windlass.store.base import run_sync

FIELDS = ("cron", "every", "at", "zone", "missed", "max_missed", "max_age", "overlap", "jitter", "enabled", "job")
KINDS = {"cron": "cron", "every": "interval", "at": "once"}
CHANGE_OF_THE_CLOCK = "the clock is changed on this day"
AT_ONCE = "their runs are created one after the other"
OVERLAPS = {
    "allow": "each run is created, whether or not the runs before it have ended",
    "skip": f"{AT_ONCE}, and each is skipped while a run before it has not ended",
    "queue": f"{AT_ONCE}; while a run has not ended, the next one waits for it, and those after that are skipped",
    "cancel": f"{AT_ONCE}, and each cancels those before it that have not ended",
}
"""What happens to runs that are caught up, as far as it depends on how long runs take."""

SKIP = View(SkippedInstants, "Skip", "Instants that a downtime would skip.")

KEY = option("key", metavar="KEY")
RULE = (
    edit("--cron", metavar="EXPR", help="five fields, such as '0 3 * * *', or @daily"),
    edit("--every", metavar="TIME", help="an interval, such as 15m or 1h30m"),
    edit("--at", metavar="TIME", help="once; without an offset it is a time in the zone"),
)
FIELD_OPTIONS = (
    edit("--zone", help="the time zone of the rule, such as Europe/Paris (default: UTC)"),
    edit("--payload", dest="overrides", metavar="JSON", help="an object whose members override those of the job's payload template"),
    edit("--missed", choices=("skip", "latest", "all"), help="what happens to instants that were missed (default: latest)"),
    edit("--max-missed", type=int, metavar="N", help="how many missed instants are caught up at most (default: 100)"),
    edit("--max-age", type=duration_or_none, metavar="TIME", help="missed instants older than this are not caught up; none: no limit"),
    edit("--overlap", choices=("allow", "skip", "queue", "cancel"), help="what happens while the last run has not ended (default: allow)"),
    edit("--jitter", type=duration, metavar="TIME", help="delay each run by a random time up to this"),
    edit("--disabled", dest="enabled", action="store_false", help="do not fire until it is enabled"),
)

COMMANDS = Commands()
SCHEDULES = COMMANDS.group(
    "schedules",
    help="List, add, change and preview schedules: the rules that create runs",
    topic=CHANGE,
    meant_by=("cron", "crontab", "beat", "periodic"),
    examples="""
    windlass schedules list
    windlass schedules add nightly report --cron '0 3 * * *' --zone Europe/Paris
    windlass schedules preview nightly --count 20
    """,
)


def fields_of(context: CommandContext) -> dict[str, Any]:
    """The fields of a schedule that the command line has."""
    fields = context.fields(FIELDS)
    if "overrides" in context.arguments:
        fields["payload"] = _payload(context.arguments.overrides)
    return fields


def _payload(text: str) -> dict[str, Any]:
    value = payload.parse(text, limit=Limits().payload, what="The payload")
    if not isinstance(value, dict):
        raise BadInput("The payload of a schedule must be a JSON object.", hint="""Write it as '{"to": "ann"}'.""")
    return value


# add, set, enable, disable, remove


@SCHEDULES.add(
    "add",
    option("key", metavar="KEY", help="the key of the schedule; the same key again updates it"),
    option("job", metavar="JOB", help="the job of its runs"),
    option("--new", action="store_true", help="refuse an existing key"),
    one_of(*RULE, required=True),
    *FIELD_OPTIONS,
    meant_by=("create", "new"),
    examples="""
    windlass schedules add nightly report --cron '0 3 * * *' --zone Europe/Paris
    windlass schedules add poll fetch --every 15m --overlap skip --payload '{"from": "hub"}'
    windlass schedules add launch mail --at 2030-01-31T09:00 --zone Asia/Tokyo
    """,
)
def add(context: CommandContext) -> int:
    """Add a schedule, or update the one with this key; with --new, refuse an existing key."""
    fields, key = fields_of(context), context.arguments.key
    schedule = context.call(Verbs.schedule, key, fields.pop("job"), new=context.arguments.new, **fields)
    _warn_of_unknown_job(context, schedule.job)
    return _print(context, schedule)


def _warn_of_unknown_job(context: CommandContext, name: str) -> None:
    try:
        context.call(Verbs.get_job, name)
    except NotFound:
        near = nearest_job(context, name)
        hint = f" Did you mean {near}?" if near else ""
        context.output.note(f"There is no job {name!r} yet; its runs will wait until there is.{hint}", style="yellow")


@SCHEDULES.add(
    "set",
    KEY,
    edit("--job", help="another job"),
    one_of(*RULE),
    *FIELD_OPTIONS,
    examples="""
    windlass schedules set nightly --cron '30 3 * * *'
    windlass schedules set poll --missed all --max-missed 10 --max-age 2h
    windlass schedules set poll --max-age none
    """,
)
def change(context: CommandContext) -> int:
    """Change fields of a schedule, and leave the others."""
    fields = fields_of(context)
    for name in KINDS.keys() & fields.keys():
        fields |= {"kind": KINDS[name], "expr": fields.pop(name)}
    if not fields:
        raise BadInput("There is nothing to set.", hint="`windlass schedules set --help` lists the options.")
    return _edit(context, fields)


@SCHEDULES.add("enable", KEY, examples="windlass schedules enable nightly")
def enable(context: CommandContext) -> int:
    """Let a schedule fire again, from its next instant on."""
    return _edit(context, {"enabled": True})


@SCHEDULES.add("disable", KEY, examples="windlass schedules disable nightly")
def disable(context: CommandContext) -> int:
    """Keep a schedule from firing, until it is enabled."""
    return _edit(context, {"enabled": False})


def _edit(context: CommandContext, fields: Mapping[str, Any]) -> int:
    schedule = context.call(Verbs.set_schedule, context.arguments.key, **fields)
    if "job" in fields:
        _warn_of_unknown_job(context, schedule.job)
    return _print(context, schedule)


def _print(context: CommandContext, schedule: Schedule) -> int:
    coming = _next(schedule, context.clock.now()) or "never again" if schedule.enabled else "not while it is disabled"
    return context.answer(Verbs.get_schedule, schedule, line(f"{schedule.key}: {described(schedule)}; next: {coming}"))


@SCHEDULES.add("remove", KEY, meant_by=("delete", "drop", "rm"), examples="windlass schedules remove nightly")
def remove(context: CommandContext) -> int:
    """Remove a schedule; its runs stay."""
    schedule = context.call(Verbs.get_schedule, context.arguments.key)
    context.call(Verbs.remove_schedule, schedule.key)
    context.answer(Verbs.remove_schedule, None, line(f"{schedule.key} is removed; its runs stay."))
    if schedule.code_hash is not None:
        context.output.note(
            "Code defines it: the next worker that starts creates it again. To stop it for good, disable it instead.", style="yellow"
        )
    return OK


@SCHEDULES.add("trigger", KEY, meant_by=("run", "fire"), examples="windlass schedules trigger nightly")
def trigger(context: CommandContext) -> int:
    """Create a run of a schedule now, and print its id; its instants do not change."""
    key = context.arguments.key
    created = context.call(Verbs.trigger, key)
    return context.answer(Verbs.trigger, created, created.id)


# list, skips


@SCHEDULES.add(
    "list",
    limit(100),
    after("KEY", "only schedules after this key", default=""),
    examples="windlass schedules list\nwindlass schedules list --json",
)
def list_all(context: CommandContext) -> int:
    """List the schedules by key."""
    schedules = context.call(Verbs.schedules, after=context.arguments.after, count=context.arguments.limit)
    return context.answer_list(Verbs.schedules, schedules, schedule_table, "No schedules.")


@SCHEDULES.add("skips", KEY, limit(20), examples="windlass schedules skips nightly\nwindlass schedules skips nightly --json")
def skips(context: CommandContext) -> int:
    """List the skipped instants of a schedule, latest first."""
    schedule = context.call(Verbs.get_schedule, context.arguments.key)
    records = context.call(Verbs.skips, schedule.key, count=context.arguments.limit)
    if context.output.json:
        context.output.document({"key": schedule.key} | plain(Verbs.skips, records))
        return OK
    if not records:
        context.output.note("Nothing was skipped.")
        return OK
    grid = table("number", "first due", "last due", "reason", "noticed")
    now = context.clock.now()
    for skip in records:
        due = (_local(schedule, skip.first_at), _local(schedule, skip.last_at))
        grid.add_row(f"{skip.number:,}", *due, cell(skip.reason), views.ago(skip.at, now))
    context.output.console.print(grid)
    return OK


# preview


def _span(text: str) -> tuple[int, int]:
    start, dots, end = text.partition("..")
    if not dots or (span := (instant(start), instant(end)))[0] >= span[1]:
        raise ArgumentTypeError(f"{text!r} is not a span of time such as 2026-01-31T09:00..2026-01-31T18:00")
    return span


@SCHEDULES.add(
    "preview",
    KEY,
    option("--count", type=count, default=10, metavar="N", help="the number of instants (default: 10)"),
    option("--from", dest="start", type=instant, metavar="TIME", help="from this time on (default: now)"),
    option("--down", type=_span, metavar="FROM..TO", help="what would happen if nothing had run from one time to another"),
    examples="""
    windlass schedules preview nightly
    windlass schedules preview nightly --count 20 --from 2027-03-25
    windlass schedules preview nightly --down 2026-12-24T18:00..2027-01-02T08:00
    """,
)
def preview(context: CommandContext) -> int:
    """Show the coming instants of a schedule, and what a downtime would do to it."""
    arguments = context.arguments
    schedule = context.call(Verbs.get_schedule, arguments.key)
    coming = context.call(Verbs.preview, schedule.key, start=arguments.start, count=arguments.count)
    fire = run_sync(context.verbs.outage(schedule.key, *arguments.down)) if arguments.down else None
    if context.output.json:
        downtime = None if fire is None else _downtime(schedule, fire, arguments.down, arguments.count)
        instants = [PREVIEW.show(instant) for instant in coming]
        context.output.document(to_plain({"key": schedule.key, "in_words": described(schedule), "next": instants, "downtime": downtime}))
        return OK
    context.output.raw(line(f"{schedule.key}: {described(schedule)}"))
    if not schedule.enabled:
        context.output.note("It is disabled: nothing of this happens until it is enabled.", style="yellow")
    if coming:
        context.output.console.print(_coming_table(coming, context.clock.now()))
    else:
        context.output.raw("Nothing is due any more.")
    if fire is not None:
        _print_downtime(context, schedule, fire)
    return OK


def _coming_table(coming: Sequence[Preview], now: int) -> Table:
    changes = any(preview.clock_changes for preview in coming)
    grid = table("local", "UTC", "when", *[""] * changes, folded=("",))
    for preview in coming:
        mark = [Text(CHANGE_OF_THE_CLOCK if preview.clock_changes else "", style="yellow")] * changes
        grid.add_row(_spaced(preview.local), _utc(preview.at), views.ago(preview.at, now), *mark)
    return grid


def _caught_up(schedule: Schedule, fire: Fire, end: int, max_missed: int) -> tuple[list[int], int]:
    """The first runs that are made after a downtime, and how many there are. They have no gap: what is skipped lies before them."""
    return ([], 0) if fire.due_at is None else cron.between(rule_of(schedule), fire.due_at - 1, end, schedule.anchor, max_missed)


def _downtime(schedule: Schedule, fire: Fire, down: tuple[int, int], max_missed: int) -> dict[str, Any]:
    start, end = down
    first, number = _caught_up(schedule, fire, end, max_missed)
    return {
        "from": to_rfc3339(start),
        "to": to_rfc3339(end),
        "missed": schedule.missed,
        "overlap": schedule.overlap,
        "overlap_means": OVERLAPS[schedule.overlap],
        "caught_up": {"number": number, "first": [to_rfc3339(at) for at in first]},
        "skipped": [SKIP.show(skip) for skip in fire.skips],
    }


def _print_downtime(context: CommandContext, schedule: Schedule, fire: Fire) -> None:
    start, end = context.arguments.down
    head = f"Down from {_local(schedule, start)} to {_local(schedule, end)}, missed = {schedule.missed}, overlap = {schedule.overlap}"
    context.output.console.print(Text(f"\n{line(head)}", style="bold"))
    for skip in fire.skips:
        context.output.raw(f"skipped    {_range(schedule, skip.number, skip.first_at, skip.last_at)}")
    first, number = _caught_up(schedule, fire, end, context.arguments.count)
    for at in first:
        context.output.raw(f"caught up  {_local(schedule, at)}")
    if number > len(first):
        context.output.raw(f"caught up  {number - len(first):,} more")
    if number and schedule.overlap != "allow":
        context.output.raw(f"overlap    {OVERLAPS[schedule.overlap]}")
    if not number and not fire.skips:
        context.output.raw("Nothing would have been due.")


def _range(schedule: Schedule, number: int, first: int, last: int) -> str:
    return _local(schedule, first) if number == 1 else f"{number:,}, from {_local(schedule, first)} to {_local(schedule, last)}"


# Tables


def schedule_table(schedules: Sequence[Schedule], now: int) -> Table:
    """A line for each schedule."""
    headers = ("key", "job", "rule", "zone", "next", "last", "fired", "skipped", "state")
    grid = table(*headers, cut=("key", "job", "rule", "zone", "next"), folded=("state",))
    for schedule in schedules:
        texts = (schedule.key, schedule.job, _rule(schedule), schedule.zone, _next(schedule, now))
        last = "" if schedule.last_at is None else views.ago(schedule.last_at, now)
        grid.add_row(*map(cell, texts), last, f"{schedule.fired:,}", f"{schedule.skipped:,}", _state(schedule))
    return grid


def _rule(schedule: Schedule) -> str:
    return {"cron": "", "interval": "every ", "once": "at "}[schedule.kind] + schedule.expr


def _state(schedule: Schedule) -> Text:
    """Whether it fires, and whether a person has edited what code defines."""
    word, style = ("disabled", "yellow") if not schedule.enabled else ("over", "dim") if schedule.next_at is None else ("enabled", "green")
    source = "" if schedule.code_hash is None else ", edited" if edited(schedule) else ", by code"
    return Text.assemble((word, style), (source, "dim"))


def _next(schedule: Schedule, now: int) -> str:
    at = schedule.next_at
    return "" if at is None else f"{views.ago(at, now)}, {_local(schedule, at)[:16]}"


def _local(schedule: Schedule, at: int) -> str:
    """A time on the clocks of the schedule's zone."""
    try:
        return _spaced(cron.shown(rule_of(schedule), at).local)
    except BadInput:
        return _utc(at)


def _spaced(local: str) -> str:
    return local.replace("T", " ")


def _utc(at: int) -> str:
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
