"""Requests by chance, made from the description of the hub: none gets a 500 or an answer that is not described."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance

from tests.served import ServedHub
from windlass.hub import HubSettings

SETTINGS = HubSettings(longest_wait=20, body=300_000)
EXAMPLES = int(os.environ.get("WINDLASS_FUZZ", "12"))
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def names_there(http: httpx.Client) -> dict[str, str]:
    """Things that are there, so that not every path leads to nothing."""
    http.put("/api/v1/jobs/mail", json={}).raise_for_status()
    http.put("/api/v1/schedules/nightly", json={"job": "mail", "cron": "0 3 * * *"}).raise_for_status()
    run = http.post("/api/v1/runs", json={"job": "mail"}).raise_for_status().json()["id"]
    return {"run_id": run, "name": "mail", "key": "nightly"}


@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")  # schemathesis asks for chance in its own way
def test_no_request_gets_a_500_or_an_answer_that_is_not_described(tmp_path: Path) -> None:
    served, tried = ServedHub(tmp_path / "hub.db", SETTINGS), 0
    schema = schemathesis.openapi.from_dict(httpx.get(served.url + "api/v1/openapi.json", timeout=60).json())
    made = httpx.post(served.url + "api/v1/tokens", json={"name": "fuzz", "scopes": ["admin"]}, timeout=60).json()
    token = {"Authorization": f"Bearer {made['secret']}"}
    with httpx.Client(base_url=served.url, headers=token, timeout=60) as http:
        there = names_there(http)
        for found in schema.get_all_operations():
            assert isinstance(found, Ok), found
            operation = found.ok()
            if operation.path.endswith("/events"):
                continue  # a stream without an end; it has tests of its own

            @given(case=operation.as_strategy(), real=st.booleans())
            @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
            def ask(case: Any, real: bool) -> None:
                nonlocal tried
                if real:
                    case.path_parameters = {name: there.get(name, value) for name, value in (case.path_parameters or {}).items()}
                case.call_and_validate(base_url=served.url, headers=token, checks=CHECKS, timeout=60)
                tried += 1

            ask()
        assert http.get("/healthz").status_code == 200
    served.stop()
    assert tried > 10 * EXAMPLES
    print(f"{tried} requests, 0 errors of the server")
