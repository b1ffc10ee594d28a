"""Groups of runs, and what a run may read of others."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from windlass.model import Group, GroupKind, GroupStatus, Key, Member, NewGroup, NewRun, OnFailure, Options, Result, State
from windlass.wire.runs import CreateRun, raw_of
from windlass.wire.values import heard, maybe_heard, maybe_told, text_of, told


class CreateCallback(Struct, frozen=True, forbid_unknown_fields=True):
    """A run that is asked for with a group."""

    job: str
    payload: Any = None
    options: Options = Options()
    scheduled_for: str | None = None
    delay: int | None = None  # milliseconds from now, instead of scheduled_for
    checked: bool | UnsetType = UNSET  # as of a run

    def new_run(self, now: int) -> NewRun:
        """The same in the engine's words."""
        return CreateRun(self.job, self.payload, self.options, self.scheduled_for, self.delay, checked=self.checked).new_run(now)


class CreateMember(CreateCallback, frozen=True, forbid_unknown_fields=True):
    """A member, and the names of those it waits for."""

    name: str | None = None
    after: tuple[str, ...] = ()

    def member(self, now: int) -> Member:
        """The same in the engine's words."""
        return Member(self.new_run(now), self.name, self.after)


class CreateGroup(Struct, frozen=True, forbid_unknown_fields=True):
    """A group that is asked for: all of its runs are stored, or none."""

    members: tuple[CreateMember, ...]
    kind: GroupKind = "parallel"
    on_failure: OnFailure = "stop"
    callback: CreateCallback | None = None
    name: str | None = None
    undefined: Literal["refuse", "wait"] = "refuse"

    def new_group(self, now: int, key: Key | None) -> NewGroup:
        """The same in the engine's words."""
        callback = None if self.callback is None else self.callback.new_run(now)
        return NewGroup(tuple(member.member(now) for member in self.members), self.kind, self.on_failure, callback, self.name, key)


class GroupView(Struct, frozen=True):
    """A group, as everybody may see it."""

    id: str
    name: str | None
    kind: GroupKind
    on_failure: OnFailure
    total: int
    succeeded: int
    failed: int
    cancelled: int
    status: GroupStatus
    callback: str | None
    created_at: str
    finished_at: str | None
    reason: str | None
    retry_of: str | None
    actions: tuple[str, ...] = ()


def group_view(group: Group) -> GroupView:
    """A group as it is told."""
    return GroupView(
        group.id,
        group.name,
        group.kind,
        group.on_failure,
        group.total,
        group.succeeded,
        group.failed,
        group.cancelled,
        group.status,
        group.callback,
        told(group.created_at),
        maybe_told(group.finished_at),
        group.reason,
        group.retry_of,
        ("cancel",) if group.finished_at is None else ("rerun",),
    )


def group_of(view: GroupView) -> Group:
    """The group that a view tells of."""
    return Group(
        view.id,
        view.name,
        view.kind,
        view.on_failure,
        view.total,
        view.succeeded,
        view.failed,
        view.cancelled,
        view.status,
        view.callback,
        heard(view.created_at, "created_at"),
        maybe_heard(view.finished_at, "finished_at"),
        view.reason,
        view.retry_of,
    )


class GroupPage(Struct, frozen=True):
    """Some groups, and behind which of them the next page begins."""

    groups: list[GroupView]
    cursor: str | None


class ResultView(Struct, frozen=True):
    """What became of a run."""

    id: str
    job: str
    state: State
    output: Any


def result_view(result: Result) -> ResultView:
    return ResultView(result.id, result.job, result.state, raw_of(result.output))


def result_of(view: ResultView) -> Result:
    return Result(view.id, view.job, view.state, text_of(view.output))


class Results(Struct, frozen=True):
    """What became of the runs before one, and behind which of them the next page begins."""

    results: list[ResultView]
    cursor: str | None
