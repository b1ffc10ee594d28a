"""A conversation in the words of each contract is replayed below /dialects and at the root."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.dialects.conversations import replay
from tests.dialects.doors import Answer, Door
from tests.dialects.forge_door import SECRET
from tests.dialects.guards_door import KEY
from tests.dialects.so1_door import TRIGGER, idle
from tests.harness import Harness, token
from windlass.dialects import forge, guards, so1
from windlass.model import Run

__all__ = ["idle"]


class Worker:
    """A worker that does what a conversation says."""

    def __init__(self, h: Harness) -> None:
        self.h = h
        self.run: Run | None = None

    def __call__(self, words: str) -> None:
        what, _, rest = words.partition(" ")
        if what == "claim":
            self.run = self.h.started()
            return
        if what == "wait":
            self.h.sweep(int(rest) * 1_000)
            return
        assert self.run is not None
        if what == "log":
            number, _, text = rest.partition(" ")
            self.h(self.h.engine.log(self.run.id, token(self.run), [(int(number), text)]))
        elif what == "fail":
            self.h.fail(self.run)
        else:
            self.h.succeed(self.run, json.dumps(json.loads(rest)))


@pytest.fixture(params=["/dialects/so1", ""])
def so1_door(h: Harness, request: pytest.FixtureRequest) -> Iterator[Door]:
    door = Door(h, so1.mount(so1.Settings(mock=True), h.clock), prefix=request.param, root="so1")
    h.define(TRIGGER)
    yield door
    door.close()


@pytest.mark.parametrize("prefix", ["/dialects/forge", ""])
def test_forge(h: Harness, prefix: str) -> None:
    door = Door(h, forge.mount(forge.Settings(secret=SECRET), h.clock), prefix=prefix, root="forge")

    def ask(method: str, path: str, body: Any, headers: Mapping[str, str]) -> Answer:
        return door(method, path, body, headers)

    try:
        replay("forge", ask, lambda words: None)
    finally:
        door.close()


@pytest.mark.usefixtures("idle")
def test_so1(so1_door: Door) -> None:
    def ask(method: str, path: str, body: Any, headers: Mapping[str, str]) -> Answer:
        return so1_door(method, path, body, headers)

    replay("so1", ask, Worker(so1_door.h))


@pytest.mark.parametrize("prefix", ["/dialects/guards", ""])
def test_guards(h: Harness, prefix: str) -> None:
    door = Door(h, guards.mount(guards.Settings(api_auth_enabled=True, api_key=KEY), h.clock), prefix=prefix, root="guards")

    def ask(method: str, path: str, body: Any, headers: Mapping[str, str]) -> Answer:
        return door(method, path, body, headers)

    try:
        replay("guards", ask, Worker(h))
    finally:
        door.close()
