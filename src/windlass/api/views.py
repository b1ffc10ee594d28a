"""The views of all records of the HTTP interface."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from windlass.answers import Holder, Minute, Occupants, Preview, Reason, ResourceState, Retention, RetentionSetting, RunDetail, Stats
from windlass.api.codec import JSON, Added, Form, View, instant
from windlass.api.values import from_rfc3339, to_raw, to_rfc3339, to_text
from windlass.egress import parse
from windlass.firing import described, edited, fingerprint
from windlass.limiters import limiter_key, parts_of
from windlass.machine import ENDED, MOVES, Cancel, Command, Patch, Reorder
from windlass.model import (
    FOREVER,
    Attempt,
    AuditEntry,
    Delivery,
    Entry,
    Failure,
    Group,
    JobRecord,
    Keep,
    Lane,
    Listed,
    LogLine,
    Pause,
    Refusals,
    Result,
    Run,
    Schedule,
    Secret,
    Skipped,
    Slot,
    State,
    Step,
    Token,
    Webhook,
    WorkerRecord,
    kept,
)

# Runs

_EDITS: dict[str, type[Command]] = {"cancel": Cancel, "patch": Patch, "move": Reorder}
_ACTIONS: dict[State, tuple[str, ...]] = {
    state: (*(name for name, edit in _EDITS.items() if edit in moves), *(("rerun",) if state in ENDED else ()))
    for state, moves in MOVES.items()
}


def _negative(number: int) -> int:
    return -number


def _sizes(run: Run) -> dict[str, int]:
    return run.sizes if isinstance(run, Listed) else {}


def _finish_run(run: Run, view: Any) -> Run:
    first = None if view.attempt_id == run.id else view.attempt_id  # the first attempt has the run's own id
    run = replace(run, payload=run.payload or "null", attempt_id=first)
    return Listed.of(run, view.sizes) if view.sizes else run


REFUSALS = View(
    Refusals,
    "RefusalsView",
    "A payload that does not fit the code of workers: which fingerprints, how often in a row, and since when.",
    forms={"since": instant("since")},
    optional=("worker",),
    omit_defaults=True,
)
FAILURE = View(
    Failure,
    "FailureView",
    "Why an attempt did not succeed.",
    forms={"refused": REFUSALS.as_form()},
    optional=("detail", "refused"),
    omit_defaults=True,
)

_OF_RUNS: dict[str, Any] = {
    "hidden": {
        "seq": 0, "lane": 0, "position": 0, "attempt_id": None, "token": None, "slot": None, "lease": None,
        "lease_until": None, "lease_check_at": None, "output_hash": None, "output_key": None, "schedule": None, "keys": None,
        "parked": None, "aging_priority": None, "grouped": None,
    },
    "renamed": {"priority_key": "priority"},
    "forms": {
        "payload": JSON,
        "output": JSON,
        "progress": JSON,
        "meta": Form(dict[str, Any], to_raw, to_text),
        "instant": instant("instant"),
        "error": FAILURE.as_form(),
        "priority_key": Form(int, _negative, _negative),
        "keep": Form(Keep, kept, lambda keep: FOREVER if keep == "forever" else keep),
    },
    "added": {
        "attempt_id": Added(str, lambda run: run.current_attempt),
        "scheduled_for": Added(str, lambda run: to_rfc3339(run.scheduled_for)),  # the instant of its schedule; otherwise when it is due
        "actions": Added(tuple[str, ...], lambda run: _ACTIONS[run.state], ()),
        "left_out": Added(tuple[str, ...], lambda run: tuple(_sizes(run)), ()),  # too large for a list; fetch the run itself
        "sizes": Added(dict[str, int], _sizes, {}),  # of members that a list leaves out, in bytes
    },
    "finish": _finish_run,
}  # fmt: skip
RUN = View(Run, "RunView", "A run, without its lease and its place in the queue.", **_OF_RUNS)
RUN_DETAIL = View(
    RunDetail,
    "RunDetailView",
    "A run, with the key of its schedule, the id of its group, its place in it, and how many of its queue and priority are ahead.",
    flat=("origin",),
    **_OF_RUNS,
)

ATTEMPT = View(
    Attempt,
    "AttemptView",
    "One execution of a run. It has a payload of its own if the run was patched since.",
    hidden={"run": "", "token": None},
    forms={"error": FAILURE.as_form(), "payload": JSON},
    optional=("payload",),
    omit_defaults=True,
)
RESULT = View(Result, "ResultView", "The result of a predecessor.", forms={"output": JSON})
STEP = View(Step, "StepView", "A completed step of a run.", forms={"output": JSON})
ENTRY = View(
    Entry,
    "Event",
    "One change of state, as streams, webhooks and histories show it.",
    hidden={"before": None, "before_at": None, "left": None},
    forms={"detail": Form(Any, msgspec.json.decode, to_text)},
    optional=("job", "queue", "worker", "detail"),
    omit_defaults=True,
)

PER_ATTEMPT = 100_000
"""Cursors of log lines count all attempts of a run in steps of this size, so that lines of the first keep their own numbers."""


def line_cursor(attempt: int, n: int) -> int:
    """The cursor of a line among all lines of its run; lines of the first attempt have their own numbers."""
    return (attempt - 1) * PER_ATTEMPT + n


def line_place(cursor: int) -> tuple[int, int]:
    """The attempt and the number of the line at a cursor."""
    return (cursor // PER_ATTEMPT + 1, cursor % PER_ATTEMPT) if cursor else (0, 0)


LINE = View(
    LogLine,
    "LineView",
    "A log line, and the cursor after it.",
    renamed={"text": "line"},
    added={"cursor": Added(int, lambda line: line_cursor(line.attempt, line.n))},
)


def _is_instant(name: str) -> bool:
    return name in ("at", "since", "until") or name.endswith(("_at", "_until"))


def _show_facts(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: to_rfc3339(value) if _is_instant(name) and isinstance(value, int) else value for name, value in facts.items()}


def _read_facts(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: from_rfc3339(value, name) if _is_instant(name) and isinstance(value, str) else value for name, value in facts.items()}


REASON = View(
    Reason,
    "Reason",
    "One reason that blocks a run, as text and as data.",
    forms={"data": Form(dict[str, Any], _show_facts, _read_facts)},
    optional=("data",),
)

GROUP = View(
    Group,
    "GroupView",
    "A group of runs.",
    hidden={"seq": 0},
    added={"actions": Added(tuple[str, ...], lambda group: ("cancel",) if group.finished_at is None else ("rerun",), ())},
)

# Jobs and schedules

JOB = View(JobRecord, "JobView", "A definition. A list leaves out `takes`, the JSON Schema of its arguments.", hidden={"id": 0})


def _finish_schedule(schedule: Schedule, view: Any) -> Schedule:
    if not view.by_code:
        return schedule
    return replace(schedule, code_hash="" if view.edited else fingerprint(schedule))


SCHEDULE = View(
    Schedule,
    "ScheduleView",
    "A rule that creates runs.",
    hidden={"id": 0, "code_hash": None},
    forms={"anchor": instant("anchor")},
    added={
        "by_code": Added(bool, lambda schedule: schedule.code_hash is not None),
        "edited": Added(bool, edited),
        "in_words": Added(str, described),
    },
    finish=_finish_schedule,
)
PREVIEW = View(Preview, "PreviewView", "One coming instant of a schedule, in UTC and on its own wall clock.")
SKIPPED = View(Skipped, "SkippedView", "Instants of a schedule that did not become runs.")

# Limits

PAUSE = View(Pause, "PauseView", "A pause of a queue, a job or the whole system: none of its runs are claimed.")
RESOURCE = View(ResourceState, "ResourceView", "A resource, and how much of it is occupied, over all of its keys.", flat=("resource",))
SLOT = View(
    Slot,
    "SlotView",
    "A direct call that waits for or holds a slot. Its token is shown to its owner only.",
    hidden={"key": "", "token": ""},
    renamed={"seq": "n"},  # a smaller one is served first
    forms={"lease_until": instant("lease_until")},
    added={
        "resource": Added(str, lambda slot: parts_of(slot.key)[0]),
        "key": Added(str | None, lambda slot: parts_of(slot.key)[1]),
        "token": Added(str | None, lambda slot: None, None),
    },
    omit_defaults=True,
    finish=lambda slot, view: replace(slot, key=limiter_key(view.resource, view.key), token=view.token or ""),
)
HOLDER = View(Holder, "HolderView", "A run that occupies some of a resource.")
OCCUPANTS = View(
    Occupants, "OccupantsView", "What occupies a resource, or one key of it.", forms={"runs": HOLDER.as_list(), "slots": SLOT.as_list()}
)
KEPT = View(
    RetentionSetting, "KeptView", "How long ended runs are kept, and where that comes from: the store, the hub's settings, or its defaults."
)
RETENTION = View(
    Retention,
    "RetentionView",
    "How long ended runs are kept that have no time of their own.",
    forms={"keep_succeeded": KEPT.as_form(), "keep_others": KEPT.as_form()},
)
LANE = View(
    Lane,
    "LaneView",
    "A set of runs that the same workers may take. `used_at` is exact to the day; `owner` is the principal that created it.",
    forms={"used_at": Form(str, lambda at: to_rfc3339(at) if at else None, lambda text: from_rfc3339(text, "used_at"))},
)

# Workers and counts

WORKER = View(
    WorkerRecord, "WorkerView", "A worker as it last registered, and what it holds now.", flat=("info",), optional=("stopped_at",)
)
MINUTE = View(Minute, "MinuteView", "The counts of the minute that begins then.")
STATS = View(
    Stats,
    "StatsView",
    "How many runs there are in each state, or have ever ended in it; and the counts by minute, and by job and queue.",
    forms={"minutes": MINUTE.as_list()},
)

# Access and webhooks

TOKEN = View(Token, "TokenView", "A token; nothing of its secret.", hidden={"hash": "", "ttl": None})
AUDITED = View(AuditEntry, "AuditView", "One audited action and its actor.")
DELIVERY = View(
    Delivery,
    "DeliveryView",
    "One change, sent to an endpoint, or to an address that its run names, whose path is not shown. Its id is the same in every attempt.",
    hidden={"seq": 0, "token": None},
    renamed={"url": "origin"},
    forms={"url": Form(str, lambda url: parse(url).origin, str)},
    optional=("origin",),
    omit_defaults=True,
)


def _finish_webhook(webhook: Webhook, view: Any) -> Webhook:
    paused_until = 0 if view.paused_until is None else from_rfc3339(view.paused_until, "paused_until")
    return replace(webhook, paused_until=paused_until, secrets=(Secret(""),) * view.secrets)  # secrets are never returned


WEBHOOK = View(
    Webhook,
    "WebhookView",
    "An endpoint that changes are sent to, without its secrets.",
    hidden={"secrets": (), "paused_until": 0, "begins": "", "rev": 0, "origin": None},
    added={
        "paused_until": Added(str | None, lambda webhook: to_rfc3339(webhook.paused_until) if webhook.paused_until else None),
        "secrets": Added(int, lambda webhook: len(webhook.secrets)),
    },
    finish=_finish_webhook,
)


def made_webhook(answer: Any) -> Webhook:
    """An endpoint that was just created, with its secret."""
    webhook = WEBHOOK.read(answer.webhook)
    return replace(webhook, secrets=(Secret(answer.secret), *webhook.secrets[1:]))
