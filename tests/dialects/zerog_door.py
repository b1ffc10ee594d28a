"""0gkit's jobs as a program of its own meets them: a backend on each store, and an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import pytest

from tests.tiers import corners
from tests.workers import DEADLINE
from windlass.clock import Clock, ManualClock
from windlass.dialects.zerog import JobBackend, JobRecord, JobState, backend
from windlass.model import State

T = TypeVar("T")

KINDS = ("file", "memory", "postgres")
SHARED = ("file", "postgres")

Scenario = Callable[[JobBackend], Coroutine[Any, Any, T]]


class ZeroGDoor:
    """Runs a scenario over a backend, in an event loop that ends with it."""

    def __init__(self, address: str, clock: Clock | None = None) -> None:
        self.address, self.clock = address, clock

    def __call__(self, scenario: Scenario[T]) -> T:
        async def main() -> T:
            async with asyncio.timeout(DEADLINE):
                jobs = self.backend()
                try:
                    return await scenario(jobs)
                finally:
                    await jobs.close()

        return asyncio.run(main())

    def backend(self) -> JobBackend:
        """Another backend on the same store, as another process would have it."""
        return backend(self.address, clock=self.clock)

    def advance(self, ms: int) -> None:
        assert isinstance(self.clock, ManualClock)
        self.clock.advance(ms)


def address_of(kind: str, request: pytest.FixtureRequest) -> str:
    """An empty store of a kind."""
    if kind == "postgres":
        return str(request.getfixturevalue("emptied_postgres"))
    return "memory" if kind == "memory" else str(request.getfixturevalue("tmp_path") / "jobs.db")


@pytest.fixture(params=corners(KINDS))
def zerog(request: pytest.FixtureRequest) -> ZeroGDoor:
    """The door on each store in turn."""
    return ZeroGDoor(address_of(request.param, request))


@pytest.fixture(params=corners(KINDS))
def still(request: pytest.FixtureRequest) -> ZeroGDoor:
    """The same with a clock that a test moves."""
    return ZeroGDoor(address_of(request.param, request), ManualClock())


@pytest.fixture
def quick() -> ZeroGDoor:
    """The door on a store in memory, for what is the same on every store."""
    return ZeroGDoor("memory")


@pytest.fixture(params=SHARED)
def shared(request: pytest.FixtureRequest) -> ZeroGDoor:
    """The door on each store that several processes can have open."""
    return ZeroGDoor(address_of(request.param, request))


async def read(jobs: JobBackend, job_id: str) -> JobRecord:
    """The record of a job that is there."""
    record = await jobs.status(job_id)
    assert record is not None
    return record


async def until(condition: Callable[[], Awaitable[T | None]]) -> T:
    """What a condition gives, as soon as it holds."""
    while not (answer := await condition()):  # noqa: ASYNC110 - it is another process's doing
        await asyncio.sleep(0.005)
    return answer


async def in_state(jobs: JobBackend, job_id: str, state: JobState) -> JobRecord:
    """A job when it is in a state."""

    async def there() -> JobRecord | None:
        record = await read(jobs, job_id)
        return record if record.state is state else None

    return await until(there)


async def started(jobs: JobBackend, job_id: str) -> None:
    """Wait until the handler of a job has begun: a claimed job is shown as running before that."""

    async def begun() -> bool:
        return (await jobs.engine.get(job_id)).state is State.RUNNING

    await until(begun)
