"""Fifty claims at the same moment on fifty queued runs: empty means empty, so each gets one, and no two the same."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.harness import Harness
from windlass.clock import ManualClock, SystemClock
from windlass.engine import Engine
from windlass.errors import StoreUnreachable
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


def test_none_of_fifty_claims_on_a_file_comes_back_empty(tmp_path: Path) -> None:
    check(lambda: BlockingSqlite(tmp_path / "windlass.db", ManualClock()))


class Watched:
    """A store that remembers which batches write a claim, and can let the first of them fail."""

    def __init__(self, store: Store) -> None:
        self.store, self.claims, self.away = store, 0, False

    async def batch(self, verb: str, statements: Sequence[Statement]) -> list[list[Row]]:
        if any(statement.name == "claim" for statement in statements):
            self.claims += 1
            if self.away and self.claims == 1:
                await asyncio.sleep(0.2)  # long enough for the other claim to reach for the same run
                raise StoreUnreachable("It is away.", hint="Wait.")
        return await self.store.batch(verb, statements)

    async def close(self) -> None:
        await self.store.close()


def in_one_process(path: Path, runs: int, claims: int, *, away: bool = False) -> tuple[list[list[str] | BaseException], int]:
    """What claims get that are asked at once of one engine, and how many writes that took."""

    async def ask() -> tuple[list[list[str] | BaseException], int]:
        watched = Watched(AsyncSqlite(path, SystemClock()))
        watched.away = away
        engine = Engine(watched, SystemClock())
        await engine.define("mail")
        await engine.create([NewRun("mail") for _ in range(runs)])
        await engine.refresh_lanes()
        asked = (engine.claim(WorkerInfo(f"w{n}", slots=8)) for n in range(claims))
        answers = await asyncio.gather(*asked, return_exceptions=True)
        await engine.close()
        return [answer if isinstance(answer, BaseException) else [run.id for run in answer] for answer in answers], watched.claims

    return asyncio.run(ask())


def test_claims_of_one_process_reach_for_different_runs(tmp_path: Path) -> None:
    answers, writes = in_one_process(tmp_path / "windlass.db", runs=30, claims=16)
    got = [run for answer in answers if isinstance(answer, list) for run in answer]
    assert len(got) == len(set(got)) == 16
    assert writes < 24  # one each, but for those who looked before another had its run; without hands it is 60 and more


def test_a_run_that_another_claim_reached_for_in_vain_is_not_passed_by(tmp_path: Path) -> None:
    answers, _ = in_one_process(tmp_path / "windlass.db", runs=1, claims=2, away=True)
    assert isinstance(answers[0], StoreUnreachable)
    assert isinstance(answers[1], list)
    assert len(answers[1]) == 1


def test_none_of_fifty_claims_on_postgres_comes_back_empty(postgres_url: str) -> None:
    check(lambda: BlockingPostgres(postgres_url, ManualClock(), size=1))
