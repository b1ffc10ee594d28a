"""The agent of windlass at a hub written from the Forge document: `windlass work --dialect forge`."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.dialects.agents import ON_LOOPBACK, QUICK, SHELL, agent_at, program, sha
from tests.dialects.forge_hub_stub import Answer, ForgeHub
from tests.workers import Gate, until
from windlass import App, Context, Snooze, cli
from windlass.clock import ManualClock
from windlass.config import Value
from windlass.config.settings import Settings
from windlass.dialects.forge.agent import AGENT_VARIABLES, CACHE, NOTHING_DONE, AgentSettings, read_environment
from windlass.dialects.forge.port import word_of
from windlass.dialects.forge.snapshots import Snapshots
from windlass.errors import BadInput, HubUnreachable
from windlass.machine import Refuse, Requeue, Skip, Succeed
from windlass.model import Failure

COMPLETE = {"HUB_URL": "http://hub", "NODE_ID": "node-1", "FORGE_INGEST_SECRET": "s"}


@pytest.fixture
def hub() -> Iterator[ForgeHub]:
    served = ForgeHub()
    yield served
    served.stop()


@pytest.fixture
def app() -> App:
    return App(":memory:")


def done(hub: ForgeHub, job_id: str, status: str = "completed") -> dict[str, Any]:
    """A job when it has a status."""
    return until(lambda: row if (row := hub.job(job_id))["status"] == status else None)


# A job with a program


def test_F23_a_program_is_executed_with_the_params_as_they_were_sent_and_its_output_is_the_result(hub: ForgeHub, tmp_path: Path) -> None:
    content = SHELL + b'printf \'%s|%s|%s|%s\\n{"progress": 1}\\n\\n\' "$1" "$2" "$JOB_ID $JOB_TYPE" "$JOB_PARAMS"\n'
    job = hub.add("prodplan", '{"a": 1.0,  "b": "x"}', **program(hub, content))
    with agent_at(hub, tmp_path / "cache"):
        row = done(hub, job)
    params = '{"a": 1.0,  "b": "x"}'
    assert row["result"] == f'--params|{params}|{job} prodplan|{params}\n{{"progress": 1}}\n\n'
    assert row["result_hash"] == sha(row["result"].encode())
    assert row["worker_id"] == "node-1"
    assert all("x-idempotency-key" not in asked.headers for asked in hub.requests)


def test_F23_it_registers_claims_beats_downloads_and_reports_in_this_order(hub: ForgeHub, tmp_path: Path) -> None:
    job = hub.add("prodplan", **program(hub, SHELL + b"echo 42\n"))
    with agent_at(hub, tmp_path / "cache", node_name="Node 1", tags=("gpu",)):
        done(hub, job)
        until(lambda: len(hub.asked("/claim")) == 2)
    asked = [(one.path.removeprefix("/api/"), one.body) for one in hub.requests if "ingest" not in one.path]
    assert asked[:5] == [
        ("workers/register", {"worker_id": "node-1", "name": "Node 1", "cores": 2, "ram_gb": 4.0, "tags": ["gpu"]}),
        ("jobs/claim", {"worker_id": "node-1"}),
        (f"jobs/{job}/heartbeat", {"worker_id": "node-1"}),
        ("/files/solver", None),
        (f"jobs/{job}/result", {"worker_id": "node-1", "result": "42\n", "result_hash": sha(b"42\n")}),
    ]


def test_F23_the_first_heartbeat_is_answered_before_the_download_and_sent_once(hub: ForgeHub, tmp_path: Path) -> None:
    job, hub.delays["/heartbeat"] = hub.add("prodplan", **program(hub, SHELL + b"sleep 0.3\n")), 0.5
    with agent_at(hub, tmp_path / "cache"):
        done(hub, job)
    (heartbeat,), (download,) = hub.asked("/heartbeat"), hub.asked("/files/solver")
    assert download.at - heartbeat.at >= 0.5  # only when it was answered


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"echo oh no >&2; exit 3", "exit code 3: oh no"),
        (b"head -c 2000 /dev/zero | tr '\\0' x >&2; exit 1", f"exit code 1: {500 * 'x'}"),
        (b"kill -9 $$", "killed: The process was killed by SIGKILL."),
    ],
)
def test_F23_a_program_that_fails_is_reported_with_its_exit_code_and_its_errors(
    hub: ForgeHub, tmp_path: Path, content: bytes, reason: str
) -> None:
    job = hub.add("prodplan", max_attempts=1, **program(hub, SHELL + content))
    with agent_at(hub, tmp_path / "cache"):
        assert done(hub, job, "quarantined")["fail_reason"] == reason


def test_F24_a_program_with_another_checksum_is_not_executed(hub: ForgeHub, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    fields = program(hub, SHELL + f"touch {ran}\n".encode()) | {"solver_checksum": sha(b"another")}
    job = hub.add("prodplan", max_attempts=1, **fields)
    with agent_at(hub, tmp_path / "cache"):
        row = done(hub, job, "quarantined")
    assert row["fail_reason"].startswith("solver_checksum_mismatch")
    assert not ran.exists()


def test_F26_a_cached_program_is_not_downloaded_again(hub: ForgeHub, tmp_path: Path) -> None:
    fields = program(hub, SHELL + b"echo 42\n")
    with agent_at(hub, tmp_path / "cache"):
        done(hub, hub.add("prodplan", **fields))
    with agent_at(hub, tmp_path / "cache"):
        done(hub, hub.add("benchmark", **fields))
    assert len(hub.asked("/files/solver")) == 1


def test_a_download_that_fails_is_named_with_its_status(hub: ForgeHub, tmp_path: Path) -> None:
    fields = program(hub, b"")
    hub.files["solver"] = 503
    job = hub.add("prodplan", max_attempts=1, **fields)
    with agent_at(hub, tmp_path / "cache"):
        assert done(hub, job, "quarantined")["fail_reason"] == "download failed: HTTP 503"


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        (Settings(solver_allow=("127.0.0.0/8",)), "solver_plain_http"),
        (Settings(solver_plain_http=True), "solver_allow"),
        (Settings(solver_allow=("127.0.0.0/8",), solver_plain_http=True, solver_hosts=("files.example.com",)), "solver_hosts"),
    ],
)
def test_what_workers_refuse_by_default_is_refused_with_the_setting_that_allows_it(
    hub: ForgeHub, tmp_path: Path, settings: Settings, setting: str
) -> None:
    job = hub.add("prodplan", max_attempts=1, **program(hub, SHELL))
    with agent_at(hub, tmp_path / "cache", settings=settings):
        reason = done(hub, job, "quarantined")["fail_reason"]
    assert reason.startswith("download refused: ")
    assert reason.endswith(f"The setting is {setting}.")
    assert not hub.asked("/files/solver")


def test_a_program_without_a_checksum_is_refused_with_the_setting_that_allows_it(hub: ForgeHub, tmp_path: Path) -> None:
    fields = program(hub, SHELL + b"echo 42\n") | {"solver_checksum": None}
    job, other = hub.add("prodplan", max_attempts=1, **fields), hub.add("anything")
    with agent_at(hub, tmp_path / "cache"):
        reason = done(hub, job, "quarantined")["fail_reason"]
        done(hub, other)
    assert reason.startswith("solver_unchecked: ")
    assert "solver_unchecked = true" in reason
    again = hub.add("prodplan", **fields)
    with agent_at(hub, tmp_path / "cache", settings=replace(ON_LOOPBACK, solver_unchecked=True)):
        assert done(hub, again)["result"] == "42\n"


def test_a_job_that_runs_too_long_is_stopped_and_reported(hub: ForgeHub, tmp_path: Path) -> None:
    job = hub.add("prodplan", max_attempts=1, max_runtime_ms=200, **program(hub, SHELL + b"sleep 60\n"))
    with agent_at(hub, tmp_path / "cache"):
        assert done(hub, job, "quarantined")["fail_reason"].startswith("max_runtime_exceeded: ")


# A job with a handler, and one with neither


def test_a_type_with_a_handler_in_the_app_is_executed_by_it(hub: ForgeHub, tmp_path: Path, app: App) -> None:
    @app.job()
    def square(n: int) -> dict[str, float]:
        return {"square": n**2, "half": n / 2}

    @app.job()
    async def text(ctx: Context) -> str:
        return f"{ctx.run}\n"

    jobs = hub.add("square", {"n": 4}), hub.add("text")
    with agent_at(hub, tmp_path / "cache", app):
        first, second = (done(hub, job) for job in jobs)
    assert first["result"] == '{"square":16,"half":2.0}'
    assert first["result_hash"] == sha(first["result"].encode())
    assert second["result"] == f"{jobs[1]}\n"


def test_a_handler_gets_the_params_of_a_hub_that_sends_them_as_an_object(hub: ForgeHub, tmp_path: Path, app: App) -> None:
    @app.job()
    def square(n: int) -> int:
        return n**2

    job = hub.add("square", {"n": 4})
    answer = hub.answer
    setattr(hub, "answer", lambda method, path, body: _with_object(answer(method, path, body)))  # noqa: B010
    with agent_at(hub, tmp_path / "cache", app):
        assert done(hub, job)["result"] == "16"


def _with_object(answer: Any) -> Any:
    is_job = isinstance(answer.body, dict) and "params" in answer.body
    return answer._replace(body=answer.body | {"params": json.loads(answer.body["params"])}) if is_job else answer


def test_the_error_of_a_handler_is_the_reason_and_the_job_is_had_again(hub: ForgeHub, tmp_path: Path, app: App) -> None:
    @app.job()
    def flaky(ctx: Context) -> str:
        if ctx.attempt == 1:
            raise ValueError("not now")
        return f"attempt {ctx.attempt}"

    job = hub.add("flaky")
    with agent_at(hub, tmp_path / "cache", app):
        row = done(hub, job)
    assert (row["result"], row["attempts"], row["fail_reason"]) == ("attempt 2", 2, "ValueError: not now")


def test_a_job_with_neither_program_nor_handler_gets_the_fixed_result(hub: ForgeHub, tmp_path: Path) -> None:
    job = hub.add("anything")
    with agent_at(hub, tmp_path / "cache"):
        assert json.loads(done(hub, job)["result"]) == NOTHING_DONE
    assert not hub.asked("/heartbeat")


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (Requeue(), "The worker stopped before the job had ended."),
        (Skip(reason="duplicate"), "The handler skipped the job, which this protocol cannot do: duplicate"),
        (Refuse(error=Failure("bad_payload", "n is missing"), schema="s"), "bad_payload: n is missing"),
    ],
)
def test_what_the_protocol_has_no_word_for_is_a_failure_with_its_reason(report: Any, reason: str) -> None:
    assert word_of(report) == ("fail", {"reason": reason})


def test_a_snooze_is_a_failure_because_the_protocol_has_no_delay(hub: ForgeHub, tmp_path: Path, app: App) -> None:
    @app.job()
    def later() -> None:
        raise Snooze(90)

    job = hub.add("later", max_attempts=1)
    with agent_at(hub, tmp_path / "cache", app):
        reason = "The handler asked to be called again in 90 s, which this protocol cannot do."
        assert done(hub, job, "quarantined")["fail_reason"] == reason


def test_a_result_without_output_is_null() -> None:
    _, body = word_of(Succeed())
    assert (bytes(body["result"]), body["result_hash"]) == (b"null", sha(b"null"))


# Claims


def test_the_types_of_the_agent_are_sent_with_every_claim(hub: ForgeHub, tmp_path: Path) -> None:
    other, mine = hub.add("benchmark"), hub.add("prodplan")
    with agent_at(hub, tmp_path / "cache", types=("prodplan", "other")):
        done(hub, mine)
    assert {json.dumps(asked.body) for asked in hub.asked("/claim")} == {'{"worker_id": "node-1", "types": ["prodplan", "other"]}'}
    assert hub.job(other)["status"] == "pending"


def test_one_job_at_a_time_and_the_next_at_once(hub: ForgeHub, tmp_path: Path, app: App) -> None:
    gate = Gate()

    @app.job()
    def held() -> None:
        gate.block()

    first, second = hub.add("held"), hub.add("held")
    with agent_at(hub, tmp_path / "cache", app, poll_interval=3_600_000):
        done(hub, first, "running")
        assert hub.job(second)["status"] == "pending"
        gate.open()
        done(hub, first)
        done(hub, second)


def test_without_a_job_it_asks_again_after_the_interval(hub: ForgeHub, tmp_path: Path) -> None:
    with agent_at(hub, tmp_path / "cache"):
        until(lambda: len(hub.asked("/claim")) >= 4)
    times = [asked.at for asked in hub.asked("/claim")]
    assert times[3] - times[0] >= 1.5 * QUICK / 1000  # three intervals, less what a request is late to arrive


@pytest.mark.parametrize("status", [500, 503, 401, 404, 409, 429, 400, 302])
def test_a_claim_that_is_refused_is_tried_again_after_the_interval(
    hub: ForgeHub, tmp_path: Path, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    job = hub.add("anything")
    hub.fail("/claim", status, status, status)
    with agent_at(hub, tmp_path / "cache"):
        done(hub, job)
    problems = [record.message for record in caplog.records if "No job could be claimed" in record.message]
    assert len(problems) == 1
    assert str(status) in problems[0]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b"{", b'{"id": 1, "type": "a"}', b"\xff\xfe", b'{"id": "a", "type": "a", "params": ' + 100_000 * b"[" + b"}",
        b'{"id": "a", "type": "a", "params": "\\ud800"}', b'{"id": "../../x?y#z", "type": "a"}', b'{"id": "", "type": ""}',
        b'{"id": "a\\u0000b", "type": "\\u0000", "params": "\\u0000", "created_at": 1e300, "max_runtime_ms": 1e300, "attempts": -5}',
        b'{"id": "a", "type": "a", "solver_url": "file:///etc/passwd", "solver_checksum": "' + 64 * b"0" + b'"}',
        b'{"id": "a", "type": "a", "solver_url": "http://[::1", "max_runtime_ms": -1}',
    ],
)  # fmt: skip
def test_whatever_a_hub_answers_to_a_claim_the_agent_goes_on(hub: ForgeHub, tmp_path: Path, body: bytes, app: App) -> None:
    @app.job()
    def good() -> str:
        return "42"

    job, answer, hostile = hub.add("good"), hub.answer, [Answer(200, body)]

    def once(method: str, path: str, data: Any) -> Answer:
        return hostile.pop() if hostile and path.endswith("/claim") else answer(method, path, data)

    setattr(hub, "answer", once)  # noqa: B010
    with agent_at(hub, tmp_path / "cache", app):
        assert done(hub, job)["result"] == "42"
    assert {asked.path.split("/")[1] for asked in hub.requests} <= {"api", "files"}


def test_an_answer_that_is_no_job_is_tried_again(hub: ForgeHub, tmp_path: Path) -> None:
    job = hub.add("anything")
    hub.fail("/claim", 200)
    with agent_at(hub, tmp_path / "cache"):
        done(hub, job)


def test_a_claim_whose_answer_is_lost_is_left_to_the_reaper(hub: ForgeHub, tmp_path: Path) -> None:
    lost, other = hub.add("anything", priority=1), hub.add("anything")
    hub.fail("/claim", "lost")
    with agent_at(hub, tmp_path / "cache"):
        done(hub, other)
        assert hub.job(lost)["status"] == "assigned"
        hub.later(61_000)
        assert done(hub, lost)["attempts"] == 2


def test_a_registration_that_fails_does_not_keep_it_from_working(hub: ForgeHub, tmp_path: Path) -> None:
    job = hub.add("anything")
    hub.fail("/register", 500)
    with agent_at(hub, tmp_path / "cache") as agent:
        done(hub, job)
        assert hub.worker("node-1") is None
        agent.worker.heartbeat._register()
    assert (hub.worker("node-1") or {})["cores"] == 2
    assert len(hub.asked("/register")) == 2


def test_a_registration_is_sent_once(hub: ForgeHub, tmp_path: Path) -> None:
    with agent_at(hub, tmp_path / "cache") as agent:
        until(lambda: hub.asked("/claim"))
        agent.worker.heartbeat._register()
    assert len(hub.asked("/register")) == 1


# Heartbeats, and a hub that is away


def test_a_heartbeat_is_due_every_ten_seconds_of_a_lease_of_sixty(hub: ForgeHub, tmp_path: Path, app: App) -> None:
    gate = Gate()

    @app.job()
    def held() -> None:
        gate.block()

    hub.add("held")
    with agent_at(hub, tmp_path / "cache", app) as agent:
        gate.reached()
        assert agent.worker.runtime.lease == 60_000
        assert 9 < agent.worker.heartbeat._pause() <= 10
        gate.open()


def test_F6_a_409_to_a_heartbeat_stops_the_work_and_nothing_is_reported(hub: ForgeHub, tmp_path: Path, app: App) -> None:
    why = list[str | None]()

    @app.job()
    def held(ctx: Context) -> str:
        until(lambda: ctx.cancelled)
        why.append(ctx.why)
        return "of a worker that lost it"

    job = hub.add("held")
    with agent_at(hub, tmp_path / "cache", app) as agent:
        done(hub, job, "running")
        hub.take_over(job, "another")
        agent.beat()
        until(lambda: why)
        until(lambda: not agent.worker.in_flight.held)
    assert why == ["lost"]
    assert (hub.job(job)["status"], hub.job(job)["result"]) == ("running", None)
    assert not hub.asked("/result")
    assert not hub.asked("/fail")


def test_F6_a_program_is_not_even_fetched_when_the_first_heartbeat_gets_a_409(hub: ForgeHub, tmp_path: Path) -> None:
    job = hub.add("prodplan", **program(hub, SHELL))
    hub.fail("/heartbeat", 409)
    with agent_at(hub, tmp_path / "cache"):
        until(lambda: len(hub.asked("/claim")) >= 3)
    assert hub.job(job)["status"] == "assigned"
    assert not hub.asked("/files/solver")


@pytest.mark.parametrize("status", [500, 400, 401])
def test_a_heartbeat_that_fails_otherwise_is_sent_again_and_the_work_goes_on(hub: ForgeHub, tmp_path: Path, app: App, status: int) -> None:
    gate = Gate()

    @app.job()
    def held() -> str:
        gate.block()
        return "42"

    job = hub.add("held")
    with agent_at(hub, tmp_path / "cache", app) as agent:
        done(hub, job, "running")
        hub.fail("/heartbeat", status)
        agent.beat()
        until(lambda: len(hub.asked("/heartbeat")) >= 2)
        gate.open()
        assert done(hub, job)["result"] == "42"


def test_F22_a_result_waits_for_a_hub_that_is_away(hub: ForgeHub, tmp_path: Path, app: App) -> None:
    gate = Gate()

    @app.job()
    def held() -> str:
        gate.block()
        return "42"

    job = hub.add("held")
    with agent_at(hub, tmp_path / "cache", app) as agent:
        done(hub, job, "running")
        with hub.gone():
            gate.open()
            until(lambda: not agent.worker.in_flight.busy)
        row = done(hub, job)
    assert (row["result"], row["attempts"]) == ("42", 1)


@pytest.mark.parametrize("fault", ["lost", 500, 503, 401])
def test_F8_a_result_whose_answer_is_lost_is_sent_again_and_stored_once(hub: ForgeHub, tmp_path: Path, fault: Any) -> None:
    job = hub.add("anything")
    hub.fail("/result", fault)
    with agent_at(hub, tmp_path / "cache") as agent:
        done(hub, job)
        until(lambda: not agent.worker.in_flight.held)
    first, second = hub.asked("/result")
    assert first.body == second.body
    assert hub.job(job)["attempts"] == 1


def test_F33_a_result_that_the_hub_cannot_store_is_reported_as_a_failure(hub: ForgeHub, tmp_path: Path) -> None:
    job = hub.add("anything", max_attempts=1)
    hub.fail("/result", 413)
    with agent_at(hub, tmp_path / "cache"):
        assert done(hub, job, "quarantined")["fail_reason"].startswith("bad_output: ")


def test_F25_when_it_is_stopped_the_job_may_end_and_no_other_is_claimed(hub: ForgeHub, tmp_path: Path, app: App) -> None:
    gate = Gate()

    @app.job()
    def held() -> str:
        gate.block()
        return "42"

    first, second = hub.add("held"), hub.add("held")
    with agent_at(hub, tmp_path / "cache", app) as agent:
        gate.reached()
        agent.ask()
        until(lambda: agent.worker.runtime.stopping)
        gate.open()
        agent.join()
    assert hub.job(first)["result"] == "42"
    assert hub.job(second)["status"] == "pending"


# Metrics


def test_metrics_are_sent_at_the_interval_with_the_name_of_the_node(hub: ForgeHub, tmp_path: Path) -> None:
    with agent_at(hub, tmp_path / "cache", node_name="Node 1", push_interval=QUICK):
        until(lambda: len(hub.snapshots) >= 3)
    asked = hub.asked("/api/ingest/node-1")
    assert {one.headers["x-node-name"] for one in asked} == {"Node 1"}
    assert all(set(snapshot) >= {"ts", "cpu", "memory", "load1"} for snapshot in hub.snapshots)
    assert asked[2].at - asked[0].at >= QUICK / 1000


def test_snapshots_are_kept_while_the_hub_is_away_and_then_sent_as_a_batch(hub: ForgeHub, tmp_path: Path) -> None:
    hub.fail("/api/ingest/node-1", 500, 500)
    hub.fail("/api/ingest/node-1/batch", 503)
    with agent_at(hub, tmp_path / "cache", push_interval=QUICK):
        until(lambda: len(hub.snapshots) >= 3)
        until(lambda: len(hub.asked("/api/ingest/node-1")) >= 2)
    first, second, third, *_ = [asked for asked in hub.requests if "/ingest/" in asked.path]
    assert [asked.path for asked in (first, second, third)] == ["/api/ingest/node-1"] + 2 * ["/api/ingest/node-1/batch"]
    assert third.body[0] == first.body
    assert len(third.body) == 3
    assert hub.snapshots[:3] == third.body


def test_of_many_snapshots_the_last_180_are_kept() -> None:
    clock, away, batches = ManualClock(), True, list[list[int]]()

    async def send(snapshots: Sequence[Mapping[str, Any]]) -> None:
        if away:
            raise HubUnreachable("It is away.", hint="Wait.")
        batches.append([snapshot["ts"] for snapshot in snapshots])

    async def push(times: int) -> None:
        for _ in range(times):
            clock.advance(1)
            await snapshots.push()

    snapshots, began = Snapshots(send, dict, clock, 5.0), clock.now()
    asyncio.run(push(200))
    away = False
    asyncio.run(push(2))
    assert batches == [[began + n for n in range(22, 202)], [began + 202]]


def test_a_host_that_cannot_be_measured_is_logged_once_and_sends_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    sent = list[Any]()

    async def send(snapshots: Sequence[Mapping[str, Any]]) -> None:
        sent.append(snapshots)

    def measure() -> dict[str, float]:
        raise OSError("no such device")

    snapshots = Snapshots(send, measure, ManualClock(), 5.0)
    for _ in range(3):
        asyncio.run(snapshots.push())
    assert len(sent) == 3
    assert [record.message for record in caplog.records] == ["The host cannot be measured: no such device"]


def test_a_hub_without_a_place_for_metrics_disturbs_nothing(hub: ForgeHub, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hub.fail("/api/ingest/node-1", *([404] * 100))
    job = hub.add("anything")
    with agent_at(hub, tmp_path / "cache", push_interval=QUICK):
        done(hub, job)
        until(lambda: len(hub.asked("/api/ingest/node-1")) >= 3)
    assert not hub.asked("/batch")
    assert len([record for record in caplog.records if "refuses metrics" in record.message]) == 1


# The environment


def test_a_path_in_the_address_works_and_its_last_slash_is_removed(tmp_path: Path) -> None:
    hub = ForgeHub(prefix="/forge/v1")
    try:
        job = hub.add("anything")
        agent = read_environment(COMPLETE | {"HUB_URL": f"{hub.url}/"}, {})
        assert agent.hub_url == hub.url
        with agent_at(hub, tmp_path / "cache"):
            done(hub, job)
        assert {asked.path.startswith("/forge/v1/api/") for asked in hub.requests} == {True}
    finally:
        hub.stop()


def test_the_document_s_defaults() -> None:
    assert read_environment(COMPLETE, {}) == AgentSettings("http://hub", "node-1", "s")
    agent = read_environment(COMPLETE, {})
    assert (agent.push_interval, agent.poll_interval, agent.enabled, agent.cache) == (5_000, 5_000, False, CACHE)


def test_every_variable_is_read() -> None:
    environment = COMPLETE | {
        "NODE_NAME": "Node 1", "PUSH_INTERVAL_MS": "1000", "WORKER_ENABLED": "true", "WORKER_CORES": "8", "WORKER_RAM_GB": "16.5",
        "WORKER_TAGS": '["gpu","ephemeral"]', "WORKER_TYPES": '["prodplan"]', "JOB_POLL_INTERVAL_MS": "250", "SOLVER_CACHE_DIR": "/cache",
    }  # fmt: skip
    assert environment.keys() == AGENT_VARIABLES.keys()
    rest: Any = ("Node 1", 1000, True, 8, 16.5, ("gpu", "ephemeral"), ("prodplan",), 250, "/cache")
    assert read_environment(environment, {}) == AgentSettings("http://hub", "node-1", "s", *rest)
    assert read_environment(COMPLETE | dict.fromkeys(environment.keys() - COMPLETE.keys(), ""), {}) == read_environment(COMPLETE, {})


@pytest.mark.parametrize(
    ("variable", "text", "requirement"),
    [
        ("HUB_URL", "hub.example.com", "an address such as"),
        ("HUB_URL", "http://user:secret@hub", "an address such as"),
        ("HUB_URL", "http://hub/?a=b", "an address such as"),
        ("HUB_URL", "http://[::1", "an address such as"),
        ("NODE_ID", "a\nb", "printable"),
        ("NODE_ID", 200 * "x", "128"),
        ("FORGE_INGEST_SECRET", "two words", "without spaces"),
        ("FORGE_INGEST_SECRET", "sch\xfctz", "ASCII"),
        ("NODE_NAME", "K\xf6ln", "ASCII"),
        ("PUSH_INTERVAL_MS", "soon", "a whole number"),
        ("JOB_POLL_INTERVAL_MS", "0", "a whole number"),
        ("WORKER_ENABLED", "maybe", "true or false"),
        ("WORKER_CORES", "0", "a whole number"),
        ("WORKER_RAM_GB", "nan", "gigabytes"),
        ("WORKER_RAM_GB", "-1", "gigabytes"),
        ("WORKER_TAGS", "gpu", "a JSON array"),
        ("WORKER_TAGS", '{"gpu": 1}', "a JSON array"),
        ("WORKER_TYPES", "[1]", "a JSON array"),
    ],
)
def test_what_cannot_be_read_is_named_and_no_secret_is_shown(variable: str, text: str, requirement: str) -> None:
    with pytest.raises(BadInput, match=variable) as refused:
        read_environment(COMPLETE | {variable: text}, {})
    assert requirement in str(refused.value)
    assert "secret" not in str(refused.value)
    assert "two words" not in str(refused.value)


def test_everything_that_is_missing_or_wrong_is_named_at_once_with_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in AGENT_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORKER_TAGS", "gpu")
    assert cli.main(["work", "--dialect", "forge"]) == 2
    notes = capsys.readouterr().err
    for words in ("HUB_URL is not set", "NODE_ID is not set", "FORGE_INGEST_SECRET is not set", "WORKER_TAGS must be a JSON array"):
        assert words in notes


def test_windlass_s_own_settings_win_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    values = {"hub": Value("https://other/", "WINDLASS_HUB"), "memory": Value(2048, "--memory"), "jobs": Value(("a",), "--job")}
    agent = read_environment(COMPLETE | {"WORKER_TYPES": "no JSON"}, values)
    assert (agent.hub_url, agent.ram_gb, agent.types) == ("https://other", 2.0, ("a",))
    assert [record.message for record in caplog.records] == [
        "HUB_URL is not used, because hub is set by WINDLASS_HUB.",
        "WORKER_TYPES is not used, because jobs is set by --job.",
    ]
    with pytest.raises(BadInput, match="WINDLASS_HUB must be an address"):
        read_environment(COMPLETE, {"hub": Value("other", "WINDLASS_HUB")})


@pytest.mark.parametrize("flag", [["--slots", "4"], ["--queue", "mail"], ["--lease", "1m"], ["--store", "shop.db"], ["--spool", "x"]])
def test_a_flag_without_meaning_is_refused(flag: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["work", "--dialect", "forge", *flag]) == 2
    assert flag[0] in capsys.readouterr().err


def test_a_dialect_without_an_agent_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["work", "--dialect", "moat"]) == 2
    assert "There is no dialect with an agent called 'moat'." in capsys.readouterr().err


def test_without_worker_enabled_only_metrics_are_sent(
    hub: ForgeHub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    job = hub.add("anything")
    monkeypatch.chdir(tmp_path)
    for name, text in {"HUB_URL": hub.url, "NODE_ID": "node-1", "FORGE_INGEST_SECRET": hub.secret or ""}.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("SOLVER_CACHE_DIR", str(tmp_path / "cache"))
    assert cli.main(["work", "--dialect", "forge", "--burst"]) == 0
    assert "no job is claimed" in caplog.text
    assert not (tmp_path / "cache").exists()
    assert hub.job(job)["status"] == "pending"
    assert not hub.asked("/register")
