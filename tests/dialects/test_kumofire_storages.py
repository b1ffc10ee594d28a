"""The cases that every storage of Kumofire Jobs must pass, on the engine over every store and on one in dictionaries."""

from __future__ import annotations

import asyncio

import pytest

from tests.dialects.kumofire_dictionaries import DictionaryStorage
from tests.dialects.kumofire_door import StoreDoor
from windlass.clock import ManualClock
from windlass.dialects.kumofire import StorageAdapter
from windlass.testing.storages import CASES, Case, StorageDoor


class _Door(StorageDoor):
    def __init__(self, storage: StorageAdapter, clock: ManualClock) -> None:
        self.storage, self._clock = storage, clock

    def advance(self, ms: int) -> None:
        self._clock.advance(ms)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_engine_is_a_storage(case: Case, kumofire: StoreDoor) -> None:
    asyncio.run(case(_Door(kumofire.storage, kumofire.clock)))  # type: ignore[arg-type]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_dictionaries_are_a_storage(case: Case) -> None:
    storage = DictionaryStorage()
    asyncio.run(case(_Door(storage, storage.clock)))  # type: ignore[arg-type]


def test_cases_notice_a_storage_that_lets_two_consumers_in() -> None:
    class Open(DictionaryStorage):
        async def acquire_lock(self, run_id, lease_ms):  # type: ignore[no-untyped-def]
            self.locks.pop(run_id, None)
            return await super().acquire_lock(run_id, lease_ms)

    storage = Open()
    case = next(case for case in CASES if case.__name__ == "one_consumer_has_the_lock")
    with pytest.raises(AssertionError):
        asyncio.run(case(_Door(storage, storage.clock)))  # type: ignore[arg-type]
