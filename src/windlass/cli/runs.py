"""The commands about runs."""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from collections.abc import Iterator
from typing import Any, Literal

from msgspec.structs import replace
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from windlass import payload
from windlass.answers import Page, Reason, RunDetail, RunFilters
from windlass.api.verbs import Verbs
from windlass.api.views import LINE
from windlass.cli import views
from windlass.cli.codes import FAILED, OK, TIMED_OUT
from windlass.cli.context import CommandContext, actor
from windlass.cli.dialects import AS, print_run, print_runs
from windlass.cli.documents import plain, to_plain
from windlass.cli.output import line
from windlass.cli.rows import CHANGE, LOOK, WORK, Commands, one_of, option
from windlass.cli.values import CURSOR, ID, count, duration, instant, keep, limit, number, past
from windlass.engine.moves import DEEPEST
from windlass.errors import BadInput, NotFound, UnknownJob, nearest
from windlass.machine import ENDED
from windlass.model import Created, Key, Limits, LogLine, NewRun, Notify, Options, Run, Solver, State
from windlass.store.base import run_sync

LIMIT = Limits().payload
PAGE = Limits().page
PAGES = 100  # that are read for one list, where few runs match
POLL_EVERY = 0.2  # seconds between two reads of a run that a command waits for
REDRAW_EVERY = 1.0

_PAIR = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]*)=(.*)", re.S)

COMMANDS = Commands()
ONE_RUN = one_of(
    option("id", nargs="?", metavar="ID", help="the id of the run, or of one of its attempts"),
    option("--last", action="store_true", help="the newest run"),
    required=True,
)


# enqueue


def payload_of(words: list[str]) -> Any:
    """The payload on a command line: one JSON text, "-" for standard input, or key=value pairs."""
    if not words:
        return None
    if words == ["-"]:
        return payload.parse(sys.stdin.buffer.read(LIMIT + 1), limit=LIMIT, what="Standard input")
    if len(words) == 1 and not _PAIR.fullmatch(words[0]):
        return payload.parse(words[0], limit=LIMIT)
    pairs = [_pair(word) for word in words]
    if len(members := dict(pairs)) != len(pairs):
        raise BadInput("A key is given twice.", hint="Keep one of them; which one counts would be a guess.")
    return members


def _pair(word: str) -> tuple[str, Any]:
    match = _PAIR.fullmatch(word)
    if match is None:
        raise BadInput(f"Cannot read {word!r:.80}.", hint="Give one JSON text, key=value pairs, or - to read JSON from standard input.")
    return match[1], _value(match[2])


def _value(text: str) -> Any:
    try:
        return payload.parse(text, limit=LIMIT)
    except BadInput:
        return text  # 0123, 1.2.3 and hello are texts; "123" in quotes is one too


@COMMANDS.add(
    "enqueue",
    option("job", metavar="NAME", help="the name of the job"),
    option(
        "payload",
        nargs="*",
        metavar="PAYLOAD",
        help="one JSON text, key=value pairs (values are JSON where they can be), or - for standard input",
    ),
    option("--queue", help="another queue than the job's"),
    option("--priority", type=int, metavar="N", help="higher priorities are executed first"),
    one_of(
        option("--delay", type=duration, metavar="TIME", help="not before this has passed, such as 30s, 5m, 2h"),
        option("--at", type=instant, metavar="TIME", help="not before this time, such as 2026-01-31T09:00 or ...T09:00Z"),
    ),
    option("--key", help="at most one unfinished run has it; a second call prints the id of the first"),
    option("--after", action="append", metavar="ID", help="wait until this run has succeeded; may be repeated"),
    option("--max-attempts", type=int, metavar="N", help="the number of executions at most"),
    option("--keep", type=keep, metavar="TIME", help="how long it is kept after its end, or forever"),
    option("--solver-url", metavar="URL", help="a program to execute, instead of the job's own code"),
    option("--solver-checksum", metavar="SHA256", help="the SHA-256 of that program; few workers execute one without"),
    option("--meta", metavar="JSON", help="an object of your own facts about the run, of at most 4 KiB"),
    option("--notify", metavar="URL", help="an address to which the end of the run is sent"),
    option("--undefined", choices=("refuse", "wait"), default="refuse", help="what happens if the job is not defined"),
    option("--wait", action="store_true", help="wait for the end; the exit code tells how it ended"),
    option("--timeout", type=duration, metavar="TIME", help="with --wait: no longer than this (exit code 124)"),
    topic=WORK,
    meant_by=("add", "push", "submit", "send", "insert", "new"),
    examples="""
    windlass enqueue mail to=ann@example.com copies=2
    windlass enqueue mail '{"to": "ann@example.com"}' --delay 5m
    cat order.json | windlass enqueue order - --key order-17
    windlass enqueue report --wait --timeout 10m
    """,
)
def enqueue(context: CommandContext) -> int:
    """Enqueue a run, and print its id; with --wait, its output."""
    arguments = context.arguments
    new = NewRun(
        arguments.job,
        payload_of(arguments.payload),
        Options(
            queue=arguments.queue,
            priority=arguments.priority,
            max_attempts=arguments.max_attempts,
            keep=arguments.keep,
            solver=_solver(arguments),
        ),
        due_at=context.clock.now() + arguments.delay if arguments.delay is not None else arguments.at,
        key=Key(arguments.key) if arguments.key else None,
        after=tuple(arguments.after or ()),
        meta=None if arguments.meta is None else payload.parse(arguments.meta, limit=LIMIT, what="--meta"),
        notify=None if arguments.notify is None else Notify(arguments.notify),
    )
    undefined: Literal["refuse", "wait"] = arguments.undefined
    try:
        [created] = context.call(Verbs.create, [new], undefined=undefined)
    except UnknownJob as error:
        raise _no_such_job(context, new.job, error) from error
    return _wait(context, created) if arguments.wait else print_created(context, created)


def _solver(arguments: Namespace) -> Solver | None:
    if arguments.solver_url is None and arguments.solver_checksum is not None:
        raise BadInput("A checksum without a URL names no program.", hint="Give --solver-url as well.")
    return None if arguments.solver_url is None else Solver(arguments.solver_url, arguments.solver_checksum)


def _no_such_job(context: CommandContext, name: str, error: UnknownJob) -> UnknownJob:
    """The same error with the hint for a command line."""
    near = nearest_job(context, name)
    hint = f"Did you mean {near}?" if near else "`windlass jobs` lists those there are; --undefined wait lets the run wait for its job."
    return UnknownJob(error.message, hint=hint)


def nearest_job(context: CommandContext, name: str) -> str | None:
    """The name of a job that was probably meant."""
    return nearest(name, (job.name for job in context.call(Verbs.jobs, count=PAGE)))


def print_created(context: CommandContext, created: Created) -> int:
    """Print the id of a created run, or of the run that holds the key already."""
    if not created.created:
        context.output.note("Nothing was created: this run holds the key.")
    return context.answer(Verbs.rerun, created, created.id)


def _wait(context: CommandContext, created: Created) -> int:
    context.output.note(f"Waiting for run {created.id}; Ctrl-C does not stop it (windlass show {created.id}).")
    run = _ended(context, created.id, context.arguments.timeout)
    if context.output.json:
        context.output.document(plain(Verbs.get, _detail(context, run)))
    elif run.state is State.SUCCEEDED:
        context.output.document(views.opened(run.output))
    return _verdict(context, run)


def _ended(context: CommandContext, run_id: str, timeout: int | None) -> Run:
    """The run once it has ended, or as it is when the time is over."""
    until = None if timeout is None else context.clock.monotonic() + timeout
    while (run := context.call(Verbs.get, run_id)).state not in ENDED:
        remaining = POLL_EVERY if until is None else (until - context.clock.monotonic()) / 1000
        if remaining <= 0:
            break
        context.pause(min(POLL_EVERY, remaining))
    return run


def _verdict(context: CommandContext, run: Run) -> int:
    """The exit code for how a run has ended; the reason is printed too."""
    if run.state is State.SUCCEEDED:
        return OK
    if run.state not in ENDED:
        context.output.note(f"Run {run.id} has not ended yet: it is {run.state}.")
        return TIMED_OUT
    because = f"{run.error.code}: {run.error.message}" if run.error else run.reason
    context.output.note(f"{run.state}: {because}" if because else run.state, style=views.STYLES[run.state])
    return FAILED


# runs


FILTERS = (
    option(
        "--state",
        dest="states",
        action="append",
        choices=[state.value for state in State],
        metavar="STATE",
        help=f"{', '.join(State)}; may be repeated",
    ),
    option("--job", metavar="NAME", help="only runs of this job"),
    option("--queue", metavar="NAME", help="only runs of this queue"),
    option("--group", metavar="ID", help="only runs of this group"),
    option("--schedule", metavar="KEY", help="only runs of this schedule"),
    option("--worker", metavar="NAME", help="only runs whose current or last attempt this worker has or had"),
    option("--key", help="only runs with this key"),
    option("--tag", help="only runs whose worker must have this tag"),
    option("--error", metavar="CODE", help="only runs with an error of this code"),
    option("--since", dest="created_since", type=past, metavar="TIME", help="created since a time, or since so long ago: 2h"),
    option("--until", dest="created_before", type=past, metavar="TIME", help="created before a time, or longer ago"),
    option("--ended-since", type=past, metavar="TIME", help="ended since"),
    option("--ended-until", dest="ended_before", type=past, metavar="TIME", help="ended before"),
    option("--search", dest="text", metavar="TEXT", help="in the beginning or end of ids, the beginning of keys, and messages of errors"),
)
"""What the runs of a list have in common."""


@COMMANDS.add(
    "runs",
    *FILTERS,
    limit(20),
    CURSOR,
    option("--watch", action="store_true", help="refresh the list every second, until Ctrl-C"),
    AS,
    topic=LOOK,
    meant_by=("list", "ls", "ps", "tasks"),
    examples="""
    windlass runs
    windlass runs --state failed --limit 100
    windlass runs --job mail --json
    windlass runs --queue reports --state failed --state cancelled --since 2h
    windlass runs --error TimeoutError --search 'connection refused'
    windlass runs --watch
    """,
)
def runs(context: CommandContext) -> int:
    """List runs, newest first."""
    if context.arguments.watch and (context.output.json or not context.output.seen):
        raise BadInput("--watch needs a terminal.", hint="Leave it out, and call `windlass runs --json` as often as you need.")
    return _watch_runs(context) if context.arguments.watch else _list_runs(context)


def _page(context: CommandContext) -> Page:
    """As many matching runs as asked for, for which several pages may have to be read."""
    arguments = vars(context.arguments)
    filters: Any = {name: arguments[name] for name in RunFilters.__annotations__ if arguments.get(name) is not None}
    page, left = Page([], context.arguments.cursor), PAGES
    while left and len(page.runs) < context.arguments.limit:
        following = context.call(Verbs.runs, **filters, cursor=page.cursor, count=context.arguments.limit - len(page.runs))
        page, left = replace(following, runs=[*page.runs, *following.runs]), left - 1 if following.cursor else 0
    return page


def _list_runs(context: CommandContext) -> int:
    page = _page(context)
    if context.arguments.dialect is not None:
        return print_runs(context, page.runs)
    code = context.answer_list(Verbs.runs, page.runs, views.run_table, "No runs.", page=page)
    if page.looked_at is not None:
        context.output.note(f"This is all as far as {views.moment(page.looked_at)}.")
    return code


def _watch_runs(context: CommandContext) -> int:
    def drawn() -> RenderableType:
        height = max(1, context.output.console.height - 2)
        return views.run_table(_page(context).runs[:height], context.clock.now())

    with Live(drawn(), console=context.output.console, screen=True, auto_refresh=False) as live:
        while context.output.seen:  # a terminal can be closed without a word
            context.pause(REDRAW_EVERY)
            live.update(drawn(), refresh=True)
    raise BrokenPipeError


# show, logs, why


def _chosen(context: CommandContext) -> Run:
    """The run that the command names, or the newest."""
    if not context.arguments.last:
        return context.call(Verbs.get, context.arguments.id)
    newest = context.call(Verbs.runs, count=1).runs
    if not newest:
        raise NotFound("There are no runs.", hint="Create one: windlass enqueue NAME")
    return newest[0]


def _detail(context: CommandContext, run: Run) -> RunDetail:
    """The run as it is now, with its origin."""
    return run_sync(context.verbs.detail(run.id))


def _lines(
    context: CommandContext, run_id: str, after: tuple[int, int] = (0, 0), *, attempt: int | None = None, last: int | None = None
) -> Iterator[LogLine]:
    """The log of a run, or of one attempt, from a place on, read in pages; or its last lines."""
    if last is not None:
        yield from context.call(Verbs.lines, run_id, attempt=attempt, after=after, last=last)
        return
    while page := context.call(Verbs.lines, run_id, attempt=attempt, after=after, count=PAGE):
        yield from page
        after = (page[-1].attempt, page[-1].n)


@COMMANDS.add(
    "show",
    ONE_RUN,
    option("--tail", type=count, default=10, metavar="N", help="the number of log lines, the last ones (default: 10)"),
    AS,
    topic=LOOK,
    meant_by=("get", "describe", "inspect", "status", "info", "result"),
    examples="windlass show ID\nwindlass show --last\nwindlass show ID --json",
)
def show(context: CommandContext) -> int:
    """Show a run with its attempts, history and log."""
    run = _chosen(context)
    if context.arguments.dialect is not None:
        return print_run(context, run)
    detail = _detail(context, run)
    attempts, history = context.call(Verbs.attempts, run.id), context.call(Verbs.history, run.id)
    steps, tail = context.call(Verbs.steps, run.id), list(_lines(context, run.id, last=context.arguments.tail))
    if context.output.json:
        events, lines = plain(Verbs.history, history)["events"], plain(Verbs.lines, tail)["lines"]
        parts = plain(Verbs.attempts, attempts) | plain(Verbs.steps, steps)
        context.output.document(plain(Verbs.get, detail) | parts | {"history": events, "log": lines})
        return OK
    now = context.clock.now()
    sections: list[tuple[str, RenderableType]] = [("", views.run_facts(detail, now, drawn=context.output.seen))]
    if run.error:
        sections.append(("Error", views.failure_text(run.error)))
    if run.claimed_at is not None or run.attempt > 1:
        sections.append(("Attempts", views.attempt_table(attempts, now)))
    if steps:
        sections.append(("Steps", views.step_table(steps)))
    sections.append(("History", views.history_table(history)))
    if tail:
        sections.append(("Log", Group(*(views.log_text(log) for log in tail))))
    for title, body in sections:
        if title:
            context.output.console.print(Text(f"\n{title}", style="bold"))
        context.output.console.print(body)
    return OK


@COMMANDS.add(
    "logs",
    ONE_RUN,
    option("-f", "--follow", action="store_true", help="continue until the run has ended; the exit code tells how it ended"),
    option("--attempt", type=count, metavar="N", help="only lines of the N-th attempt"),
    option("--tail", type=count, metavar="N", help="begin with the last N lines (default: all)"),
    topic=LOOK,
    meant_by=("tail",),
    examples="windlass logs ID\nwindlass logs ID --attempt 1 --tail 20\nwindlass logs ID --follow\nwindlass logs --last -f --json",
)
def logs(context: CommandContext) -> int:
    """Print the log of a run."""
    run = _chosen(context)
    if context.arguments.follow:
        return _follow(context, run)
    tail = list(_lines(context, run.id, attempt=context.arguments.attempt, last=context.arguments.tail))
    if context.output.json:
        context.output.document({"run": run.id} | plain(Verbs.lines, tail))
        return OK
    for log in tail:
        _print_line(context, log)
    return OK


def _print_line(context: CommandContext, log: LogLine) -> None:
    if context.output.json:
        context.output.document(to_plain(LINE.show(log)))
    else:
        context.output.console.print(views.log_text(log), soft_wrap=True)


def _follow(context: CommandContext, run: Run) -> int:
    after, attempt, tail = (0, 0), context.arguments.attempt, context.arguments.tail
    while True:
        ended = run.state in ENDED  # read before the lines: an ended run gets no more of them
        for log in _lines(context, run.id, after, attempt=attempt, last=tail):
            _print_line(context, log)
            after = (log.attempt, log.n)
        if ended:
            return _verdict(context, run)
        tail = None
        context.pause(POLL_EVERY)
        run = context.call(Verbs.get, run.id)


@COMMANDS.add("why", ONE_RUN, topic=LOOK, meant_by=("explain",), examples="windlass why ID\nwindlass why --last")
def why(context: CommandContext) -> int:
    """Explain why a run is not executed now."""
    run = _chosen(context)
    reasons = context.call(Verbs.why, run.id)
    if context.output.json:
        context.output.document({"run": run.id, "state": run.state} | plain(Verbs.why, reasons))
        return OK
    if not reasons:
        context.output.raw("Nothing holds it back: a worker can take it now.")
    for reason in reasons:
        context.output.raw(line(_in_words(reason, context.clock.now())))
    return OK


def _in_words(reason: Reason, now: int) -> str:
    """A reason with its times as local times."""
    match reason.code, reason.data:
        case "not_due", {"due_at": int(at)}:
            return f"It is due {views.ago(at, now)}, at {views.moment(at)}."
        case "rate", {"until": int(at), "resource": resource, "key": key}:
            what = resource if key is None else f"{resource} for {key}"
            return f"The rate of {what} lets the next one in {views.ago(at, now)}, at {views.moment(at)}."
        case _:
            return reason.text


# cancel, move, rerun


@COMMANDS.add(
    "cancel",
    ID,
    option("--reason", help="the reason, which is stored with the run"),
    topic=CHANGE,
    meant_by=("kill", "stop", "abort", "delete", "remove", "revoke", "rm"),
    examples="windlass cancel ID\nwindlass cancel ID --reason 'ordered twice'",
)
def cancel(context: CommandContext) -> int:
    """Cancel a run that waits, or stop one that runs."""
    id = context.arguments.id
    run = context.call(Verbs.cancel, id, reason=context.arguments.reason, by=actor())
    return context.answer(Verbs.cancel, run, run.state + ("" if run.state in ENDED else ": its worker is asked to stop"))


@COMMANDS.add(
    "move",
    ID,
    one_of(
        option("--top", dest="to", action="store_const", const="top", help="before all queued runs"),
        option("--bottom", dest="to", action="store_const", const="bottom", help="after all queued runs"),
        option("--before", metavar="OTHER", help="directly before another run of its queue"),
        option("--after", metavar="OTHER", help="directly after another run of its queue"),
        option("--place", type=number(0, DEEPEST), metavar="N", help="after N other runs; 0 is the head"),
        required=True,
    ),
    topic=CHANGE,
    meant_by=("reorder",),
    examples="windlass move ID --top\nwindlass move ID --before OTHER\nwindlass move ID --place 3",
)
def move(context: CommandContext) -> int:
    """Move a queued run to another place in its queue."""
    arguments = context.arguments
    where = {"place": arguments.place, "to": arguments.to, "before": arguments.before, "after": arguments.after}
    run = context.call(Verbs.move, arguments.id, **where, by=actor())
    return context.answer(Verbs.move, run, f"{run.state} in {run.queue}, priority {run.priority}")


@COMMANDS.add(
    "rerun",
    ID,
    option("--attempt", type=count, metavar="N", help="the N-th attempt, with the payload that it ran with"),
    topic=CHANGE,
    meant_by=("retry", "restart", "redo", "replay", "requeue"),
    examples="windlass rerun ID\nwindlass rerun ID --attempt 1",
)
def rerun(context: CommandContext) -> int:
    """Create a new run from an ended one, and print its id."""
    return print_created(context, context.call(Verbs.rerun, context.arguments.id, attempt=context.arguments.attempt))
