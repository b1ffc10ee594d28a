"""The agent of windlass at a hub of windlass, on both stores, over sockets: both sides of the protocol together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.dialects.agents import SHELL, Agent, agent_at, program, sha
from tests.dialects.forge_hub_stub import ForgeHub
from tests.dialects.real_hub import RealHub
from tests.workers import Gate, until
from windlass import App, Context


@pytest.fixture(params=["sqlite", "postgres"])
def hub(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RealHub]:
    served = RealHub(str(tmp_path / "hub.db") if request.param == "sqlite" else request.getfixturevalue("emptied_postgres"))
    yield served
    served.http.close()
    served.stop()


@pytest.fixture
def files() -> Iterator[ForgeHub]:
    """A server of programs."""
    served = ForgeHub()
    yield served
    served.stop()


@pytest.fixture
def app() -> App:
    return App(":memory:")


def released(agent: Agent) -> None:
    """Wait until the agent has nothing more to report."""
    until(lambda: not agent.worker.in_flight.held)


def test_F23_a_program_is_executed_and_its_output_comes_back_byte_for_byte(hub: RealHub, files: ForgeHub, tmp_path: Path) -> None:
    content = SHELL + b'printf \'%s\\n\\303\\244 "%s"\\n\' "$2" "$JOB_TYPE"\n'
    job = hub.add("prodplan", {"a": 1.0, "b": [1, 2]}, **program(files, content))
    with agent_at(hub, tmp_path / "cache", tags=("gpu",)):
        row = hub.done(job)
    assert row["result"] == '{"a":1.0,"b":[1,2]}\nä "prodplan"\n'
    assert (row["result_hash"], row["worker_id"], row["attempts"]) == (sha(row["result"].encode()), "node-1", 1)
    (record,) = until(lambda: hub.native("workers")["workers"])
    assert record["name"] == "node-1"


def test_F24_a_mismatch_fails_with_that_reason_until_the_job_is_quarantined(hub: RealHub, files: ForgeHub, tmp_path: Path) -> None:
    job = hub.add("prodplan", max_attempts=2, **program(files, SHELL) | {"solver_checksum": sha(b"another")})
    with agent_at(hub, tmp_path / "cache"):
        row = hub.done(job, "quarantined")
    assert row["attempts"] == 2
    assert row["fail_reason"].startswith("solver_checksum_mismatch")


def test_F26_a_cached_program_is_not_downloaded_again(hub: RealHub, files: ForgeHub, tmp_path: Path) -> None:
    fields = program(files, SHELL + b"echo 42\n")
    with agent_at(hub, tmp_path / "cache"):
        for job in (hub.add("prodplan", **fields), hub.add("benchmark", **fields)):
            hub.done(job)
    assert len(files.asked("/files/solver")) == 1


def test_a_handler_s_result_is_the_value_itself_for_those_who_read_the_run(hub: RealHub, tmp_path: Path, app: App) -> None:
    @app.job()
    def square(n: int) -> dict[str, float]:
        return {"square": n**2, "half": n / 2}

    job = hub.add("square", {"n": 4})
    with agent_at(hub, tmp_path / "cache", app):
        row = hub.done(job)
    assert (row["result"], row["result_hash"]) == ('{"square":16,"half":2.0}', sha(row["result"].encode()))
    (run,) = hub.native("runs")["runs"]
    assert run["output"] == {"square": 16, "half": 2.0}


def test_F13_an_agent_that_was_silent_stops_at_the_409_and_nothing_of_it_is_stored(hub: RealHub, tmp_path: Path, app: App) -> None:
    gate, why = Gate(), list[str | None]()

    @app.job()
    def held(ctx: Context) -> str:
        if ctx.attempt == 1:
            gate.passed("", unless=lambda: ctx.cancelled)
            why.append(ctx.why)
        return f"attempt {ctx.attempt}"

    job = hub.add("held")
    with agent_at(hub, tmp_path / "cache", app) as agent:
        hub.done(job, "running")
        hub.take_away(job)
        agent.beat()
        row = hub.done(job)
    assert why == ["lost"]
    assert (row["result"], row["attempts"]) == ("attempt 2", 2)


def test_F16_an_agent_stops_the_job_that_an_operator_has_cancelled(hub: RealHub, tmp_path: Path, app: App) -> None:
    why = list[str | None]()

    @app.job()
    def held(ctx: Context) -> str:
        until(lambda: ctx.cancelled)
        why.append(ctx.why)
        return "too late"

    job = hub.add("held")
    with agent_at(hub, tmp_path / "cache", app) as agent:
        hub.done(job, "running")
        (run,) = hub.native("runs")["runs"]
        assert httpx.post(f"{hub.url}api/v1/runs/{run['id']}/cancel", json={}).status_code == 200
        agent.beat()
        until(lambda: why)
        released(agent)
    assert why == ["lost"]
    row = hub.job(job)
    assert (row["status"], row["fail_reason"], row["result"]) == ("failed", "cancelled", None)


def test_F22_a_restart_of_the_hub_loses_no_result(hub: RealHub, tmp_path: Path, app: App) -> None:
    gate = Gate()

    @app.job()
    def held() -> str:
        gate.block()
        return "42"

    job = hub.add("held")
    with agent_at(hub, tmp_path / "cache", app) as agent:
        hub.done(job, "running")
        hub.stop()
        gate.open()
        until(lambda: not agent.worker.in_flight.busy)
        hub.start()
        row = hub.done(job)
    assert (row["result"], row["attempts"], row["fail_history"]) == ("42", 1, "[]")


def test_F25_a_stopped_agent_finishes_its_job_and_claims_no_other(hub: RealHub, tmp_path: Path, app: App) -> None:
    gate = Gate()

    @app.job()
    def held() -> str:
        gate.block()
        return "42"

    first, second = hub.add("held", priority=1), hub.add("held")
    with agent_at(hub, tmp_path / "cache", app) as agent:
        gate.reached()
        agent.ask()
        until(lambda: agent.worker.runtime.stopping)
        gate.open()
        agent.join()
    assert hub.job(first)["result"] == "42"
    assert hub.job(second)["status"] == "pending"


def test_F33_a_result_that_is_too_large_ends_the_attempt_with_that_reason(hub: RealHub, files: ForgeHub, tmp_path: Path) -> None:
    # As JSON it is larger than the hub takes, as text it is not: every line break takes two bytes.
    content = SHELL + b"head -c 900000 /dev/zero | tr '\\0' '\\n'\n"
    job = hub.add("prodplan", max_attempts=1, **program(files, content))
    with agent_at(hub, tmp_path / "cache"):
        row = hub.done(job, "quarantined")
    assert row["fail_reason"]
    assert row["result"] is None


def test_a_wrong_secret_is_logged_and_nothing_is_claimed(hub: RealHub, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = hub.add("anything")
    with agent_at(hub, tmp_path / "cache", secret="wrong"):
        until(lambda: "No job could be claimed" in caplog.text)
    assert "Set FORGE_INGEST_SECRET to the hub's secret." in caplog.text
    assert hub.job(job)["status"] == "pending"


def test_metrics_of_the_agent_are_in_the_fleet_and_with_its_worker(hub: RealHub, tmp_path: Path) -> None:
    with agent_at(hub, tmp_path / "cache", node_name="Node 1", push_interval=100):
        (node,) = until(lambda: [node for node in hub.http.get("api/fleet").json() if "memory_total" in node["latest"]])
        assert (node["id"], node["name"], node["status"]) == ("node-1", "Node 1", "online")
        until(lambda: "memory_total" in hub.native("workers")["workers"][0]["metrics"])
