"""0gkit's backend: claims, ends and cancels, each by its verb; the words of its records; and the signature of webhooks."""

from __future__ import annotations

import asyncio
import hmac
import json
import random
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.dialects.zerog_door import ZeroGDoor, read, shared, still, zerog
from tests.harness import Harness
from windlass.cli import main
from windlass.clock import ManualClock
from windlass.dialects import mount_all, show
from windlass.dialects.zerog import (
    BackendUnreachable,
    BadSignature,
    HandlerThrew,
    InvalidValue,
    JobBackend,
    JobNotFound,
    JobState,
    ZeroGError,
    backend,
    jobs,
)
from windlass.dialects.zerog.words import WORDS, options_of
from windlass.errors import BadInput, Cancelled, LeaseLost, WrongState
from windlass.machine import ENDED, backoff
from windlass.model import NewRun, Policy, Run, State

__all__ = ["shared", "still", "zerog"]  # fixtures

UNKNOWN: tuple[Any, ...] = ("00000000-0000-7000-8000-000000000000", "no-such-job", "", "x" * 300, "é", "a b", None, 5, ["no-such-job"])


def test_Z1_enqueue_claim_complete(still: ZeroGDoor) -> None:
    async def scenario(store: JobBackend) -> None:
        begun = store.clock.now()
        job_id = await store.enqueue("resize", {"url": "a.png"})
        queued = await read(store, job_id)
        assert queued.to_json() == {
            "id": job_id, "name": "resize", "state": "queued", "input": {"url": "a.png"}, "metadata": {"attempts": 0, "createdAt": begun},
        }  # fmt: skip
        still.advance(10)
        running = await store.claim("w1")
        assert running is not None
        assert running == await read(store, job_id)
        assert running.to_json() == queued.to_json() | {
            "state": "running", "metadata": {"attempts": 1, "createdAt": begun, "startedAt": begun + 10},
        }  # fmt: skip
        still.advance(10)
        await store.complete(job_id, {"width": 64})
        done = await read(store, job_id)
        assert done.to_json() == running.to_json() | {
            "state": "done", "result": {"width": 64},
            "metadata": {"attempts": 1, "createdAt": begun, "startedAt": begun + 10, "finishedAt": begun + 20},
        }  # fmt: skip
        assert done.result_or_raise() == {"width": 64}

    still(scenario)


def test_Z2_a_claim_gives_the_oldest_and_nothing_when_there_is_none(still: ZeroGDoor) -> None:
    async def scenario(store: JobBackend) -> None:
        assert await store.claim("w1") is None
        ids = []
        for n in range(5):
            ids.append(await store.enqueue("resize", n))
            still.advance(1)
        claimed = [await store.claim(f"w{n % 2}") for n in range(6)]
        assert [None if record is None else record.id for record in claimed] == [*ids, None]

    still(scenario)


def test_Z2_many_workers_claim_each_job_once(shared: ZeroGDoor) -> None:
    async def scenario(store: JobBackend) -> None:
        ids = [await store.enqueue("resize", n) for n in range(40)]
        others = [shared.backend() for _ in range(3)]

        async def claims(worker: JobBackend, name: str) -> list[str]:
            taken = []
            while (record := await worker.claim(name)) is not None:
                taken.append(record.id)
            return taken

        claimed = await asyncio.gather(*(claims(one, f"w{n}") for n, one in enumerate([store, *others])))
        assert sorted(job for taken in claimed for job in taken) == sorted(ids)
        for other in others:
            await other.close()

    shared(scenario)


def test_Z3_a_failure_with_attempts_left_queues_the_same_job_again(still: ZeroGDoor) -> None:
    async def scenario(store: JobBackend) -> None:
        job_id = await store.enqueue("resize")
        await store.claim("w1")
        await store.fail(job_id, ValueError("no gas"), True)
        again = await read(store, job_id)
        assert (again.id, again.state, again.error) == (job_id, JobState.QUEUED, None)
        assert again.to_json()["metadata"] == {"attempts": 1, "createdAt": again.metadata.created_at, "lastError": "no gas"}
        record = await store.claim("w2")
        assert record is not None
        assert (record.id, record.metadata.attempts, record.metadata.last_error) == (job_id, 2, "no gas")
        await store.complete(job_id)
        assert (await read(store, job_id)).metadata.last_error == "no gas"

    still(scenario)


def test_Z3_a_retry_may_have_a_delay(still: ZeroGDoor) -> None:
    async def scenario(store: JobBackend) -> None:
        job_id = await store.enqueue("resize")
        await store.claim("w1")
        await store.fail(job_id, "no gas", delay_ms=2_000)
        assert await store.claim("w1") is None
        still.advance(2_000)
        record = await store.claim("w1")
        assert record is not None
        assert record.id == job_id

    still(scenario)


@pytest.mark.parametrize(("max_attempts", "retries"), [(3, (True, True, True)), (1, (True,)), (3, (True, False)), (3, (False,))])
def test_Z4_a_job_without_attempts_left_has_failed_with_its_error(still: ZeroGDoor, max_attempts: int, retries: tuple[bool, ...]) -> None:
    async def scenario(store: JobBackend) -> None:
        job_id = await store.enqueue("resize", max_attempts=max_attempts)
        for n, retry in enumerate(retries):
            await store.claim("w1")
            await store.fail(job_id, f"no gas {n}", retry)
        failed, error = await read(store, job_id), f"no gas {len(retries) - 1}"
        assert (failed.state, failed.error, failed.metadata.last_error, failed.metadata.attempts) == (
            JobState.FAILED, error, error, len(retries),
        )  # fmt: skip
        assert failed.metadata.finished_at == store.clock.now()
        assert await store.claim("w1") is None
        with pytest.raises(HandlerThrew, match=error):
            failed.result_or_raise()

    still(scenario)


def test_Z5_a_worker_that_is_gone_loses_the_job_to_a_later_claim(still: ZeroGDoor) -> None:
    async def scenario(store: JobBackend) -> None:
        job_id = await store.enqueue("resize")
        await store.claim("w1", lease_ms=5_000)
        still.advance(4_999)
        assert await store.claim("w2") is None
        still.advance(1_001)
        assert await store.claim("w2") is None  # lost now, and due after the backoff
        still.advance(1_000)
        record = await store.claim("w2")
        assert record is not None
        assert (record.id, record.metadata.attempts) == (job_id, 2)
        with pytest.raises(WrongState, match="was not claimed by the worker 'w1'"):
            await store.complete(job_id, "late", worker_id="w1")
        await store.complete(job_id, "in time", worker_id="w2")
        assert (await read(store, job_id)).result == "in time"

    still(scenario)


def test_Z6_a_queued_job_is_cancelled_and_never_claimed(still: ZeroGDoor) -> None:
    async def scenario(store: JobBackend) -> None:
        job_id = await store.enqueue("resize")
        await store.cancel(job_id)
        cancelled = await read(store, job_id)
        assert (cancelled.state, cancelled.metadata.attempts, cancelled.error) == (JobState.CANCELLED, 0, None)
        assert cancelled.metadata.finished_at == store.clock.now()
        assert await store.claim("w1") is None
        with pytest.raises(WrongState):
            cancelled.result_or_raise()

    still(scenario)


def test_Z6_a_later_end_does_not_change_a_cancelled_job(still: ZeroGDoor) -> None:
    async def scenario(store: JobBackend) -> None:
        job_id = await store.enqueue("resize")
        await store.claim("w1")
        await store.cancel(job_id)
        cancelled = await read(store, job_id)
        assert (cancelled.state, cancelled.metadata.finished_at) == (JobState.CANCELLED, store.clock.now())
        still.advance(50)
        for report in (store.complete(job_id, 1), store.complete(job_id, 1), store.fail(job_id, "no", True)):
            with pytest.raises(Cancelled):
                await report
            assert await read(store, job_id) == cancelled

    still(scenario)


@pytest.mark.parametrize("end", ["done", "failed", "cancelled"])
def test_Z6_a_cancel_of_an_ended_job_changes_nothing(still: ZeroGDoor, end: str) -> None:
    async def scenario(store: JobBackend) -> None:
        job_id = await store.enqueue("resize")
        await store.claim("w1")
        if end == "done":
            await store.complete(job_id)
        elif end == "failed":
            await store.fail(job_id, "no gas", False)
        else:
            await store.cancel(job_id)
        ended = await read(store, job_id)
        assert ended.state == end
        still.advance(50)
        await store.cancel(job_id)
        assert await read(store, job_id) == ended

    still(scenario)


@pytest.mark.parametrize("n", [*range(1, 12), 20, 999])
def test_Z7_the_default_backoff_is_the_formula_of_the_document(n: int) -> None:
    options = options_of("zerog", 1_000)
    run = Run(
        1, "r", 1, State.RUNNING, "resize", "zerog", 1, 0, 0, "{}", 0, 0, 1_000, None,
        Policy(backoff_base=options.backoff_base or 0), failures=n - 1,
    )  # fmt: skip
    upper = min(500 * 2**n, 60_000)
    delays = [backoff(run, random.Random(seed).random()) for seed in range(200)]
    assert (backoff(run, 0.0), backoff(run, 1.0)) == (upper // 2, upper)
    assert all(upper // 2 <= delay <= upper for delay in delays)


def test_Z18_an_unknown_id(still: ZeroGDoor) -> None:
    async def scenario(store: JobBackend) -> None:
        foreign = (await store.engine.create([NewRun("mail")], undefined="wait"))[0].id
        for job_id in (*UNKNOWN, foreign):
            for verb in (store.complete(job_id), store.fail(job_id, "x", True), store.cancel(job_id)):
                with pytest.raises(JobNotFound) as refused:
                    await verb
                assert isinstance(refused.value, ZeroGError)
                assert refused.value.code == "JOBS_JOB_NOT_FOUND"
        for job_id in UNKNOWN:
            assert await store.status(job_id) is None
        assert (await read(store, foreign)).state is JobState.QUEUED  # it can be read, and nothing else

    still(scenario)


def test_Z19_only_a_worker_that_holds_a_job_ends_it(still: ZeroGDoor) -> None:
    async def scenario(store: JobBackend) -> None:
        job_id = await store.enqueue("resize")
        for verb in (store.complete(job_id), store.fail(job_id, "x"), store.complete(job_id, worker_id="w1")):
            with pytest.raises(WrongState, match="was not claimed"):
                await verb
        await store.claim("w1")
        with pytest.raises(WrongState, match="was not claimed by the worker 'w2'"):
            await store.complete(job_id, worker_id="w2")
        await store.complete(job_id, 1)
        await store.complete(job_id, 1)  # the same again
        ended = await read(store, job_id)
        for report in (store.complete(job_id, 2), store.fail(job_id, "x")):
            with pytest.raises(WrongState):
                await report
        assert await read(store, job_id) == ended

    still(scenario)


def test_Z19_another_process_names_the_worker_that_it_was(shared: ZeroGDoor) -> None:
    async def scenario(first: JobBackend) -> None:
        job_id, second = await first.enqueue("resize"), shared.backend()
        await first.claim("w1")
        with pytest.raises(WrongState, match="was not claimed by this backend"):
            await second.complete(job_id, 1)
        await second.complete(job_id, 1, worker_id="w1")
        assert await read(first, job_id) == await read(second, job_id)
        await second.close()

    shared(scenario)


def test_Z19_a_late_worker_of_another_process_changes_nothing(shared: ZeroGDoor) -> None:
    shared.clock = ManualClock()

    async def scenario(first: JobBackend) -> None:
        job_id, second = await first.enqueue("resize"), shared.backend()
        await first.claim("w1", lease_ms=1_000)
        shared.advance(2_000)
        assert await second.claim("w1") is None
        shared.advance(2_000)
        assert await second.claim("w1") is not None  # the same name does not make it the same worker
        running = await read(first, job_id)
        for late in (first.complete(job_id, "late"), first.fail(job_id, "late")):
            with pytest.raises(LeaseLost):
                await late
        assert await read(first, job_id) == running
        await second.complete(job_id, "in time")
        await second.close()

    shared(scenario)


def test_Z20_the_answer_to_an_enqueue_is_the_id_alone(zerog: ZeroGDoor) -> None:
    async def scenario(store: JobBackend) -> None:
        job_id = await store.enqueue("resize", {"url": "a.png"})
        assert re.fullmatch("[a-z0-9-]{10,}", job_id)

    zerog(scenario)


# Bad input


def _nested(depth: int) -> Any:
    return [_nested(depth - 1)] if depth else []


HOSTILE = {
    "an object": object(),
    "a function": len,
    "not a number": float("nan"),
    "a large integer": 2**70,
    "NUL": "nul \0",
    "a surrogate": "\ud800",
    "10 MB": "x" * 10_000_000,
    "deep": _nested(100),
}


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
def test_Z16_what_cannot_be_stored_is_refused_and_changes_nothing(still: ZeroGDoor, value: Any) -> None:
    async def scenario(store: JobBackend) -> None:
        for input in (value, {"in": value}, [value]):
            with pytest.raises(InvalidValue) as refused:
                await store.enqueue("resize", input)
            assert isinstance(refused.value, TypeError)
            assert len(str(refused.value)) < 1_000
        assert await store.claim("w1") is None
        job_id = await store.enqueue("resize")
        running = await store.claim("w1")
        with pytest.raises(InvalidValue):
            await store.complete(job_id, value)
        assert await read(store, job_id) == running

    still(scenario)


@pytest.mark.parametrize(
    ("name", "max_attempts"), [("", 3), ("x" * 200, 3), ("a\nb", 3), (7, 3), ("resize", 0), ("resize", "3"), ("resize", 10**9)]
)
def test_an_invalid_job_is_refused(still: ZeroGDoor, name: Any, max_attempts: Any) -> None:
    async def scenario(store: JobBackend) -> None:
        with pytest.raises(BadInput):
            await store.enqueue(name, {}, max_attempts=max_attempts)
        assert await store.claim("w1") is None
        with pytest.raises(BadInput):
            jobs.define(name=name, handler=len, max_attempts=max_attempts)

    still(scenario)


@pytest.mark.parametrize("wrong", [{"handler": None}, {"handler": "work"}, {"handler": len, "backoff_ms": 500}])
def test_a_definition_has_functions(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="Give it a function"):
        jobs.define(name="resize", **wrong)


@pytest.mark.parametrize("kind", [5, "Image", {"url": str}, [], b"x"], ids=str)
def test_a_definition_has_types_or_functions(kind: Any) -> None:
    for member in ("input", "output"):
        with pytest.raises(BadInput, match=f"{member} is .* neither a type nor a function"):
            jobs.define(name="resize", handler=len, **{member: kind})


def test_a_definition_may_name_a_type_that_is_defined_later() -> None:
    class Image(msgspec.Struct):
        thumbnail: Thumbnail  # type: ignore[name-defined]  # noqa: F821

    jobs.define(name="resize", handler=len, input=Image)


# Backends


def test_a_closed_backend_cannot_be_reached(zerog: ZeroGDoor) -> None:
    async def scenario(store: JobBackend) -> None:
        await store.enqueue("resize")
        await store.close()
        await store.close()
        for verb in (
            store.enqueue("resize"),
            store.claim("w1"),
            store.complete("x" * 36),
            store.cancel("x" * 36),
            store.status("x"),
        ):
            with pytest.raises(BackendUnreachable) as refused:
                await verb
            assert refused.value.code == "JOBS_BACKEND_UNREACHABLE"

    zerog(scenario)


def test_a_store_that_is_not_there_cannot_be_reached() -> None:
    async def scenario(store: JobBackend) -> None:
        for verb in (store.enqueue("resize"), store.claim("w1"), store.status("x")):
            with pytest.raises(BackendUnreachable, match="nowhere"):
                await verb

    ZeroGDoor("/nowhere/at/all/jobs.db")(scenario)


def test_F31_a_queue_of_its_own(still: ZeroGDoor) -> None:
    async def scenario(store: JobBackend) -> None:
        (mail,) = await store.engine.create([NewRun("mail")], undefined="wait")
        assert await store.claim("w1") is None
        job_id = await store.enqueue("resize")
        assert (await store.engine.get(job_id)).queue == "zerog"
        claimed = await store.claim("w1")
        assert claimed is not None
        assert claimed.id == job_id != mail.id

    still(scenario)


def test_F31_the_queue_is_a_setting(still: ZeroGDoor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "windlass.toml").write_text('[dialects.zerog]\nqueue = "media"\n')
    monkeypatch.chdir(tmp_path)
    assert (backend("memory").queue, backend("memory", queue="other").queue) == ("media", "other")
    with pytest.raises(BadInput):
        backend("memory", queue="")


def test_a_hub_has_no_routes_of_it(tmp_path: Path) -> None:
    assert mount_all({"zerog": {"queue": "media"}}, None, {}, ManualClock()) == []
    with pytest.raises(BadInput, match="no dialect with routes called 'zerog'"):
        mount_all({}, "zerog", {}, ManualClock())
    with pytest.raises(BadInput, match="cannot be read"):
        mount_all({"zerog": {"secret": "x"}}, None, {}, ManualClock())


# Words


def test_every_state_has_a_word() -> None:
    assert {WORDS.label(state) for state in State} == set(JobState)
    assert all(state in WORDS.states(WORDS.label(state)) for state in State)
    assert {state for word in ("done", "failed", "cancelled") for state in WORDS.states(word)} == {*ENDED, State.CANCELLING}


def test_any_run_is_shown_in_the_words_of_the_protocol(h: Harness) -> None:
    run_id = h.create(payload={"n": 1})
    h.fail(h.claimed())
    h.sweep(after=60_000)
    run = h.started()
    h.succeed(run, '{"m": 2}')
    (shown,) = h(show("zerog", h.engine, [h.get(run_id)]))
    assert (shown["state"], shown["result"], shown["metadata"]["lastError"]) == ("done", {"m": 2}, "it broke")
    (listed,) = h(show("zerog", h.engine, h(h.engine.runs()).runs))
    assert listed == shown


def test_the_command_shows_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = str(tmp_path / "jobs.db")

    async def scenario(store: JobBackend) -> str:
        job_id = await store.enqueue("resize", {"url": "a.png"})
        await store.claim("w1")
        await store.complete(job_id, [1, 2])
        return job_id

    door = ZeroGDoor(address)
    job_id = door(scenario)
    assert main(["show", job_id, "--as", "zerog", "--json", "--store", address]) == 0

    async def record(store: JobBackend) -> dict[str, Any]:
        return (await read(store, job_id)).to_json()

    assert json.loads(capsys.readouterr().out) == door(record)


# Signatures


BODY, SECRET = b'{"jobId": "1"}', "a secret \u00e9"


def test_Z14_a_signature_verifies_over_the_exact_bytes() -> None:
    signature = jobs.sign_webhook_body(BODY, SECRET)
    assert signature == "sha256=" + hmac.new(SECRET.encode(), BODY, sha256).hexdigest()
    for given in (signature, signature.removeprefix("sha256=")):
        assert jobs.verify_webhook(BODY, given, SECRET)
        assert jobs.verify_webhook(BODY.decode(), given, SECRET)
        assert jobs.verify_webhook(body=BODY, signature=given, secret=SECRET)
        assert not jobs.verify_webhook(BODY + b" ", given, SECRET)
        assert not jobs.verify_webhook(BODY, given, SECRET + "x")
        jobs.require_webhook(BODY, given, SECRET)
    with pytest.raises(BadSignature) as refused:
        jobs.require_webhook(BODY, signature, "another")
    assert refused.value.code == "JOBS_WEBHOOK_BAD_SIGNATURE"


GARBAGE: list[Any] = ["", "sha256=", "sha256=zz", "sha1=00", "00", "é", "sha256=" + "0" * 64, "0" * 63, None, 7, b"00", "\0"]


@pytest.mark.parametrize("signature", GARBAGE, ids=repr)
def test_Z14_garbage_is_no_signature_and_raises_nothing(signature: Any) -> None:
    assert jobs.verify_webhook(BODY, signature, SECRET) is False


def test_Z14_an_empty_secret_or_a_body_that_is_none_verifies_nothing() -> None:
    assert jobs.verify_webhook(BODY, jobs.sign_webhook_body(BODY, ""), "") is False
    wrong: Any = None
    assert jobs.verify_webhook(wrong, jobs.sign_webhook_body(BODY, SECRET), SECRET) is False
    assert jobs.verify_webhook("\ud800", jobs.sign_webhook_body(BODY, SECRET), SECRET) is False
    with pytest.raises(TypeError):
        jobs.sign_webhook_body(5, SECRET)  # type: ignore[arg-type]
