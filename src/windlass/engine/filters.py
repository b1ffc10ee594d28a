"""What the runs of a list have in common, and the index along which a list with these filters is read.

A list reads runs in the order of that index, and leaves out those that do not match. A page reads a bounded number of them, and may
then end with fewer runs than asked for, or none, and a cursor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from msgspec import Struct

from windlass import defaults
from windlass.answers import RunFilters
from windlass.engine import checks
from windlass.engine.cursors import LAST
from windlass.errors import BadInput
from windlass.machine import ENDED, LIVE
from windlass.model import State
from windlass.store.records.runs import Matching
from windlass.store.rows import pack

LONGEST_TEXT = 256


class Walk(NamedTuple):
    """A way along an index: the statement, and where it begins. One that begins with two numbers is in the order of an instant."""

    statement: str
    start: tuple[int, ...]

    @property
    def by_instant(self) -> bool:
        return len(self.start) == 2


NEWEST, JOB, QUEUE, GROUP = (Walk(f"walk_{name}", (LAST,)) for name in ("newest", "job", "queue", "group"))
LIVE_RUNS, WAITING = (Walk(f"walk_{name}", (LAST,)) for name in ("live", "waiting"))
SCHEDULED = Walk("walk_scheduled", (0, 0))
ENDS, JOB_ENDS = (Walk(f"walk_{name}", (LAST, LAST)) for name in ("ended", "job_ended"))


class RunFilter(Struct, frozen=True):
    """The filters of a list, checked. `states` has all states that its runs can be in."""

    states: tuple[State, ...]
    job: str | None
    queue: str | None
    group: str | None
    schedule: str | None
    worker: str | None
    key: str | None
    tag: str | None
    error: str | None
    created_since: int
    created_before: int
    ended_since: int
    ended_before: int
    text: str | None

    @classmethod
    def of(cls, filters: RunFilters) -> RunFilter:
        """These filters, checked."""
        values: dict[str, Any] = {name: value for name, value in filters.items() if value is not None}
        if unknown := sorted(values.keys() - RunFilters.__annotations__.keys()):
            raise BadInput(f"Runs have no filter {unknown[0]!r:.80}.", hint=f"There are: {', '.join(RunFilters.__annotations__)}.")
        for name in ("job", "queue", "schedule", "worker", "tag", "error"):
            if name in values:
                checks.name(values[name], f"The filter {name}")
        if "key" in values:
            checks.key_name(values["key"])
        if "group" in values:
            checks.identifier(values["group"], "The group")
        bounds = {name: checks.instant(values[name], name) for name in values if name.endswith(("_since", "_before"))}
        ends = bounds.keys() & {"ended_since", "ended_before"}
        states = [state for state in _states(values) if state in ENDED or not ends]
        return cls(
            states=tuple(states),
            **{name: values.get(name) for name in ("job", "queue", "group", "schedule", "worker", "key", "tag", "error")},
            created_since=bounds.get("created_since", 0),
            created_before=bounds.get("created_before", LAST),
            ended_since=bounds.get("ended_since", 0 if ends else -1),
            ended_before=bounds.get("ended_before", LAST),
            text=_text(values.get("text")),
        )

    def walk(self) -> Walk:
        """The index that has the fewest others beside the runs that match."""
        states, own_queue = set(self.states), self.queue not in (None, defaults.QUEUE)
        by_end = self.ended_since >= 0 or self.ended_before < LAST
        if self.group is not None:
            return GROUP
        if states <= set(ENDED) and not (own_queue and self.job is None and not by_end):
            return ENDS if self.job is None else JOB_ENDS
        if states <= set(LIVE):
            return LIVE_RUNS
        if len(states) == 1 and states < {State.WAITING, State.SCHEDULED}:
            return WAITING if State.WAITING in states else SCHEDULED
        if own_queue:
            return QUEUE
        return NEWEST if self.job is None else JOB

    def matching(self, *, grouped: int | None, schedule: int | None, lanes: Iterable[int] | None) -> Matching:
        """Its values for the statement that tests runs; group, schedule and tag as they are stored with a run."""
        text = None if self.text is None else self.text.translate(_LOWER).translate(_ESCAPED)
        begins, ends, has = (None, None, None) if text is None else (f"{text}%", f"%{text}", f"%{text}%")
        return Matching(
            states=pack(self.states), job=self.job, queue=self.queue, worker=self.worker, grouped=grouped, schedule=schedule,
            lanes=None if lanes is None else pack([*lanes]), created_since=self.created_since, created_before=self.created_before,
            ended_since=self.ended_since, ended_before=self.ended_before, error=self.error, key=self.key, begins=begins, ends=ends, has=has,
        )  # fmt: skip

    def identity(self) -> list[Any]:
        """What a cursor of this list has in front, so that it fits no other."""
        return ["filtered", *(getattr(self, name) for name in self.__struct_fields__ if name != "states"), *self.states]


_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}
"""Only these letters have a case for both databases."""
_ESCAPED = {ord(sign): f"!{sign}" for sign in "!%_"}


def _states(values: Mapping[str, Any]) -> tuple[State, ...]:
    """The states that are asked for: both those of `state` and of `states`, where both are there."""
    one = tuple(State) if "state" not in values else checks.states((values["state"],), "A list by states")
    several = tuple(State) if "states" not in values else checks.states(values["states"], "A list by states")
    return tuple(state for state in one if state in several)


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_TEXT or "\0" in value or not checks.encodable(value):
        raise BadInput(f"The text {value!r:.80} cannot be looked for.", hint=f"Give between 1 and {LONGEST_TEXT} characters.")
    return value
