"""Coalesces concurrent claims and reports into one batch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate
from typing import Generic, NamedTuple, TypeVar

from windlass.answers import Outcome
from windlass.engine import ClaimRequest, Engine
from windlass.engine.reports import report_size
from windlass.errors import StoreError, WindlassError
from windlass.model import Limits, Receipt, Run

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class _Call(NamedTuple, Generic[Item, Answer]):
    """The items of one request, their size, and its future results."""

    items: Sequence[Item]
    size: int
    bytes: int
    answers: asyncio.Future[list[Answer]]

    def tell(self, answers: list[Answer]) -> None:
        if not self.answers.done():
            self.answers.set_result(answers)

    def refuse(self, error: Exception) -> None:
        if not self.answers.done():
            self.answers.set_exception(error)


GATHER = 0.001
"""Seconds for which a batch waits for as many requests as last time: a batch of many costs little more than one of few."""


class Coalescer(Generic[Item, Answer]):
    """A verb of the engine for all requests of a hub: requests at about the same time share one batch.

    The batch runs in its own task, so that a cancelled request does not cancel the others.
    """

    def __init__(self, verb: Callable[[Sequence[Item]], Awaitable[list[Answer]]], limit: int, batch: int = Limits().batch) -> None:
        self._verb, self._limit, self._batch = verb, limit, batch
        self._waiting: list[_Call[Item, Answer]] = []
        self._going: asyncio.Task[None] | None = None
        self._usual = 1  # the size of the last batch
        self._enough: asyncio.Future[None] | None = None

    async def submit(self, items: Sequence[Item], size: int, bytes: int = 0) -> list[Answer]:
        """One result for each item, as if each had been called alone."""
        call: _Call[Item, Answer] = _Call(items, size, bytes, asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        if self._enough is not None and len(self._waiting) >= self._usual:
            _say(self._enough)
        if self._going is None:
            self._going = asyncio.ensure_future(self._go())
        return await call.answers

    async def _go(self) -> None:
        try:
            while self._waiting:
                if len(self._waiting) < self._usual:
                    await self._gather()
                sizes = accumulate(call.size for call in self._waiting)
                large = accumulate(call.bytes for call in self._waiting)
                fitting = sum(size <= self._limit and many <= self._batch for size, many in zip(sizes, large, strict=True))
                calls, self._waiting = self._waiting[: fitting or 1], self._waiting[fitting or 1 :]
                self._usual = len(calls)
                await self._together([call for call in calls if not call.answers.done()])  # otherwise the waiting request was cancelled
        finally:
            self._going = None

    async def _gather(self) -> None:
        loop = asyncio.get_running_loop()
        self._enough = loop.create_future()
        timer = loop.call_later(GATHER, _say, self._enough)
        try:
            await self._enough
        finally:
            timer.cancel()
            self._enough = None

    async def _together(self, calls: Sequence[_Call[Item, Answer]]) -> None:
        try:
            answers = iter(await self._verb([item for call in calls for item in call.items]))
            for call in calls:
                call.tell([next(answers) for _ in call.items])
        except Exception as error:
            for call in calls:
                if len(calls) == 1 or isinstance(error, StoreError):  # an error of the store concerns the whole batch
                    call.refuse(error)
                else:
                    await self._alone(call)

    async def _alone(self, call: _Call[Item, Answer]) -> None:
        try:
            call.tell(await self._verb(call.items))
        except Exception as error:
            call.refuse(error)


def _say(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Batcher:
    """The engine's claims and reports, coalesced."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._claims: Coalescer[ClaimRequest, list[Run] | WindlassError] = Coalescer(
            engine.claim_many, engine.limits.claim, engine.limits.batch
        )
        self._reports: Coalescer[Outcome, Receipt | WindlassError] = Coalescer(
            engine.report_many, engine.limits.report, engine.limits.batch
        )

    async def claim(self, request: ClaimRequest) -> list[Run]:
        """The engine's `claim`."""
        (answer,) = await (
            self._claims.submit([request], request.room) if self._engine.can_join(request) else self._engine.claim_many([request])
        )
        if isinstance(answer, WindlassError):
            raise answer
        return answer

    async def report_many(self, outcomes: Sequence[Outcome]) -> list[Receipt | WindlassError]:
        """The engine's `report_many`."""
        return await self._reports.submit(outcomes, len(outcomes), sum(report_size(outcome.report) for outcome in outcomes))
