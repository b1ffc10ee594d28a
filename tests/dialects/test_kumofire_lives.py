"""Kumofire's transitions, as its document lists them, and random lives of runs: each walks only these, and together they see all."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from tests.dialects.kumofire_door import StoreDoor
from tests.tiers import MANY
from windlass.dialects.kumofire import WORDS, JobContext, JobLock, JobRunStatus, RetryPolicy
from windlass.errors import WindlassError

LIST = """
create run: nothing -> scheduled
dispatch: scheduled -> queued
consume start: queued -> running
success: running -> succeeded
retry: running -> scheduled
terminal failure: running -> failed
canceled by an external action: scheduled -> canceled, queued -> canceled, running -> canceled
"""
ARROWS = frozenset(re.findall(r"(\w+) -> (\w+)", LIST))
DECIDED = {("queued", "scheduled"), ("queued", "failed")}
"""Not in the list: a consumer that locks a run and is gone before its handler begins. The engine counts it as a failed attempt, so that a
run that kills its consumers ends."""
ENDS = {"succeeded", "failed", "canceled"}
LEASE = 30_000


class Life:
    """One run, and all that may happen to it."""

    def __init__(self, door: StoreDoor, chance: Random) -> None:
        self.door, self.chance = door, chance
        self.outcome: Any = None
        door.handlers["email"] = self.handle
        door.jobs = door.another(retry=RetryPolicy(chance.randint(1, 4)))
        self.run_id = chance.choice([self.now, self.later, self.by_schedule])()
        self.ended: Any = None

    async def handle(self, context: JobContext) -> Any:
        """The handler of this life: it returns, raises, or is canceled meanwhile."""
        if self.outcome == "cancel":
            await self.door.jobs.cancel(context.job.id)
        elif self.outcome is not None:
            raise self.outcome
        return {"done": context.job.attempt}

    def now(self) -> str:
        return self.door.create()

    def later(self) -> str:
        return self.door.create(run_at=self.door.in_ms(self.chance.choice([1, 1_000, 60_000])))

    def by_schedule(self) -> str:
        self.door(self.door.jobs.create_schedule("email", schedule_type="once", schedule_expr=self.door.in_ms(1_000)))
        self.door.sent()
        self.door.later(1_000)
        (run_id,) = self.door.sent()
        return run_id

    def consume(self, outcome: Any) -> Callable[[], object]:
        def consume() -> None:
            self.outcome = outcome
            self.door.consume(self.run_id)

        return consume

    def gone(self, *, begun: bool) -> Callable[[], object]:
        """A consumer that locks the run, may begin, and is never seen again."""

        def gone() -> None:
            lock: JobLock | None = self.door(self.door.storage.acquire_lock(self.run_id, LEASE))
            if lock is not None and begun:
                self.door(self.door.storage.mark_running(lock))

        return gone

    def moves(self) -> dict[str, Callable[[], object]]:
        engine = self.door.engine
        return {
            "succeed": self.consume(None),
            "fail": self.consume(ConnectionError("no answer")),
            "cancel inside": self.consume("cancel"),
            "gone": self.gone(begun=True),
            "gone early": self.gone(begun=False),
            "cancel": lambda: self.door(self.door.jobs.cancel(self.run_id)),
            "dispatch": self.door.dispatch,
            "a second": lambda: self.door.later(1_000),
            "a lease": lambda: self.door.later(LEASE),
            "native sweep": lambda: self.door.do(engine.sweep()),
            "native cancel": lambda: self.door.do(engine.cancel(self.run_id)),
            "native skip": lambda: self.door.do(engine.skip(self.run_id, reason="late")),
        }

    def live(self, steps: int) -> None:
        moves = self.moves()
        often = ["fail", "gone", "succeed", "a second", "a lease", "dispatch"]
        for _ in range(steps):
            with suppress(WindlassError):  # refused where the run is
                moves[self.chance.choice([*moves, *often])]()
            self.look()

    def look(self) -> None:
        """The status is the last of the walk, and nothing of an ended run changes."""
        status = self.door.status(self.run_id)
        assert status.status == self.walk()[-1]
        assert self.ended in (None, status)
        self.ended = status if status.status in ENDS else None

    def walk(self) -> list[str]:
        """Its statuses by the journal. A run that is due is created and dispatched in one step."""
        entries = self.door.do(self.door.engine.history(self.run_id))
        words = ["nothing", "scheduled", *(WORDS.label(entry.state) for entry in entries)]
        return [word for word, after in pairwise([*words, "end"]) if word != after]

    def arrows(self) -> Iterator[tuple[str, str]]:
        return pairwise(self.walk())


def test_K30_the_list_has_every_status() -> None:
    assert {status for arrow in ARROWS for status in arrow} - {"nothing"} == set(JobRunStatus)


@pytest.mark.parametrize("seed", range(8 if MANY else 1))
def test_K30_lives_walk_only_the_transitions_of_the_list_and_see_all_of_them(kumofire: StoreDoor, seed: int) -> None:
    chance, arrows = Random(seed), set[tuple[str, str]]()
    for _ in range(60):
        life = Life(kumofire, chance)
        life.live(12)
        arrows |= {*life.arrows()}
    assert arrows - DECIDED == ARROWS
