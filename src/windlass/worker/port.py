"""The interfaces that a worker depends on. The engine implements them, and so does a client over HTTP."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from windlass.answers import Outcome, PendingWork, SweepResult
from windlass.engine import Watch
from windlass.errors import WindlassError
from windlass.model import BeatAnswer, Life, Receipt, Result, Run, Step, WorkerInfo
from windlass.store.records import Held


class Port(Protocol):
    """Claim, beat, report: the engine's verbs for workers."""

    async def register(
        self, worker: WorkerInfo, *, about: Mapping[str, Any] | None = None, schemas: Mapping[str, str] | None = None
    ) -> None: ...

    async def begin_life(self, worker: str, life: Life) -> list[Life]: ...

    async def end_lives(self, worker: str, tags: Sequence[str]) -> int: ...

    async def leave(self, worker: str, incarnation: int) -> None: ...

    async def worker_metrics(self, worker: str, metrics: Mapping[str, float]) -> None: ...

    async def claim(self, worker: WorkerInfo, *, count: int, lease: int, token: str | None = None) -> list[Run]: ...

    async def recover(self, worker: WorkerInfo, token: str) -> list[Run]: ...

    async def start_many(self, held: Sequence[Held]) -> set[Held]: ...

    async def beat(self, held: Sequence[Held], *, lease: int, progress: Mapping[Held, str] | None = None) -> list[BeatAnswer]: ...

    async def log(self, run_id: str, token: str, lines: Sequence[tuple[int, str]], *, seq: int | None = None) -> None: ...

    async def report_many(self, outcomes: Sequence[Outcome]) -> list[Receipt | WindlassError]: ...

    async def results(self, run_id: str, *, after: str | None = None, count: int = 100) -> list[Result]: ...

    async def steps(self, run_id: str, *, after: int = 0, count: int = 1_000) -> list[Step]: ...

    async def store_step(self, run_id: str, token: str, key: str, output: str, *, seq: int | None = None) -> Step: ...

    async def wait(self, topics: Collection[str], timeout: float) -> set[str]: ...


class PortOver:
    """A port that passes every verb on to another one: the base of ports that do more with some verbs."""

    def __init__(self, port: Port) -> None:
        self._port = port

    @property
    def commits_together(self) -> bool:
        """As the engine's; False for a port that does not tell."""
        return getattr(self._port, "commits_together", False)

    async def register(
        self, worker: WorkerInfo, *, about: Mapping[str, Any] | None = None, schemas: Mapping[str, str] | None = None
    ) -> None:
        await self._port.register(worker, about=about, schemas=schemas)

    async def begin_life(self, worker: str, life: Life) -> list[Life]:
        return await self._port.begin_life(worker, life)

    async def end_lives(self, worker: str, tags: Sequence[str]) -> int:
        return await self._port.end_lives(worker, tags)

    async def leave(self, worker: str, incarnation: int) -> None:
        await self._port.leave(worker, incarnation)

    async def worker_metrics(self, worker: str, metrics: Mapping[str, float]) -> None:
        await self._port.worker_metrics(worker, metrics)

    async def claim(self, worker: WorkerInfo, *, count: int, lease: int, token: str | None = None, **more: Any) -> list[Run]:
        return await self._port.claim(worker, count=count, lease=lease, token=token, **more)

    async def recover(self, worker: WorkerInfo, token: str) -> list[Run]:
        return await self._port.recover(worker, token)

    async def start_many(self, held: Sequence[Held]) -> set[Held]:
        return await self._port.start_many(held)

    async def beat(self, held: Sequence[Held], *, lease: int, progress: Mapping[Held, str] | None = None) -> list[BeatAnswer]:
        return await self._port.beat(held, lease=lease, progress=progress)

    async def log(self, run_id: str, token: str, lines: Sequence[tuple[int, str]], *, seq: int | None = None) -> None:
        await self._port.log(run_id, token, lines, seq=seq)

    async def report_many(self, outcomes: Sequence[Outcome]) -> list[Receipt | WindlassError]:
        return await self._port.report_many(outcomes)

    async def results(self, run_id: str, *, after: str | None = None, count: int = 100) -> list[Result]:
        return await self._port.results(run_id, after=after, count=count)

    async def steps(self, run_id: str, *, after: int = 0, count: int = 1_000) -> list[Step]:
        return await self._port.steps(run_id, after=after, count=count)

    async def store_step(self, run_id: str, token: str, key: str, output: str, *, seq: int | None = None) -> Step:
        return await self._port.store_step(run_id, token, key, output, seq=seq)

    async def wait(self, topics: Collection[str], timeout: float) -> set[str]:
        return await self._port.wait(topics, timeout)


class Maintenance(Protocol):
    """The engine's verbs for maintenance. Where there is a hub, it calls them."""

    async def sweep(self, watch: Watch | None = None) -> SweepResult: ...

    async def tidy(self) -> bool: ...

    async def left(self) -> PendingWork: ...

    async def wait(self, topics: Collection[str], timeout: float) -> set[str]: ...


class Spool(Protocol):
    """Keeps reports on disk while the port does not accept them."""

    def keep(self, outcomes: Iterable[Outcome]) -> None: ...

    def drop(self, outcomes: Iterable[Outcome]) -> None: ...

    async def deliver(self, port: Port) -> None: ...
