"""What a connection of the hub sends: whole answers at once, and no more than a client reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from windlass.hub.connections import BUFFER, Whole


class Wire:
    """A transport that remembers what was done with it."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def write(self, data: bytes) -> None:
        self.done.append(data)

    def close(self) -> None:
        self.done.append("closed")

    def abort(self) -> None:
        self.done.append("aborted")

    def is_closing(self) -> bool:
        return "closed" in self.done

    def get_extra_info(self, name: str) -> str:
        return f"its {name}"


def done(writing: Callable[[Whole], None]) -> list[Any]:
    """What becomes of a transport when that is written in one turn of the loop."""
    wire = Wire()

    async def run() -> None:
        writing(Whole(wire, asyncio.get_running_loop()))  # type: ignore[arg-type]
        await asyncio.sleep(0)

    asyncio.run(run())
    return wire.done


def test_what_is_written_in_one_turn_is_sent_at_once() -> None:
    def writing(whole: Whole) -> None:
        whole.write(b"head")
        whole.write(b"body")

    assert done(writing) == [b"headbody"]


def test_a_head_does_not_wait_for_a_body_that_comes_later() -> None:
    async def run() -> list[Any]:
        wire = Wire()
        whole = Whole(wire, asyncio.get_running_loop())  # type: ignore[arg-type]
        whole.write(b"head")
        assert wire.done == []
        await asyncio.sleep(0)
        assert wire.done == [b"head"]
        whole.write(b"body")
        await asyncio.sleep(0)
        return wire.done

    assert asyncio.run(run()) == [b"head", b"body"]


def test_what_was_written_is_sent_before_it_is_closed() -> None:
    def writing(whole: Whole) -> None:
        whole.write(b"head")
        whole.close()
        assert whole.is_closing()

    assert done(writing) == [b"head", "closed"]


def test_much_is_not_held_back() -> None:
    """Or a stream would never be told to wait."""

    def writing(whole: Whole) -> None:
        for _ in range(3):
            whole.write(b"x" * BUFFER)
            whole.write(b"y")

    assert [len(data) for data in done(writing)] == [BUFFER + 1] * 3


def test_all_else_is_the_transports_own() -> None:
    def writing(whole: Whole) -> None:
        assert whole.get_extra_info("peername") == "its peername"
        whole.abort()

    assert done(writing) == ["aborted"]
