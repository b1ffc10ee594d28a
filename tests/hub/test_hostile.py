"""Whatever is sent, the hub answers as it says it does: no 500, nothing that its description does not have, and nothing changed."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from tests.served import ServedHub
from tests.workers import DEADLINE, until
from windlass.api.openapi import operations
from windlass.errors import StoreBroken
from windlass.hub import HubSettings, connections

SETTINGS = HubSettings(longest_wait=20, body=300_000)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHub]:
    hub = ServedHub(tmp_path_factory.mktemp("hub") / "hub.db", SETTINGS)
    yield hub
    hub.stop()


@pytest.fixture(scope="module")
def document(served: ServedHub) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(served.url + "api/v1/openapi.json", timeout=60).json()
    return found


def test_the_description_has_every_route_with_its_scope(document: dict[str, Any], served: ServedHub) -> None:
    described = {(path, method) for path, method, _ in operations(document)}
    assert len(described) > 40
    assert {operation["x-scope"] for _, _, operation in operations(document) if isinstance(operation["x-scope"], str)} >= {
        "read", "submit", "work", "admin",
    }  # fmt: skip
    assert all(operation.get("summary") for _, _, operation in operations(document))
    assert ("/api/v1/runs", "post") in described
    assert ("/", "get") not in described


DEEP = b"[" * 100_000
BODIES = {
    "deep lists": DEEP,
    "deep objects": b'{"a":' * 50_000,
    "deep payload": b'{"job": "mail", "payload": ' + b"[" * 65 + b"]" * 65 + b"}",
    "many members": b'{"job": "mail", "payload": [' + b",".join([b"{}"] * 90_000) + b"]}",
    "too large": b'{"job": "mail", "payload": "' + b"x" * 400_000 + b'"}',
    "NaN": b'{"job": "mail", "payload": NaN}',
    "infinity": b'{"job": "mail", "payload": [-Infinity]}',
    "1e999": b'{"job": "mail", "payload": 1e999}',
    "a long number": b'{"job": "mail", "payload": ' + b"9" * 5_000 + b"}",
    "2 to the 63": b'{"job": "mail", "payload": 9223372036854775808}',
    "a key twice": b'{"job": "mail", "payload": {"a": 1, "a": 2}}',
    "a field twice": b'{"job": "mail", "job": "other"}',
    "half a surrogate pair": b'{"job": "mail", "payload": "\\ud800"}',
    "NUL": b'{"job": "mail", "payload": "\\u0000"}',
    "NUL in a name": b'{"job": "ma\\u0000il"}',
    "not UTF-8": b'{"job": "m\xffil"}',
    "UTF-16": '{"job": "mail"}'.encode("utf-16"),
    "no JSON": b"job=mail",
    "nothing": b"",
    "a list": b"[]",
    "null": b"null",
    "a number for a name": b'{"job": 7}',
    "a text for a number": b'{"job": "mail", "delay": "7"}',
    "true for a number": b'{"job": "mail", "delay": true}',
    "a negative delay": b'{"job": "mail", "delay": -9223372036854775808}',
    "a huge delay": b'{"job": "mail", "delay": 9223372036854775807}',
    "mass assignment": b'{"job": "mail", "state": "succeeded", "token": "x", "attempt": 9, "tenant": "other"}',
    "mass assignment below": b'{"job": "mail", "options": {"failures": 0}}',
    "a time that is none": b'{"job": "mail", "scheduled_for": "tomorrow"}',
    "a time without an offset": b'{"job": "mail", "scheduled_for": "2026-01-01T00:00:00"}',
    "a time too far": b'{"job": "mail", "scheduled_for": "9999-12-31T23:59:59Z"}',
    "two JSON texts": b'{"job": "mail"}{"job": "mail"}',
    "a priority too high": b'{"job": "mail", "options": {"priority": 99999999999}}',
    "a key with too much": b'{"job": "mail", "key": {"name": "k", "scope": "claim"}}',
}
"""None of these makes a run."""


@pytest.mark.parametrize("body", list(BODIES.values()), ids=list(BODIES))
@pytest.mark.parametrize("path", ["runs", "runs/batch", "worker/claim", "worker/report", "worker/beat"])
def test_a_hostile_body_is_refused_and_changes_nothing(served: ServedHub, body: bytes, path: str) -> None:
    with httpx.Client(base_url=served.url + "api/v1/", timeout=60) as http:
        http.put("jobs/mail", json={}).raise_for_status()
        before = http.get("runs").json()
        answer = http.post(path, content=body, headers={"Content-Type": "application/json"})
        assert 400 <= answer.status_code < 500, answer.text
        problem = answer.json()
        assert answer.headers["content-type"] == "application/problem+json"
        assert problem["detail"]
        assert problem["hint"]
        assert len(answer.content) < 5_000
        assert http.get("runs").json() == before


@pytest.mark.parametrize(
    "query",
    [
        "count=0", "count=-1", "count=1001", "count=1_0", "count=%D9%A3", "count=", "count=9999999999999999999", "cursor=x",
        "cursor=" + "A" * 5_000, "state=nothing", "state=queued%00", "job=%00",
        "states=queued,nothing", "group=a%20b", "key=%0A", "text=", "text=%00",
        "text=" + "a" * 257, "created_since=now", "ended_before=-1", "job=a&colour=red", "cursor=WyJhIl0",
    ],
)  # fmt: skip
def test_a_hostile_query_is_refused(served: ServedHub, query: str) -> None:
    answer = httpx.get(f"{served.url}api/v1/runs?{query}", timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_input"), answer.text


@pytest.mark.parametrize(
    "raw",
    [
        b"GET /\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        b"POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        b"POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nA\x00B: c\r\n\r\n",
        b"GET /api/v1/runs\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
        b"GET /api/v1/runs HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"X%d: x\r\n" % n for n in range(5_000)) + b"\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_N8_what_is_no_request_is_refused_and_the_connection_closed(served: ServedHub, raw: bytes) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as line:
        with suppress(OSError):  # it may be closed while there is still something to send
            line.sendall(raw)
            line.shutdown(socket.SHUT_WR)
        answer = b""
        with suppress(ConnectionResetError):
            while part := line.recv(65_536):
                answer += part
    assert not answer or 400 <= int(answer.split(b" ")[1]) < 500, answer[:200]
    assert httpx.get(served.url + "healthz", timeout=60).status_code == 200


def test_every_answer_has_an_id_and_the_headers_that_bind_a_browser(served: ServedHub) -> None:
    for path in ("", "healthz", "api/v1/runs", "api/v1/nothing", "page/nothing.js", "api/v1/openapi.json", "metrics"):
        answer = httpx.get(served.url + path, timeout=60)
        assert answer.headers["x-request-id"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert "server" not in answer.headers


def test_a_fault_inside_is_a_problem_without_a_word_of_what_is_inside(served: ServedHub, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("secret /etc/passwd")

    monkeypatch.setattr(served.hub.engine, "detail", broken)
    answer = httpx.get(served.url + "api/v1/runs/x", timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "secret" not in answer.text
    assert answer.json()["request_id"] == answer.headers["x-request-id"]


def test_N5_whoever_keeps_a_request_open_is_closed_and_others_are_served(served: ServedHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_WITHIN", 0.5)
    monkeypatch.setattr(served.hub, "settings", replace(SETTINGS, body_within=500))
    head = b"POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    slow = [b"", b"G", head, head + b"Content-Length: 100\r\n\r\n{", head + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"]
    lines = [socket.create_connection(("127.0.0.1", served.port), timeout=60) for _ in range(20) for _ in slow]
    for line, sent in zip(lines, slow * 20, strict=True):
        line.sendall(sent)
    assert httpx.get(served.url + "healthz", timeout=60).status_code == 200
    for line, sent in zip(lines, slow * 20, strict=True):
        try:
            answer = line.recv(65_536)
        except ConnectionResetError:
            answer = b""
        line.close()
        assert answer.startswith(b"HTTP/1.1 408") if b"\r\n\r\n" in sent else not answer


def test_a_request_that_is_answered_before_its_body_came_is_not_waited_for(served: ServedHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LINGER", 0.2)
    head = b"POST /api/v1/nothing HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as line:
        line.sendall(head)
        answer = line.recv(65_536)
        try:
            while line.recv(65_536):  # until the hub closes
                pass
        except ConnectionResetError:
            pass
    assert answer.startswith(b"HTTP/1.1 404")


def test_a_connection_too_many_is_told_so_and_closed(tmp_path: Path) -> None:
    hub = ServedHub(tmp_path / "hub.db", HubSettings(connections=3))
    ask = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    with ExitStack() as stack:

        def connect() -> socket.socket:
            made = stack.enter_context(socket.create_connection(("127.0.0.1", hub.port), timeout=DEADLINE))
            made.sendall(ask)
            return made

        def served(one: socket.socket) -> bool:
            said = b""
            while not said.endswith(b"}"):
                said += one.recv(65_536)
            return said.startswith(b"HTTP/1.1 200")

        there = [connect() for _ in range(3)]
        assert all(map(served, there))
        for more in [connect() for _ in range(20)]:
            said = more.makefile("rb").read()  # until it is closed
            assert said.startswith(b"HTTP/1.1 503")
            assert json.loads(said.partition(b"\r\n\r\n")[2])["code"] == "limit_reached"
        for one in there:
            one.sendall(ask)
            assert served(one)
        there[0].close()
        until(lambda: served(connect()))
    hub.stop()


def test_a_store_that_fails_is_told_without_a_word_of_where_it_is(served: ServedHub, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise StoreBroken("/srv/secret/hub.db: disk I/O error", hint="Look at /srv/secret.")

    monkeypatch.setattr(served.hub.engine, "detail", broken)
    answer = httpx.get(served.url + "api/v1/runs/x", timeout=60)
    assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "store_broken", "1")
    assert "secret" not in answer.text


def test_large_values_are_left_out_of_lists_and_told_with_their_run(served: ServedHub) -> None:
    with httpx.Client(base_url=served.url + "api/v1/", timeout=60) as http:
        http.put("jobs/large", json={}).raise_for_status()
        run = http.post("runs", json={"job": "large", "payload": "x" * 100_000}).json()["id"]
        (listed,) = http.get("runs?job=large").json()["runs"]
        assert (listed["payload"], listed["left_out"], listed["sizes"]) == (None, ["payload"], {"payload": 100_002})
        assert http.get(f"runs/{run}").json()["payload"] == "x" * 100_000


def test_whoever_has_no_token_can_send_only_little(served: ServedHub) -> None:
    answer = httpx.post(served.url + "api/v1/session", json={"ticket": "x" * 20_000}, timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


def test_a_body_of_very_many_members_is_refused_before_it_is_read(served: ServedHub) -> None:
    big = replace(SETTINGS, body=8 * 1024 * 1024)
    served.hub.settings, before = big, served.hub.settings
    try:
        answer = httpx.post(
            served.url + "api/v1/runs", content=b"[" + b"{}," * 600_000 + b"{}]", headers={"Content-Type": "application/json"}
        )
    finally:
        served.hub.settings = before
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


@pytest.mark.parametrize("said", [{"timeout": -(2**62)}, {"timeout": 10, "topics": ["x"] * 101}, {"timeout": 1, "topics": ["a\x00"]}])
def test_waiting_is_within_bounds(served: ServedHub, said: dict[str, Any]) -> None:
    answer = httpx.post(served.url + "api/v1/worker/wait", json={"topics": ["queue:a"], **said}, timeout=60)
    assert 400 <= answer.status_code < 500, answer.text
