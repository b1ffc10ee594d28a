"""Request bodies, parsed strictly. Durations are milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_type_hints

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from windlass.api.values import from_rfc3339
from windlass.defaults import MAX_WAIT, SCHEDULE_EDITABLE, SECRET_OVERLAP, SLOT_LEASE, TOKEN_OVERLAP, WEBHOOK_EDITABLE
from windlass.errors import BadInput
from windlass.model import (
    STANDARD,
    GroupKind,
    Keep,
    Key,
    Member,
    Missed,
    NewGroup,
    NewRun,
    Notify,
    OnFailure,
    Options,
    Overlap,
    PauseScope,
    Rate,
    Schedule,
    Scope,
    State,
    Webhook,
)


class Body(Struct, frozen=True, forbid_unknown_fields=True):
    """A body in which no member is unknown."""

    def arguments(self) -> dict[str, Any]:
        """The given members, by the engine's names."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not UNSET}


def changes_of(record: type, names: Sequence[str], name: str, promise: str) -> type[Body]:
    """A body with these fields of a record, all of which may be left out."""
    kinds = get_type_hints(record)
    fields: list[tuple[str, Any, Any]] = [(field, kinds[field] | UnsetType, UNSET) for field in names]
    kind: Any = msgspec.defstruct(name, fields, bases=(Body,), frozen=True, forbid_unknown_fields=True, namespace={"__doc__": promise})
    body: type[Body] = kind
    return body


# Jobs and runs


class DefineJob(Body, frozen=True):
    """A definition of a job."""

    handler: str | None = None
    payload: dict[str, Any] = {}
    options: Options = Options()
    schema: dict[str, Any] | None = None  # the JSON Schema of its arguments; null: every payload is accepted
    description: str | None = None  # for people


class _NewRun(Body, frozen=True):
    """The members of every request for a run."""

    job: str
    payload: Any = None
    options: Options = Options()
    scheduled_for: str | None = None
    delay: int | None = None  # milliseconds from now, instead of scheduled_for
    checked: bool | UnsetType = UNSET  # checked against the signature of the calling code: it is not compared with the job's schemas
    meta: dict[str, Any] | UnsetType | None = UNSET  # the caller's own facts about the run, which never change
    notify: Notify | UnsetType | None = UNSET  # an address for its changes

    def new_run(self, now: int) -> NewRun:
        """The run as the engine takes it."""
        due_at = _due_at(self.scheduled_for, self.delay, now)
        meta, notify = None if self.meta is UNSET else self.meta, None if self.notify is UNSET else self.notify
        return NewRun(self.job, self.payload, self.options, due_at, checked=self.checked is True, meta=meta, notify=notify)


class CreateRun(_NewRun, frozen=True):
    """A run to create."""

    key: Key | None = None
    after: tuple[str, ...] = ()
    after_end: Literal["success", "any"] = "success"
    undefined: Literal["refuse", "wait"] = "refuse"

    def new_run(self, now: int) -> NewRun:
        """The run as the engine takes it."""
        return replace(super().new_run(now), key=self.key, after=self.after, after_end=self.after_end)


def _due_at(scheduled_for: str | None, delay: int | None, now: int) -> int | None:
    if delay is not None and scheduled_for is not None:
        raise BadInput("Both delay and scheduled_for are given.", hint="Give one of them.")
    if delay is not None:
        return now + delay
    return None if scheduled_for is None else from_rfc3339(scheduled_for, "scheduled_for")


class CreateRuns(Body, frozen=True):
    """Runs to create together: all of them are stored, or none."""

    runs: list[CreateRun]


class PatchRun(Body, frozen=True):
    """Changes of a waiting run; members left out do not change."""

    payload: Any = UNSET
    priority: int | UnsetType = UNSET
    scheduled_for: str | UnsetType = UNSET
    max_attempts: int | UnsetType = UNSET
    queue: str | UnsetType = UNSET

    def arguments(self) -> dict[str, Any]:
        """The given members, by the engine's names."""
        words = super().arguments()
        if "scheduled_for" in words:
            words["due_at"] = from_rfc3339(words.pop("scheduled_for"), "scheduled_for")
        return words


class CancelRun(Body, frozen=True):
    """The reason of a cancel, and the only states in which the run is to be cancelled."""

    reason: str | None = None
    only: tuple[State, ...] | None = None


class CancelGroup(Body, frozen=True):
    """The reason of a cancel."""

    reason: str | None = None


class MoveRun(Body, frozen=True, omit_defaults=True):
    """The new place of a run in its queue; exactly one member is given."""

    place: int | None = None  # 0 is the head
    to: Literal["top", "bottom"] | None = None
    before: str | None = None  # a run
    after: str | None = None


# Groups


class CreateCallback(_NewRun, frozen=True):
    """A run to create with a group."""


class CreateMember(CreateCallback, frozen=True):
    """A member, and the names of those it waits for."""

    name: str | None = None
    after: tuple[str, ...] = ()

    def member(self, now: int) -> Member:
        """The member as the engine takes it."""
        return Member(self.new_run(now), self.name, self.after)


class CreateGroup(Body, frozen=True):
    """A group to create: all of its runs are stored, or none."""

    members: tuple[CreateMember, ...]
    kind: GroupKind = "parallel"
    on_failure: OnFailure = "stop"
    callback: CreateCallback | None = None
    name: str | None = None
    undefined: Literal["refuse", "wait"] = "refuse"

    def new_group(self, now: int, key: Key | None) -> NewGroup:
        """The group as the engine takes it."""
        callback = None if self.callback is None else self.callback.new_run(now)
        return NewGroup(tuple(member.member(now) for member in self.members), self.kind, self.on_failure, callback, self.name, key)


# Schedules


class PutSchedule(Body, frozen=True):
    """A rule to store under a key: one of cron, every and at is given."""

    job: str
    cron: str | None = None
    every: str | int | None = None
    at: str | None = None
    zone: str = "UTC"
    payload: dict[str, Any] = {}
    options: Options = Options()
    missed: Missed = "latest"
    max_missed: int = 100
    max_age: int | None = None
    overlap: Overlap = "allow"
    jitter: int = 0
    enabled: bool = True
    by_code: bool = False
    new: bool = False
    checked: bool = False  # as for a run


PatchSchedule = changes_of(Schedule, SCHEDULE_EDITABLE, "PatchSchedule", "Changes of a schedule; members left out do not change.")


# Limits


class PauseAsked(Body, frozen=True):
    """What to pause; the system has no name."""

    scope: PauseScope
    name: str = ""
    reason: str | None = None


class ResumeAsked(Body, frozen=True):
    """What to resume."""

    scope: PauseScope
    name: str = ""


class PutQueue(Body, frozen=True):
    """Milliseconds of waiting that one step of priority is worth; null: priorities alone."""

    aging: int | None


class PutResource(Body, frozen=True):
    """The capacity of a resource, and its rates; null: unlimited."""

    capacity: int | None
    rates: tuple[Rate, ...] = ()
    max_wait: int = MAX_WAIT
    new: bool = False  # an existing one stays as it is


class PutRetention(Body, frozen=True):
    """How long ended runs are kept: milliseconds, or "forever"; null does not change it."""

    keep_succeeded: Keep | None = None
    keep_others: Keep | None = None


# Direct calls


class ReserveSlot(Body, frozen=True, omit_defaults=True):
    """A direct call requests the next slot; with `wait`, the answer may take this many milliseconds if it is not free at once.

    With its own id and token, the request can be repeated when the answer was lost.
    """

    resource: str
    key: str | None = None
    weight: int = 1
    lease: int = SLOT_LEASE
    wait: int = 0
    id: str | None = None
    token: str | None = None


class RenewSlot(Body, frozen=True, omit_defaults=True):
    """Renew a slot; with `wait`, the answer may take this many milliseconds if the slot is not held yet."""

    token: str
    lease: int = SLOT_LEASE
    wait: int = 0


class ReleaseSlot(Body, frozen=True):
    """The token of the slot."""

    token: str


# Access and webhooks


class CreateToken(Body, frozen=True):
    """A token to create; with `worker`, it is valid for that worker only. Its principal is its own name unless another is given."""

    name: str
    scopes: tuple[Scope, ...]
    worker: str | None = None
    principal: str | None = None
    expires_in: int | None = None  # milliseconds; None: never


class RotateToken(Body, frozen=True):
    """For how many milliseconds the old one stays valid."""

    overlap: int = TOKEN_OVERLAP


class SignIn(Body, frozen=True):
    """The ticket of a sign-in link, which is valid once."""

    ticket: str


class AddWebhook(Body, frozen=True):
    """An endpoint that changes are sent to: of these jobs and queues, or of all; when a run enters one of these states."""

    url: str
    name: str | None = None
    jobs: tuple[str, ...] | None = None
    queues: tuple[str, ...] | None = None
    states: tuple[State, ...] | None = None  # null: every end, or what the format sends
    delays: tuple[int, ...] | None = None  # null: 5,000 and 60,000, or those of the format
    secret: str | None = None
    enabled: bool = True
    format: str = STANDARD


PatchWebhook = changes_of(Webhook, WEBHOOK_EDITABLE, "PatchWebhook", "Changes of an endpoint; members left out do not change.")


class RotateWebhook(Body, frozen=True):
    """A new secret; earlier ones also sign for this many milliseconds."""

    overlap: int = SECRET_OVERLAP
    secret: str | None = None
