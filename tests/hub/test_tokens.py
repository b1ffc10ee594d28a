"""What ends with a token, and what one principal may take of a hub: through real hubs, and over a socket."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.served import LeapingClock, ServedHub
from tests.workers import DEADLINE, until
from windlass.engine import Engine
from windlass.hub import HubSettings, events
from windlass.hub.auth import FRESH

AGES = 600_000
CLAIM = {"worker": {"name": "w"}, "count": 1, "lease": 60_000, "wait": AGES}
TOPICS = ["queue:elsewhere"]


@pytest.fixture(params=["file", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.getfixturevalue("emptied_postgres")) if request.param == "postgres" else str(tmp_path / "hub.db")


class Site:
    """Hubs on one store, with an admin's token."""

    def __init__(self, where: Path | str, settings: HubSettings | None = None, hubs: int = 1) -> None:
        self.hubs = [ServedHub(where, settings or HubSettings(longest_wait=AGES), LeapingClock(), open=False) for _ in range(hubs)]
        self.hub = self.hubs[0]
        _, self.admin = self.engine(lambda engine: engine.create_token("root", ["admin"]))

    def engine(self, verb: Callable[[Engine], Any]) -> Any:
        """What a verb of the first hub's engine gives."""
        return asyncio.run_coroutine_threadsafe(verb(self.hub.hub.engine), self.hub.loop).result(DEADLINE)

    def ask(self, method: str, path: str, token: str, hub: int = 0, **how: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.request(method, f"{self.hubs[hub].url}api/v1/{path}", headers=headers, timeout=DEADLINE, **how)

    def token(self, *scopes: str, principal: str | None = None) -> tuple[str, str]:
        """The id and the secret of a new token, which acts on behalf of its own name unless told otherwise."""
        body = {"name": "-".join(scopes), "scopes": scopes, "principal": principal}
        made = self.ask("POST", "tokens", self.admin, json=body).json()
        return made["token"]["id"], made["secret"]

    def close(self) -> None:
        for hub in self.hubs:
            hub.stop()


@contextmanager
def site(where: Path | str, settings: HubSettings | None = None, hubs: int = 1) -> Iterator[Site]:
    made = Site(where, settings, hubs)
    try:
        yield made
    finally:
        made.close()


class Asking(threading.Thread):
    """A request that is under way."""

    def __init__(self, ask: Callable[[], httpx.Response]) -> None:
        super().__init__(daemon=True)
        self._ask = ask
        self.start()

    def run(self) -> None:
        self.answer = self._ask()

    def ended(self) -> tuple[int, str]:
        self.join(DEADLINE)
        return self.answer.status_code, self.answer.json().get("code", "")


# What waits when its token ends


@pytest.mark.parametrize("here", [True, False], ids=["at this hub", "elsewhere"])
def test_a_claim_that_waits_takes_nothing_once_its_token_is_revoked(where: str, here: bool) -> None:
    with site(where) as s:
        id, secret = s.token("work")
        s.ask("PUT", "jobs/mail", s.admin, json={}).raise_for_status()
        asking = Asking(lambda: s.ask("POST", "worker/claim", secret, json=CLAIM))
        until(lambda: s.hub.hub.waiting == 1)
        if here:
            s.ask("DELETE", f"tokens/{id}", s.admin).raise_for_status()
        else:
            s.engine(lambda engine: engine.revoke_token(id))
            s.hub.clock.leap(FRESH)  # type: ignore[attr-defined]
        run = s.ask("POST", "runs", s.admin, json={"job": "mail"}).json()["id"]
        assert asking.ended() == (401, "unauthorized")
        assert s.ask("GET", f"runs/{run}", s.admin).json()["state"] == "queued"


def test_a_claim_that_waits_with_a_good_token_takes_what_comes(where: str) -> None:
    with site(where) as s:
        _, secret = s.token("work")
        s.ask("PUT", "jobs/mail", s.admin, json={}).raise_for_status()
        asking = Asking(lambda: s.ask("POST", "worker/claim", secret, json=CLAIM))
        until(lambda: s.hub.hub.waiting == 1)
        s.hub.clock.leap(FRESH)  # type: ignore[attr-defined]
        run = s.ask("POST", "runs", s.admin, json={"job": "mail"}).json()["id"]
        asking.join(DEADLINE)
        assert [one["id"] for one in asking.answer.json()["runs"]] == [run]


def test_who_waits_for_a_hint_hears_nothing_once_the_token_is_revoked(tmp_path: Path) -> None:
    with site(tmp_path / "hub.db") as s:
        id, secret = s.token("work")
        s.ask(
            "POST", "worker/wait", secret, json={"topics": TOPICS, "timeout": 10}
        ).raise_for_status()  # the first hears of what was before
        asking = Asking(lambda: s.ask("POST", "worker/wait", secret, json={"topics": TOPICS, "timeout": AGES}))
        until(lambda: s.hub.hub.waiting == 1)
        s.ask("DELETE", f"tokens/{id}", s.admin).raise_for_status()
        s.engine(lambda engine: engine.wake(TOPICS))
        assert asking.ended() == (401, "unauthorized")


def test_a_slot_is_not_taken_once_the_token_is_revoked(tmp_path: Path) -> None:
    with site(tmp_path / "hub.db") as s:
        id, secret = s.token("submit")
        s.ask("PUT", "resources/gpu", s.admin, json={"capacity": 1}).raise_for_status()
        held = s.ask("POST", "slots", s.admin, json={"resource": "gpu"}).json()
        asking = Asking(lambda: s.ask("POST", "slots", secret, json={"resource": "gpu", "wait": AGES, "lease": 3_600_000}))
        until(lambda: s.hub.hub.waiting == 1 and len(s.ask("GET", "slots", s.admin).json()["slots"]) == 2)
        s.ask("DELETE", f"tokens/{id}", s.admin).raise_for_status()
        s.ask("POST", f"slots/{held['id']}/release", s.admin, json={"token": held["token"]}).raise_for_status()
        assert asking.ended() == (401, "unauthorized")
        assert [slot["state"] for slot in s.ask("GET", "slots", s.admin).json()["slots"]] == ["waiting"]


def test_a_body_that_comes_when_its_token_has_ended_does_nothing(tmp_path: Path) -> None:
    with site(tmp_path / "hub.db") as s:
        id, secret = s.token("submit")
        s.ask("PUT", "jobs/mail", s.admin, json={}).raise_for_status()
        body = b'{"job": "mail"}'
        head = f"POST /api/v1/runs HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {secret}\r\nContent-Type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", s.hub.port), timeout=DEADLINE) as line:
            line.sendall(head.encode() + b"Content-Length: %d\r\n\r\n{" % len(body))
            until(lambda: any(known.token.id == id for known in s.hub.hub.authenticator._known.values()))  # it is let in
            s.ask("DELETE", f"tokens/{id}", s.admin).raise_for_status()
            line.sendall(body[1:])
            response = HTTPResponse(line)
            response.begin()
            assert response.status == 401
        assert s.ask("GET", "runs", s.admin).json()["runs"] == []


def test_a_stream_ends_with_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "CHECK_EVERY", 3_600.0)
    with site(tmp_path / "hub.db") as s:
        id, secret = s.token("read")
        with httpx.stream("GET", s.hub.url + "api/v1/events", headers={"Authorization": f"Bearer {secret}"}, timeout=DEADLINE) as stream:
            lines = stream.iter_lines()
            assert next(lines) == "retry: 2000"
            s.ask("DELETE", f"tokens/{id}", s.admin).raise_for_status()
            for _ in lines:  # to its end
                pass


# Signing out


def test_who_signs_out_is_signed_out_everywhere(where: str) -> None:
    with site(where, hubs=2) as s:
        link = s.engine(lambda engine: engine.invite("ann", ["read"]))
        session = httpx.post(s.hub.url + "api/v1/session", json={"ticket": link}, timeout=DEADLINE).json()
        secret = session["secret"]
        assert [s.ask("GET", "me", secret, hub).status_code for hub in (0, 1)] == [200, 200]
        assert s.ask("DELETE", "session", secret).json() == {"ended": True}
        s.hubs[1].clock.leap(FRESH)  # type: ignore[attr-defined]
        assert [s.ask("GET", "me", secret, hub).status_code for hub in (0, 1)] == [401, 401]
        entry = s.ask("GET", "audit", s.admin).json()["entries"][0]
        assert (entry["actor"], entry["what"], entry["subject"]) == ("ann", "sign out", f"session {session['token']['id']}")


def test_a_token_outlives_a_page_that_it_was_typed_into(tmp_path: Path) -> None:
    with site(tmp_path / "hub.db") as s:
        _, secret = s.token("read")
        assert s.ask("DELETE", "session", secret).json() == {"ended": False}
        assert s.ask("GET", "me", secret).status_code == 200
        assert httpx.delete(s.hub.url + "api/v1/session", timeout=DEADLINE).status_code == 401


# Shares


def test_the_tokens_of_one_principal_take_no_more_than_its_share_of_the_streams(tmp_path: Path) -> None:
    with site(tmp_path / "hub.db", HubSettings(streams=5, share=40)) as s, ExitStack() as stack:
        (_, one), (_, again), (_, other) = (s.token("read", principal=name) for name in ("shop", "shop", "press"))

        def opens(secret: str) -> httpx.Response:
            headers = {"Authorization": f"Bearer {secret}"}
            return stack.enter_context(httpx.stream("GET", s.hub.url + "api/v1/events", headers=headers, timeout=DEADLINE))

        first = [opens(one), opens(again)]
        assert [stream.status_code for stream in first] == [200, 200]
        for secret in (one, again):
            refused = opens(secret)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            refused.read()
            assert "for 'shop' already, which is its share" in refused.json()["detail"]
        ticket = s.ask("POST", "tickets", one).json()["ticket"]
        by_ticket = httpx.get(s.hub.url + "api/v1/events", params={"ticket": ticket}, timeout=DEADLINE)
        assert by_ticket.status_code == 429
        assert [opens(other).status_code for _ in range(2)] == [200, 200]
        first[0].close()
        until(lambda: s.hub.hub.events.open == 3)
        assert opens(again).status_code == 200


def test_the_tokens_of_one_principal_take_no_more_than_its_share_of_the_waits(tmp_path: Path) -> None:
    with site(tmp_path / "hub.db", HubSettings(waits=4, longest_wait=AGES)) as s:
        tokens = [s.token("work", "submit", principal=name) for name in ("fleet", "fleet", "others")]
        one, again, other = (secret for _, secret in tokens)
        s.ask("PUT", "resources/gpu", s.admin, json={"capacity": 1}).raise_for_status()
        Asking(lambda: s.ask("POST", "worker/claim", one, json=CLAIM))
        Asking(lambda: s.ask("POST", "worker/claim", again, json=CLAIM))
        until(lambda: s.hub.hub.waiting == 2)
        for path, body in (
            ("worker/claim", CLAIM),
            ("worker/wait", {"topics": TOPICS, "timeout": 10}),
            ("slots", {"resource": "gpu", "wait": 10}),
        ):
            for secret in (one, again):
                refused = s.ask("POST", path, secret, json=body)
                assert (refused.status_code, refused.json()["code"]) == (429, "limit_reached"), refused.text
        assert s.ask("POST", "worker/wait", other, json={"topics": TOPICS, "timeout": 10}).status_code == 200
        for id, _ in tokens:
            s.ask("DELETE", f"tokens/{id}", s.admin).raise_for_status()
        s.engine(lambda engine: engine.wake(TOPICS))
        until(lambda: s.hub.hub.waiting == 0)


def test_in_an_open_hub_all_that_there_is_is_for_everybody(tmp_path: Path) -> None:
    hub = ServedHub(tmp_path / "hub.db", HubSettings(waits=2, longest_wait=AGES))
    body = json.dumps(CLAIM).encode()
    head = b"POST /api/v1/worker/claim HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(
        body
    )
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(socket.create_connection(("127.0.0.1", hub.port))).sendall(head + body)
        until(lambda: hub.hub.waiting == 2)
        assert httpx.post(hub.url + "api/v1/worker/claim", json=CLAIM, timeout=DEADLINE).status_code == 429
    until(lambda: hub.hub.waiting == 0)
    hub.stop()
