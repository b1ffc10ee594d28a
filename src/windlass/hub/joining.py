"""Reports that come at once are stored at once: one batch for many requests costs little more than one for each would cost alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from windlass.engine import Engine, Outcome
from windlass.errors import StoreError, WindlassError
from windlass.model import Receipt

Answers = list[Receipt | WindlassError]


class _Call(NamedTuple):
    """What one request reports, and its answers to come."""

    outcomes: Sequence[Outcome]
    answers: asyncio.Future[Answers]

    def tell(self, answers: Answers) -> None:
        if not self.answers.done():  # else whoever waited was cancelled
            self.answers.set_result(answers)

    def refuse(self, error: Exception) -> None:
        if not self.answers.done():
            self.answers.set_exception(error)


class Reports:
    """The engine's `report_many` for all requests of a hub: those that come while one is under way go together after it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: list[_Call] = []
        self._under_way = False
        self._going: asyncio.Task[None] | None = None

    async def report_many(self, outcomes: Sequence[Outcome]) -> Answers:
        """One answer for each, as if nobody else had reported."""
        if self._under_way and len(outcomes) <= self._engine.limits.report:
            call = _Call(outcomes, asyncio.get_running_loop().create_future())
            self._waiting.append(call)
            return await call.answers
        self._under_way = True
        try:
            return await self._engine.report_many(outcomes)
        finally:
            self._go_on()

    def _go_on(self) -> None:
        """Let those go that have gathered. In a task of their own: no request that is given up may take others with it."""
        self._under_way = bool(self._waiting)
        if self._waiting:
            sizes = accumulate(len(call.outcomes) for call in self._waiting)
            most = sum(size <= self._engine.limits.report for size in sizes)
            calls, self._waiting = self._waiting[:most], self._waiting[most:]
            self._going = asyncio.ensure_future(self._together(calls))

    async def _together(self, calls: Sequence[_Call]) -> None:
        try:
            answers = iter(await self._engine.report_many([outcome for call in calls for outcome in call.outcomes]))
            for call in calls:
                call.tell([next(answers) for _ in call.outcomes])
        except StoreError as error:
            for call in calls:
                call.refuse(error)  # the store's trouble is everybody's
        except Exception:
            for call in calls:
                await self._alone(call)
        finally:
            self._go_on()

    async def _alone(self, call: _Call) -> None:
        try:
            call.tell(await self._engine.report_many(call.outcomes))
        except Exception as error:
            call.refuse(error)
