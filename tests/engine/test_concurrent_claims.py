"""Fifty claims at the same moment on fifty queued runs: empty means empty, so each gets one, and no two the same."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.harness import Harness
from tests.tiers import long
from windlass.clock import ManualClock, SystemClock
from windlass.engine import Engine
from windlass.hub.batching import Batcher
from windlass.model import NewRun, WorkerInfo
from windlass.store.base import Row, Statement, Store, run_sync
from windlass.store.postgres import BlockingPostgres
from windlass.store.sqlite import AsyncSqlite, BlockingSqlite

FIFTY = 50
ROUNDS = 6


@contextmanager
def engines(opened: Callable[[], Store]) -> Iterator[list[Harness]]:
    """As many engines as claims, each with a connection of its own, as separate processes would have."""
    with ExitStack() as stack:
        harnesses = []
        for number in range(FIFTY):
            harnesses.append(Harness(opened(), ManualClock(seed=number)))
            stack.callback(close, harnesses[-1].store)
        yield harnesses


def close(store: Store) -> None:
    run_sync(store.close())


def claim_at_once(harnesses: list[Harness]) -> list[list[str]]:
    """What each gets when all claim one run at the same moment."""
    answers: list[list[str]] = [[] for _ in harnesses]
    failures: list[Exception] = []
    barrier = threading.Barrier(len(harnesses))

    def claim(number: int) -> None:
        try:
            barrier.wait(60)
            answers[number] = [run.id for run in harnesses[number].claim(1, worker=f"w{number}")]
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(len(harnesses))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    return answers


def check(opened: Callable[[], Store]) -> None:
    """Several rounds, because a race is not lost each time."""
    with engines(opened) as harnesses:
        first = harnesses[0]
        first.define()
        for _ in range(ROUNDS):
            made = [first.create() for _ in range(FIFTY)]
            answers = claim_at_once(harnesses)
            assert [len(answer) for answer in answers] == [1] * FIFTY
            assert sorted(answer[0] for answer in answers) == sorted(made)
            assert first.claim(1) == []


@long
def test_none_of_fifty_claims_on_a_file_comes_back_empty(tmp_path: Path) -> None:
    check(lambda: BlockingSqlite(tmp_path / "windlass.db", ManualClock()))


def in_one_process(path: Path, runs: int, claims: int) -> tuple[list[list[str]], int]:
    """What claims get that are asked at once of one hub, and how many writes that took."""

    async def ask() -> tuple[list[list[str]], int]:
        watched = Watched(AsyncSqlite(path, SystemClock()))
        engine = Engine(watched, SystemClock())
        await engine.define("mail")
        await engine.create([NewRun("mail") for _ in range(runs)])
        joining = Batcher(engine)
        answers = await asyncio.gather(*(joining.claim(engine.asking(WorkerInfo(f"w{n}", slots=8))) for n in range(claims)))
        await engine.close()
        return [[run.id for run in answer] for answer in answers], watched.claims

    return asyncio.run(ask())


class Watched:
    """A store that counts the batches that write a claim."""

    def __init__(self, store: Store) -> None:
        self.store, self.claims = store, 0

    async def batch(self, verb: str, statements: Sequence[Statement]) -> list[list[Row]]:
        self.claims += any(statement.name in ("claim", "claim_each") for statement in statements)
        return await self.store.batch(verb, statements)

    async def close(self) -> None:
        await self.store.close()


def test_claims_that_one_hub_is_asked_for_at_once_are_one_write(tmp_path: Path) -> None:
    answers, writes = in_one_process(tmp_path / "windlass.db", runs=30, claims=16)
    got = [run for answer in answers for run in answer]
    assert [len(answer) for answer in answers] == [1] * 16
    assert len(set(got)) == 16
    assert writes == 1


@long
def test_none_of_fifty_claims_on_postgres_comes_back_empty(emptied_postgres: str) -> None:
    check(lambda: BlockingPostgres(emptied_postgres, ManualClock(), size=1))
