"""Who may do what at SO1's door, and what hostile callers get there."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import unchanged
from tests.dialects.so1_door import ANN, EVE, TRIGGER, UNKNOWN, So1, bearer
from tests.harness import Harness
from windlass.clock import ManualClock
from windlass.dialects import settings_of
from windlass.dialects.so1 import Session, Settings, mount
from windlass.dialects.so1.sessions import Sessions, Verified
from windlass.errors import BadInput, StoreUnreachable
from windlass.hub import HubSettings
from windlass.hub.auth import refuse_dialect
from windlass.model import SCOPES

ROUTES = {
    "create": ("POST", "/api/jobs", "submit"),
    "list": ("GET", "/api/jobs", "read"),
    "get": ("GET", "/api/jobs/{job}", "read"),
    "cancel": ("POST", "/api/jobs/{job}/cancel", "submit"),
    "delete": ("DELETE", "/api/jobs/{job}", "submit"),
    "events": ("GET", "/api/jobs/{job}/events", "read"),
    "session": ("GET", "/api/auth/session", "any"),
    "health": ("GET", "/health", None),
}
BODY = {"action": TRIGGER}


def verify(token: str) -> Verified:
    """What an identity provider would say."""
    return {"ann": ("ann", "acme", "ann@acme.example"), "eve": ("eve", "evil", None)}.get(token)


@pytest.fixture
def so1(h: Harness) -> Iterator[So1]:
    door = So1(h, verify=verify)
    yield door
    door.close()


def secret(so1: So1, name: str, *scopes: str) -> str:
    return bearer(so1.h(so1.h.engine.create_token(name, scopes))[1])


def statuses(so1: So1, job_id: str, credential: str | None) -> dict[str, int]:
    """The answer of every route to a caller."""
    so1.headers = {} if credential is None else {"authorization": credential}
    answers = {}
    for name, (method, path, _) in ROUTES.items():
        answers[name] = so1(method, path.format(job=job_id), BODY if name == "create" else None).status
    return answers


def allowed(*scopes: str | None) -> dict[str, int]:
    """The answers to a caller of the organisation with these scopes."""
    good = {"create": 202}
    return {name: good.get(name, 200) if scope in (None, "any", *scopes) else 403 for name, (_, _, scope) in ROUTES.items()}


NOTHING = {name: 200 if name == "health" else 401 for name in ROUTES}
ANOTHER = allowed("read", "submit") | dict.fromkeys(("get", "cancel", "delete", "events"), 403)


@pytest.mark.parametrize("scope", SCOPES)
def test_every_route_asks_tokens_of_windlass_for_its_scope(so1: So1, scope: str) -> None:
    everything = ("read", "submit") if scope == "admin" else (scope,)
    assert statuses(so1, so1.create()["id"], secret(so1, "acme/bob", scope)) == allowed(*everything)


@pytest.mark.parametrize("scope", ["read", "submit", "admin"])
def test_a_token_of_another_organisation_reaches_none_of_its_jobs(so1: So1, scope: str) -> None:
    everything = ("read", "submit") if scope == "admin" else (scope,)
    expected = {name: 403 if ANOTHER[name] == 403 else status for name, status in allowed(*everything).items()}
    assert statuses(so1, so1.create()["id"], secret(so1, "evil/bob", scope)) == expected


@pytest.mark.parametrize(
    ("credential", "expected"),
    [
        (bearer("ann"), allowed("read", "submit")), (bearer(ANN), allowed("read", "submit")),
        (bearer("eve"), ANOTHER), (bearer(EVE), ANOTHER),
        (None, NOTHING), ("", NOTHING), (bearer("nobody"), NOTHING), (bearer("clerk_ann"), NOTHING), ("Basic YW5uOg==", NOTHING),
    ],
)  # fmt: skip
def test_every_route_asks_for_a_session(so1: So1, credential: str | None, expected: dict[str, int]) -> None:
    assert statuses(so1, so1.create()["id"], credential) == expected


def test_sessions_open_nothing_else_of_the_hub(so1: So1) -> None:
    so1.h(so1.h.engine.create_token("first", ("admin",)))
    for token in ("ann", ANN):
        answer = super(So1, so1).__call__("GET", "/api/v1/jobs", headers={"authorization": bearer(token)})
        assert answer.status == 401


def test_a_token_of_windlass_names_the_organisation_before_its_slash(so1: So1) -> None:
    names = {
        "acme/bob": ("bob", "acme"),
        "bob": ("bob", "default"),
        "acme/": ("acme/", "default"),
        "/bob": ("/bob", "default"),
        "a/b/c": ("b/c", "a"),
    }
    for name, (user, org) in names.items():
        session = so1.get("/api/auth/session", authorization=secret(so1, name, "read")).json["session"]
        assert session == {"userId": user, "orgId": org}


def test_a_verified_session_has_an_address_and_is_who_the_audit_names(so1: So1) -> None:
    session = so1.get("/api/auth/session", authorization=bearer("ann")).json["session"]
    assert session == {"userId": "ann", "orgId": "acme", "email": "ann@acme.example"}
    job_id = so1.create(authorization=bearer("ann"))["id"]
    so1.delete(f"/api/jobs/{job_id}", authorization=bearer("ann"))
    (entry,) = so1.h(so1.h.engine.audit()).entries
    assert (entry.actor, entry.what, entry.subject) == ("acme/ann", "cancel", f"job {job_id}")
    assert '"by":"acme/ann"' in (so1.h(so1.h.engine.history(job_id))[-1].detail or "")


def test_a_run_without_an_organisation_is_shown_to_admins_only(so1: So1) -> None:
    run_id = so1.h.create()
    assert so1.job(run_id, authorization=secret(so1, "ops", "admin"))["metadata"]["orgId"] == ""
    for credential in (secret(so1, "ops", "read", "submit"), bearer("ann")):
        assert so1.refused("GET", f"/api/jobs/{run_id}", authorization=credential)[:2] == (403, "FORBIDDEN")
    assert so1.page(authorization=secret(so1, "ops", "admin"))["jobs"] == []


def test_whether_a_session_is_still_valid_is_asked_again_for_open_streams() -> None:
    valid: dict[str, Verified] = {"t": ("ann", "acme", None)}

    async def still() -> list[bool]:
        identity = await Sessions(valid.get).identify({b"authorization": b"Bearer t"}, local=True)
        assert identity is not None
        answers = [await identity.still()]
        valid["t"] = ("ann", "other", None)
        answers.append(await identity.still())
        valid.clear()
        answers.append(await identity.still())
        valid["t"] = ("too little",)  # type: ignore[assignment]  # it cannot be verified now: it stays, and is asked again
        return [*answers, await identity.still()]

    assert asyncio.run(still()) == [True, False, False, True]


async def _async(token: str) -> Verified:
    return verify(token)


def _raises(token: str) -> Verified:
    raise OSError(f"no connection to /etc/idp for {token}")


VERIFIERS: dict[str, tuple[Callable[[str], Any], int]] = {
    "a function": (verify, 200),
    "a coroutine": (_async, 200),
    "a function that returns an awaitable": (lambda token: _async(token), 200),
    "one that raises": (_raises, 503),
    "one that returns too little": (lambda token: ("ann",), 503),
    "one that names no organisation": (lambda token: ("ann", "", None), 503),
    "one that returns something else": (lambda token: 7, 503),
    "one that knows nobody": (lambda token: None, 401),
}


@pytest.mark.parametrize("name", VERIFIERS)
def test_sessions_are_verified_by(h: Harness, name: str) -> None:
    function, status = VERIFIERS[name]
    so1 = So1(h, verify=function)
    answer = so1.get("/api/auth/session", authorization=bearer("ann"))
    assert answer.status == status
    assert b"idp" not in answer.body
    if status == 503:
        assert answer.json["error"]["code"] == "SERVICE_UNAVAILABLE"
    so1.close()


def test_the_function_can_be_named_in_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "so1_sessions_of_mine.py").write_text("def verify(token):\n    return ('ann', 'acme', None) if token == 't' else None\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    dialect = mount(Settings(verify="so1_sessions_of_mine:verify"), ManualClock())
    assert dialect.credentials is not None
    assert dialect.credentials.required
    for name in ("so1_sessions_of_mine:other", "no_such_module:verify"):
        with pytest.raises(BadInput, match="cannot be imported"):
            mount(Settings(verify=name), ManualClock())


@pytest.mark.parametrize(
    "table",
    [{"verify": "no function"}, {"verify": ":x"}, {"origins": ["*"]}, {"origins": ["console.example"]}, {"origins": ["https://a.example/x"]},
     {"mock": "yes"}, {"keep": {"a": "repo"}}, {"key": "value"}, {"queue": ["a"]}],
)  # fmt: skip
def test_settings_that_cannot_be_meant_are_refused(table: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=r"\[dialects\.so1\] cannot be read"):
        settings_of("so1", table, {})


def test_mock_tokens_are_for_this_machine_only(h: Harness) -> None:
    refuse_dialect(mount(Settings(mock=True), ManualClock()), HubSettings(open=True), any_token=False)
    with pytest.raises(BadInput, match="tokens that need no secret"):
        refuse_dialect(mount(Settings(mock=True), ManualClock()), HubSettings(host="0.0.0.0"), any_token=True)
    so1 = So1(h)
    assert so1.get("/api/jobs").status == 200
    assert so1.get("/api/jobs", client=("10.0.0.1", 50_000)).status == 401
    assert so1.get("/api/jobs", x_forwarded_for="10.0.0.1").status == 401
    so1.close()


def test_without_sessions_it_is_open_where_the_hub_is_and_else_takes_tokens_only(h: Harness) -> None:
    so1 = So1(h, mock=False)
    so1.headers = {}
    assert so1.get("/api/auth/session").json["session"] == {"userId": "anonymous", "orgId": "default"}
    assert so1.get("/api/jobs", authorization=bearer(ANN)).status == 401
    assert so1.get("/api/jobs", x_forwarded_for="10.0.0.1").status == 401
    token = secret(so1, "acme/bob", "read")
    so1.hub.forget_tokens()
    assert so1.get("/api/jobs").status == 401
    assert so1.get("/api/jobs", authorization=token).status == 200
    so1.close()


def test_wrong_sessions_count_as_wrong_tokens_do(so1: So1) -> None:
    answers = [so1.get("/api/jobs", authorization=bearer(f"wrong{n}")) for n in range(31)]
    assert [answer.status for answer in answers] == [401] * 30 + [429]
    assert answers[-1].json["error"]["code"] == "SERVICE_UNAVAILABLE"
    assert answers[-1].headers["retry-after"]
    assert so1.get("/api/jobs").status == 200


def test_a_token_is_not_taken_from_the_address(so1: So1) -> None:
    assert so1.refused("GET", "/api/jobs?token=x")[:2] == (401, "UNAUTHORIZED")


# Origins


def test_pages_of_the_origins_in_the_settings_may_read_every_answer_and_no_others(h: Harness) -> None:
    so1 = So1(h, origins=("https://console.example", "http://localhost:3000"))
    job_id = so1.create()["id"]
    for path in ("/api/jobs", f"/api/jobs/{UNKNOWN}", "/api/none", "/health", f"/api/jobs/{job_id}/events"):
        answer = so1.get(path, origin="http://localhost:3000")
        assert answer.headers["access-control-allow-origin"] == "http://localhost:3000"
        assert answer.headers["access-control-allow-credentials"] == "true"
        assert answer.headers["access-control-expose-headers"] == "X-Request-Id"
        assert answer.headers["vary"] == "Origin"
        for other in ("https://evil.example", "null", "https://console.example.evil.example", ""):
            assert "access-control-allow-origin" not in so1.get(path, origin=other).headers
    so1.headers = {}
    asked = {"origin": "https://console.example", "access-control-request-method": "POST"}
    before = so1("OPTIONS", "/api/jobs", None, asked | {"access-control-request-headers": "authorization, idempotency-key"})
    assert before.status == 204
    assert before.headers["access-control-allow-methods"] == "GET, OPTIONS, POST"
    assert before.headers["access-control-allow-headers"] == "authorization, idempotency-key"
    so1.close()


# Hostile input

HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "half": b'{"action": ',
    "no utf-8": b"\xff\xfe",
    "a number": b"7",
    "null": b"null",
    "a list": b'[{"action": "trigger-github-workflow"}]',
    "no action": b"{}",
    "an action that is a number": b'{"action": 7}',
    "an action that is null": b'{"action": null}',
    "an empty action": b'{"action": ""}',
    "an action that is unknown": b'{"action": "none"}',
    "an action with NUL": b'{"action": "a\\u0000"}',
    "an action of half a surrogate": b'{"action": "\\ud800"}',
    "a long action": b'{"action": "%b"}' % (b"x" * 200),
    "inputs that are a text": b'{"action": "trigger-github-workflow", "inputs": "x"}',
    "inputs that are a list": b'{"action": "trigger-github-workflow", "inputs": [1]}',
    "NaN": b'{"action": "trigger-github-workflow", "inputs": {"n": NaN}}',
    "infinity": b'{"action": "trigger-github-workflow", "inputs": {"n": 1e999}}',
    "a large integer": b'{"action": "trigger-github-workflow", "inputs": {"n": 99999999999999999999}}',
    "NUL": b'{"action": "trigger-github-workflow", "inputs": {"n": "\\u0000"}}',
    "half a surrogate": b'{"action": "trigger-github-workflow", "inputs": {"\\udfff": 1}}',
    "the same member twice": b'{"action": "trigger-github-workflow", "inputs": {}, "inputs": {"n": 1}}',
    "deep nesting": b'{"action": "trigger-github-workflow", "inputs": {"n": %b%b}}' % (b"[" * 100_000, b"]" * 100_000),
    "deeper than is stored": b'{"action": "trigger-github-workflow", "inputs": {"n": %b%b}}' % (b"[" * 70, b"]" * 70),
    "inputs over the limit": b'{"action": "trigger-github-workflow", "inputs": {"n": "%b"}}' % (b"x" * 300_000),
    "10 MB": b'{"action": "trigger-github-workflow", "inputs": {"n": "%b"}}' % (b"x" * 10_000_000),
}


def test_hostile_bodies_are_refused_and_change_nothing(so1: So1) -> None:
    so1.create()
    with unchanged(so1.h):
        for name, body in HOSTILE.items():
            for headers in ({}, {"content-type": "text/plain"}, {"idempotency-key": "k"}):
                status, code, _ = so1.refused("POST", "/api/jobs", None, headers, raw=body)
                assert (status, code) in ((400, "BAD_REQUEST"), (400, "VALIDATION_ERROR")), name


def test_the_member_that_is_not_valid_is_named(so1: So1) -> None:
    members = {
        "null": "body", "no action": "action", "an empty action": "action", "an action that is unknown": "action",
        "inputs that are a text": "inputs", "inputs over the limit": "inputs",
    }  # fmt: skip
    for name, member in members.items():
        assert so1.refused("POST", "/api/jobs", raw=HOSTILE[name]) == (400, "VALIDATION_ERROR", {"member": member})


QUERIES = (
    "limit=-1", "limit=0", "limit=x", "limit=", "limit=201", "limit=1e9", "limit=%00", "limit=" + "9" * 40, "limit=%D9%A1",
    "state=none", "state=", "state=PENDING", "state=%00", "cursor=x", "cursor=%00", "cursor=eyJ9", "state=success&limit=x",
)  # fmt: skip


def test_hostile_queries_are_refused(so1: So1) -> None:
    for query in QUERIES:
        status, code, details = so1.refused("GET", f"/api/jobs?{query}")
        assert (status, code) == (400, "VALIDATION_ERROR")
        assert details["member"] in query


def test_a_cursor_of_another_list_is_refused(so1: So1) -> None:
    for _ in range(3):
        so1.create()
    cursor = so1.page("?limit=1")["cursor"]
    assert so1.refused("GET", f"/api/jobs?state=failed&cursor={cursor}")[1] == "VALIDATION_ERROR"


def test_members_and_parameters_that_nobody_knows_are_ignored(so1: So1) -> None:
    assert so1.post("/api/jobs?trace=1", {"action": TRIGGER, "inputs": None, "client": {"v": 1}}).status == 202
    assert len(so1.page("?page=7")["jobs"]) == 1


def test_what_fails_inside_is_told_without_its_reason(so1: So1, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = so1.create()["id"]
    errors = {
        StoreUnreachable("no connection to /var/lib/windlass.db", hint="Look at /var/lib."): (503, "SERVICE_UNAVAILABLE"),
        RuntimeError("s3cr3t in /etc"): (500, "INTERNAL_SERVER_ERROR"),
    }
    for error, expected in errors.items():

        async def fail(*_: Any, error: Exception = error, **__: Any) -> Any:
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(type(so1.h.store), "batch", fail)
            answer = so1.get(f"/api/jobs/{job_id}")
        assert (answer.status, answer.json["error"]["code"]) == expected
        assert not [word for word in (b"s3cr3t", b"/var", b"/etc", b"Traceback") if word in answer.body]


def test_a_session_in_python_has_names_that_can_be_stored() -> None:
    for user, org in (("", "acme"), ("ann", ""), ("a\0", "acme"), ("ann", "x" * 129), ("x" * 100, "y" * 100)):
        with pytest.raises(BadInput):
            Session(user, org).checked()
