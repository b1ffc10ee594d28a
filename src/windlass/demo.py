"""Shows the engine at work on a SQLite file: runs that succeed, fail and are tried again, are cancelled, and outlive their worker."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from pathlib import Path

from windlass.clock import SystemClock
from windlass.engine import Engine, Watch
from windlass.machine import ENDED, Fail, Succeed
from windlass.model import Entry, Failure, NewRun, Options, Run, WorkerInfo
from windlass.store.sqlite import AsyncSqlite

LEASE = 1_500
WORK = {"thumbnail": 0.15, "report": 0.6, "flaky": 0.1, "doomed": 0.3}


class Demo:
    """A few jobs, two workers of which one dies, a sweep, and somebody who watches the journal."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.clock = engine, engine.clock
        self.names: dict[str, str] = {}
        self.began = self.clock.now()

    async def define(self) -> None:
        await self.engine.define("thumbnail", payload={"width": 320})
        await self.engine.define("report", options=Options(priority=5))
        await self.engine.define("flaky", options=Options(max_attempts=3, backoff=(400, 800)))
        await self.engine.define("doomed", options=Options(max_attempts=2, backoff=(300,), exhausted="quarantined"))

    async def create(self) -> None:
        news = [NewRun("thumbnail", {"image": f"{n}.png"}) for n in range(4)] + [NewRun(job) for job in ("flaky", "doomed", "report")]
        created = await self.engine.create(news)
        after = await self.engine.create([NewRun("report", {"sum": True}, after=(created[0].id, created[1].id))])
        unwanted = await self.engine.create([NewRun("report", due_at=self.clock.now() + 60_000)])
        jobs = [new.job for new in news] + ["report after thumbnails", "unwanted report"]
        ids = [made.id for made in created + after + unwanted]
        self.names = {run_id: f"{job} {number}" for number, (job, run_id) in enumerate(zip(jobs, ids, strict=True), 1)}
        await self.engine.cancel(unwanted[0].id, reason="nobody wants it", by="demo")

    async def work(self, name: str, *, dies_after: int | None = None) -> None:
        """Claim and execute until everything has ended, or until this worker is lost without a word."""
        worker, done = WorkerInfo(name), 0
        while not await self.finished():
            runs = await self.engine.claim(worker, lease=LEASE)
            for run in runs:
                await self.engine.start(run.id, run.token or "")
                if done == dies_after:
                    print(f"          {name} is gone, with a run in its hands")
                    return
                await self.execute(run)
                done += 1
            if not runs:
                await self.clock.sleep(0.05)

    async def execute(self, run: Run) -> None:
        await self.clock.sleep(WORK[run.job])
        if run.job == "doomed" or (run.job == "flaky" and run.burnt == 0):
            report: Fail | Succeed = Fail(token=run.token, error=Failure("demo", f"attempt {run.attempt} did not go well"))
        else:
            report = Succeed(token=run.token, output='"done"')
        await self.engine.report(run.id, report)

    async def sweep(self) -> None:
        watch = Watch(self.clock)
        while not await self.finished():
            swept = await self.engine.sweep(watch)
            await self.clock.sleep(min(swept.back_in, 100) / 1000)

    async def watch(self) -> Counter[str]:
        """Print every change of state once, as it is committed; the last state of each run in the end."""
        cursor, last = None, dict.fromkeys(self.names, "")
        while not all(state in ENDED for state in last.values()):
            page = await self.engine.tail(cursor)
            cursor = page.cursor
            for entry in page.entries:
                last[entry.run] = entry.state
                self.show(entry)
            await self.clock.sleep(0.05)
        return Counter(last.values())

    def show(self, entry: Entry) -> None:
        by = f"  {entry.worker}" if entry.worker else ""
        print(f"{(entry.at - self.began) / 1000:7.2f} s  {self.names[entry.run]:27} {entry.move:10} {entry.state}{by}", flush=True)

    async def finished(self) -> bool:
        return all([(await self.engine.get(run)).state in ENDED for run in self.names])


async def main(path: Path) -> None:
    clock = SystemClock()
    store = AsyncSqlite(path, clock)
    demo = Demo(Engine(store, clock))
    print(f"A queue in {path}. Every line is an entry of its journal.\n")
    await demo.define()
    await demo.create()
    _, _, _, ends = await asyncio.gather(demo.sweep(), demo.work("worker-1"), demo.work("worker-2", dies_after=2), demo.watch())
    print(f"\n{len(demo.names)} runs, all ended: {', '.join(f'{count} {state}' for state, count in sorted(ends.items()))}.")
    await store.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="windlass-") as folder:
        asyncio.run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder) / "demo.db"))
