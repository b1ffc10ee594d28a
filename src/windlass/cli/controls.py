"""The commands by which people set what holds for all: pauses, queues, resources, retention."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any, Literal

from rich.table import Table
from rich.text import Text

from windlass.api.verbs import Verbs
from windlass.app.resources import rate_of, rate_text
from windlass.cli import views
from windlass.cli.codes import OK
from windlass.cli.documents import plain
from windlass.cli.output import cell, line, table
from windlass.cli.shell import Shell, who
from windlass.durations import spelled
from windlass.engine.controls import Occupants, ResourceState
from windlass.engine.core import MAX_WAIT
from windlass.engine.retention import Kept, Retention
from windlass.errors import BadInput, NotFound
from windlass.gates import gate_key
from windlass.model import Lane, Needs, Pause, PauseScope, Queue
from windlass.store.base import run_sync

# pause, resume, pauses


def _paused(given: Namespace) -> tuple[PauseScope, str]:
    if given.all:
        return "system", ""
    return ("queue", given.queue) if given.queue is not None else ("job", given.job)


def _named(scope: PauseScope, name: str) -> str:
    return "Everything" if scope == "system" else f"{scope.capitalize()} {line(name)}"


def pause(shell: Shell) -> int:
    """Hand nothing out of a queue, of a job, or at all; what runs goes on."""
    scope, name = _paused(shell.arguments)
    with shell.engine() as engine:
        done = run_sync(shell.act(engine, "pause", f"{scope} {name}".rstrip()).pause(scope, name, reason=shell.arguments.reason, by=who()))
    return shell.answer(Verbs.pause, done, f"{_named(scope, name)} is paused.")


def resume(shell: Shell) -> int:
    """Hand out again what was paused."""
    scope, name = _paused(shell.arguments)
    with shell.engine() as engine:
        done = run_sync(shell.act(engine, "resume", f"{scope} {name}".rstrip()).resume(scope, name))
    return shell.answer(Verbs.resume, done, f"{_named(scope, name)} {'is resumed' if done else 'was not paused'}.")


def pauses(shell: Shell) -> int:
    """List what is paused."""
    with shell.engine() as engine:
        found = run_sync(engine.pauses())
    return shell.answer_list(Verbs.pauses, found, _pauses, "Nothing is paused.")


def _pauses(found: Sequence[Pause], now: int) -> Table:
    made = table("what", "since", "by", "reason", cut=("what", "by"), folded=("reason",))
    for one in found:
        made.add_row(cell(_named(one.scope, one.name)), views.ago(one.at, now), cell(one.who or ""), Text(line(one.reason or "")))
    return made


# queues


def list_queues(shell: Shell) -> int:
    """List the queues for which something is set."""
    with shell.engine() as engine:
        found = run_sync(engine.queues())
    return shell.answer_list(Verbs.queues, found, _queues, "Nothing is set for any queue.")


def _queues(found: Sequence[Queue], _: int) -> Table:
    made = table("queue", "ageing", cut=("queue",))
    for queue in found:
        made.add_row(cell(queue.name), views.span(queue.ageing))
    return made


def set_queue(shell: Shell) -> int:
    """Let waiting count in a queue, for runs made from now on."""
    given = shell.arguments
    with shell.engine() as engine:
        queue = run_sync(shell.act(engine, "set", f"queue {given.name}").set_queue(given.name, ageing=given.ageing))
    counts = "priorities alone count" if queue is None else f"a wait of {views.span(queue.ageing)} is worth one step of priority"
    return shell.answer(Verbs.set_queue, queue, f"In {line(given.name)} {counts}.", name=given.name, ageing=given.ageing)


# resources


def list_resources(shell: Shell) -> int:
    """List resources, and how much of each is occupied."""
    with shell.engine() as engine:
        found = run_sync(engine.resources())
    return shell.answer_list(Verbs.resources, found, _resources, "No resources. Make one: windlass resources set NAME --capacity 1")


def _resources(found: Sequence[ResourceState], _: int = 0) -> Table:
    made = table("resource", "capacity", "rates", "by runs", "direct calls", "jobs", cut=("resource", "jobs"), folded=("rates",))
    for state in found:
        one = state.resource
        capacity = "any" if one.capacity is None else f"{one.capacity:,}"
        counts = (f"{number:,}" for number in (state.held, state.slots))
        made.add_row(cell(one.name), capacity, "; ".join(map(rate_text, one.rates)), *counts, cell(", ".join(state.jobs)))
    return made


def show_resource(shell: Shell) -> int:
    """Show a resource, and who occupies it."""
    name, key = shell.arguments.name, shell.arguments.key
    with shell.engine() as engine:
        state, found = run_sync(engine.get_resource(name)), run_sync(engine.occupants(gate_key(name, key)))
    if shell.output.json:
        shell.output.document(plain(Verbs.get_resource, state) | {"occupants": plain(Verbs.occupants, found)})
        return OK
    shell.output.console.print(_resources([state]))
    if found.runs or found.slots:
        shell.output.console.print(_occupants(found))
    elif key is None and (state.held or state.slots):
        shell.output.note("It is occupied by key: add --key.")
    else:
        shell.output.note("Nobody occupies it.")
    return OK


def _occupants(found: Occupants) -> Table:
    made = table("\nwho", "what", "weight", cut=("\nwho",))
    for holder in found.runs:
        made.add_row(cell(f"run {holder.run}"), f"{line(holder.job)} on {line(holder.worker or '')}", f"{holder.weight:,}")
    for slot in found.slots:
        made.add_row(cell(f"slot {slot.id}"), f"{slot.state} by {line(slot.who or 'somebody')}", f"{slot.weight:,}")
    return made


def set_resource(shell: Shell) -> int:
    """Say how much there is of a resource, and how often it may be used; what is left out stays as it is."""
    said, resource = vars(shell.arguments), shell.arguments.name
    given = {name: said[name] for name in ("capacity", "rates", "max_wait") if name in said}
    if not given:
        raise BadInput("Nothing is said of the resource.", hint="Give --capacity, --rate or --max-wait.")
    if "rates" in given:
        given["rates"] = tuple(map(rate_of, given["rates"] or ()))
    with shell.engine() as engine:
        try:
            before = run_sync(engine.get_resource(resource)).resource
            kept: dict[str, Any] = {"capacity": before.capacity, "rates": before.rates, "max_wait": before.max_wait}
        except NotFound:
            kept = {"max_wait": MAX_WAIT}
        run_sync(shell.act(engine, "set", f"resource {resource}").set_resource(resource, **kept | given))
        state = run_sync(engine.get_resource(resource))
    if shell.output.json:
        shell.output.document(plain(Verbs.get_resource, state))
    else:
        shell.output.console.print(_resources([state]))
    return OK


def drop_resource(shell: Shell) -> int:
    """Forget a resource that nobody uses."""
    return _dropped(shell, "resource")


# lanes


def list_lanes(shell: Shell) -> int:
    """List lanes: what of a queue the same workers may take, when it was last used, and whose small token has made it."""
    with shell.engine() as engine:
        found = run_sync(engine.all_lanes(after=shell.arguments.after, count=shell.arguments.limit))
    return shell.answer_list(Verbs.all_lanes, found, _lanes, "No lanes.")


def _lanes(found: Sequence[Lane], now: int) -> Table:
    made = table("lane", "queue", "job", "requires", "used", "made by", cut=("queue", "job", "requires", "made by"))
    for lane in found:
        used = views.ago(lane.used_at, now) if lane.used_at else ""
        made.add_row(str(lane.id), cell(lane.queue), cell(lane.job), cell(_requires(lane.requires)), used, cell(lane.owner or ""))
    return made


def _requires(needs: Needs) -> str:
    amounts = [f"{number:,} {what}" for what, number in (("cores", needs.cores), ("MiB", needs.memory)) if number]
    return ", ".join([*needs.tags, *amounts, *(use.resource if use.per is None else f"{use.resource} per {use.per}" for use in needs.uses)])


def drop_lane(shell: Shell) -> int:
    """Remove lanes that have no unfinished runs; what is needed again is made again."""
    with shell.engine() as engine:
        for lane in shell.arguments.lanes:
            run_sync(shell.act(engine, "remove", f"lane {lane}").drop_lane(lane))
    return shell.answer(Verbs.drop_lane, None, f"{len(shell.arguments.lanes)} removed.")


# jobs and workers


def drop_job(shell: Shell) -> int:
    """Forget a job that nobody has defined, and that has no runs."""
    return _dropped(shell, "job")


def drop_worker(shell: Shell) -> int:
    """Forget a worker that is silent."""
    return _dropped(shell, "worker")


def _dropped(shell: Shell, what: Literal["resource", "job", "worker"]) -> int:
    name, verb = shell.arguments.name, f"drop_{what}"
    with shell.engine() as engine:
        run_sync(getattr(shell.act(engine, "remove", f"{what} {name}"), verb)(name))
    return shell.answer(getattr(Verbs, verb), None, f"{line(name)} is gone.")


# retention


def show_retention(shell: Shell) -> int:
    """Show how long ended runs are kept, and who has set that."""
    with shell.engine() as engine:
        return _tell_retention(shell, run_sync(engine.retention()))


def set_retention(shell: Shell) -> int:
    """Say how long ended runs are kept, for every process on this store; what is left out stays as it is."""
    given = shell.arguments
    with shell.engine() as engine:
        setting = shell.act(engine, "set", "retention").set_retention(keep_succeeded=given.succeeded, keep_others=given.others, by=who())
        return _tell_retention(shell, run_sync(setting))


def _tell_retention(shell: Shell, found: Retention) -> int:
    if shell.output.json:
        shell.output.document(plain(Verbs.retention, found))
        return OK
    made = table("ended runs", "kept for", "from", folded=("from",))
    for name, one in (("succeeded", found.keep_succeeded), ("others", found.keep_others)):
        made.add_row(name, keep_text(one), Text(source_text(one), style="dim"))
    shell.output.console.print(made)
    return OK


def keep_text(kept: Kept) -> str:
    """How long, as people write it."""
    return kept.keep if isinstance(kept.keep, str) else spelled(kept.keep)


def source_text(kept: Kept) -> str:
    """Where it comes from."""
    if kept.source == "store":
        return "the store: the first process whose settings named it" if kept.who is None else f"the store: set by {line(kept.who)}"
    return "settings, which the first worker or hub stores" if kept.source == "settings" else "default"
