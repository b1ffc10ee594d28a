"""What one connection can make the hub keep or do: little, for a short time, and others are served meanwhile."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from tests.served import ServedHub
from tests.tiers import corners
from tests.workers import DEADLINE, until
from windlass import payload
from windlass.errors import BadInput
from windlass.hub import HubSettings, connections, requests, serving
from windlass.hub.connections import AHEAD, Connection

READ = 256 * 1024
"""Bytes that the loop reads from a socket at once."""
AGES = 600_000
POST = b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Pad: " + b"x" * 900 + b"\r\n\r\n"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedHub]:
    hub = ServedHub(tmp_path / "hub.db", HubSettings(longest_wait=AGES))
    yield hub
    hub.stop()


def lines_of(hub: ServedHub) -> list[Connection]:
    """The hub's side of every connection."""
    assert hub._server is not None
    return [cast(Connection, line) for line in tuple(hub._server.server_state.connections)]


@contextmanager
def connected(hub: ServedHub, **options: int) -> Iterator[socket.socket]:
    with closing(socket.socket()) as line:
        for name, value in options.items():
            line.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
        line.settimeout(DEADLINE)
        line.connect(("127.0.0.1", hub.port))
        yield line


def post(path: bytes, body: bytes) -> bytes:
    return POST % path + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


CLAIM = post(b"/api/v1/worker/claim", b'{"worker": {"name": "w"}, "count": 1, "lease": 60000, "wait": %d}' % AGES)


def answers(line: socket.socket) -> Iterator[tuple[int, Any]]:
    """The status of each answer, and what it says."""
    with line.makefile("rb") as file:
        while begin := file.readline():
            head = dict(iter(lambda: file.readline().strip().lower().partition(b": ")[::2], (b"", b"")))
            yield int(begin.split()[1]), json.loads(file.read(int(head[b"content-length"])))


def answer(line: socket.socket) -> tuple[int, Any]:
    """The only answer."""
    return next(answers(line))


def is_closed(line: socket.socket) -> bool:
    """Whether the hub ends the connection; what it has sent before is skipped."""
    try:
        while line.recv(65_536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


# Requests ahead


def test_requests_behind_one_that_waits_stay_with_the_client_and_are_answered_in_their_order(served: ServedHub) -> None:
    many = 3_000
    httpx.put(served.url + "api/v1/jobs/mail", json={}, timeout=60).raise_for_status()
    with connected(served) as line:
        line.sendall(CLAIM)
        until(lambda: served.hub.waiting == 1)
        sending = threading.Thread(target=line.sendall, args=(HEALTH * many + b"GET /nothing HTTP/1.1\r\nConnection: close\r\n\r\n",))
        sending.start()
        (there,) = lines_of(served)
        until(lambda: len(there._ahead) > AHEAD)
        assert len(there.pipeline) <= 1
        assert len(there._ahead) <= AHEAD + READ
        assert httpx.get(served.url + "healthz", timeout=60).status_code == 200
        run = httpx.post(served.url + "api/v1/runs", json={"job": "mail"}, timeout=60).json()["id"]
        said, limit = b"", 0
        while part := line.recv(1 << 20):
            said, limit = said + part, max(limit, len(there.pipeline))
        sending.join()
    assert said.count(b"HTTP/1.1 200 ") == 1 + many
    assert run.encode() in said.partition(b"HTTP/1.1 200 ")[2].partition(b"HTTP/1.1 ")[0]
    assert said.rpartition(b"HTTP/1.1 ")[2].startswith(b"404 ")
    assert limit <= 1


@pytest.mark.parametrize(
    "forms",
    [
        [b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"],
        [b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\r\n\r\n"],
        [post(b"/api/v1/runs", b'{"job":\n\n"mail"}')],
        [POST % b"/api/v1/runs" + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"job\r\n9\r\n":"mail"}\r\n0\r\n\r\n'],
        [POST % b"/api/v1/runs" + b'Transfer-Encoding: chunked\r\n\r\ne\r\n{"job":"mail"}\r\n0\r\nA: b\r\nC: d\r\n\r\n'],
        [post(b"/api/v1/runs", b'{"job": "mail"}'), b"GET /healthz HTTP/1.1\r\n\r\n", post(b"/api/v1/nothing", b"{}")],
    ],
    ids=["simple", "line ends between", "blank lines in the body", "chunked", "with trailers", "mixed"],
)
@pytest.mark.parametrize("cut", corners((1, 7, 100, 100_000)))
def test_requests_that_come_together_are_all_answered_however_they_are_cut(
    served: ServedHub, forms: list[bytes], cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    httpx.put(served.url + "api/v1/jobs/mail", json={}, timeout=60).raise_for_status()
    times, ahead = 6, list[int]()
    complete = Connection.on_headers_complete

    def counted(self: Connection) -> None:
        complete(self)
        ahead.append(len(self.pipeline))

    monkeypatch.setattr(Connection, "on_headers_complete", counted)
    with connected(served) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sent = b"".join(forms) * times
        for begin in range(0, len(sent), cut):
            line.sendall(sent[begin : begin + cut])
        requests_sent = [form for form in forms if form.strip()] * times
        for form, (status, said) in zip(requests_sent, answers(line)):  # noqa: B905 there may be no more
            path = form.split(b" ")[1]
            assert (path, status) in {(b"/healthz", 200), (b"/api/v1/runs", 202), (b"/api/v1/nothing", 404)}, said
    assert len(ahead) == len(requests_sent)
    assert max(ahead) <= 1


def test_a_request_that_waits_behind_another_does_not_hide_that_the_client_has_left(served: ServedHub) -> None:
    with connected(served) as line:
        line.sendall(CLAIM + HEALTH)
        until(lambda: served.hub.waiting == 1)
    until(lambda: served.hub.waiting == 0)


def test_what_comes_behind_an_upgrade_that_the_hub_does_not_make_is_no_request(served: ServedHub) -> None:
    head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\nContent-Length: %d\r\n\r\n"
    inner = post(b"/api/v1/runs", b'{"job": "mail"}')
    httpx.put(served.url + "api/v1/jobs/mail", json={}, timeout=60).raise_for_status()
    with connected(served) as line:
        line.sendall(head % len(inner) + inner)
        assert is_closed(line)
    assert httpx.get(served.url + "api/v1/runs", timeout=60).json()["runs"] == []


# Trailers


def chunked(path: bytes, host: bytes, trailers: bytes, headers: bytes = b"") -> bytes:
    head = b"POST %b HTTP/1.1\r\nHost: %b\r\n%bContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head % (path, host, headers) + b'e\r\n{"job":"mail"}\r\n0\r\n' + trailers + b"\r\n"


def test_a_trailer_does_not_change_the_head(served: ServedHub) -> None:
    httpx.put(served.url + "api/v1/jobs/mail", json={}, timeout=60).raise_for_status()
    with connected(served) as line:
        line.sendall(chunked(b"/api/v1/runs", b"evil.example.com", b"Host: 127.0.0.1\r\n"))
        assert answer(line)[0] == 403
    made = httpx.post(served.url + "api/v1/tokens", json={"name": "ops", "scopes": ["admin"]}, timeout=60).json()
    bearer = f"Authorization: Bearer {made['secret']}\r\n".encode()
    with connected(served) as line:
        line.sendall(chunked(b"/api/v1/runs", b"127.0.0.1", bearer))
        assert answer(line)[0] == 401
    with connected(served) as line:
        line.sendall(chunked(b"/api/v1/runs", b"127.0.0.1", b"Authorization: Bearer wl_x\r\nHost: evil\r\n", bearer))
        assert answer(line)[0] == 202


@pytest.mark.parametrize("part", [b"A: b\r\n" * 1_000, b"A: " + b"x" * 6_000, b"0;" + b"x" * 6_000], ids=["many", "one long", "extensions"])
@pytest.mark.parametrize("path", [b"/api/v1/runs", b"/api/v1/nothing"], ids=["while it is read", "when it is answered"])
def test_trailers_without_an_end_end_the_connection(served: ServedHub, part: bytes, path: bytes) -> None:
    begin = b"1\r\n{\r\n0\r\n" if part.startswith(b"A") else b"1\r\n{\r\n"
    with connected(served) as line:
        line.sendall(POST % path + b"Transfer-Encoding: chunked\r\n\r\n" + begin)
        with suppress(OSError):
            for _ in range(1 << 20 >> 12):
                line.sendall(part)
                part = part.removeprefix(b"A: ") if b"\n" not in part else part
        assert is_closed(line)
    until(lambda: not lines_of(served))


def test_only_a_few_headers_of_too_many_are_kept(served: ServedHub, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = list[int]()
    complete = Connection.on_headers_complete

    def counted(self: Connection) -> None:
        complete(self)
        kept.append(len(list(self.cycle.scope["headers"])))

    monkeypatch.setattr(Connection, "on_headers_complete", counted)
    with connected(served) as line:
        line.sendall(b"GET /healthz HTTP/1.1\r\n" + b"a:\r\n" * 10_000 + b"\r\n")
        assert answer(line)[0] == 431
    assert kept == [connections.HEADERS]


# Clients that do not read, and clients that only keep a connection


def test_a_client_that_does_not_read_is_dropped(served: ServedHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STALLED", 0.2)
    with connected(served, SO_RCVBUF=4_096) as line:
        line.settimeout(1)
        with suppress(OSError):
            line.sendall(b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 2_000)
        until(lambda: lines_of(served))
        until(lambda: not lines_of(served))
        line.settimeout(DEADLINE)
        assert is_closed(line)


def test_line_ends_are_no_sign_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "KEEP_ALIVE", 1)
    monkeypatch.setattr(connections, "HEAD_WITHIN", 1.0)
    served = ServedHub(tmp_path / "hub.db")
    with connected(served) as used, connected(served) as new:
        used.sendall(HEALTH)
        assert answer(used)[0] == 200
        for line in (used, new):
            line.sendall(b"\r\n")
        assert is_closed(used)
        assert is_closed(new)
    served.stop()


# Headers twice


TWICE = [
    ("Host", ("127.0.0.1", "evil.example.com")),
    ("Host", ("evil.example.com", "127.0.0.1")),
    ("Authorization", ("Bearer wl_x", "Bearer wl_y")),
    ("Content-Type", ("text/plain", "application/json")),
    ("Content-Type", ("application/json", "application/json")),
    ("Idempotency-Key", ("a", "b")),
]


@pytest.mark.parametrize("path", [b"/api/v1/runs", b"/api/v1/worker/claim"])
def test_a_header_that_may_come_once_is_refused_twice(served: ServedHub, path: bytes, subtests: pytest.Subtests) -> None:
    httpx.put(served.url + "api/v1/jobs/mail", json={}, timeout=60).raise_for_status()
    body = b'{"job": "mail"}'
    others = {"Host": "127.0.0.1", "Content-Type": "application/json", "Content-Length": str(len(body))}
    for name, values in TWICE:
        head = [f"{other}: {value}" for other, value in others.items() if other != name] + [f"{name}: {value}" for value in values]
        with subtests.test(f"{name}: {values}"):
            with connected(served) as line:
                line.sendall(b"POST %b HTTP/1.1\r\n%b\r\n\r\n%b" % (path, "\r\n".join(head).encode(), body))
                status, said = answer(line)
            assert (status, said["code"]) == (400, "bad_input")
            assert name in said["detail"]
            assert httpx.get(served.url + "api/v1/runs", timeout=60).json()["runs"] == []


# Large bodies


def long_name(members: int, size: int = 2**19) -> dict[str, Any]:
    return {"k" * size: [0] * members}


def report_of(*outputs: Any) -> dict[str, Any]:
    texts = [json.dumps(output, separators=(",", ":")) for output in outputs]
    return {"outcomes": [{"run": "x", "token": "t", "kind": "succeed", "output": text} for text in texts]}


class Held:
    """A call that waits, in whatever thread it is made, until it is let go."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call, self.begun, self.let_go = call, threading.Event(), threading.Event()

    def __call__(self, text: Any, **how: Any) -> Any:
        if len(text) > requests.AT_ONCE:
            self.begun.set()
            assert self.let_go.wait(DEADLINE)
        return self._call(text, **how)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("worker/report", report_of(*[long_name(200_000)] * 3)),
        ("runs", {"job": "mail", "payload": long_name(50_000, 2**17)}),
    ],
    ids=["report", "run"],
)
def test_others_are_answered_while_a_large_body_is_read(
    served: ServedHub, path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(payload.parse)
    monkeypatch.setattr(payload, "parse", held)
    httpx.put(served.url + "api/v1/jobs/mail", json={}, timeout=60).raise_for_status()
    answers = list[httpx.Response]()

    def send() -> None:
        answers.append(httpx.post(served.url + "api/v1/" + path, json=body, timeout=DEADLINE))

    sending = threading.Thread(target=send)
    sending.start()
    try:
        assert held.begun.wait(DEADLINE)
        assert httpx.get(served.url + "api/v1/runs", timeout=10).status_code == 200
        small = {"outcomes": [{"run": "y", "token": "t", "kind": "succeed", "output": "{}"}]}
        assert httpx.post(served.url + "api/v1/worker/report", json=small, timeout=10).status_code == 200
        assert not answers
    finally:
        held.let_go.set()
        sending.join()
    assert answers[0].status_code in {200, 202}, answers[0].text


def test_whoever_is_not_known_is_refused_before_a_byte_of_the_body_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served, parsed = ServedHub(tmp_path / "hub.db", open=False), list[Any]()
    monkeypatch.setattr(requests.HubRequest, "body", parsed.append)
    for path in (b"/api/v1/worker/report", b"/api/v1/runs"):
        with connected(served) as line:
            line.sendall(POST % path + b"Content-Length: 8000000\r\n\r\n")  # and no body
            assert answer(line)[0] == 401
    assert not parsed
    served.stop()


def test_where_a_value_is_wrong_is_put_together_only_when_it_is() -> None:
    value: Any = 0
    for _ in range(payload.DEPTH - 1):
        value = [value]
    value = {"k" * 2**20: value}
    tracemalloc.start()
    try:
        payload.check(value)
        assert tracemalloc.get_traced_memory()[1] < 2**19
    finally:
        tracemalloc.stop()


def test_the_place_of_what_is_wrong_is_told_and_is_short() -> None:
    with pytest.raises(BadInput, match=r"^The payload\.a\[1\]\.b contains the character NUL\."):
        payload.check({"a": [1, {"b": "\0"}]})
    with pytest.raises(BadInput) as refused:
        payload.check({"k" * 2**20: {f"{n}": {"x" * 1_000: {"y": [float("nan")]}} for n in range(3)}})
    assert len(str(refused.value)) < 600
    assert "which JSON does not have" in str(refused.value)


# As large as it was seen


def rss(process: int) -> int:
    """Megabytes of memory that a process has."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


@pytest.mark.skipif("FLOOD" not in os.environ, reason="FLOOD=1 sends a few hundred megabytes.")
@pytest.mark.parametrize(
    ("first", "rest"),
    [
        (b"", b"GET / HTTP/1.1\r\n\r\n" * 50_000),
        (POST % b"/api/v1/nothing" + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n" * 150_000),
        (POST % b"/api/v1/nothing" + b"Transfer-Encoding: chunked\r\n\r\n0\r\nA: ", b"x" * 1_000_000),
        (b"", b"\r\n" * 500_000),
    ],
    ids=["pipelined", "trailers", "one trailer", "line ends"],
)
def test_no_flood_makes_the_hub_grow(tmp_path: Path, first: bytes, rest: bytes) -> None:
    windlass, store = [sys.executable, "-m", "windlass"], ["--store", str(tmp_path / "hub.db")]
    subprocess.run([*windlass, "migrate", *store], check=True)
    with subprocess.Popen([*windlass, "hub", *store, "--port", "0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().strip().rstrip("/").rpartition(":")[2])
            before, limit = rss(process.pid), 0
            for _ in range(5):
                with socket.create_connection(("127.0.0.1", port)) as line, suppress(OSError):
                    line.settimeout(2)
                    line.sendall(first)
                    for _ in range(12):
                        line.sendall(rest)
                        limit = max(limit, rss(process.pid))
            print(f"{before} MB before, {limit} MB at most")
            assert limit < before + 60
        finally:
            process.terminate()
