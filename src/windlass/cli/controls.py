"""The commands about settings for all processes: pauses, queues, resources, lanes, retention."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from windlass.answers import Occupants, ResourceState, Retention, RetentionSetting
from windlass.api.verbs import Verbs
from windlass.app.resources import rate_of, rate_text
from windlass.cli import views
from windlass.cli.codes import OK
from windlass.cli.context import CommandContext, actor
from windlass.cli.documents import plain
from windlass.cli.dropping import drop
from windlass.cli.output import cell, line, table
from windlass.cli.rows import CHANGE, LOOK, OPERATE, Commands, edit, one_of, option
from windlass.cli.values import NAME, after, duration, duration_or_none, keep, limit
from windlass.defaults import MAX_WAIT
from windlass.durations import spelled
from windlass.errors import BadInput, NotFound
from windlass.limiters import limiter_key
from windlass.model import Lane, Needs, Pause, PauseScope, Queue

COMMANDS = Commands()

# pause, resume, pauses

PAUSED = one_of(
    option("--queue", metavar="NAME", help="this queue"),
    option("--job", metavar="NAME", help="this job"),
    option("--all", action="store_true", help="everything"),
    required=True,
)


def _paused(arguments: Namespace) -> tuple[PauseScope, str]:
    if arguments.all:
        return "system", ""
    return ("queue", arguments.queue) if arguments.queue is not None else ("job", arguments.job)


def _named(scope: PauseScope, name: str) -> str:
    return "Everything" if scope == "system" else f"{scope.capitalize()} {line(name)}"


@COMMANDS.add(
    "pause",
    PAUSED,
    option("--reason", help="the reason, which lists and `windlass why` show"),
    topic=CHANGE,
    meant_by=("hold", "suspend"),
    examples="windlass pause --queue mail --reason 'the mail server moves'\nwindlass pause --all",
)
def pause(context: CommandContext) -> int:
    """Pause a queue, a job, or everything: no runs are claimed, and running ones continue."""
    scope, name = _paused(context.arguments)
    done = context.call(Verbs.pause, scope, name, reason=context.arguments.reason, by=actor())
    return context.answer(Verbs.pause, done, f"{_named(scope, name)} is paused.")


@COMMANDS.add(
    "resume", PAUSED, topic=CHANGE, meant_by=("unpause", "continue"), examples="windlass resume --queue mail\nwindlass resume --all"
)
def resume(context: CommandContext) -> int:
    """Resume what was paused."""
    scope, name = _paused(context.arguments)
    done = context.call(Verbs.resume, scope, name)
    return context.answer(Verbs.resume, done, f"{_named(scope, name)} {'is resumed' if done else 'was not paused'}.")


@COMMANDS.add("pauses", topic=LOOK, examples="windlass pauses\nwindlass pauses --json")
def pauses(context: CommandContext) -> int:
    """List all pauses."""
    records = context.call(Verbs.pauses)
    return context.answer_list(Verbs.pauses, records, _pauses, "Nothing is paused.")


def _pauses(records: Sequence[Pause], now: int) -> Table:
    grid = table("what", "since", "by", "reason", cut=("what", "by"), folded=("reason",))
    for one in records:
        grid.add_row(cell(_named(one.scope, one.name)), views.ago(one.at, now), cell(one.actor or ""), Text(line(one.reason or "")))
    return grid


# queues


def list_queues(context: CommandContext) -> int:
    """List the queues that have settings."""
    records = context.call(Verbs.queues)
    return context.answer_list(Verbs.queues, records, _queues, "No queue has settings.")


def _queues(records: Sequence[Queue], _: int) -> Table:
    grid = table("queue", "aging", cut=("queue",))
    for queue in records:
        grid.add_row(cell(queue.name), views.span(queue.aging))
    return grid


QUEUES = COMMANDS.group(
    "queues",
    help="List the queues that have settings, and set their aging",
    topic=CHANGE,
    examples="windlass queues\nwindlass queues set mail --aging 60s",
    function=list_queues,
)
QUEUES.add("list", examples="windlass queues list\nwindlass queues list --json")(list_queues)


@QUEUES.add(
    "set",
    NAME,
    option(
        "--aging",
        type=duration_or_none,
        required=True,
        metavar="TIME",
        help="how much waiting is worth one step of priority; none: only priorities count",
    ),
    examples="windlass queues set mail --aging 60s\nwindlass queues set mail --aging none",
)
def set_queue(context: CommandContext) -> int:
    """Set the aging of a queue, for runs created from now on."""
    arguments = context.arguments
    queue = context.call(Verbs.set_queue, arguments.name, aging=arguments.aging)
    counts = "only priorities count" if queue is None else f"a wait of {views.span(queue.aging)} is worth one step of priority"
    return context.answer(Verbs.set_queue, queue, f"In {line(arguments.name)} {counts}.", name=arguments.name, aging=arguments.aging)


# resources


def list_resources(context: CommandContext) -> int:
    """List resources, and how much of each is occupied."""
    records = context.call(Verbs.resources)
    return context.answer_list(Verbs.resources, records, _resources, "No resources. Create one: windlass resources set NAME --capacity 1")


def _resources(records: Sequence[ResourceState], _: int = 0) -> Table:
    grid = table("resource", "capacity", "rates", "by runs", "direct calls", "jobs", cut=("resource", "jobs"), folded=("rates",))
    for state in records:
        one = state.resource
        capacity = "any" if one.capacity is None else f"{one.capacity:,}"
        counts = (f"{number:,}" for number in (state.held, state.slots))
        grid.add_row(cell(one.name), capacity, "; ".join(map(rate_text, one.rates)), *counts, cell(", ".join(state.jobs)))
    return grid


RESOURCES = COMMANDS.group(
    "resources",
    help="List, set and remove resources that jobs share, and show what occupies them",
    topic=CHANGE,
    meant_by=("limits", "concurrency", "rates"),
    examples="""
    windlass resources
    windlass resources set ollama --capacity 1
    windlass resources set api --rate 100/minute --rate 5/second
    """,
    function=list_resources,
)
RESOURCES.add("list", examples="windlass resources list\nwindlass resources list --json")(list_resources)


@RESOURCES.add(
    "show",
    NAME,
    option("--key", help="what occupies it under this key"),
    examples="windlass resources show ollama\nwindlass resources show customer --key 42",
)
def show_resource(context: CommandContext) -> int:
    """Show a resource, and what occupies it."""
    name, key = context.arguments.name, context.arguments.key
    state, occupants = context.call(Verbs.get_resource, name), context.call(Verbs.occupants, limiter_key(name, key))
    if context.output.json:
        context.output.document(plain(Verbs.get_resource, state) | {"occupants": plain(Verbs.occupants, occupants)})
        return OK
    context.output.console.print(_resources([state]))
    if occupants.runs or occupants.slots:
        context.output.console.print(_occupants(occupants))
    elif key is None and (state.held or state.slots):
        context.output.note("It is occupied by key: add --key.")
    else:
        context.output.note("Nothing occupies it.")
    return OK


def _occupants(occupants: Occupants) -> Table:
    grid = table("\nwho", "what", "weight", cut=("\nwho",))
    for holder in occupants.runs:
        grid.add_row(cell(f"run {holder.run}"), f"{line(holder.job)} on {line(holder.worker or '')}", f"{holder.weight:,}")
    for slot in occupants.slots:
        grid.add_row(cell(f"slot {slot.id}"), f"{slot.state} by {line(slot.actor or 'an unnamed caller')}", f"{slot.weight:,}")
    return grid


def _capacity(text: str) -> int | None:
    if text == "none":
        return None
    if not text.isascii() or not text.isdigit() or int(text[:11]) > 2**31 - 1:
        raise ArgumentTypeError(f"{text!r} is not a number, or none")
    return int(text)


@RESOURCES.add(
    "set",
    NAME,
    edit("--capacity", type=_capacity, metavar="N", help="how much of it can be occupied at once; none: no limit"),
    edit(
        "--rate",
        dest="rates",
        action="append",
        metavar="N/TIME",
        help="how many start per second, minute, hour, day or 30s; may be repeated",
    ),
    edit("--no-rate", dest="rates", action="store_const", const=None, help="no rate limits"),
    edit(
        "--max-wait",
        type=duration,
        metavar="TIME",
        help="how long a run that lacks several resources waits until they are reserved for it (default: 1m)",
    ),
    meant_by=("add", "create", "new"),
    examples="""
    windlass resources set ollama --capacity 1
    windlass resources set api --rate 100/minute --rate 5/second
    windlass resources set api --capacity none --no-rate
    """,
)
def set_resource(context: CommandContext) -> int:
    """Set the capacity and the rates of a resource; what is left out does not change."""
    changes, resource = context.fields(("capacity", "rates", "max_wait")), context.arguments.name
    if not changes:
        raise BadInput("There is nothing to set.", hint="Give --capacity, --rate or --max-wait.")
    if "rates" in changes:
        changes["rates"] = tuple(map(rate_of, changes["rates"] or ()))
    try:
        before = context.call(Verbs.get_resource, resource).resource
        kept: dict[str, Any] = {"capacity": before.capacity, "rates": before.rates, "max_wait": before.max_wait}
    except NotFound:
        kept = {"max_wait": MAX_WAIT}
    context.call(Verbs.set_resource, resource, **kept | changes)
    state = context.call(Verbs.get_resource, resource)
    return context.answer(Verbs.get_resource, state, _resources([state]))


@RESOURCES.add("drop", NAME, meant_by=("delete", "remove", "rm"), examples="windlass resources drop ollama")
def drop_resource(context: CommandContext) -> int:
    """Remove a resource that no job uses."""
    return drop(context, Verbs.drop_resource)


# lanes


def list_lanes(context: CommandContext) -> int:
    """List lanes: their queue, job and requirements, their last use, and the token that created them."""
    records = context.call(Verbs.all_lanes, after=context.arguments.after, count=context.arguments.limit)
    return context.answer_list(Verbs.all_lanes, records, _lanes, "No lanes.")


def _lanes(records: Sequence[Lane], now: int) -> Table:
    grid = table("lane", "queue", "job", "requires", "used", "made by", cut=("queue", "job", "requires", "made by"))
    for lane in records:
        used = views.ago(lane.used_at, now) if lane.used_at else ""
        grid.add_row(str(lane.id), cell(lane.queue), cell(lane.job), cell(_requires(lane.requires)), used, cell(lane.owner or ""))
    return grid


def _requires(needs: Needs) -> str:
    handler = [] if needs.handler is None else [f"handler {needs.handler}"]
    amounts = [f"{number:,} {what}" for what, number in (("cores", needs.cores), ("MiB", needs.memory)) if number]
    return ", ".join(
        [*handler, *needs.tags, *amounts, *(use.resource if use.per is None else f"{use.resource} per {use.per}" for use in needs.uses)]
    )


LANES = COMMANDS.group(
    "lanes",
    limit(100),
    after("LANE", "only lanes after this number", type=int, default=0),
    help="List and remove lanes: the sets of runs that the same workers may take",
    topic=CHANGE,
    examples="""
    windlass lanes
    windlass lanes --after 100 --json
    windlass lanes drop 12 13
    """,
    function=list_lanes,
)


@LANES.add(
    "drop", option("lanes", type=int, nargs="+", metavar="LANE"), meant_by=("delete", "remove", "rm"), examples="windlass lanes drop 12 13"
)
def drop_lane(context: CommandContext) -> int:
    """Remove lanes that have no unfinished runs; a lane that is needed again is created again."""
    for lane in context.arguments.lanes:
        context.call(Verbs.drop_lane, lane)
    return context.answer(Verbs.drop_lane, None, f"{len(context.arguments.lanes)} removed.")


# retention


def show_retention(context: CommandContext) -> int:
    """Show how long ended runs are kept, and where that is set."""
    return _print_retention(context, context.call(Verbs.retention))


RETENTION = COMMANDS.group(
    "retention",
    help="Show and set how long ended runs are kept",
    topic=OPERATE,
    meant_by=("prune", "purge", "clean", "cleanup", "vacuum"),
    examples="windlass retention\nwindlass retention set --succeeded 7d --others forever",
    function=show_retention,
)
RETENTION.add("show", examples="windlass retention show\nwindlass retention show --json")(show_retention)


@RETENTION.add(
    "set",
    option("--succeeded", type=keep, metavar="TIME", help="how long succeeded runs are kept, or forever"),
    option("--others", type=keep, metavar="TIME", help="how long runs that ended otherwise are kept, or forever"),
    examples="windlass retention set --succeeded 7d\nwindlass retention set --others forever",
)
def set_retention(context: CommandContext) -> int:
    """Set how long ended runs are kept, for every process on this store; what is left out does not change."""
    arguments = context.arguments
    changes = {"keep_succeeded": arguments.succeeded, "keep_others": arguments.others}
    return _print_retention(context, context.call(Verbs.set_retention, **changes, by=actor()))


def _print_retention(context: CommandContext, retention: Retention) -> int:
    grid = table("ended runs", "kept for", "from", folded=("from",))
    for name, one in (("succeeded", retention.keep_succeeded), ("others", retention.keep_others)):
        grid.add_row(name, keep_text(one), Text(source_text(one), style="dim"))
    return context.answer(Verbs.retention, retention, grid)


def keep_text(setting: RetentionSetting) -> str:
    """How long, as people write it."""
    return setting.keep if isinstance(setting.keep, str) else spelled(setting.keep)


def source_text(setting: RetentionSetting) -> str:
    """Where it comes from."""
    if setting.source == "store":
        return (
            "the store: the first process whose settings named it" if setting.actor is None else f"the store: set by {line(setting.actor)}"
        )
    return "settings, which the first worker or hub stores" if setting.source == "settings" else "default"
