"""What a connection of the hub sends: whole answers at once, and no more than a client reads."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from windlass.hub import connections
from windlass.hub.connections import BUFFER, Whole
from windlass.hub.events.pipes import PORTION


class Wire:
    """A transport that remembers what was done with it."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.unsent = 0

    def write(self, data: bytes) -> None:
        self.done.append(data)

    def close(self) -> None:
        self.done.append("closed")

    def abort(self) -> None:
        self.done.append("aborted")

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def pause_reading(self) -> None:
        self.done.append("paused")

    def resume_reading(self) -> None:
        self.done.append("resumed")

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


def test_reading_goes_on_when_nobody_has_a_reason_against_it() -> None:
    def writing(whole: Whole) -> None:
        whole.fill(True)
        whole.pause_reading()
        whole.resume_reading()  # there is still no room
        whole.pause_reading()
        whole.fill(False)  # there is, and somebody else has a reason
        whole.resume_reading()

    assert done(writing) == ["paused", "paused", "paused", "resumed"]


@pytest.mark.parametrize(
    ("unsent", "end"),
    [
        ([100_000, 100_000], "aborted"),
        ([100_000, 100_000 - PORTION + 1], "aborted"),
        ([100_000, 100_000 - PORTION, 100_000 - PORTION], "aborted"),
        ([10, 10], "aborted"),
        ([100_000, 100_000 - PORTION, 50_000, 10, 0], "sent"),
        ([0], "sent"),
    ],
    ids=str,
)
def test_a_client_must_read_what_waits_for_it(unsent: list[int], end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STALLED", 0.0)

    class Slow(Wire):
        def get_write_buffer_size(self) -> int:
            return unsent.pop(0) if len(unsent) > 1 else unsent[0]

    async def run() -> list[Any]:
        wire = Slow()
        Whole(wire, asyncio.get_running_loop()).close()  # type: ignore[arg-type]
        for _ in range(50):
            await asyncio.sleep(0)
        return wire.done

    doubled = [size for size in unsent for _ in range(2)][1:]  # it looks, and then looks from where it begins to wait again
    unsent[:] = doubled
    assert asyncio.run(run()) == (["closed", "aborted"] if end == "aborted" else ["closed"])


# How many


def child(code: str, *, soft: int, hard: int) -> subprocess.CompletedProcess[str]:
    """Run some code in a process that may open so many files."""
    limits = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
    return subprocess.run([sys.executable, "-c", limits + code], capture_output=True, text=True, timeout=60, check=False)


_ROOM = """
import os
from windlass.hub.serving import room_for
for soft, hard, wanted in {cases}:
    if os.fork() == 0:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        print(room_for(wanted), resource.getrlimit(resource.RLIMIT_NOFILE)[0], flush=True)
        os._exit(0)
    os.wait()
"""


def test_a_hub_asks_for_the_files_it_needs_and_has_as_many_connections_as_it_gets() -> None:
    rooms = {  # of the limits of a process and the connections of a hub: those that it has, and the limit it has then
        (300, 300, 1_000): (100, 300),
        (300, 600, 1_000): (400, 600),
        (300, 600, 50): (50, 300),
        (300, 600, 300): (300, 500),
        (100, 100, 50): (1, 100),
    }
    ended = child(_ROOM.format(cases=list(rooms)), soft=300, hard=600)
    assert [tuple(map(int, line.split())) for line in ended.stdout.splitlines()] == list(rooms.values()), ended


def test_more_connections_than_the_system_allows_are_refused_with_a_way_out(tmp_path: Path) -> None:
    words = ["hub", "--store", str(tmp_path / "hub.db"), "--port", "0"]
    code = f"import os, sys\nos.environ['WINDLASS_CONNECTIONS'] = '5000'\nfrom windlass.cli import main\nsys.exit(main({words!r}))"
    ended = child(code, soft=512, hard=512)
    assert ended.returncode == 2, ended
    assert "needs 5,200 open files, more than this process may have" in ended.stderr
    assert "ulimit -n 5200" in ended.stderr
    assert "set connections to 312 or less" in ended.stderr
    assert not (tmp_path / "hub.db").exists()
