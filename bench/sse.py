"""Live events: how late they are when many listen, and whether any is lost. Hub, writer and listeners are processes of their own."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import subprocess
import sys
import time
import zlib
from array import array
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.figures import Figures, doing
from bench.hub import served
from bench.places import Place, open_postgres, open_sqlite
from windlass.clock import SystemClock
from windlass.engine import Engine
from windlass.machine import Succeed
from windlass.model import NewRun, WorkerInfo
from windlass.store.base import run_sync
from windlass.store.sqlite import BlockingSqlite

LISTENERS, A_SECOND, SECONDS = 500, 200, 20
ENTRIES = 3  # of a run: created, claimed, ended
JOB = "noop"
PATIENCE = 60.0
ENDS, REST = 100, 0.1  # runs that end one by one, and the seconds before each end in which all rests

_ASK = b"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
_IDS = re.compile(rb"^id: ((\d+)-.*)\nevent: run$", re.M)


class Writer:
    """Makes runs and ends them at a steady pace."""

    def __init__(self, path: Path) -> None:
        self._store = BlockingSqlite(str(path), SystemClock())
        self._engine = Engine(self._store, SystemClock())
        run_sync(self._engine.define(JOB))

    def write(self, runs: int) -> None:
        """One run after another, each at its time."""
        begun = time.perf_counter()
        for number in range(runs):
            time.sleep(max(0.0, begun + number * ENTRIES / A_SECOND - time.perf_counter()))
            run_sync(self._engine.create([NewRun(JOB, {"n": number})]))
            (run,) = run_sync(self._engine.claim(WorkerInfo("bench"), count=1))
            run_sync(self._engine.report(run.id, Succeed(token=run.token)))

    def close(self) -> None:
        run_sync(self._store.close())


def measure(figures: Figures, *, quick: bool) -> None:
    """All figures of live events."""
    seconds = SECONDS // 4 if quick else SECONDS
    runs = A_SECOND * seconds // ENTRIES
    with TemporaryDirectory() as folder:
        path = Path(folder) / "sse.db"
        writer = Writer(path)
        with served("hub", str(path)) as port, listening(port, runs * ENTRIES) as listeners:
            assert listeners.stdout is not None
            listeners.stdout.readline()  # all of them are there
            with doing(f"{LISTENERS} listeners, {A_SECOND} events a second, {seconds} s"):
                writer.write(runs)
                told = json.loads(listeners.stdout.readline())
        writer.close()
    figures.note("sse.lost", told["lost"], at_most=0)
    figures.note("sse.lag_p99_ms", told["p99"], at_most=1_000)
    figures.note("sse.lag_p50_ms", told["p50"])
    with open_sqlite() as sqlite:
        lag_other_process(figures, sqlite, quick=quick)
    with open_postgres() as postgres:
        lag_other_process(figures, postgres, quick=quick)


def lag_other_process(figures: Figures, place: Place, *, quick: bool) -> None:
    """From the call that ends a run on the store, in this process, until a subscriber of a hub in another one has it."""
    address = place.make()
    store, lags = place.store(address), list[float]()
    engine = Engine(store, SystemClock())
    run_sync(engine.define(JOB))
    with served("hub", address) as port, closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
        connection.request("GET", "/api/v1/events?state=succeeded")
        stream = connection.getresponse()
        while not stream.readline().startswith(b"id: "):  # its place is named
            pass
        with doing(f"{place.name}: {ENDS} ends, each told to a subscriber"):
            for _ in range(ENDS // 4 if quick else ENDS):
                run_sync(engine.create([NewRun(JOB)]))
                (run,) = run_sync(engine.claim(WorkerInfo("bench"), count=1))
                time.sleep(REST)
                begun = time.perf_counter()
                run_sync(engine.report(run.id, Succeed(token=run.token)))
                while run.id.encode() not in stream.readline():
                    pass
                lags.append(1000 * (time.perf_counter() - begun))
    run_sync(store.close())
    name = f"{place.name}.events.lag_other_process"
    figures.note(f"{name}.p50_ms", median(lags), at_most=20)
    figures.note(f"{name}.max_ms", max(lags))


@contextmanager
def listening(port: int, events: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "bench.sse", str(port), str(events)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent) as process:
        try:
            yield process
        finally:
            process.terminate()


# The process of the listeners


class Listener(asyncio.Protocol):
    """One client: counts what it hears, and how old it is then."""

    def __init__(self, events: int) -> None:
        self._wanted = events
        self._chunks, self._text = b"", b""
        self.ready, self.done = asyncio.Event(), asyncio.Event()
        self.count, self.digest, self.lags = 0, 0, array("l")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(_ASK)

    def data_received(self, data: bytes) -> None:
        self._chunks += data
        if not self.ready.is_set() and b"\r\n\r\n" in self._chunks:
            self._chunks = self._chunks.partition(b"\r\n\r\n")[2]
            self.ready.set()
        while self.ready.is_set() and (end := self._chunks.find(b"\r\n")) > 0:
            size = int(self._chunks[:end], 16)
            if len(self._chunks) < end + size + 4:
                break
            self._text += self._chunks[end + 2 : end + 2 + size]
            self._chunks = self._chunks[end + size + 4 :]
        self._hear()

    def _hear(self) -> None:
        whole, separator, self._text = self._text.rpartition(b"\n\n")
        now = time.time_ns() // 1_000_000
        for identity, at in _IDS.findall(whole + separator):
            self.count += 1
            self.digest = zlib.crc32(identity, self.digest)
            self.lags.append(now - int(at))
        if self.count >= self._wanted:
            self.done.set()


async def listen(port: int, events: int) -> None:
    """Tell when all are connected, and at the end what they heard."""
    loop = asyncio.get_running_loop()
    listeners = [(await loop.create_connection(lambda: Listener(events), "127.0.0.1", port))[1] for _ in range(LISTENERS)]
    await asyncio.gather(*(listener.ready.wait() for listener in listeners))
    await asyncio.sleep(1)  # their places are named
    print("ready", flush=True)
    await asyncio.wait([asyncio.ensure_future(listener.done.wait()) for listener in listeners], timeout=SECONDS + PATIENCE)
    usual = max({listener.digest for listener in listeners}, key=[listener.digest for listener in listeners].count)
    lost = sum(abs(events - listener.count) for listener in listeners) + sum(listener.digest != usual for listener in listeners)
    lags = sorted(lag for listener in listeners for lag in listener.lags)
    print(json.dumps({"lost": lost, "p50": median(lags), "p99": lags[len(lags) * 99 // 100]}), flush=True)


if __name__ == "__main__":
    asyncio.run(listen(int(sys.argv[1]), int(sys.argv[2])))
