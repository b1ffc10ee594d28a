"""What a worker needs of the world. The engine has it, and so has a client over HTTP."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

from windlass.engine import Outcome, Swept, Watch
from windlass.errors import WindlassError
from windlass.model import Receipt, Result, Run, WorkerInfo
from windlass.store.records import Held


class Port(Protocol):
    """Claim, beat, report: the engine's verbs for workers."""

    async def register(
        self, worker: WorkerInfo, *, about: Mapping[str, Any] | None = None, schemas: Mapping[str, str] | None = None
    ) -> None: ...

    async def worker_metrics(self, worker: str, metrics: Mapping[str, float]) -> None: ...

    async def claim(self, worker: WorkerInfo, *, count: int, lease: int, token: str | None = None) -> list[Run]: ...

    async def recover(self, worker: WorkerInfo, token: str) -> list[Run]: ...

    async def start_many(self, held: Sequence[Held]) -> set[Held]: ...

    async def beat(
        self, held: Sequence[Held], *, lease: int, progress: Mapping[Held, str] | None = None
    ) -> list[Literal["ok", "stop", "lost"]]: ...

    async def log(self, run_id: str, token: str, lines: Sequence[tuple[int, str]], *, seq: int | None = None) -> None: ...

    async def report_many(self, outcomes: Sequence[Outcome]) -> list[Receipt | WindlassError]: ...

    async def results(self, run_id: str, *, after: str | None = None, count: int = 100) -> list[Result]: ...

    async def wait(self, topics: Collection[str], timeout: float) -> set[str]: ...


class House(Protocol):
    """What somebody must do now and then; where there is a hub, it does."""

    async def sweep(self, watch: Watch | None = None) -> Swept: ...

    async def tidy(self) -> bool: ...

    async def wait(self, topics: Collection[str], timeout: float) -> set[str]: ...


class Spool(Protocol):
    """Where reports outlive the worker while its port does not take them."""

    def keep(self, outcomes: Iterable[Outcome]) -> None: ...

    def drop(self, outcomes: Iterable[Outcome]) -> None: ...

    async def deliver(self, port: Port) -> None: ...
