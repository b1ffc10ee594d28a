"""The commands about runs."""

from __future__ import annotations

import difflib
import re
import sys
from argparse import Namespace
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from windlass import payload
from windlass.api.verbs import Verbs
from windlass.api.views import LINE
from windlass.cli import views
from windlass.cli.codes import FAILED, OK, TIMED_OUT
from windlass.cli.documents import plain, to_plain
from windlass.cli.output import as_json, cell, line, table
from windlass.cli.shell import Shell, who
from windlass.engine import Page, Reason, fits
from windlass.engine.core import DEFAULT_ATTEMPTS, DEFAULT_QUEUE
from windlass.errors import BadInput, NotFound, UnknownJob
from windlass.machine import ENDED
from windlass.model import Created, Job, Key, Limits, LogLine, NewRun, Options, Run, Solver, State
from windlass.store.base import run_sync

MOST = Limits().payload
PAGE = Limits().page
LOOK_EVERY = 0.2  # seconds between two looks at a run that somebody waits for
REDRAW_EVERY = 1.0

_PAIR = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]*)=(.*)", re.S)


# enqueue


def payload_of(words: list[str]) -> Any:
    """The payload that the words of a command line say: one JSON text, "-" for standard input, or key=value pairs."""
    if not words:
        return None
    if words == ["-"]:
        return payload.parse(sys.stdin.buffer.read(MOST + 1), most=MOST, what="Standard input")
    if len(words) == 1 and not _PAIR.fullmatch(words[0]):
        return payload.parse(words[0], most=MOST)
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
        return payload.parse(text, most=MOST)
    except BadInput:
        return text  # 0123, 1.2.3 and hello are texts; "123" in quotes is one too


def enqueue(shell: Shell) -> int:
    """Make a run; with --wait, wait for its end."""
    given = shell.arguments
    new = NewRun(
        given.job,
        payload_of(given.payload),
        Options(queue=given.queue, priority=given.priority, max_attempts=given.max_attempts, keep=given.keep, solver=_solver(given)),
        due_at=shell.clock.now() + given.delay if given.delay is not None else given.at,
        key=Key(given.key) if given.key else None,
        after=tuple(given.after or ()),
    )
    undefined: Literal["refuse", "wait"] = given.undefined
    with shell.engine() as engine:
        try:
            [made] = run_sync(engine.create([new], undefined=undefined))
        except UnknownJob as error:
            raise _no_such_job(engine, new.job, error) from error
        return _wait(shell, engine, made) if given.wait else _tell_created(shell, made)


def _solver(given: Namespace) -> Solver | None:
    if (given.solver_url is None) != (given.solver_checksum is None):
        raise BadInput("A solver has a URL and a checksum.", hint="Give both --solver-url and --solver-checksum.")
    return None if given.solver_url is None else Solver(given.solver_url, given.solver_checksum)


def _no_such_job(engine: Verbs, name: str, error: UnknownJob) -> UnknownJob:
    """The same error with what helps at a command line."""
    near = difflib.get_close_matches(name, [job.name for job in run_sync(engine.jobs(count=PAGE))], n=1)
    hint = f"Did you mean {near[0]}?" if near else "`windlass jobs` lists those there are; --undefined wait lets the run wait for its job."
    return UnknownJob(error.message, hint=hint)


def _tell_created(shell: Shell, made: Created) -> int:
    if not made.created:
        shell.output.note("Nothing was made: this run has the key.")
    return shell.answer(Verbs.rerun, made, made.id)


def _wait(shell: Shell, engine: Verbs, made: Created) -> int:
    shell.output.note(f"Waiting for run {made.id}; it goes on without you (windlass show {made.id}).")
    run = _ended(shell, engine, made.id, shell.arguments.timeout)
    if shell.output.json:
        shell.output.document(plain(Verbs.get, run))
    elif run.state is State.SUCCEEDED:
        shell.output.document(views.opened(run.output))
    return _verdict(shell, run)


def _ended(shell: Shell, engine: Verbs, run_id: str, timeout: int | None) -> Run:
    """The run once it has ended, or as it is when the time is over."""
    until = None if timeout is None else shell.clock.monotonic() + timeout
    while (run := run_sync(engine.get(run_id))).state not in ENDED:
        left = LOOK_EVERY if until is None else (until - shell.clock.monotonic()) / 1000
        if left <= 0:
            break
        shell.pause(min(LOOK_EVERY, left))
    return run


def _verdict(shell: Shell, run: Run) -> int:
    """The exit code for how a run has ended, said in words too."""
    if run.state is State.SUCCEEDED:
        return OK
    if run.state not in ENDED:
        shell.output.note(f"Run {run.id} has not ended yet: it is {run.state}.")
        return TIMED_OUT
    because = f"{run.error.code}: {run.error.message}" if run.error else run.reason
    shell.output.note(f"{run.state}: {because}" if because else run.state, style=views.STYLES[run.state])
    return FAILED


# runs


def runs(shell: Shell) -> int:
    """List runs, once or again and again."""
    if shell.arguments.watch and (shell.output.json or not shell.output.seen):
        raise BadInput("--watch draws on a terminal.", hint="Leave it out, and call `windlass runs --json` as often as you need.")
    with shell.engine() as engine:
        return _watch_runs(shell, engine) if shell.arguments.watch else _list_runs(shell, engine)


def _page(shell: Shell, engine: Verbs) -> Page:
    given = shell.arguments
    return run_sync(engine.runs(job=given.job, queue=given.queue, state=given.state, cursor=given.cursor, count=given.limit))


def _list_runs(shell: Shell, engine: Verbs) -> int:
    page = _page(shell, engine)
    shell.answer_list(Verbs.runs, page.runs, views.run_table, "No runs.", page=page)
    if page.cursor:
        shell.output.note(f"There are more: add --cursor {page.cursor}")
    return OK


def _watch_runs(shell: Shell, engine: Verbs) -> int:
    def drawn() -> RenderableType:
        height = max(1, shell.output.console.height - 2)
        return views.run_table(_page(shell, engine).runs[:height], shell.clock.now())

    with Live(drawn(), console=shell.output.console, screen=True, auto_refresh=False) as live:
        while shell.output.seen:  # a terminal can be closed without a word
            shell.pause(REDRAW_EVERY)
            live.update(drawn(), refresh=True)
    raise BrokenPipeError


# show, logs, why


def _chosen(shell: Shell, engine: Verbs) -> Run:
    """The run that the command names, or the newest."""
    if not shell.arguments.last:
        return run_sync(engine.get(shell.arguments.id))
    newest = run_sync(engine.runs(count=1)).runs
    if not newest:
        raise NotFound("There are no runs.", hint="Make one: windlass enqueue NAME")
    return newest[0]


def _lines(engine: Verbs, run_id: str, after: tuple[int, int] = (0, 0)) -> Iterator[LogLine]:
    """The log of a run from a place on, read in pages."""
    while page := run_sync(engine.lines(run_id, after=after, count=PAGE)):
        yield from page
        after = (page[-1].attempt, page[-1].n)


def show(shell: Shell) -> int:
    """Show everything that is known of a run."""
    with shell.engine() as engine:
        run = _chosen(shell, engine)
        attempts, history = run_sync(engine.attempts(run.id)), run_sync(engine.history(run.id))
        tail = list(deque(_lines(engine, run.id), maxlen=shell.arguments.tail))
    if shell.output.json:
        events, lines = plain(Verbs.history, history)["events"], plain(Verbs.lines, tail)["lines"]
        shell.output.document(plain(Verbs.get, run) | plain(Verbs.attempts, attempts) | {"history": events, "log": lines})
        return OK
    now = shell.clock.now()
    sections: list[tuple[str, RenderableType]] = [("", views.run_facts(run, now, drawn=shell.output.seen))]
    if run.error:
        sections.append(("Error", views.failure_text(run.error)))
    if run.claimed_at is not None or run.attempt > 1:
        sections.append(("Attempts", views.attempt_table(attempts, now)))
    sections.append(("History", views.history_table(history)))
    if tail:
        sections.append(("Log", Group(*(views.log_text(log) for log in tail))))
    for title, body in sections:
        if title:
            shell.output.console.print(Text(f"\n{title}", style="bold"))
        shell.output.console.print(body)
    return OK


def logs(shell: Shell) -> int:
    """The log of a run; with -f until it has ended, and the exit code says how."""
    with shell.engine() as engine:
        run = _chosen(shell, engine)
        if shell.arguments.follow:
            return _follow(shell, engine, run)
        found = list(deque(_lines(engine, run.id), maxlen=shell.arguments.tail))
    if shell.output.json:
        shell.output.document({"run": run.id} | plain(Verbs.lines, found))
        return OK
    for log in found:
        _print_line(shell, log)
    return OK


def _print_line(shell: Shell, log: LogLine) -> None:
    if shell.output.json:
        shell.output.document(to_plain(LINE.show(log)))
    else:
        shell.output.console.print(views.log_text(log), soft_wrap=True)


def _follow(shell: Shell, engine: Verbs, run: Run) -> int:
    after, tail = (0, 0), shell.arguments.tail
    while True:
        ended = run.state in ENDED  # looked at before the lines: an ended run gets no more of them
        for log in deque(_lines(engine, run.id, after), maxlen=tail):
            _print_line(shell, log)
            after = (log.attempt, log.n)
        if ended:
            return _verdict(shell, run)
        tail = None
        shell.pause(LOOK_EVERY)
        run = run_sync(engine.get(run.id))


def why(shell: Shell) -> int:
    """What holds a run back."""
    with shell.engine() as engine:
        run = _chosen(shell, engine)
        reasons = run_sync(engine.why(run.id))
    if shell.output.json:
        shell.output.document({"run": run.id, "state": run.state} | plain(Verbs.why, reasons))
        return OK
    if not reasons:
        shell.output.raw("Nothing holds it back: a worker can take it now.")
    for reason in reasons:
        shell.output.raw(line(_in_words(reason, shell.clock.now())))
    return OK


def _in_words(reason: Reason, now: int) -> str:
    """A reason with its times on the reader's own clock."""
    match reason.code, reason.data:
        case "not_due", {"due_at": int(at)}:
            return f"It is due {views.ago(at, now)}, at {views.moment(at)}."
        case "rate", {"until": int(at), "resource": resource, "key": key}:
            what = resource if key is None else f"{resource} for {key}"
            return f"The rate of {what} lets the next one in {views.ago(at, now)}, at {views.moment(at)}."
        case _:
            return reason.text


# cancel, rerun


def cancel(shell: Shell) -> int:
    """Cancel a run, or ask the worker that has it to stop."""
    id = shell.arguments.id
    with shell.engine() as engine:
        run = run_sync(shell.act(engine, "cancel", f"run {id}").cancel(id, reason=shell.arguments.reason, by=who()))
    return shell.answer(Verbs.cancel, run, run.state + ("" if run.state in ENDED else ": its worker is asked to stop"))


def rerun(shell: Shell) -> int:
    """Make a new run from an ended one."""
    id = shell.arguments.id
    with shell.engine() as engine:
        return _tell_created(shell, run_sync(shell.act(engine, "rerun", f"run {id}").rerun(id)))


# jobs


def jobs(shell: Shell) -> int:
    """List the jobs that are defined."""
    with shell.engine() as engine:
        found = run_sync(engine.jobs(after=shell.arguments.after, count=shell.arguments.limit))
    return shell.answer_list(Verbs.jobs, found, _jobs, "No jobs.")


def _jobs(found: Sequence[Job], _: int) -> Table:
    made = table("job", "queue", "tries", "handler", cut=("job", "queue", "handler"))
    for job in found:
        handler = cell(job.handler) if job.handler else cell("not defined yet", style="yellow")
        tries = str(job.options.max_attempts or DEFAULT_ATTEMPTS)
        made.add_row(cell(job.name), cell(job.options.queue or DEFAULT_QUEUE), tries, handler)
    return made


def show_job(shell: Shell) -> int:
    """Show a definition, and what the job takes."""
    with shell.engine() as engine:
        job = run_sync(engine.get_job(shell.arguments.name))
    if shell.output.json:
        shell.output.document(plain(Verbs.get_job, job))
        return OK
    shell.output.raw(line(f"{job.name}: {job.handler or 'not defined yet'}, in queue {job.options.queue or DEFAULT_QUEUE}"))
    shell.output.raw(line(fits.takes(job.takes) if job.takes is not None else "What it takes is not known."))
    if job.payload:
        shell.output.raw(line(f"What is left out: {as_json(job.payload)}"))
    return OK
