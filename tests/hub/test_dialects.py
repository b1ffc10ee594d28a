"""Several tables of verbs on one hub: each answers in its own words, and none gets in the way of another."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import Struct

from tests.hub.test_events import Listener
from tests.served import ServedHub
from windlass.answers import Outcome
from windlass.api.gives import Gives
from windlass.api.rows import DELETE, GET, POST, Param, Verb
from windlass.clock import SystemClock
from windlass.config.opening import open_store
from windlass.dialects.base import ANYWHERE, AttemptFrames, Cors, Course, Dialect, Identity, NoRoute, Reply, Request, Words
from windlass.engine import Engine
from windlass.errors import BadInput, Unauthorized, WindlassError
from windlass.hub import HubSettings
from windlass.hub.auth import refuse_dialect
from windlass.hub.dispatch import mounted
from windlass.machine import Fail, Succeed
from windlass.model import Entry, Failure, LogLine, NewRun, Receipt, Run, State, WorkerInfo
from windlass.store.base import run_sync

SECRET = "sesame"
ANY_JSON = Gives(None)


class Brick(Struct):
    """A body that may have unknown members."""

    name: str


class Stones(Struct):
    """A body that reads its bytes itself."""

    count: int

    @classmethod
    def from_json(cls, body: bytes) -> Stones:
        if not body.isdigit():
            raise BadInput("No number.", hint="Send digits.")
        return cls(int(body))


class Secret:
    """One secret for all, in a header of its own or as a bearer token."""

    def __init__(self, secret: str | None = SECRET) -> None:
        self._secret = secret

    @property
    def required(self) -> bool:
        return self._secret is not None

    async def identify(self, headers: Mapping[bytes, bytes], *, local: bool) -> Identity | None:
        if self._secret is None:
            return None
        identity = Identity("mason", frozenset({"read", "submit"}), details={"local": local})
        if (shown := headers.get(b"x-secret")) is not None:
            if not hmac.compare_digest(shown, self._secret.encode()):
                raise Unauthorized("A wrong secret.", hint="Send the right one.")
            return identity
        return identity if headers.get(b"authorization") == f"Bearer {self._secret}".encode() else None


class Bricks:
    """Entries of runs in other words; those of claims are left out."""

    def __init__(self) -> None:
        self.reads = 0

    async def events(self, engine: Engine, entries: Sequence[Entry]) -> list[tuple[str, Any] | None]:
        self.reads += 1
        return [None if entry.move == "claim" else (f"brick:{entry.move}", {"brick": entry.run}) for entry in entries]


async def add_brick(request: Request, data: Brick) -> Reply:
    (made,) = await request.engine.create([NewRun(data.name)], undefined="wait")
    return Reply({"id": made.id, "by": request.caller.actor}, status=201, headers={"X-Wall": "north"})


async def add_stones(request: Request, data: Stones) -> Any:
    await request.engine.create([NewRun("stone") for _ in range(data.count)], undefined="wait")
    runs = await request.work.claim(request.engine.asking(WorkerInfo("mason", jobs=("stone",)), lease=1_000))
    (receipt,) = await request.work.report_many([Outcome(run.id, Succeed(token=run.token), run.seq) for run in runs])
    request.caller.check_worker("mason")
    return {"laid": isinstance(receipt, Receipt)}


async def get_brick(request: Request, brick: str) -> Any:
    return {"id": (await request.engine.get(brick)).id}


async def drop_brick(request: Request, brick: str) -> Reply:
    await request.act("drop", f"brick {brick}").cancel(brick)
    return Reply(status=204)


async def break_wall(request: Request) -> Any:
    raise RuntimeError("a secret path /etc/wall")


async def count_bricks(request: Request) -> Any:
    async def chunks() -> AsyncIterator[bytes]:
        for number in range(3):
            yield b"data: %d\n\n" % number

    return request.emit(chunks())


def refuse(request: Request, error: Exception) -> Reply:
    if isinstance(error, WindlassError):
        return Reply({"wrong": error.code}, status=error.status)
    if isinstance(error, NoRoute):
        return Reply({"wrong": "no route", "path": request.path, "methods": error.methods}, status=error.status)
    return Reply({"wrong": "the wall"}, status=500)


async def wait_for_mortar(request: Request) -> Any:
    await request.wait(asyncio.sleep, 0.01)
    return {"dry": await request.wait(asyncio.sleep, 0.01, True), "app": request.app is not None}


def wall(
    secret: str | None = SECRET,
    frames: Bricks | None = None,
    cors: Cors | None = None,
    name: str = "wall",
    begin: Callable[[Engine], Awaitable[object]] | None = None,
) -> Dialect:
    told = frames or Bricks()

    async def follow(request: Request, last_event_id: str | None) -> Any:
        return request.follow("default", told, last_event_id)

    rows = (
        Verb("add_brick", POST, "/bricks", "Add a brick", ANY_JSON, scope="submit", takes=Brick),
        Verb("add_stones", POST, "/pebbles", "Add stones and lay one", ANY_JSON, scope="submit", takes=Stones),
        Verb("get_brick", GET, "/bricks/{brick}", "A brick", ANY_JSON, scope="read"),
        Verb("drop_brick", DELETE, "/bricks/{brick}", "Drop a brick", ANY_JSON, scope="admin"),
        Verb("break_wall", GET, "/bricks/break", "Break it", ANY_JSON, scope="read"),
        Verb("count_bricks", GET, "/count", "Count to three", ANY_JSON, scope="read"),
        Verb("wait_for_mortar", GET, "/mortar", "Wait until it is dry", ANY_JSON, scope="read"),
        Verb("follow", GET, "/events", "All changes", ANY_JSON, scope=None, query=(Param("Last-Event-ID", header=True),)),
    )
    functions = (add_brick, add_stones, get_brick, drop_brick, break_wall, count_bricks, wait_for_mortar, follow)
    handlers: dict[str, Any] = {function.__name__: function for function in functions}
    how: dict[str, Any] = {"strict": False, "cors": cors, "required": "Set the secret.", "begin": begin}
    return Dialect("", rows, handlers, refuse, name=name, credentials=Secret(secret), **how)


Serve = Callable[..., ServedHub]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    hubs: list[ServedHub] = []

    def start(*dialects: Dialect, **options: Any) -> ServedHub:
        hubs.append(ServedHub(tmp_path / "hub.db", dialects=dialects, **options))
        return hubs[-1]

    yield start
    for hub in hubs:
        hub.stop()


@contextmanager
def client(hub: ServedHub, path: str = "dialects/wall", **headers: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{hub.url}{path}", headers=headers) as http:
        yield http


def tokens_of(hub: ServedHub, tmp_path: Path, *scopes: str) -> str:
    store = open_store(str(tmp_path / "hub.db"), SystemClock(), blocking=True)
    try:
        return str(run_sync(Engine(store, SystemClock()).create_token("small", scopes))[1])
    finally:
        run_sync(store.close())


def test_a_dialect_answers_with_its_own_statuses_and_headers_and_takes_unknown_members(serve: Serve) -> None:
    with client(serve(wall()), **{"x-secret": SECRET}) as http:
        made = http.post("/bricks", json={"name": "clay", "colour": "red"})
        assert (made.status_code, made.headers["x-wall"], made.json()["by"]) == (201, "north", "mason")
        assert made.headers["x-request-id"]
        assert made.headers["x-content-type-options"] == "nosniff"
        assert http.get(f"/bricks/{made.json()['id']}?anything=1").json() == {"id": made.json()["id"]}


def test_a_body_may_read_its_bytes_itself_and_work_is_shared_with_other_requests(serve: Serve) -> None:
    with client(serve(wall()), **{"x-secret": SECRET}) as http:
        assert http.post("/pebbles", content=b"2").json() == {"laid": True}
        assert http.post("/pebbles", content=b"two").json() == {"wrong": "bad_input"}


def test_a_dialect_refuses_in_its_own_words_whatever_is_wrong(serve: Serve) -> None:
    with client(serve(wall()), **{"x-secret": SECRET}) as http:
        assert http.get("/bricks/none").json() == {"wrong": "not_found"}
        assert http.get("/stones").json() == {"wrong": "no route", "path": "/dialects/wall/stones", "methods": None}
        other = http.put("/bricks")
        assert (other.status_code, other.json()["methods"]) == (405, "OPTIONS, POST")
        assert http.post("/bricks", content=b"{").json() == {"wrong": "bad_input"}
        assert http.get("/bricks/break").json() == {"wrong": "the wall"}
        twice = http.get("/count", headers=[("x-secret", SECRET), ("host", "a b")])
        assert (twice.status_code, twice.json()) == (400, {"wrong": "bad_input"})
        assert http.delete("/bricks/none").json() == {"wrong": "forbidden"}


def test_an_own_credential_and_tokens_of_windlass_open_a_dialect_and_nothing_else_does(serve: Serve, tmp_path: Path) -> None:
    hub = serve(wall())
    with client(hub) as http:
        assert http.get("/count").json() == {"wrong": "unauthorized"}  # although the hub itself is open
        assert http.get("/count", headers={"x-secret": "open"}).json() == {"wrong": "unauthorized"}
        for headers in ({"x-secret": SECRET}, {"authorization": f"Bearer {SECRET}"}):
            assert http.get("/count", headers=headers).status_code == 200
        token = {"authorization": f"Bearer {tokens_of(hub, tmp_path, 'read')}"}
        assert http.get("/count", headers=token).status_code == 200
        assert http.post("/bricks", headers=token, json={"name": "clay"}).json() == {"wrong": "forbidden"}
        assert httpx.get(f"{hub.url}api/v1/jobs", headers={"x-secret": SECRET}).status_code == 401
        assert httpx.get(f"{hub.url}api/v1/jobs", headers={"authorization": f"Bearer {SECRET}"}).status_code == 401


def test_wrong_credentials_of_a_dialect_count_as_wrong_tokens_do(serve: Serve) -> None:
    with client(serve(wall())) as http:
        answers = [http.get("/count", headers={"x-secret": "open"}).status_code for _ in range(31)]
        assert answers == [401] * 30 + [429]
        assert http.get("/count", headers={"x-secret": SECRET}).status_code == 200


def test_a_dialect_without_a_credential_is_open_where_the_hub_is_until_the_first_token(serve: Serve, tmp_path: Path) -> None:
    hub = serve(wall(None))
    with client(hub) as http:
        assert http.get("/count").status_code == 200
        assert http.get("/count", headers={"x-forwarded-for": "10.0.0.1"}).status_code == 401
        tokens_of(hub, tmp_path, "read")
        hub.hub.forget_tokens()
        assert http.get("/count").status_code == 401


def test_a_body_is_json_whatever_it_is_called_once_a_credential_is_shown(serve: Serve) -> None:
    hub = serve(wall())
    with client(hub) as http:
        body: dict[str, Any] = {"content": b'{"name": "clay"}', "headers": {"x-secret": SECRET, "content-type": "text/plain"}}
        assert http.post("/bricks", **body).status_code == 201
    with client(serve(wall(None, name="open")), "dialects/open") as http:
        body["headers"] = {"content-type": "text/plain"}  # a form of any page could send it
        assert http.post("/bricks", **body).json() == {"wrong": "not_json"}


def test_a_dialect_at_the_root_answers_its_own_first_segments_only(serve: Serve) -> None:
    hub = serve(wall(), root="wall")
    with client(hub, "", **{"x-secret": SECRET}) as http:
        assert http.get("/count").status_code == 200
        assert http.get("/dialects/wall/count").status_code == 200
        assert http.get("/bricks/no/such").json()["wrong"] == "no route"
        assert http.get("/stones").json()["code"] == "not_found"
        assert http.get("/api/v1/none").json()["code"] == "not_found"
        assert http.get("/dialects/other").json()["code"] == "not_found"
        assert http.get("/healthz").status_code == 200
        assert "<html" in http.get("/").text


def test_a_dialect_that_is_not_there_cannot_be_at_the_root() -> None:
    with pytest.raises(BadInput, match="There is no dialect 'moat' to mount at the root"):
        list(mounted([wall()], "moat"))


def test_pages_of_the_origins_that_a_dialect_names_may_read_every_answer(serve: Serve) -> None:
    cors = Cors(frozenset({"https://shop.example"}), credentials=True, expose=("X-Request-Id",))
    with client(serve(wall(cors=cors)), **{"x-secret": SECRET}) as http:
        for path, status in (("/count", 200), ("/none", 404), ("/bricks/break", 500)):
            answer = http.get(path, headers={"origin": "https://shop.example"})
            assert answer.status_code == status
            assert answer.headers["access-control-allow-origin"] == "https://shop.example"
            assert answer.headers["access-control-allow-credentials"] == "true"
            assert answer.headers["access-control-expose-headers"] == "X-Request-Id"
            assert answer.headers["vary"] == "Origin"
        assert "access-control-allow-origin" not in http.get("/count", headers={"origin": "https://other.example"}).headers
        asked = {"origin": "https://shop.example", "access-control-request-method": "POST", "access-control-request-headers": "x-secret"}
        before = httpx.options(f"{http.base_url}bricks", headers=asked)
        assert before.status_code == 204
        assert before.headers["access-control-allow-methods"] == "OPTIONS, POST"
        assert before.headers["access-control-allow-headers"] == "x-secret"
        assert "access-control-allow-origin" not in httpx.get(f"{http.base_url}count".replace("dialects/wall/count", "healthz")).headers


def test_any_origin_is_named_by_a_star(serve: Serve) -> None:
    with client(serve(wall(cors=Cors(frozenset({ANYWHERE})))), **{"x-secret": SECRET}) as http:
        answer = http.get("/count", headers={"origin": "null"})
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "vary" not in answer.headers


def test_streams_have_frames_of_their_own_over_rows_that_are_read_once_for_all(serve: Serve) -> None:
    frames = Bricks()
    hub = serve(wall(frames=frames))
    path = "/dialects/wall/events"
    with client(hub, **{"x-secret": SECRET}) as http, Listener(hub.port, path).ready() as one, Listener(hub.port, path).ready() as other:
        made = http.post("/bricks", json={"name": "clay"}).json()["id"]
        (event,) = one.next()
        assert (event.event, event.data) == ("brick:create", {"brick": made})
        assert other.next() == [event]
        assert frames.reads == 1
        with Listener(hub.port, path, last=event.id) as later:
            httpx.post(f"{hub.url}dialects/wall/bricks", headers={"x-secret": SECRET}, json={"name": "clay"})
            (second,) = later.next()
            assert second.event == "brick:create"
            assert second.data != event.data


def test_an_open_stream_without_a_token_stays_open_when_there_are_tokens(serve: Serve, tmp_path: Path) -> None:
    hub = serve(wall())
    with Listener(hub.port, "/dialects/wall/events").ready() as listener, client(hub, **{"x-secret": SECRET}) as http:
        tokens_of(hub, tmp_path, "read")
        hub.loop.call_soon_threadsafe(hub.hub.forget_tokens)
        http.post("/bricks", json={"name": "clay"})
        assert [event.event for event in listener.next()] == ["brick:create"]


def test_callers_without_a_credential_have_a_share_of_the_streams(serve: Serve) -> None:
    hub = serve(wall(), settings=HubSettings(streams=4))
    path = "/dialects/wall/events"
    with Listener(hub.port, path).ready(), Listener(hub.port, path).ready(), Listener(hub.port, path) as third:
        assert third.answer.status == 429
        with client(hub, **{"x-secret": SECRET}) as http:
            assert http.get("/count").status_code == 200


def test_a_hub_refuses_to_start_with_a_dialect_that_anybody_could_use() -> None:
    local, public = HubSettings(open=True), HubSettings(open=True, host="0.0.0.0")
    refuse_dialect(wall(None), local, any_token=False)
    refuse_dialect(wall(), public, any_token=True)
    for settings, any_token in ((local, True), (public, False), (HubSettings(), False)):
        with pytest.raises(BadInput, match=r"The dialect wall has no credentials, and this hub is not open\. Set the secret\."):
            refuse_dialect(wall(None), settings, any_token)


def test_words_are_total() -> None:
    words = Words(dict.fromkeys(State, "there") | {State.FAILED: "gone"})
    assert (words.label(State.QUEUED), words.states("gone"), words.states("lost")) == ("there", (State.FAILED,), ())
    with pytest.raises(ValueError, match="No word for"):
        Words({State.FAILED: "gone"})


class Layers(AttemptFrames):
    """An attempt is laid once a worker has it; only loud lines are told, and the end."""

    async def course(self, engine: Engine, run: Run, n: int) -> Course:
        attempt = (await engine.attempts_of([run]))[run.id][n - 1]
        events = [("wet", {}), None if attempt.claimed_at is None else ("laid", {"by": attempt.worker}), ("dry", attempt.outcome)]
        ended = attempt.finished_at is not None
        return Course(events[: 3 if ended else 1 if attempt.claimed_at is None else 2], ended, lambda line: line.attempt == n)

    def line(self, line: LogLine) -> tuple[str, Any]:
        return "noise", line.text


def layered() -> Dialect:
    frames = Layers()

    async def watch(request: Request, brick: str, n: int, after: int | None, last_event_id: str | None) -> Any:
        return await request.watch(await request.engine.get(brick), n, frames, after, last_event_id)

    query = (Param("after", int | None), Param("Last-Event-ID", header=True))
    rows = (Verb("watch", GET, "/bricks/{brick}/{n:int}", "One attempt", ANY_JSON, scope=None, query=query),)
    return Dialect("", rows, {"watch": watch}, refuse, name="wall", strict=False)


def test_a_stream_of_one_attempt_ends_with_it_and_goes_on_where_it_was_left(serve: Serve, tmp_path: Path) -> None:
    hub = serve(layered())
    engine = Engine(open_store(str(tmp_path / "hub.db"), SystemClock(), blocking=True), SystemClock())
    (created,) = run_sync(engine.create([NewRun("mason")], undefined="wait"))
    path = f"/dialects/wall/bricks/{created.id}"

    def claim() -> Run:
        (run,) = run_sync(engine.claim(WorkerInfo("w1")))
        run_sync(engine.log(run.id, run.token or "", [(1, f"attempt {run.attempt}"), (2, "knock")]))
        return run

    def told(listener: Listener) -> list[tuple[str, Any]]:
        return [(event.event, event.data) for event in listener]

    with Listener(hub.port, f"{path}/1") as first:
        assert first.next()[0].event == "wet"
        run = claim()
        laid, _ = first.next(2)
        run_sync(engine.report(run.id, Fail(token=run.token, error=Failure("boom", "it broke"), delay=0)))
        again = claim()
        assert told(first) == [("noise", "knock"), ("dry", "failed")]
    with Listener(hub.port, f"{path}/1", last=laid.id) as back, Listener(hub.port, f"{path}/1", last=first.last) as over:
        assert told(back) == [("noise", "attempt 1"), ("noise", "knock"), ("dry", "failed")]
        assert (over.answer.status, told(over)) == (204, [])
    with (
        Listener(hub.port, f"{path}/1") as later,
        Listener(hub.port, f"{path}/1?after=1") as rest,
        Listener(hub.port, f"{path}/2") as second,
    ):
        assert told(later) == [("dry", "failed")]
        assert told(rest) == [("noise", "knock"), ("dry", "failed")]
        assert [event.event for event in second.next(3)] == ["laid", "noise", "noise"]
        run_sync(engine.report(again.id, Succeed(token=again.token)))
        assert told(second) == [("dry", "succeeded")]
    assert httpx.get(f"{hub.url}{path[1:]}/1", headers={"last-event-id": "1-99999999999"}).json() == {"wrong": "bad_input"}
    run_sync(engine.close())


@pytest.mark.parametrize("mounted_at", ["", "/ops"])
def test_what_a_dialect_begins_with_is_done_once_before_its_first_request(serve: Serve, mounted_at: str) -> None:
    begun = list[Engine]()

    async def begin(engine: Engine) -> None:
        await asyncio.sleep(0.05)
        begun.append(engine)

    hub = serve(wall(begin=begin), mounted=mounted_at)
    with client(hub, f"{mounted_at[1:]}/dialects/wall".lstrip("/"), **{"x-secret": SECRET}) as http:
        assert [http.get("/count").status_code for _ in range(2)] == [200, 200]
    assert begun == [hub.hub.engine]


def test_a_request_that_takes_long_counts_among_those_that_wait(serve: Serve) -> None:
    hub = serve(wall())
    with client(hub, **{"x-secret": SECRET}) as http:
        assert http.get("/mortar").json() == {"dry": True, "app": False}
        assert hub.hub.waits.taken == 0
    with client(serve(wall(), settings=HubSettings(waits=0)), **{"x-secret": SECRET}) as http:
        assert http.get("/mortar").json() == {"wrong": "limit_reached"}
