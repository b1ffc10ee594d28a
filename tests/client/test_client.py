"""The client: the engine's verbs through a real hub, over a network that may be bad."""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.proxies import Proxy
from tests.served import LeapingClock, ServedHub
from tests.workers import DEADLINE, until
from windlass import App
from windlass.api.problems import Problem, error_of, problem_of
from windlass.api.views import RUN, SCHEDULE
from windlass.client import AsyncClient, AsyncTransport, BlockingTransport, Client, RemotePort
from windlass.client.events import Parser, StreamEvent
from windlass.clock import SystemClock
from windlass.config.opening import open_store
from windlass.engine import Engine, Outcome, Page
from windlass.errors import (
    BadInput,
    HubFailed,
    HubUnreachable,
    OutcomeUnknown,
    RunFailed,
    Unauthorized,
    WindlassError,
)
from windlass.machine import Fail, Succeed
from windlass.model import Failure, Key, NewRun, Options, Run, Schedule, State, WorkerInfo
from windlass.store.base import run_sync

WORKER = WorkerInfo("w1", slots=100)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ServedHub]:
    served = ServedHub(tmp_path / "hub.db", clock=LeapingClock())
    yield served
    served.stop()


@pytest.fixture
def client(hub: ServedHub) -> Iterator[Client]:
    with Client(hub.url) as client:
        client.define("mail")
        yield client


@pytest.fixture
def proxy(hub: ServedHub) -> Iterator[Proxy]:
    proxy = Proxy(hub.port)
    yield proxy
    proxy.close()


@pytest.fixture
def engine(hub: ServedHub, tmp_path: Path) -> Iterator[Engine]:
    """The same data without the hub."""
    engine = Engine(open_store(str(tmp_path / "hub.db"), hub.clock, blocking=True), hub.clock)
    yield engine
    run_sync(engine.close())


# M2: the hub's API is the embedded API


async def _story(verbs: Any, port: Any, leap: Callable[[int], None]) -> list[Any]:
    """What people and workers do, and every answer, refusals as well."""
    answers: list[Any] = []

    async def ask(call: Any) -> Any:
        try:
            answer = await call
        except WindlassError as error:
            # What cannot be read is refused at the first door, each in its own words.
            words = () if isinstance(error, BadInput) else (error.message, error.hint)
            answer = (type(error).__name__, error.code, *words)
        answers.append(answer)
        return answer

    await ask(verbs.define("mail", payload={"from": "shop"}, options=Options(max_attempts=2, backoff=(0,), queue="post")))
    await ask(verbs.define("mail", payload={"from": "shop"}, options=Options(max_attempts=2, backoff=(0,), queue="post")))
    await ask(verbs.define("a/b ?#%é"))
    await ask(verbs.define(""))
    await ask(verbs.jobs())
    await ask(verbs.get_job("a/b ?#%é"))
    await ask(verbs.get_job("none"))
    first, _ = await ask(verbs.create([NewRun("mail", {"to": "ann"}), NewRun("mail", {"to": "漢字 \u2028"}, key=Key("order-1"))]))
    await ask(verbs.create([NewRun("mail", {"to": "bob"}, key=Key("order-1"))]))
    await ask(verbs.create([NewRun("mail", 1, key=Key("k", "forever", on_duplicate="compare"))]))
    await ask(verbs.create([NewRun("mail", 2, key=Key("k", "forever", on_duplicate="compare"))]))
    await ask(verbs.create([NewRun("none")]))
    await ask(verbs.create([NewRun("later")], undefined="wait"))
    await ask(verbs.create([]))
    await ask(verbs.create([NewRun("mail", {"x": float("nan")})]))
    await ask(verbs.create([NewRun("mail", due_at=-1)]))
    (third,) = await ask(verbs.create([NewRun("mail", None, Options(priority=7, timeout=5_000), due_at=hub_now(verbs) + 60_000)]))
    (fourth,) = await ask(verbs.create([NewRun("mail", after=(third.id,), after_end="any")]))
    await ask(verbs.get(first.id))
    await ask(verbs.get("nobody"))
    await ask(verbs.get("../jobs"))
    await ask(verbs.status(first.id))
    for filters in ({}, {"job": "mail"}, {"state": "queued", "queue": "post"}, {"queue": "post"}, {"state": "no state"}):
        await ask(verbs.runs(**filters))
    for states in (["queued", "failed"], ["cancelled"], [], ["no state"], "queued"):
        await ask(verbs.runs(queue="post", states=states))
        await ask(verbs.runs(states=states))
    page = await ask(verbs.runs(count=2))
    await ask(verbs.runs(count=2, cursor=page.cursor))
    await ask(verbs.runs(cursor="forged"))
    await ask(verbs.runs(count=0))
    for run in (first, third, fourth):
        await ask(verbs.why(run.id))
    await ask(verbs.patch(third.id, priority=9, payload={"to": "eve"}, due_at=hub_now(verbs) + 30_000))
    await ask(verbs.patch(third.id, state="succeeded"))
    await ask(verbs.patch(third.id))
    leap(1_000)
    runs = await port.claim(WORKER, count=3, lease=30_000, token="t" * 22)
    answers.append(len(runs))
    await port.log(runs[0].id, runs[0].token, [(1, "one"), (2, "two\u2028")])
    await port.log(runs[1].id, runs[1].token, [(1, "other")])
    failure = Fail(token=runs[1].token, error=Failure("boom", "it broke", "detail"))
    await port.report_many([Outcome(runs[0].id, Succeed(token=runs[0].token, output='{"a":1}')), Outcome(runs[1].id, failure)])
    for run in runs:
        await ask(verbs.get(run.id))
        await ask(verbs.attempts(run.id))
        await ask(verbs.history(run.id))
        await ask(verbs.lines(run.id))
    await ask(verbs.lines(runs[0].id, after=(1, 1), count=1))
    await ask(verbs.lines(runs[0].id, attempt=1, last=1))
    await ask(verbs.lines(runs[0].id, attempt=2))
    await ask(verbs.lines(runs[0].id, last=0))
    await ask(verbs.lines(runs[0].id, attempt=0))
    await ask(verbs.history(runs[0].id, after=2))
    await ask(verbs.cancel(runs[2].id, only=["queued", "waiting"]))
    await ask(verbs.cancel(runs[2].id, only=[]))
    await ask(verbs.cancel(runs[2].id, only=["no state"]))
    await ask(verbs.cancel(runs[2].id, reason="ordered twice", only=["claimed", "running"]))
    await ask(verbs.cancel(runs[2].id))
    await ask(verbs.cancel(runs[0].id))
    await ask(verbs.cancel(third.id))
    await ask(verbs.rerun(runs[0].id))
    await ask(verbs.rerun(runs[1].id))
    await ask(verbs.rerun(runs[1].id, attempt=1))
    await ask(verbs.rerun(runs[1].id, attempt=9))
    await ask(verbs.schedule("nightly", "mail", cron="0 3 * * *", zone="Europe/Paris", payload={"to": "all"}, missed="all", max_missed=5))
    await ask(verbs.schedule("poll/1", "mail", every="15m", overlap="skip", jitter=10, enabled=False, by_code=True))
    await ask(verbs.schedule("bad", "mail", cron="nonsense"))
    await ask(verbs.schedule("bad", "mail"))
    await ask(verbs.schedules())
    await ask(verbs.schedules(after="nightly"))
    await ask(verbs.get_schedule("poll/1"))
    await ask(verbs.get_schedule("none"))
    await ask(verbs.set_schedule("nightly", kind="interval", expr="1h", max_age=None))
    await ask(verbs.set_schedule("poll/1", jitter=20))
    await ask(verbs.set_schedule("nightly", id=7))
    await ask(verbs.preview("nightly", count=3))
    await ask(verbs.outage("nightly", hub_now(verbs), hub_now(verbs) + 10_000_000))
    await ask(verbs.skips("nightly"))
    await ask(verbs.trigger("nightly"))
    await ask(verbs.remove_schedule("nightly"))
    await ask(verbs.remove_schedule("nightly"))
    return answers


def hub_now(verbs: Any) -> int:
    now: int = verbs.clock.now()
    return now


class _Still(LeapingClock):
    """Stands still between leaps."""

    def now(self) -> int:
        return 1_767_225_600_000 + self.leapt

    def monotonic(self) -> int:
        return self.leapt


def _as_told(answer: Any) -> Any:
    """An answer as far as a hub tells it, in JSON."""
    match answer:
        case Run():
            answer = RUN.read(RUN.show(answer))
        case Schedule():
            answer = SCHEDULE.read(SCHEDULE.show(answer))
        case Page():
            answer = {"runs": [_as_told(run) for run in answer.runs], "more": answer.cursor is not None}
        case list() | tuple():
            return [_as_told(item) for item in answer]
    plain = msgspec.json.decode(msgspec.json.encode(answer))
    if isinstance(plain, dict):
        plain.pop("token", None)  # a worker's secret
        plain = {name: value for name, value in plain.items() if name != "id" or isinstance(value, str)}
    return plain


def _named(answers: list[Any]) -> list[str]:
    """The same with ids by the order in which they first appear: those are made by chance."""
    seen: dict[str, str] = {}

    def name(match: re.Match[str]) -> str:
        return seen.setdefault(match[0], f"id{len(seen)}")

    return [re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", name, repr(_as_told(answer))) for answer in answers]


@pytest.mark.parametrize("colour", ["blocking", "async"])
def test_M2_the_hub_answers_as_the_embedded_engine_does(tmp_path: Path, colour: str) -> None:
    clock = _Still()
    embedded = Engine(open_store(str(tmp_path / "embedded.db"), clock, blocking=True), clock)
    expected = run_sync(_story(embedded, embedded, clock.leap))
    run_sync(embedded.close())
    clock = _Still()
    served = ServedHub(tmp_path / "hub.db", clock=clock)

    async def through_the_hub() -> list[Any]:
        transport: Any = BlockingTransport if colour == "blocking" else AsyncTransport
        port = RemotePort(transport(served.url), clock)
        try:
            return await _story(port, port, clock.leap)
        finally:
            await port.close()

    answers = asyncio.run(through_the_hub())
    served.stop()
    assert len(answers) == len(expected)
    for mine, theirs in zip(_named(answers), _named(expected), strict=True):
        assert mine == theirs


def test_the_two_clients_have_the_same_words() -> None:
    def words(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))}

    internal = {"ask", "follow", "perform", "wait_for"}
    assert words(Client) == words(AsyncClient) - internal


# Errors


def _kinds() -> list[type[WindlassError]]:
    found = [WindlassError]
    for kind in found:
        found += kind.__subclasses__()
    own = [kind for kind in found if kind.code != getattr(kind.__base__, "code", None)]
    return [kind for kind in own if kind.__module__ == "windlass.errors" and kind is not WindlassError]


@pytest.mark.parametrize("kind", _kinds(), ids=lambda kind: kind.__name__)
def test_an_error_comes_back_as_what_it_was(kind: type[WindlassError]) -> None:
    if kind is RunFailed:
        original: WindlassError = RunFailed(msgspec.convert({"id": "r", "job": "j", "state": "failed", "reason": "x"}, _Ended))
    else:
        original = kind("What happened.", hint="What to do.")
    error = error_of(problem_of(original))
    assert type(error) is kind
    assert (error.message, error.hint, error.status, str(error)) == (original.message, original.hint, original.status, str(original))


class _Ended(msgspec.Struct):
    id: str
    job: str
    state: str
    reason: str | None = None
    error: Any = None


def test_an_error_of_a_later_version_is_still_an_error() -> None:
    problem = Problem("urn:windlass:error:new", "New", 418, "Something new.", "new", "Do something.")
    assert isinstance(error_of(problem), HubFailed)
    assert error_of(problem).message == "Something new."


ADDRESSES = """
hub
ftp://hub.example.com
http://
http://hub:port
http://hub.example.com:0
http://ann:secret@hub.example.com
https://hub.example.com?token=secret
http://hub.example.com#x
http://h ub.example.com
http://hüb.example.com
"""


@pytest.mark.parametrize("url", ["", *ADDRESSES.strip().splitlines()])
def test_an_address_that_is_none_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(BadInput) as caught:
        Client(url)
    assert "secret" not in str(caught.value)


def test_a_hub_that_is_not_there_is_unreachable_and_asked_again_within_its_patience(tmp_path: Path) -> None:
    served = ServedHub(tmp_path / "hub.db")
    served.stop()
    with Client(served.url, patience=0) as hasty, pytest.raises(HubUnreachable) as caught:
        hasty.jobs()
    assert "hub" in caught.value.hint
    answers: list[Any] = []
    with Client(served.url, patience=DEADLINE) as patient:
        patient.status  # noqa: B018 - made before the hub is back
        asking = threading.Thread(target=lambda: answers.append(patient.jobs()))
        asking.start()
        served.start()
        asking.join(DEADLINE)
    assert answers == [[]]
    served.stop()


# N1: the answer is lost after the commit


SAFE: dict[str, tuple[str, Callable[[Client, str], Any]]] = {
    "create": ("/runs/batch", lambda client, run: client.create([NewRun("mail", 1)])[0].created),
    "create many": ("/runs/batch", lambda client, run: [made.created for made in client.create([NewRun("mail", n) for n in range(3)])]),
    "create with a key": ("/runs/batch", lambda client, run: client.create([NewRun("mail", 1, key=Key("k", "forever"))])[0].id is not None),
    "define": ("/jobs/other", lambda client, run: client.define("other").rev),
    "cancel": ("/cancel", lambda client, run: client.cancel(run).state),
    "get": ("/runs/{run}", lambda client, run: client.get(run).id == run),
    "runs": ("/runs", lambda client, run: len(client.runs().runs)),
    "rerun": ("/rerun", lambda client, run: client.rerun(run).created),
    "trigger": ("/trigger", lambda client, run: client.trigger("often").created),
    "schedule": ("/schedules/s", lambda client, run: client.schedule("s", "mail", every="1h").fired),
}


@pytest.mark.parametrize("name", SAFE)
def test_N1_what_is_safe_to_repeat_has_the_same_answer_and_no_second_effect(
    name: str, client: Client, proxy: Proxy, engine: Engine
) -> None:
    path, call = SAFE[name]
    client.schedule("often", "mail", every="1h")
    waits = _subject(client, name)
    before = len(run_sync(engine.runs(count=1_000)).runs)
    expected = call(client, waits)
    effects = len(run_sync(engine.runs(count=1_000)).runs) - before
    waits = _subject(client, name)
    if name == "create with a key":
        effects = 0
    before = len(run_sync(engine.runs(count=1_000)).runs)
    proxy.once(path.format(run=waits), "cut")
    with Client(proxy.url) as far:
        answer = call(far, waits)
    assert [what for _, _, what in proxy.seen][:2] == ["cut", "pass"]
    if name != "runs":
        assert answer == expected
    assert len(run_sync(engine.runs(count=1_000)).runs) - before == effects


def _subject(client: Client, name: str) -> str:
    """A run that waits, or one that can be run again."""
    (made,) = client.create([NewRun("mail")])
    if name == "rerun":
        client.cancel(made.id)
    return made.id


UNSAFE: dict[str, tuple[str, Callable[[Client, str], Any]]] = {
    "patch": ("/runs/{run}", lambda client, run: client.patch(run, priority=5)),
    "move": ("/runs/{run}/move", lambda client, run: client.move(run, to="top")),
    "create with a key that is free again": ("/runs/batch", lambda client, run: client.create([NewRun("mail", key=Key("again"))])),
    "a schedule that must be new": ("/schedules/new", lambda client, run: client.schedule("new", "mail", every="1h", new=True)),
    "edit a schedule": ("/schedules/s", lambda client, run: client.set_schedule("s", jitter=1)),
    "remove a schedule": ("/schedules/s", lambda client, run: client.remove_schedule("s")),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_N1_what_is_not_safe_to_repeat_is_done_once_and_said_to_be_unknown(name: str, client: Client, proxy: Proxy, engine: Engine) -> None:
    path, call = UNSAFE[name]
    client.schedule("s", "mail", every="1h")
    (made,) = client.create([NewRun("mail")])
    before = len(run_sync(engine.runs(count=1_000)).runs)
    proxy.once(path.format(run=made.id), "cut")
    with Client(proxy.url) as far, pytest.raises(OutcomeUnknown):
        call(far, made.id)
    assert len(proxy.seen) == 1
    created = len(run_sync(engine.runs(count=1_000)).runs) - before
    assert created == (name == "create with a key that is free again")


def test_what_never_reached_the_hub_is_sent_again_whatever_it_is(client: Client, hub: ServedHub) -> None:
    (made,) = client.create([NewRun("mail")])
    client.cancel(made.id)
    hub.stop()
    answers: list[Any] = []
    with Client(hub.url, patience=DEADLINE) as patient:
        asking = threading.Thread(target=lambda: answers.append(patient.rerun(made.id)))
        asking.start()
        hub.start()
        asking.join(DEADLINE)
    assert [answer.created for answer in answers] == [True]


def test_N2_requests_that_reach_the_hub_three_times_count_once(client: Client, proxy: Proxy, engine: Engine) -> None:
    before = len(run_sync(engine.runs(count=1_000)).runs)
    proxy.rule = lambda method, path: "replay" if method != "GET" else "pass"
    with Client(proxy.url) as far:
        made = far.create([NewRun("mail", n) for n in range(5)])
        far.define("mail", options=Options(max_attempts=5))
    assert len(proxy.replayed) == 4
    assert len(run_sync(engine.runs(count=1_000)).runs) - before == 5
    assert len({one.id for one in made}) == 5


def test_N3_a_hub_that_says_nothing_any_more_is_noticed(client: Client, proxy: Proxy) -> None:
    proxy.rule = lambda method, path: "swallow"
    verbs = RemotePort(BlockingTransport(proxy.url), SystemClock(), patience=0, timeout=0.3)
    with pytest.raises(OutcomeUnknown):
        run_sync(verbs.jobs())
    run_sync(verbs.close())


# What leads elsewhere


class _Answers:
    """A server that answers every request the same."""

    def __init__(self, answer: bytes) -> None:
        self.asked: list[bytes] = []
        self._loop = asyncio.new_event_loop()
        self._answer, self.port = answer, 0
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()
        until(lambda: self.port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(self._answer)
        writer.close()

    def _live(self) -> None:
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE)


def _plain_answer(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", "connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (_plain_answer("302 Found", b"", "location: http://127.0.0.1:1/elsewhere"), HubFailed),
        (_plain_answer("200 OK", b"<html>Welcome to the hotel</html>"), HubFailed),
        (_plain_answer("404 Not Found", b"nothing here"), HubFailed),
        (_plain_answer("502 Bad Gateway", b"<html>"), OutcomeUnknown),
        (_plain_answer("500 Internal Server Error", b"Internal Server Error"), OutcomeUnknown),
        (b"not HTTP at all\r\n\r\n", OutcomeUnknown),
        (b"", OutcomeUnknown),
    ],
    ids=["redirect", "portal", "other server", "gateway", "ending", "no HTTP", "hangs up"],
)
def test_what_is_no_hub_is_not_believed(answer: bytes, kind: type[WindlassError]) -> None:
    server = _Answers(answer)
    with Client(f"http://127.0.0.1:{server.port}", token="wl_secret", patience=0) as client, pytest.raises(kind) as caught:
        client.create([NewRun("mail")])
    assert len(server.asked) == 1
    assert "wl_secret" not in str(caught.value)
    server.close()


# N7: certificates


def _certificate(folder: Path, name: str, days: int = 2) -> tuple[Path, Path]:
    key, certificate = folder / f"{name}.key", folder / f"{name}.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", str(days)]
    command += ["-subj", f"/CN={name}", "-addext", f"subjectAltName={name}", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command], check=True, capture_output=True)
    return key, certificate


class _Encrypted:
    """A hub's door with a certificate: the bytes behind it go to the hub."""

    def __init__(self, key: Path, certificate: Path, upstream: int) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._upstream, self.port = upstream, 0
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda loop, context: None)
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()
        until(lambda: self.port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection("127.0.0.1", self._upstream)

        async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while part := await source.read(65_536):
                target.write(part)
            target.close()

        await asyncio.gather(pump(reader, ours), pump(theirs, writer), return_exceptions=True)

    def _live(self) -> None:
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context))
        self.port = server.sockets[0].getsockname()[1]
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        server.close()
        self._loop.run_until_complete(asyncio.sleep(0.01))
        self._loop.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE)


def test_N7_certificates_are_verified_and_nothing_is_ever_sent_in_the_clear_instead(hub: ServedHub, tmp_path: Path) -> None:
    key, certificate = _certificate(tmp_path, "IP:127.0.0.1")
    _, other = _certificate(tmp_path, "DNS:hub.example.com")
    door = _Encrypted(key, certificate, hub.port)
    with Client(f"https://127.0.0.1:{door.port}", ca_file=str(certificate)) as client:
        assert client.jobs() == []
    for wrong in (None, str(other)):
        with Client(f"https://127.0.0.1:{door.port}", ca_file=wrong, patience=0) as client, pytest.raises(HubUnreachable) as caught:
            client.jobs()
        assert "certificate" in caught.value.hint
    with Client(f"https://127.0.0.1:{hub.port}", patience=0) as client, pytest.raises((HubUnreachable, OutcomeUnknown)):
        client.jobs()  # the hub there speaks plain HTTP
    door.close()
    with pytest.raises(BadInput):
        Client("https://127.0.0.1", ca_file=str(tmp_path / "none.pem"))


def test_only_an_address_with_tls_reads_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: Any, **__: Any) -> None:
        raise OSError("certificates were read")

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", read)
    Client("http://127.0.0.1:9").close()
    with pytest.raises(BadInput, match="certificates were read"):
        Client("https://127.0.0.1:9")


def test_N7_a_certificate_for_another_host_is_refused(hub: ServedHub, tmp_path: Path) -> None:
    key, certificate = _certificate(tmp_path, "DNS:hub.example.com")
    door = _Encrypted(key, certificate, hub.port)
    with Client(f"https://127.0.0.1:{door.port}", ca_file=str(certificate), patience=0) as client, pytest.raises(HubUnreachable):
        client.jobs()
    door.close()


# Who one is


def test_the_token_comes_from_the_environment_and_appears_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served = ServedHub(tmp_path / "hub.db", open=False)
    engine = Engine(open_store(str(tmp_path / "hub.db"), SystemClock(), blocking=True), SystemClock())
    _, secret = run_sync(engine.create_token("ann", ("admin",)))
    run_sync(engine.close())
    caplog.set_level(logging.DEBUG)
    with Client(served.url) as nobody, pytest.raises(Unauthorized):
        nobody.jobs()
    monkeypatch.setenv("WINDLASS_HUB_TOKEN", secret)
    with Client(served.url) as ann:
        assert ann.jobs() == []
    with Client(served.url, token="wl_" + "x" * 44) as wrong, pytest.raises(Unauthorized) as caught:
        wrong.jobs()
    assert "x" * 44 not in str(caught.value)
    assert secret not in caplog.text
    with pytest.raises(BadInput):
        Client(served.url, token="two words")
    served.stop()


# Events


def test_a_stream_is_read_the_same_however_it_is_cut() -> None:
    text = (
        ': hello\r\n\r\nid: 1\nevent: status\ndata: {"state":\ndata: "queued"}\n\n'
        'id: 2\rdata: "\u2028 is no end of a line"\r\rid: 3\nretry: 10\n\ndata: 4\n\nevent: left over\n'
    ).encode()
    whole = [
        StreamEvent("status", {"state": "queued"}, "1"),
        StreamEvent("message", "\u2028 is no end of a line", "2"),
        StreamEvent("message", 4, "3"),
    ]
    for size in range(1, len(text)):
        parser, told = Parser(), list[StreamEvent]()
        for at in range(0, len(text), size):
            told += parser.feed(text[at : at + size])
        assert told == whole
    with pytest.raises(HubFailed):
        list(Parser().feed(b"data: no JSON\n\n"))


def test_an_event_counts_as_seen_only_when_it_is_whole() -> None:
    parser = Parser("1")
    assert list(parser.feed(b'id: 2\nevent: run\ndata: {"a": 1}\n')) == []
    assert parser.last_id == "1"
    assert list(parser.feed(b"\n")) == [StreamEvent("run", {"a": 1}, "2")]
    assert list(parser.feed(b":\nid: 3\n\n")) == []  # nothing happened, and the place is further on
    assert parser.last_id == "3"


def _finish(client: Client, hub: ServedHub, run_id: str) -> None:
    port = RemotePort(BlockingTransport(hub.url), SystemClock())
    (run,) = run_sync(port.claim(WORKER, count=1, lease=30_000))
    assert run.id == run_id
    run_sync(port.log(run.id, run.token or "", [(n, f"line {n}") for n in range(1, 4)]))
    run_sync(port.report_many([Outcome(run.id, Succeed(token=run.token, output="42"))]))
    run_sync(port.close())


def test_the_events_of_a_run_end_with_it(client: Client, hub: ServedHub) -> None:
    (made,) = client.create([NewRun("mail")])
    told: list[StreamEvent] = []
    watching = threading.Thread(target=lambda: told.extend(client.events(made.id)))
    watching.start()
    until(lambda: told)
    _finish(client, hub, made.id)
    watching.join(DEADLINE)
    assert not watching.is_alive()
    assert told[-1].data["state"] == "succeeded"
    assert [one.data["line"] for one in told if one.event == "log"] == ["line 1", "line 2", "line 3"]
    (last,) = client.events(made.id)
    assert last.data["state"] == "succeeded"


def test_a_stream_that_breaks_off_is_taken_up_again_without_gap_or_repeat(client: Client, proxy: Proxy) -> None:
    told: list[str] = []

    async def watch() -> None:
        async with AsyncClient(proxy.url) as far:
            async for one in far.events(job="mail"):
                told.append(one.data["run"])
                if len(told) == 30:
                    return

    watching = threading.Thread(target=lambda: asyncio.run(watch()))
    watching.start()
    until(lambda: proxy.seen)
    made: list[str] = []
    until(lambda: _one_more(client, made) and told)  # until the stream is open
    begun = made.index(told[0])
    for _ in range(5):
        seen = len(told)
        proxy.cut_streams()
        made += [client.create([NewRun("mail")])[0].id for _ in range(3)]
        until(partial(_longer, told, seen))
    made += [one.id for one in client.create([NewRun("mail")] * 30)]
    watching.join(DEADLINE)
    assert not watching.is_alive()
    assert told == made[begun : begun + 30]
    assert len(proxy.seen) >= 3


def _longer(told: list[str], seen: int) -> bool:
    return len(told) > seen


def _one_more(client: Client, made: list[str]) -> bool:
    made.append(client.create([NewRun("mail")])[0].id)
    return True


def test_waiting_ends_with_the_run_or_with_the_time(client: Client, hub: ServedHub) -> None:
    (made,) = client.create([NewRun("mail")])
    with pytest.raises(TimeoutError):
        client.wait(made.id, timeout=0.05)
    ended: list[Run] = []
    waiting = threading.Thread(target=lambda: ended.append(client.wait(made.id, timeout=DEADLINE)))
    waiting.start()
    _finish(client, hub, made.id)
    waiting.join(DEADLINE)
    assert [(run.state, run.output) for run in ended] == [(State.SUCCEEDED, "42")]


# An app without a store


def test_an_app_whose_address_is_a_hub_enqueues_through_it(hub: ServedHub, engine: Engine) -> None:
    with App(hub.url) as app:

        @app.job(name="greet")
        def greet(name: str) -> str:
            return name

        handle = app.enqueue_one(greet.new("ann"))
        with app.transaction():
            others = [greet.enqueue(name) for name in ("bob", "eve")]
        assert [run.id for run in app.runs().runs] == [others[1].id, others[0].id, handle.id]
        assert run_sync(engine.get(handle.id)).payload == '{"name":"ann"}'
        assert handle.cancel("no").state is State.CANCELLED
        assert handle.rerun().refresh().state is State.QUEUED
        assert app.schedule(greet, every="1h", payload={"name": "all"}, key="often").next_at is not None
        assert run_sync(engine.get_schedule("often")).job == "greet"
        with pytest.raises(BadInput):
            app.enqueue("greet", {"name": "ann"}, connection=object())
