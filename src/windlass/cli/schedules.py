"""The commands about schedules."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.table import Table
from rich.text import Text

from windlass import cron, payload
from windlass.api.codec import View
from windlass.api.values import to_rfc3339
from windlass.api.verbs import Verbs
from windlass.api.views import PREVIEW
from windlass.cli import views
from windlass.cli.codes import OK
from windlass.cli.documents import plain, to_plain
from windlass.cli.output import cell, line, table
from windlass.cli.shell import Shell
from windlass.engine.schedules import Preview, described, edited
from windlass.errors import BadInput, NotFound
from windlass.firing import Fire, Skip, rule_of
from windlass.model import Limits, Schedule
from windlass.store.base import run_sync

WORDS = ("cron", "every", "at", "zone", "missed", "most", "max_age", "overlap", "jitter", "enabled", "job")
KINDS = {"cron": "cron", "every": "interval", "at": "once"}
CHANGE_OF_THE_CLOCK = "the clock is changed on this day"
AT_ONCE = "these are made one right after the other"
OVERLAPS = {
    "allow": "each is made, whether or not the runs before it have ended",
    "skip": f"{AT_ONCE}, and each is skipped while a run before it has not ended",
    "queue": f"{AT_ONCE}; while a run has not ended, the next one waits for it, and those after that are skipped",
    "cancel": f"{AT_ONCE}, and each cancels those before it that have not ended",
}
"""What becomes of what is caught up, as far as it depends on how long runs take."""

SKIP = View(Skip, "Skip", "Instants that a downtime would skip.")


def words_of(shell: Shell) -> dict[str, Any]:
    """What the command line says of a schedule, and nothing that it leaves out."""
    given = vars(shell.arguments)
    said = {word: given[word] for word in WORDS if word in given}
    return said | {"payload": _payload(given["overrides"])} if "overrides" in given else said


def _payload(text: str) -> dict[str, Any]:
    value = payload.parse(text, most=Limits().payload, what="The payload")
    if not isinstance(value, dict):
        raise BadInput("The payload of a schedule must be a JSON object.", hint="""Write it as '{"to": "ann"}'.""")
    return value


# add, set, enable, disable, remove


def add(shell: Shell) -> int:
    """Store a schedule; a key that is there already is given these words, or with --new is refused."""
    words, key = words_of(shell), shell.arguments.key
    with shell.engine() as engine:
        acting = shell.act(engine, "schedule", f"schedule {key}")
        made = run_sync(acting.schedule(key, words.pop("job"), new=shell.arguments.new, **words))
        _warn_of_unknown_job(shell, engine, made.job)
    return _tell(shell, made)


def _warn_of_unknown_job(shell: Shell, engine: Verbs, name: str) -> None:
    try:
        run_sync(engine.get_job(name))
    except NotFound:
        near = difflib.get_close_matches(name, [job.name for job in run_sync(engine.jobs(count=Limits().page))], n=1)
        meant = f" Did you mean {near[0]}?" if near else ""
        shell.output.note(f"There is no job {name!r} yet; its runs will wait until there is.{meant}", style="yellow")


def change(shell: Shell) -> int:
    """Change what is said of a schedule, and leave the rest."""
    words = words_of(shell)
    for word in KINDS.keys() & words.keys():
        words |= {"kind": KINDS[word], "expr": words.pop(word)}
    if not words:
        raise BadInput("There is nothing to set.", hint="`windlass schedules set --help` lists what can be said.")
    return _edit(shell, words)


def enable(shell: Shell) -> int:
    """Let a schedule fire again, from its next instant on."""
    return _edit(shell, {"enabled": True})


def disable(shell: Shell) -> int:
    """Keep a schedule from firing, until it is enabled."""
    return _edit(shell, {"enabled": False})


def _edit(shell: Shell, words: Mapping[str, Any]) -> int:
    key = shell.arguments.key
    with shell.engine() as engine:
        made = run_sync(shell.act(engine, "edit", f"schedule {key}").set_schedule(key, **words))
        if "job" in words:
            _warn_of_unknown_job(shell, engine, made.job)
    return _tell(shell, made)


def _tell(shell: Shell, schedule: Schedule) -> int:
    coming = _next(schedule, shell.clock.now()) or "never again" if schedule.enabled else "not while it is disabled"
    return shell.answer(Verbs.get_schedule, schedule, line(f"{schedule.key}: {described(schedule)}; next: {coming}"))


def remove(shell: Shell) -> int:
    """Forget a schedule; its runs stay."""
    with shell.engine() as engine:
        seen = run_sync(engine.get_schedule(shell.arguments.key))
        run_sync(shell.act(engine, "remove", f"schedule {seen.key}").remove_schedule(seen.key))
    shell.answer(Verbs.remove_schedule, None, line(f"{seen.key} is removed; its runs stay."))
    if seen.said is not None:
        shell.output.note(
            "Code defines it: the next worker that starts makes it again. To keep it off, disable it instead.", style="yellow"
        )
    return OK


def trigger(shell: Shell) -> int:
    """Make a run of a schedule now, and print its id; its instants stay as they are."""
    key = shell.arguments.key
    with shell.engine() as engine:
        made = run_sync(shell.act(engine, "trigger", f"schedule {key}").trigger(key))
    return shell.answer(Verbs.trigger, made, made.id)


# list, skips


def list_all(shell: Shell) -> int:
    """List the schedules by key."""
    with shell.engine() as engine:
        found = run_sync(engine.schedules(after=shell.arguments.after, count=shell.arguments.limit))
    return shell.answer_list(Verbs.schedules, found, schedule_table, "No schedules.")


def skips(shell: Shell) -> int:
    """List what was due and did not become a run, latest first."""
    with shell.engine() as engine:
        schedule = run_sync(engine.get_schedule(shell.arguments.key))
        found = run_sync(engine.skips(schedule.key, count=shell.arguments.limit))
    if shell.output.json:
        shell.output.document({"key": schedule.key} | plain(Verbs.skips, found))
        return OK
    if not found:
        shell.output.note("Nothing was skipped.")
        return OK
    made = table("number", "first due", "last due", "reason", "noticed")
    now = shell.clock.now()
    for skip in found:
        due = (_local(schedule, skip.first_at), _local(schedule, skip.last_at))
        made.add_row(f"{skip.number:,}", *due, cell(skip.reason), views.ago(skip.at, now))
    shell.output.console.print(made)
    return OK


# preview


def preview(shell: Shell) -> int:
    """Show the coming instants of a schedule, and what a downtime would do to it."""
    given = shell.arguments
    with shell.engine() as engine:
        schedule = run_sync(engine.get_schedule(given.key))
        coming = run_sync(engine.preview(schedule.key, start=given.start, count=given.count))
        fire = run_sync(engine.outage(schedule.key, *given.down)) if given.down else None
    if shell.output.json:
        downtime = None if fire is None else _downtime(schedule, fire, given.down, given.count)
        instants = [PREVIEW.show(instant) for instant in coming]
        shell.output.document(to_plain({"key": schedule.key, "in_words": described(schedule), "next": instants, "downtime": downtime}))
        return OK
    shell.output.raw(line(f"{schedule.key}: {described(schedule)}"))
    if not schedule.enabled:
        shell.output.note("It is disabled: nothing of this happens until it is enabled.", style="yellow")
    if coming:
        shell.output.console.print(_coming_table(coming, shell.clock.now()))
    else:
        shell.output.raw("Nothing is due any more.")
    if fire is not None:
        _tell_downtime(shell, schedule, fire)
    return OK


def _coming_table(coming: Sequence[Preview], now: int) -> Table:
    changes = any(instant.clock_changes for instant in coming)
    made = table("local", "UTC", "when", *[""] * changes, folded=("",))
    for instant in coming:
        mark = [Text(CHANGE_OF_THE_CLOCK if instant.clock_changes else "", style="yellow")] * changes
        made.add_row(_spaced(instant.local), _utc(instant.at), views.ago(instant.at, now), *mark)
    return made


def _caught_up(schedule: Schedule, fire: Fire, end: int, most: int) -> tuple[list[int], int]:
    """The first runs that are made after a downtime, and how many there are. They have no gap: what is skipped lies before them."""
    return ([], 0) if fire.due_at is None else cron.between(rule_of(schedule), fire.due_at - 1, end, schedule.anchor, most)


def _downtime(schedule: Schedule, fire: Fire, down: tuple[int, int], most: int) -> dict[str, Any]:
    start, end = down
    first, number = _caught_up(schedule, fire, end, most)
    return {
        "from": to_rfc3339(start),
        "to": to_rfc3339(end),
        "missed": schedule.missed,
        "overlap": schedule.overlap,
        "overlap_means": OVERLAPS[schedule.overlap],
        "caught_up": {"number": number, "first": [to_rfc3339(at) for at in first]},
        "skipped": [SKIP.show(skip) for skip in fire.skips],
    }


def _tell_downtime(shell: Shell, schedule: Schedule, fire: Fire) -> None:
    start, end = shell.arguments.down
    head = f"Down from {_local(schedule, start)} to {_local(schedule, end)}, missed = {schedule.missed}, overlap = {schedule.overlap}"
    shell.output.console.print(Text(f"\n{line(head)}", style="bold"))
    for skip in fire.skips:
        shell.output.raw(f"skipped    {_range(schedule, skip.number, skip.first_at, skip.last_at)}")
    first, number = _caught_up(schedule, fire, end, shell.arguments.count)
    for at in first:
        shell.output.raw(f"caught up  {_local(schedule, at)}")
    if number > len(first):
        shell.output.raw(f"caught up  {number - len(first):,} more")
    if number and schedule.overlap != "allow":
        shell.output.raw(f"overlap    {OVERLAPS[schedule.overlap]}")
    if not number and not fire.skips:
        shell.output.raw("Nothing would have been due.")


def _range(schedule: Schedule, number: int, first: int, last: int) -> str:
    return _local(schedule, first) if number == 1 else f"{number:,}, from {_local(schedule, first)} to {_local(schedule, last)}"


# How they look


def schedule_table(schedules: Sequence[Schedule], now: int) -> Table:
    """A line for each schedule."""
    headers = ("key", "job", "rule", "zone", "next", "last", "fired", "skipped", "state")
    made = table(*headers, cut=("key", "job", "rule", "zone", "next"), folded=("state",))
    for schedule in schedules:
        texts = (schedule.key, schedule.job, _rule(schedule), schedule.zone, _next(schedule, now))
        last = "" if schedule.last_at is None else views.ago(schedule.last_at, now)
        made.add_row(*map(cell, texts), last, f"{schedule.fired:,}", f"{schedule.skipped:,}", _state(schedule))
    return made


def _rule(schedule: Schedule) -> str:
    return {"cron": "", "interval": "every ", "once": "at "}[schedule.kind] + schedule.expr


def _state(schedule: Schedule) -> Text:
    """Whether it can fire, and whose word counts."""
    word, style = ("disabled", "yellow") if not schedule.enabled else ("over", "dim") if schedule.next_at is None else ("enabled", "green")
    source = "" if schedule.said is None else ", edited" if edited(schedule) else ", by code"
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
