"""What an engine remembers of jobs and lanes stays right when many verbs run at once in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.harness import Harness
from windlass.clock import SystemClock
from windlass.engine import Engine
from windlass.model import JobRecord, NewRun, WorkerInfo
from windlass.store.sqlite import AsyncSqlite


def test_a_lane_read_twice_is_one_lane(h: Harness) -> None:
    ids = [h.create(payload=n) for n in range(3)]
    fresh = h.another().engine
    lanes = h(fresh.parts.ground.home.lanes.after(0))
    fresh.parts.ground.lanes.add(lanes)
    fresh.parts.ground.lanes.add(lanes)  # a second verb had asked before the first one was answered
    fresh.parts.ground.lanes.add(lanes._replace(lanes=lanes.lanes[:1]))
    assert [run.id for run in h(fresh.runs(state="queued")).runs] == ids
    assert [run.id for run in h(fresh.claim(WorkerInfo("w1", slots=9), count=3))] == ids


def test_claims_at_once_in_a_new_process_see_each_lane_once(tmp_path: Path) -> None:
    async def go() -> None:
        clock = SystemClock()
        store = AsyncSqlite(tmp_path / "windlass.db", clock)
        maker, worker = Engine(store, clock), Engine(store, clock)
        for n in range(5):
            await maker.define(f"job{n}")
            await maker.create([NewRun(f"job{n}")])
        claims = await asyncio.gather(*(worker.claim(WorkerInfo(f"w{n}")) for n in range(5)))
        assert len({run.id for claim in claims for run in claim}) == 5
        assert sorted(lane.id for lane in worker.parts.ground.lanes.all) == sorted({lane.id for lane in worker.parts.ground.lanes.all})
        await store.close()

    asyncio.run(go())


def test_a_definition_forgotten_while_another_is_read_is_read_again(h: Harness) -> None:
    h.define("other")
    engine = h.another().engine
    h(engine.create([NewRun("mail")]))  # remembers one of the two
    read, forgotten = engine.parts.ground.home.jobs.named, list[Sequence[str]]()

    async def read_while_somebody_forgets(names: Sequence[str]) -> list[JobRecord]:
        if not forgotten:
            forgotten.append(names)
            engine.parts.ground.memory.forget_jobs()
        return await read(names)

    engine.parts.ground.home.jobs.named = read_while_somebody_forgets  # type: ignore[method-assign]
    assert len(h(engine.create([NewRun("mail"), NewRun("other")]))) == 2


def test_what_runs_of_a_job_have_in_common_follows_each_change_of_the_job_and_of_its_queue(h: Harness) -> None:
    """Changes by the process that remembers it, and by another one."""
    for changer in (h, h.another()):
        changer.define(priority=1, queue="first")
        assert [(run.queue, run.priority, run.policy.aging) for run in (h.get(h.create()), h.get(h.create()))] == [("first", 1, None)] * 2
        changer.define(priority=2, queue="second")
        assert (run := h.get(h.create())).queue == "second"
        assert run.priority == 2
        changer(changer.engine.set_queue("second", aging=60_000))
        assert h.get(h.create()).policy.aging == 60_000
        changer(changer.engine.set_queue("second", aging=None))
        assert h.get(h.create()).policy.aging is None


def test_a_claim_that_looked_into_the_old_lanes_looks_again_although_another_has_learnt_of_the_new_ones(h: Harness) -> None:
    run_id = h.create()
    engine = h.another().engine
    look = engine.records.claims.look

    async def look_while_another_claims(*arguments: Any) -> Any:
        found = await look(*arguments)
        await engine.parts.ground.refresh_lanes()
        return found

    engine.records.claims.look = look_while_another_claims  # type: ignore[method-assign, assignment]
    assert [run.id for run in h(engine.claim(WorkerInfo("w1")))] == [run_id]
