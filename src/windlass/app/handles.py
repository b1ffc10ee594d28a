"""Handles of runs: an id, and methods to read and change the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from windlass import payload as json
from windlass.answers import Reason
from windlass.clock import Clock
from windlass.errors import NotFinished, RunFailed
from windlass.machine import ENDED
from windlass.model import Attempt, Failure, LogLine, Progress, Run, State

if TYPE_CHECKING:
    from windlass.api.verbs import Verbs

R = TypeVar("R")
LONGEST_PAUSE = 0.5


class HandleApp(Protocol):
    """Where a handle gets the verbs: an app."""

    @property
    def verbs(self) -> Verbs: ...


class BaseHandle(Generic[R]):
    """What both handles of a run share: what was last read of it."""

    __slots__ = ("_home", "_id", "_read", "_run", "created", "job")

    def __init__(
        self, home: HandleApp, job: str, read: Callable[[str | None], Any] | None = None, run_id: str | None = None, created: bool = True
    ) -> None:
        self._home, self.job, self._read, self._id = home, job, read, run_id
        self.created = created  # False: its key was taken, and this is the run that has it
        self._run: Run | None = None

    @property
    def id(self) -> str:
        """The run's id."""
        if self._id is None:
            raise NotFinished("The run has no id before its transaction has ended.", hint="Ask after the `with` block.")
        return self._id

    def known(self, run_id: str, *, created: bool = True) -> None:
        """Set the id, once the run is stored."""
        self._id, self.created = run_id, created

    @property
    def record(self) -> Run:
        """The run as it was last read, by `wait` or `refresh`."""
        if self._run is None:
            raise NotFinished("The run has not been read yet.", hint="Call refresh() or wait() first.")
        return self._run

    @property
    def state(self) -> State:
        """Its state when it was last read."""
        return self.record.state

    @property
    def error(self) -> Failure | None:
        """Why its last attempt failed, when the run was last read."""
        return self.record.error

    @property
    def progress(self) -> Progress | None:
        """Its progress when it was last read."""
        text = self.record.progress
        return None if text is None else json.reader(Progress)(text)

    @property
    def result(self) -> R:
        """The handler's result, once the run was read as succeeded; RunFailed if it ended in another state."""
        run = self.record
        if run.state not in ENDED:
            raise NotFinished(f"Run {run.id} is {run.state}.", hint="Call wait() first.")
        if run.state is not State.SUCCEEDED:
            raise RunFailed(run)
        value: R = self._read(run.output) if self._read is not None else plain_output(run.output)
        return value

    def __repr__(self) -> str:
        return f"<run {self._id or 'not stored yet'} of {self.job!r}>"


def plain_output(output: str | None) -> Any:
    """A stored output as plain values."""
    return None if output is None else json.decode(output)


class AsyncHandle(BaseHandle[R]):
    """A run, for coroutines."""

    __slots__ = ()

    async def refresh(self) -> Run:
        """Read it again."""
        self._run = await self._home.verbs.get(self.id)
        return self._run

    async def wait(self, timeout: float | None = None) -> R:
        """Its result when it has ended; RunFailed when it did not succeed, TimeoutError when it takes longer."""
        for pause in pauses(self._home.verbs.clock, timeout, lambda: f"Run {self.id} is still {self.state}"):
            if (await self.refresh()).state in ENDED:
                break
            await asyncio.sleep(pause)
        return self.result

    async def cancel(self, reason: str | None = None) -> Run:
        """Cancel it at once if it waits, or make its worker stop it."""
        return await self._home.verbs.cancel(self.id, reason=reason)

    async def move(
        self,
        *,
        place: int | None = None,
        to: Literal["top", "bottom"] | None = None,
        before: AsyncHandle[Any] | str | None = None,
        after: AsyncHandle[Any] | str | None = None,
    ) -> Run:
        """Give it another place in its queue while it waits: the n-th from 0, the "top" or "bottom", or next to another run."""
        ids = [other.id if isinstance(other, BaseHandle) else other for other in (before, after)]
        return await self._home.verbs.move(self.id, place=place, to=to, before=ids[0], after=ids[1])

    async def rerun(self) -> AsyncHandle[R]:
        """A new run with the same payload, once this one has ended."""
        created = await self._home.verbs.rerun(self.id)
        return AsyncHandle(self._home, self.job, self._read, created.id)

    async def attempts(self) -> list[Attempt]:
        """All its attempts, oldest first."""
        return await self._home.verbs.attempts(self.id)

    async def logs(self) -> list[LogLine]:
        """Its log lines."""
        return await all_lines(self._home.verbs, self.id)

    async def steps(self) -> dict[str, Any]:
        """The results of its completed steps, by their keys."""
        return {step.key: step.value for step in await self._home.verbs.steps(self.id)}

    async def why(self) -> list[Reason]:
        """What blocks it now."""
        return await self._home.verbs.why(self.id)


H = TypeVar("H", bound=BaseHandle[Any])


def pauses(clock: Clock, timeout: float | None, still: Callable[[], str]) -> Iterator[float]:
    """Seconds to wait after each poll: a tenth of the elapsed time, so that the end is noticed at most a tenth late."""
    began, waited = clock.monotonic(), 0.0
    while timeout is None or waited < timeout:
        longest = LONGEST_PAUSE if timeout is None else max(0.001, min(LONGEST_PAUSE, timeout - waited))
        seconds = min(max(0.002, waited / 10), longest)
        yield seconds
        waited = max(waited + seconds, (clock.monotonic() - began) / 1000)  # a test's clock may stand still
    yield 0.0  # after the last poll
    raise TimeoutError(f"{still()} after {timeout} s; it continues.")


async def all_lines(engine: Verbs, run_id: str) -> list[LogLine]:
    """The whole log of a run."""
    lines: list[LogLine] = []
    page = engine.limits.page
    while True:
        more = await engine.lines(run_id, after=(lines[-1].attempt, lines[-1].n) if lines else (0, 0), count=page)
        lines += more
        if len(more) < page:
            return lines
