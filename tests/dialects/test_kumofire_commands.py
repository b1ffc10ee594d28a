"""The commands of Kumofire's parts, and its words on the command line."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dialects.kumofire_dictionaries import DictionaryStorage
from tests.dialects.kumofire_door import KumofireDoor
from windlass import App
from windlass.cli import main
from windlass.clock import ManualClock, SystemClock
from windlass.dialects.kumofire import JobContext, KumofireJobs, MemoryQueue, Storage, StoreQueue, create_jobs
from windlass.dialects.kumofire.parts import ConsumeLoop, DispatchLoop, Messages, until_stopped

SHOP = """
from windlass.dialects.kumofire import Storage, StoreQueue, create_jobs

storage = Storage()
jobs = create_jobs(storage=storage, queue=StoreQueue(storage), handlers={"email": lambda context: None})
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module of jobs, in which every test is."""
    for name in [name for name in os.environ if name.startswith("WINDLASS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WINDLASS_STORE", "jobs.db")
    (tmp_path / "kumoshop.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("kumoshop", None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["consume", "kumoshop:jobs", "--dialect", "forge"], "There is no dialect with a dispatcher and consumers called 'forge'."),
        (["dispatch", "--dialect", "moat"], "There is no dialect with a dispatcher and consumers called 'moat'."),
        (["consume", "kumoshop:storage", "--dialect", "kumofire"], "kumoshop:storage is Storage, not KumofireJobs."),
        (["consume", "kumoshop:job", "--dialect", "kumofire"], "The module kumoshop has no job."),
        (["dispatch", "--dialect", "kumofire", "--hub", "http://hub.example"], "This does not go through a hub."),
        (["hub", "--dialect", "kumofire"], "There is no dialect with routes called 'kumofire'."),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_what_cannot_be_run_is_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_a_table_of_settings_is_read_though_no_hub_serves_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "windlass.toml").write_text("[dialects.kumofire]\nqueues = 7\n")
    assert main(["dispatch", "--dialect", "kumofire"]) == 2
    assert "[dialects.kumofire] cannot be read" in capsys.readouterr().err


def test_any_run_is_shown_with_the_fields_of_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    with App("jobs.db", clock=ManualClock()) as app:
        storage = Storage(app)
        jobs = create_jobs(storage=storage, queue=MemoryQueue(), handlers={"email": lambda context: None})
        asyncio.run(jobs.create_schedule("email", schedule_key="often", schedule_type="interval", schedule_expr="5m"))
        assert isinstance(app.clock, ManualClock)
        app.clock.advance(300_000)
        asyncio.run(jobs.dispatch())
        (run,) = app.runs().runs
    assert main(["--json", "show", run.id, "--as", "kumofire"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "id": run.id, "job_id": "email", "job_schedule_id": "often", "status": "queued", "scheduled_for": "2026-01-01T00:05:00.000Z",
        "started_at": None, "finished_at": None, "attempt": 0, "max_attempts": 3, "input_payload": {}, "output_payload": None,
        "error_message": None, "created_at": "2026-01-01T00:05:00.000Z", "updated_at": "2026-01-01T00:05:00.000Z",
    }  # fmt: skip
    assert main(["--json", "runs", "--as", "kumofire"]) == 0
    assert [shown["id"] for shown in json.loads(capsys.readouterr().out)["runs"]] == [run.id]


def shop(handler: Any) -> KumofireJobs:
    storage = Storage("jobs.db")
    return create_jobs(storage=storage, queue=StoreQueue(storage), handlers={"email": handler})


def test_at_a_signal_a_consumer_ends_what_it_does_and_takes_nothing_more() -> None:
    handled = []

    async def live() -> None:
        begun, freed = asyncio.Event(), asyncio.Event()

        async def handle(context: JobContext) -> None:
            begun.set()
            await freed.wait()
            handled.append(context.job.id)

        jobs = shop(handle)
        first = (await jobs.create("email")).kumofire_job_run_id
        second = (await jobs.create("email")).kumofire_job_run_id
        slot = ConsumeLoop(jobs, Messages(StoreQueue(jobs.storage)), SystemClock())  # type: ignore[arg-type]
        consuming = asyncio.ensure_future(until_stopped([slot], grace=60))
        await begun.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await slot.stopping.wait()
        freed.set()
        await consuming
        statuses = [await jobs.get_status(run_id) for run_id in (first, second)]
        assert [status and status.status for status in statuses] == ["succeeded", "queued"]
        assert handled == [first]
        await jobs.storage.close()

    asyncio.run(live())


def test_a_second_signal_ends_a_consumer_at_once_and_leaves_the_lock_to_expire() -> None:
    async def live() -> None:
        begun = asyncio.Event()

        async def handle(context: JobContext) -> None:
            begun.set()
            await asyncio.Event().wait()

        jobs = shop(handle)
        run_id = (await jobs.create("email")).kumofire_job_run_id
        slot = ConsumeLoop(jobs, Messages(StoreQueue(jobs.storage)), SystemClock())  # type: ignore[arg-type]
        consuming = asyncio.ensure_future(until_stopped([slot], grace=60))
        await begun.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await slot.stopping.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(consuming, 30)
        status = await jobs.get_status(run_id)
        assert status is not None
        assert status.status == "running"
        await jobs.storage.close()

    asyncio.run(live())


def test_a_dispatcher_survives_a_queue_that_fails() -> None:
    class Broken:
        async def send(self, message: Any) -> None:
            raise ConnectionError("no broker")

    storage = DictionaryStorage()
    door = KumofireDoor(storage, storage.clock)
    door.create(run_at=door.in_ms(1_000))
    door.clock.advance(1_000)
    assert asyncio.run(DispatchLoop(door.another(queue=Broken()), SystemClock()).tick()) == 1.0
    door.clock.advance(60_001)
    assert asyncio.run(DispatchLoop(door.jobs, SystemClock()).tick()) == 1.0
    assert len(door.sent()) == 1


def test_a_consumer_that_gets_only_what_others_have_waits_for_a_hint() -> None:
    async def live() -> None:
        jobs = shop(lambda context: None)
        assert isinstance(jobs.storage, Storage)
        await jobs.create("email")
        messages, waits = Messages(StoreQueue(jobs.storage)), list[float]()

        async def wait(timeout: float) -> None:
            waits.append(timeout)

        messages._queue.wait = wait  # type: ignore[method-assign]
        first = await messages.next()
        assert waits == []
        messages.busy.clear()  # it was ignored
        assert await messages.next() == first
        assert waits == [1.0]
        await jobs.storage.close()

    asyncio.run(live())
