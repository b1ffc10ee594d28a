"""Whatever is sent with a small token, nothing is answered or changed that its scope does not promise."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.core.result import Ok

from tests.proof.test_described import CHECKS, SETTINGS, names_there
from tests.served import ServedHub
from windlass.api.openapi import operations

EXAMPLES = int(os.environ.get("WINDLASS_FUZZ", "3"))

SMALL: dict[str, dict[str, Any]] = {
    "read": {"scopes": ["read"]},
    "submit": {"scopes": ["submit"]},
    "read and submit": {"scopes": ["read", "submit"]},
    "work": {"scopes": ["work"]},
    "work as one worker": {"scopes": ["work"], "worker": "w1"},
}
THEIRS = ("/jobs/mail", "/schedules/nightly", "/resources/gpu", "/queues", "/pauses", "/webhooks", "/retention", "/tokens")
"""What an admin has set up, which nobody else may change."""
MOVES_ON = {"used_at", "next_at", "last_at", "last_run", "fired", "skipped", "occupied", "waiting", "held"}
"""What of it changes by itself, and by what others may do."""

_PROGRAM = {"options": {"solver": {"url": "https://example.com/solve", "checksum": "a" * 64}}}
_NOTIFY = {"notify": {"url": "https://example.com/evil"}}
_EVERY = {"job": "mail", "every": "1h", "by_code": True}
VALID: dict[tuple[str, str], list[Any]] = {
    ("put", "/api/v1/jobs/{name}"): [{"handler": "evil"}, {"payload": {"evil": 1}}, _PROGRAM],
    ("put", "/api/v1/schedules/{key}"): [_EVERY, _EVERY | {"enabled": False}, _EVERY | _PROGRAM],
    ("put", "/api/v1/resources/{name}"): [{"capacity": 100}, {"capacity": 100, "rates": []}],
    ("post", "/api/v1/runs"): [
        {"job": "mail"} | _PROGRAM,
        {"job": "mail"} | _NOTIFY,
        {"job": "mail", "key": {"name": "1@0", "scope": "schedule"}},
    ],
    ("post", "/api/v1/groups"): [{"members": [{"job": "mail"} | _PROGRAM]}, {"members": [{"job": "mail"} | _NOTIFY]}],
}
"""Bodies that would do something, which chance hardly ever finds."""


class Hub:
    """A hub that an admin has set up."""

    def __init__(self, path: Path) -> None:
        self.served = ServedHub(path, SETTINGS)
        made = httpx.post(self.served.url + "api/v1/tokens", json={"name": "ops", "scopes": ["admin"]}, timeout=60).json()
        self.admin = httpx.Client(base_url=self.served.url, headers={"Authorization": f"Bearer {made['secret']}"}, timeout=60)
        self.there = names_there(self.admin)
        self._put("resources/gpu", {"capacity": 2})
        self._put("queues/default", {"aging": 60_000})
        self.admin.post("/api/v1/webhooks", json={"url": "https://example.com/hook", "jobs": ["never"]}).raise_for_status()

    def _put(self, path: str, body: dict[str, Any]) -> None:
        self.admin.put(f"/api/v1/{path}", json=body).raise_for_status()

    def token(self, name: str) -> dict[str, str]:
        made = self.admin.post("/api/v1/tokens", json={"name": name, **SMALL[name]}).raise_for_status().json()
        return {"Authorization": f"Bearer {made['secret']}"}

    def set_up(self) -> dict[str, Any]:
        """What the admin has set up, as it is now."""
        return {path: _still(self.admin.get(f"/api/v1{path}").raise_for_status().json()) for path in THEIRS}

    def close(self) -> None:
        self.admin.close()
        self.served.stop()


def _still(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _still(item) for name, item in value.items() if name not in MOVES_ON}
    return [_still(item) for item in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    made = Hub(tmp_path_factory.mktemp("hub") / "hub.db")
    yield made
    made.close()


@pytest.fixture(scope="module")
def document(hub: Hub) -> dict[str, Any]:
    found: dict[str, Any] = hub.admin.get("/api/v1/openapi.json").json()
    return found


def _open_to(document: dict[str, Any], scopes: list[str]) -> set[tuple[str, str]]:
    """The routes that a token with these scopes may ask."""
    may = {*scopes, "any"}
    wanted = [(path, method, operation["x-scope"]) for path, method, operation in operations(document)]
    return {(path, method) for path, method, scope in wanted if scope is None or may & set([scope] if isinstance(scope, str) else scope)}


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")  # schemathesis asks for chance in its own way
@pytest.mark.parametrize("name", SMALL)
def test_a_small_token_gets_and_changes_nothing_that_its_scope_does_not_promise(name: str, hub: Hub, document: dict[str, Any]) -> None:
    token, may = hub.token(name), _open_to(document, SMALL[name]["scopes"])
    before, tried = hub.set_up(), 0
    for found in schemathesis.openapi.from_dict(document).get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()
        if not operation.path.endswith("/events"):  # a stream without an end; it has tests of its own
            tried += _fuzzed(hub, token, operation, allowed=(operation.path, operation.method) in may)
    assert hub.set_up() == before
    assert tried > len(may)


def _fuzzed(hub: Hub, token: dict[str, str], operation: Any, *, allowed: bool) -> int:
    """How many requests were answered as they must be; a route that is not for this token is refused whatever it is sent."""
    tried = 0

    valid = VALID.get((operation.method, operation.path), [])

    @given(case=operation.as_strategy(), real=st.booleans(), body=st.sampled_from([None, *valid]))
    @settings(
        max_examples=EXAMPLES * (1 + len(valid)) if allowed else 1, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    def ask(case: Any, real: bool, body: Any) -> None:
        nonlocal tried
        case.body = case.body if body is None else body
        if real:
            case.path_parameters = {name: hub.there.get(name, value) for name, value in (case.path_parameters or {}).items()}
        answer = case.call_and_validate(base_url=hub.served.url, headers=token, checks=CHECKS, timeout=60)
        assert allowed or answer.status_code in (400, 403), f"{operation.method} {operation.path}: {answer.status_code}"
        tried += 1

    ask()
    return tried
