"""The jobs of a file that another program of the Forge protocol has made: taken over by `windlass dialects forge import`."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.dialects.test_forge_hosting import contents, old_file
from tests.harness import Harness
from windlass import cli
from windlass.dialects.forge.imports import BATCH, Import, ImportResult
from windlass.dialects.forge.verbs import JobQueue
from windlass.dialects.forge.words import Job, run_id_of
from windlass.errors import BadInput
from windlass.model import State

AT = 1_700_000_000_000
HASH = "ab" * 32
HISTORY = [{"reason": "exit code 1", "worker_id": "w2", "ts": AT + 5}]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    (tmp_path / "old").mkdir()
    return old_file(tmp_path / "old" / "forge-monitor.sqlite")


def hex_id(n: int) -> str:
    return f"{n:032x}"


def put(old: Path, n: int | str, status: str = "pending", **fields: Any) -> str:
    """A row of the old file; its id."""
    job_id = n if isinstance(n, str) else hex_id(n)
    created_at = AT + (n if isinstance(n, int) else 0)
    row = {"id": job_id, "type": "prodplan", "params": '{"n": 1.5}', "status": status, "created_at": created_at, **fields}
    with closing(sqlite3.connect(old)) as db, db:
        db.execute(f"insert into jobs ({', '.join(row)}) values ({', '.join('?' * len(row))})", tuple(row.values()))
    return job_id


def run(h: Harness, old: Path) -> ImportResult:
    return h(Import(h.engine).run(str(old)))


def row(h: Harness, job_id: str) -> Job:
    return h(JobQueue(h.engine).get_job(job_id))


def test_a_pending_job_is_a_new_run_with_its_id(h: Harness, old: Path) -> None:
    fields = {"solver_url": "https://files.example.com/s", "solver_checksum": HASH}
    job_id = put(old, 7, priority=3, max_attempts=5, max_runtime_ms=1_000, attempts=1, fail_history=json.dumps(HISTORY), **fields)
    assert run(h, old) == ImportResult(pending=1)
    job = row(h, job_id)
    assert (job.id, job.type, job.params, job.status, job.priority) == (job_id, "prodplan", '{"n":1.5}', "pending", 3)
    assert (job.max_attempts, job.max_runtime_ms, job.attempts, job.fail_history) == (5, 1_000, 0, "[]")
    assert (job.solver_url, job.solver_checksum) == (fields["solver_url"], HASH)
    claimed = h(JobQueue(h.engine).claim_job("w1"))
    assert claimed is not None
    assert claimed.id == job_id
    meta = json.loads(h.get(run_id_of(job_id) or "").meta or "")["forge"]
    assert (meta["created_at"], meta["attempts"], meta["fail_history"]) == (AT + 7, 1, HISTORY)


@pytest.mark.parametrize("status", ["assigned", "running"])
def test_a_job_that_an_agent_has_is_pending_again(h: Harness, old: Path, status: str) -> None:
    job_id = put(old, 1, status, worker_id="w1", claimed_at=AT, heartbeat_at=AT, attempts=1)
    assert run(h, old) == ImportResult(pending=1)
    assert (row(h, job_id).status, row(h, job_id).worker_id) == ("pending", None)


def test_jobs_that_have_ended_are_history(h: Harness, old: Path) -> None:
    done = put(old, 1, "completed", result='{"a": 1}\n', result_hash=HASH, worker_id="w1", attempts=2, completed_at=AT + 9, priority=1)
    empty = put(old, 2, "completed", worker_id="w2")
    bad = put(old, 3, "quarantined", fail_reason="exit code 3", worker_id="w1", attempts=3, fail_history=json.dumps(HISTORY))
    long = put(old, 4, "quarantined", fail_reason="max_runtime_exceeded", worker_id=None)
    gone = put(old, 5, "failed", fail_reason="cancelled")
    assert run(h, old) == ImportResult(ended=5)
    assert (row(h, done).status, row(h, done).result, row(h, done).result_hash) == ("completed", '{"a": 1}\n', HASH)
    assert (row(h, done).worker_id, row(h, empty).worker_id, row(h, long).worker_id) == ("w1", "w2", "import")
    assert (row(h, empty).status, row(h, empty).result) == ("completed", None)
    assert (row(h, bad).status, row(h, bad).fail_reason, row(h, bad).max_attempts) == ("quarantined", "exit code 3", 3)
    assert (row(h, long).status, row(h, long).fail_reason, row(h, long).fail_history) == ("quarantined", "max_runtime_exceeded", "[]")
    assert (row(h, gone).status, row(h, gone).fail_reason, row(h, gone).attempts) == ("failed", "cancelled", 0)
    listed = h(JobQueue(h.engine).list_jobs())
    assert [job.id for job in listed] == [done, gone, long, bad, empty]  # the highest priority first, then the newest
    assert h(JobQueue(h.engine).claim_job("w1")) is None
    meta = json.loads(h.get(run_id_of(done) or "").meta or "")["forge"]
    assert (meta["completed_at"], meta["attempts"], meta["worker_id"]) == (AT + 9, 2, "w1")


def test_an_import_that_is_repeated_changes_nothing(h: Harness, old: Path) -> None:
    ids = [put(old, n, status, result="42") for n, status in enumerate(("completed", "failed", "quarantined", "pending", "running"))]
    run(h, old)
    before = [(row(h, job_id), h.moves(run_id_of(job_id) or "")) for job_id in ids]
    assert run(h, old) == ImportResult(known=5)
    assert [(row(h, job_id), h.moves(run_id_of(job_id) or "")) for job_id in ids] == before


@pytest.mark.parametrize("kind", ["claim", "report_many", "cancel"])
def test_an_import_that_was_interrupted_goes_on_where_it_ended(h: Harness, old: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done, gone = put(old, 1, "completed", result="42", worker_id="w1"), put(old, 2, "failed")

    async def broken(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(h.engine, kind, broken)
        with pytest.raises(KeyboardInterrupt):
            run(h, old)
    if kind == "report_many":
        h.sweep(61_000)  # it was claimed
        h.sweep(61_000)
    run(h, old)
    assert (row(h, done).status, row(h, done).result, row(h, gone).status) == ("completed", "42", "failed")


def test_many_jobs_are_taken_over_in_batches(h: Harness, old: Path) -> None:
    with closing(sqlite3.connect(old)) as db, db:
        rows = [(hex_id(n), ("completed", "pending")[n % 2], AT + n, f"w{n % 3}", str(n)) for n in range(2 * BATCH + 10)]
        db.executemany("insert into jobs (id, type, status, created_at, worker_id, result) values (?, 'x', ?, ?, ?, ?)", rows)
    assert run(h, old) == ImportResult(pending=BATCH + 5, ended=BATCH + 5)
    for n in (0, 2, 2 * BATCH + 8):
        assert (row(h, hex_id(n)).result, row(h, hex_id(n)).worker_id) == (str(n), f"w{n % 3}")


def test_what_cannot_be_stored_is_named_and_does_not_stay_pending(h: Harness, old: Path) -> None:
    nul, big = put(old, 1, "completed", result="a\0b"), put(old, 2, "completed", result="x" * 2_000_000)
    wrong = put(old, 3, "completed", result="42", result_hash="x" * 10_000)
    negative, nameless, good = put(old, 4, max_attempts=-1), put(old, 5, type="a\nb"), put(old, 6)
    result = run(h, old)
    assert (result.pending, result.ended, sorted(job for job, _ in result.refused)) == (1, 3, [nul, big, wrong, negative, nameless])
    for job_id in (nul, big, wrong):
        assert row(h, job_id).status == "quarantined"
        assert (row(h, job_id).fail_reason or "").startswith("Its end could not be imported: ")
    assert row(h, good).status == "pending"


def test_an_id_of_another_form_stands_for_one_that_is_made_of_it(h: Harness, old: Path) -> None:
    put(old, "job 1", params="no JSON")
    assert run(h, old) == ImportResult(pending=1)
    assert run(h, old) == ImportResult(known=1)
    (job,) = h(JobQueue(h.engine).list_jobs())
    assert job.params == '"no JSON"'
    assert json.loads(h.get(run_id_of(job.id) or "").meta or "")["forge"]["id"] == "job 1"


def test_a_long_history_of_failures_keeps_its_newest(h: Harness, old: Path) -> None:
    failures = [{"reason": 100 * "x", "worker_id": "w", "ts": n} for n in range(100)]
    job_id = put(old, 1, fail_history=json.dumps(failures))
    run(h, old)
    kept = json.loads(h.get(run_id_of(job_id) or "").meta or "")["forge"]["fail_history"]
    assert 10 < len(kept) < 100
    assert kept == failures[-len(kept) :]


def test_history_is_refused_where_a_claim_could_take_jobs_of_somebody_else(h: Harness, old: Path) -> None:
    other = h(JobQueue(h.engine).create_job("benchmark"))
    done = put(old, 1, "completed", result="42")
    with pytest.raises(BadInput, match="Jobs wait in the queue forge"):
        run(h, old)
    assert [job.id for job in h(JobQueue(h.engine).list_jobs())] == [other.id]
    claimed = h(JobQueue(h.engine).claim_job("w1"))
    assert claimed is not None
    assert claimed.id == other.id
    assert run(h, old) == ImportResult(ended=1)
    assert row(h, done).status == "completed"


def test_a_job_that_is_created_in_the_moment_of_the_claim_goes_back_as_it_was(
    h: Harness, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(old, 1, "completed", result="42", worker_id="w1")
    claim, others = h.engine.claim, list[str]()

    async def late(info: Any, **details: Any) -> Any:
        others.append((await JobQueue(h.engine).create_job("benchmark", priority=9)).id)
        return await claim(info, **{**details, "count": 2})

    with monkeypatch.context() as patch:
        patch.setattr(h.engine, "claim", late)
        run(h, old)
    other = h.get(run_id_of(others[0]) or "")
    assert (other.state, other.failures, other.attempt) == (State.QUEUED, 0, 1)
    assert row(h, hex_id(1)).status == "completed"


# The command


def test_the_command_takes_over_a_file_and_leaves_it_as_it_is(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    put(old, 1)
    put(old, 2, "completed", result="42")
    before = contents(tmp_path / "old")
    assert cli.main(["dialects", "forge", "import", str(old), "--store", "new.db"]) == 0
    assert "Imported into new.db: 1 pending, 1 ended; 0 were there before." in capsys.readouterr().out
    assert contents(tmp_path / "old") == before
    assert cli.main(["dialects", "forge", "import", str(old), "--store", "new.db", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"pending": 0, "ended": 0, "known": 2, "refused": []}


def test_the_command_uses_the_environment_of_the_hub(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    put(old, 1, max_attempts=-1)
    monkeypatch.setenv("SQLITE_PATH", str(tmp_path / "new.db"))
    assert cli.main(["dialects", "forge", "import", str(old)]) == 1
    assert hex_id(1) in capsys.readouterr().err
    assert (tmp_path / "new.db").exists()


@pytest.mark.parametrize("words", [["--store", "old/forge-monitor.sqlite"], ["--hub", "https://hub.example.com"]])
def test_the_command_refuses_what_is_no_new_store(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = contents(tmp_path / "old")
    assert cli.main(["dialects", "forge", "import", "old/forge-monitor.sqlite", *words]) == 2
    assert contents(tmp_path / "old") == before


def test_the_command_refuses_a_file_of_another_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.db").write_text("no database")
    for name in ("text.db", "missing.db"):
        assert cli.main(["dialects", "forge", "import", name, "--store", "new.db"]) == 2
        assert f"{name} is not a file of another program of the Forge protocol." in capsys.readouterr().err
