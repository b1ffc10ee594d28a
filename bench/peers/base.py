"""What is asked of every queue of the race. Runs in their environments, so it needs the standard library alone.

`python -m bench.peers.huey VERB NAME ADDRESS ...` is a process of the race: it says "ready" when it is connected, and begins when it is
told "go". A worker runs until it is killed; its job counts itself in a file that the race reads, so that nobody has to ask the store.
"""

from __future__ import annotations

import json
import mmap
import platform
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

PAYLOAD = {"to": "x" * 91}
"""100 bytes as JSON."""
WARM_UP = 20


class Peer(NamedTuple):
    """A line of the table: a queue on a store, with its settings, and what it promises for its figures."""

    name: str
    title: str
    store: Literal["postgres", "sqlite"]
    packages: tuple[str, ...]
    """What pip installs, by name."""
    shown: tuple[str, ...]
    """The distributions whose versions belong to the figures."""
    delivery: str
    keeps: str
    settings: str
    jobs: int
    """How many are drained, so that it takes some seconds."""
    singles: int
    unfinished: str
    """A statement that says whether any job has yet to end."""
    python: tuple[int, int] = (3, 11)
    in_every_round: bool = False
    """Also in a quick race; the others take part in its first round."""
    burst: bool = False


class Queue(Protocol):
    """A queue as its users see it: by its documented interface, as fast as its documentation knows how."""

    @staticmethod
    def drive(steps: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine to its end, on the loop that suits the queue."""

    def __init__(self, peer: Peer, address: str) -> None: ...

    async def install(self) -> None:
        """Make its tables."""

    async def connect(self) -> None:
        """Become a producer."""

    async def one(self) -> None:
        """Enqueue a job; it is committed when this returns."""

    async def many(self, count: int) -> None:
        """Enqueue so many, in the largest calls that make sense."""

    async def work(self, done: Callable[[], None]) -> None:
        """Work as one process until killed; the job does nothing but call `done`."""


def blocking(steps: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that never suspends, for queues without asyncio."""
    try:
        steps.send(None)
    except StopIteration:
        return
    raise RuntimeError("It suspended.")


class Counts:
    """A number for each worker in a file that processes share."""

    def __init__(self, path: Path, *, workers: int = 0) -> None:
        if workers:
            path.write_bytes(bytes(8 * workers))
        with path.open("r+b") as file:
            self.each = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")

    def __int__(self) -> int:
        return sum(self.each)

    def counter(self, worker: int) -> Callable[[], None]:
        """Adds one for this worker, from any thread."""
        each, lock = self.each, threading.Lock()

        def count() -> None:
            with lock:
                each[worker] += 1

        return count


def tell() -> None:
    """Say when a job began, on the clock that all processes share."""
    print(time.perf_counter(), flush=True)


def main(peers: Mapping[Peer, type[Queue]]) -> None:
    """Be one process of the race."""
    verb, name, *rest = sys.argv[1:]
    peer = next(peer for peer in peers if peer.name == name)
    if verb == "versions":
        print(json.dumps({each: version(each) for each in peer.shown} | {"python": platform.python_version()}))
        return
    queue = peers[peer](peer, rest[0])
    queue.drive(_VERBS[verb](queue, *rest[1:]))


async def _install(queue: Queue) -> None:
    await queue.install()


async def _single(queue: Queue, count: str) -> None:
    await queue.connect()
    for _ in range(WARM_UP):
        await queue.one()
    _wait_for_go()
    begun = time.perf_counter()
    for _ in range(int(count)):
        await queue.one()
    _report(begun)


async def _bulk(queue: Queue, count: str) -> None:
    await queue.connect()
    _wait_for_go()
    begun = time.perf_counter()
    await queue.many(int(count))
    _report(begun)


async def _ask(queue: Queue) -> None:
    """Enqueue one job for each line that is read, and say when that began."""
    await queue.connect()
    print("ready", flush=True)
    for _ in sys.stdin:
        begun = time.perf_counter()
        await queue.one()
        print(begun, flush=True)


async def _work(queue: Queue, counts: str, worker: str) -> None:
    count = Counts(Path(counts)).counter(int(worker))
    _wait_for_go()
    await queue.work(count)


async def _serve(queue: Queue) -> None:
    _wait_for_go()
    await queue.work(tell)


_VERBS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    "install": _install,
    "single": _single,
    "bulk": _bulk,
    "ask": _ask,
    "work": _work,
    "serve": _serve,
}


def _wait_for_go() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def _report(begun: float) -> None:
    print(time.perf_counter() - begun, flush=True)
