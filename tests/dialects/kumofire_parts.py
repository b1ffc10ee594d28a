"""The parts of Kumofire Jobs as programs: `python -m tests.dialects.kumofire_parts application|dispatcher|consumer STORE FOLDER QUEUE`.

Their queue is a folder. It doubles some messages, drops some, and delivers them in any order.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from random import Random

from windlass.dialects.kumofire import JobContext, KumofireJobs, RetryPolicy, Storage, create_jobs
from windlass.dialects.kumofire.messages import Message
from windlass.faults import FAULTS

RUNS, SCHEDULES = 24, 4
LEASE, RESEND = 600, 400
ATTEMPTS = 50  # a kill counts as a failure
TICK = 0.03


class FolderQueue:
    """Messages as files. A consumer that is killed loses the one it has taken."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self.name, self._chance, self._number = folder, name, Random(), 0

    async def send(self, message: Message) -> None:
        for _ in range(self._chance.choice([0, 1, 1, 1, 2, 3])):
            self._number += 1
            name = f"{self._chance.random()}-{os.getpid()}-{self._number}"
            (self._folder / f".{name}").write_text(json.dumps(message))
            (self._folder / f".{name}").rename(self._folder / f"{name}.message")

    def take(self) -> Iterator[str]:
        """The messages that are there, in any order, each for one consumer."""
        for path in sorted(self._folder.glob("*.message")):
            taken = path.with_suffix(f".{os.getpid()}")
            try:
                path.rename(taken)
            except FileNotFoundError:
                continue  # another consumer has it
            yield taken.read_text()
            taken.unlink()


def jobs_at(store: str, folder: Path, queue_name: str) -> tuple[KumofireJobs, FolderQueue]:
    """The jobs, whose handler notes each call, and fails now and then."""
    chance = Random()

    async def note(context: JobContext) -> int:
        with (folder / "handled").open("a") as file:
            file.write(f"{context.job.id}\n")
        if chance.random() < 0.2:
            raise ConnectionError("no answer")
        return int(context.job.input_payload["n"])

    queue = FolderQueue(folder, queue_name)
    retry = RetryPolicy(ATTEMPTS, lambda attempt, error, job, now: now + timedelta(milliseconds=20))
    storage = Storage(store, queue=queue_name)
    return create_jobs(storage=storage, queue=queue, handlers={"note": note}, retry=retry, lease_ms=LEASE, resend_ms=RESEND), queue


async def application(jobs: KumofireJobs, queue: FolderQueue) -> None:
    """Create everything; started again after a crash, it creates the same."""
    for n in range(RUNS):
        run_at = jobs.storage.now() + timedelta(milliseconds=200) if n % 3 == 0 else None
        await jobs.create("note", {"n": n}, dedupe_key=f"note-{n}", run_at=run_at)
    for n in range(SCHEDULES):
        key = f"{queue.name}-{n}"
        if await jobs.get_schedule_by_key(key) is None:
            at = jobs.storage.now() + timedelta(seconds=2)
            await jobs.upsert_schedule("note", {"n": n}, schedule_key=key, schedule_type="once", schedule_expr=at)
    await jobs.storage.close()


async def dispatcher(jobs: KumofireJobs, queue: FolderQueue) -> None:
    while True:
        await jobs.dispatch(limit=3)
        await asyncio.sleep(TICK)


async def consumer(jobs: KumofireJobs, queue: FolderQueue) -> None:
    while True:
        for message in queue.take():
            await jobs.consume(message)
        await asyncio.sleep(TICK)


PARTS = {part.__name__: part for part in (application, dispatcher, consumer)}


async def points(jobs: KumofireJobs, queue: FolderQueue) -> set[str]:
    """The fault points that a creation, a dispatch and a consumption pass: at each of them a process can be killed."""
    seen = FAULTS.record()
    at = jobs.storage.now() + timedelta(seconds=2)
    await jobs.upsert_schedule("note", {"n": 0}, schedule_key="first", schedule_type="once", schedule_expr=at)
    run = await jobs.create("note", {"n": 0})
    await asyncio.sleep(2)
    await jobs.dispatch()
    while (await jobs.consume({"kumofireJobRunId": run.kumofire_job_run_id})).outcome == "retried":
        await asyncio.sleep(TICK)
        await jobs.dispatch()
    FAULTS.arm("")
    await jobs.storage.close()
    return seen


if __name__ == "__main__":
    asyncio.run(PARTS[sys.argv[1]](*jobs_at(sys.argv[2], Path(sys.argv[3]), sys.argv[4])))
