"""The routes of workers refuse what they must, and reports that go together are answered each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, MutableMapping, Sequence
from typing import Any

import pytest
from msgspec import json

from windlass.clock import ManualClock
from windlass.engine import Engine, Outcome
from windlass.errors import BadInput, NotFound, StoreUnreachable, WindlassError
from windlass.hub import Hub, HubApp, HubSettings, batching
from windlass.hub.batching import Coalescer
from windlass.machine import Succeed
from windlass.model import NewRun, Receipt, State
from windlass.store.base import run_sync
from windlass.store.sqlite import BlockingSqlite

CLAIM, REPORT = "/api/v1/worker/claim", "/api/v1/worker/report"
WORKER = {"name": "w1", "slots": 8}
ORDINARY = {"host": "127.0.0.1:8080", "content-type": "application/json"}

Message = dict[str, Any]


def opened() -> HubApp:
    """A hub whose ids and tokens are the same each time, with three runs that wait."""
    clock = ManualClock(seed=7)
    engine = Engine(BlockingSqlite(":memory:", clock), clock)
    run_sync(engine.define("mail"))
    run_sync(engine.create([NewRun("mail", {"n": n}) for n in range(3)]))
    hub = Hub(engine, clock, HubSettings(body=4_000, open=True))
    hub.over = True  # no loop may draw an id in between
    return HubApp(hub)


async def ask(
    app: HubApp, path: str, body: bytes, *, method: str = "POST", headers: Sequence[tuple[str, str]] = (), **more: Any
) -> list[Message]:
    """Everything that is sent for a request."""
    sent: list[Message] = []
    coming = more.pop("coming", [{"type": "http.request", "body": body, "more_body": False}])
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path, "raw_path": path.encode(),
        "query_string": b"", "root_path": "", "scheme": "http", "client": ("127.0.0.1", 5), "server": ("127.0.0.1", 8080),
        "headers": [(name.encode(), value.encode()) for name, value in headers], **more,
    }  # fmt: skip

    async def receive() -> Message:
        return coming.pop(0) if coming else {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(dict(message))

    await app(scope, receive, send)
    return sent


def said(body: bytes, **other: str | None) -> list[tuple[str, str]]:
    """The headers of an ordinary request, or others in their place."""
    headers: dict[str, str | None] = {**ORDINARY, "content-length": str(len(body))}
    headers |= {name.replace("_", "-"): value for name, value in other.items()}
    return [(name, value) for name, value in headers.items() if value is not None]


GOOD = json.encode({"worker": WORKER, "count": 1, "lease": 30_000})
STRANGE = json.encode({"outcomes": [{"run": "nobody", "token": "x" * 22, "kind": "succeed", "output": "null"}]})
PARTS = [{"type": "http.request", "body": GOOD[:9], "more_body": True}, {"type": "http.request", "body": GOOD[9:], "more_body": False}]
REQUESTS: dict[str, Callable[[HubApp], Coroutine[Any, Any, list[Message]]]] = {
    "a claim": lambda app: ask(app, CLAIM, GOOD, headers=said(GOOD)),
    "a report on nothing": lambda app: ask(app, REPORT, STRANGE, headers=said(STRANGE)),
    "in two parts": lambda app: ask(app, CLAIM, GOOD, headers=said(GOOD), coming=[*PARTS]),
    "in parts of unknown length": lambda app: ask(
        app, CLAIM, GOOD, headers=said(GOOD, content_length=None, transfer_encoding="chunked"), coming=[*PARTS]
    ),
    "half of it": lambda app: ask(app, CLAIM, GOOD, headers=said(GOOD), coming=PARTS[:1]),
    "no body": lambda app: ask(app, CLAIM, b"", headers=said(b"")),
    "an empty body of unknown length": lambda app: ask(
        app, CLAIM, b"", headers=said(b"", content_length=None, transfer_encoding="chunked")
    ),
    "no JSON": lambda app: ask(app, CLAIM, b"{", headers=said(b"{")),
    "a wrong type": lambda app: ask(app, CLAIM, b'{"worker": 5}', headers=said(b'{"worker": 5}')),
    "an unknown member": lambda app: ask(app, CLAIM, GOOD[:-1] + b',"x":1}', headers=said(GOOD[:-1] + b',"x":1}')),
    "a bad count": lambda app: ask(app, CLAIM, GOOD.replace(b'"count":1', b'"count":0'), headers=said(GOOD)),
    "too much": lambda app: ask(app, CLAIM, b" " * 5_000, headers=said(b" " * 5_000)),
    "more than announced": lambda app: ask(app, CLAIM, b" " * 5_000, headers=said(b" ")),
    "another method": lambda app: ask(app, CLAIM, GOOD, headers=said(GOOD), method="GET"),
    "a slash more": lambda app: ask(app, CLAIM + "/", GOOD, headers=said(GOOD)),
    "no such route": lambda app: ask(app, CLAIM + "s", GOOD, headers=said(GOOD)),
    "below a path": lambda app: ask(app, "/ops" + CLAIM, GOOD, headers=said(GOOD), root_path="/ops"),
    "below a part of its path": lambda app: ask(app, CLAIM, GOOD, headers=said(GOOD), root_path="/api"),
    "a form": lambda app: ask(app, CLAIM, GOOD, headers=said(GOOD, content_type="text/plain")),
    "a wrong token": lambda app: ask(app, CLAIM, GOOD, headers=said(GOOD, authorization="Bearer wl_no")),
    "a token in the address": lambda app: ask(app, CLAIM, GOOD, headers=said(GOOD), query_string=b"token=wl_no"),
    "from another site": lambda app: ask(app, CLAIM, GOOD, headers=said(GOOD, origin="https://evil.example")),
    "from elsewhere": lambda app: ask(app, CLAIM, GOOD, headers=said(GOOD), client=("192.0.2.1", 5)),
    "to another name": lambda app: ask(app, CLAIM, GOOD, headers=said(GOOD, host="evil.example")),
    "to no name": lambda app: ask(app, CLAIM, GOOD, headers=said(GOOD, host=None)),
    "to what is no name": lambda app: ask(app, CLAIM, GOOD, headers=said(GOOD, host='a"b')),
    "to two names": lambda app: ask(app, CLAIM, GOOD, headers=[("host", 'a"b'), *said(GOOD)]),
}


STATUSES = {
    "a claim": 200, "a report on nothing": 200, "in two parts": 200, "in parts of unknown length": 200, "half of it": 500, "no body": 400,
    "an empty body of unknown length": 400, "no JSON": 400, "a wrong type": 400, "an unknown member": 400, "a bad count": 400,
    "too much": 413, "more than announced": 413, "another method": 405, "a slash more": 200, "no such route": 404, "below a path": 200,
    "below a part of its path": 404, "a form": 415, "a wrong token": 401, "a token in the address": 401, "from another site": 403,
    "from elsewhere": 401, "to another name": 403, "to no name": 403, "to what is no name": 400, "to two names": 400,
}  # fmt: skip


@pytest.mark.parametrize("name", STATUSES)
def test_a_request_of_a_worker_is_answered_or_refused(name: str) -> None:
    start, *_ = asyncio.run(REQUESTS[name](opened()))
    assert start["status"] == STATUSES[name]


# Reports


class Slow:
    """An engine that ends a call only when it is told to, and remembers what it was asked."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self._joined = Coalescer(self.report_many, limit=5)
        self.asked, self.go = asyncio.Event(), asyncio.Event()
        self.error: Exception | None = None

    async def submit(self, *runs: str) -> list[Receipt | WindlassError]:
        """As a request does."""
        return await self._joined.submit(outcomes(*runs), len(runs))

    async def report_many(self, outcomes: Sequence[Outcome]) -> list[Receipt | WindlassError]:
        names = [outcome.run for outcome in outcomes]
        self.calls.append(names)
        self.asked.set()
        await self.go.wait()
        if self.error is not None and (len(names) > 1 or "wrong" in names):
            raise self.error
        return [NotFound("No.", hint="Stop.") if name == "gone" else Receipt(name, State.SUCCEEDED) for name in names]


def outcomes(*runs: str) -> list[Outcome]:
    return [Outcome(run, Succeed(token="t" * 22)) for run in runs]


async def told(slow: Slow, *calls: Sequence[str], first: Sequence[str] = ("first",)) -> list[Any]:
    """What each call is told that comes while the first one is under way."""
    begun = asyncio.create_task(slow.submit(*first))
    await slow.asked.wait()
    others = [asyncio.create_task(slow.submit(*runs)) for runs in calls]
    await asyncio.sleep(0)
    slow.go.set()
    await begun
    answers = await asyncio.gather(*others, return_exceptions=True)
    return [answer if isinstance(answer, BaseException) else [getattr(one, "run", None) for one in answer] for answer in answers]


def test_reports_that_come_meanwhile_go_together_and_each_gets_its_own_answers() -> None:
    async def run() -> None:
        slow = Slow()
        assert await told(slow, ["a", "b"], ["gone"], [], ["c"]) == [["a", "b"], [None], [], ["c"]]
        assert slow.calls == [["first"], ["a", "b", "gone", "c"]]

    asyncio.run(run())


def test_no_more_go_together_than_the_engine_takes() -> None:
    async def run() -> None:
        slow = Slow()
        assert await told(slow, ["a", "b", "c"], ["d", "e", "f"], ["g"]) == [["a", "b", "c"], ["d", "e", "f"], ["g"]]
        assert slow.calls == [["first"], ["a", "b", "c"], ["d", "e", "f", "g"]]

    asyncio.run(run())


def test_a_report_alone_is_not_held_up_and_the_next_one_is_alone_again() -> None:
    async def run() -> None:
        slow = Slow()
        slow.go.set()
        for name in ("a", "b"):
            assert await slow.submit(name) == [Receipt(name, State.SUCCEEDED)]
        assert slow.calls == [["a"], ["b"]]

    asyncio.run(run())


def test_what_is_wrong_with_one_report_harms_no_other() -> None:
    async def run() -> None:
        slow = Slow()
        slow.error = BadInput("It cannot be written.", hint="Correct it.")
        assert await told(slow, ["a"], ["wrong"], ["b"]) == [["a"], slow.error, ["b"]]

    asyncio.run(run())


def test_a_store_that_is_away_is_away_for_all_and_asked_once() -> None:
    async def run() -> None:
        slow = Slow()
        slow.error = StoreUnreachable("It is away.", hint="Wait.")
        assert await told(slow, ["a"], ["b"]) == [slow.error, slow.error]
        assert slow.calls == [["first"], ["a", "b"]]

    asyncio.run(run())


@pytest.mark.parametrize("given_up", [0, 1])
def test_a_request_that_is_given_up_takes_no_other_with_it(given_up: int) -> None:
    async def run() -> None:
        slow = Slow()
        tasks = [asyncio.create_task(slow.submit(name)) for name in ("a", "b", "c")]
        await slow.asked.wait()
        tasks[given_up].cancel()
        await asyncio.sleep(0)
        slow.go.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(answer) for answer in answers].count(asyncio.CancelledError) == 1
        assert answers[2] == [Receipt("c", State.SUCCEEDED)]

    asyncio.run(run())


def test_those_that_come_in_one_turn_of_the_loop_go_together_and_then_as_many_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "GATHER", 60.0)

    async def run() -> None:
        slow = Slow()
        slow.go.set()
        await asyncio.gather(slow.submit("a"), slow.submit("b"))
        late = asyncio.create_task(slow.submit("c"))
        for _ in range(5):  # turns of the loop
            await asyncio.sleep(0)
        assert slow.calls == [["a", "b"]]
        await asyncio.wait_for(asyncio.gather(late, slow.submit("d")), 30)
        assert slow.calls == [["a", "b"], ["c", "d"]]

    asyncio.run(run())


def test_nobody_is_waited_for_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        slow = Slow()
        slow.go.set()
        await asyncio.gather(slow.submit("a"), slow.submit("b"), slow.submit("c"))
        await asyncio.wait_for(slow.submit("d"), 30)  # alone, after a moment
        monkeypatch.setattr(batching, "GATHER", 3_600.0)
        await asyncio.wait_for(slow.submit("e"), 30)  # and from then on at once
        assert slow.calls == [["a", "b", "c"], ["d"], ["e"]]

    asyncio.run(run())


def test_more_than_the_engine_takes_goes_alone() -> None:
    async def run() -> None:
        slow = Slow()
        assert await told(slow, ["a"], list("bcdefgh"), ["i"]) == [["a"], list("bcdefgh"), ["i"]]
        assert slow.calls == [["first"], ["a"], list("bcdefgh"), ["i"]]

    asyncio.run(run())


def test_a_request_that_is_given_up_before_it_went_does_not_go() -> None:
    async def run() -> None:
        slow = Slow()
        first = asyncio.create_task(slow.submit("first"))
        await slow.asked.wait()
        gone, stays = asyncio.create_task(slow.submit("gone")), asyncio.create_task(slow.submit("stays"))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        slow.go.set()
        await asyncio.gather(first, stays)
        assert slow.calls == [["first"], ["stays"]]

    asyncio.run(run())
