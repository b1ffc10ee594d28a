"""The hub's part: what claim and report cost over HTTP, against a route of the same server that only gives back what it got."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from bench.figures import Figures, doing, say
from windlass.clock import SystemClock
from windlass.engine import Engine
from windlass.model import NewRun
from windlass.store.base import run_sync
from windlass.store.sqlite import BlockingSqlite

AT_ONCE = 16
SECONDS, QUICK = 6.0, 2.0
ROUNDS = 3
JOB = "noop"
FILL = 10_000

Exchange = Callable[["Line"], Awaitable[None]]


class Line:
    """One connection that is kept open."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def post(self, path: str, body: Any, *, status: int = 200, token: str | None = None) -> bytes:
        """The body of the answer, which must have this status."""
        return await self._ask("POST", path, msgspec.json.encode(body), status, token)

    async def get(self, path: str, *, token: str | None = None) -> bytes:
        """The body of the answer, which must be 200."""
        return await self._ask("GET", path, b"", 200, token)

    async def _ask(self, method: str, path: str, content: bytes, status: int, token: str | None) -> bytes:
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        shown = "" if token is None else f"Authorization: Bearer {token}\r\n"
        self._writer.write(f"{head}{shown}\r\n".encode() + content)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        content = await self._reader.readexactly(length)
        if f" {status} ".encode() not in answer[:15]:
            raise RuntimeError(f"{path}: {answer!r} {content!r}")
        return content

    def close(self) -> None:
        self._writer.close()


async def per_second(port: int, exchange: Exchange, seconds: float) -> float:
    """How many exchanges a second there are on so many connections at once."""
    done, ends = 0, time.perf_counter() + seconds

    async def keep_asking() -> None:
        nonlocal done
        line = Line(*await asyncio.open_connection("127.0.0.1", port))
        while time.perf_counter() < ends:
            await exchange(line)
            done += 1
        line.close()

    begun = time.perf_counter()
    await asyncio.gather(*(keep_asking() for _ in range(AT_ONCE)))
    return done / (time.perf_counter() - begun)


async def echo(line: Line) -> None:
    await line.post("/echo", {"worker": {"name": "bench"}, "count": 1, "lease": 30_000})


class Claimed(msgspec.Struct):
    id: str
    token: str
    seq: int


class Answer(msgspec.Struct):
    runs: list[Claimed]


_answer = msgspec.json.Decoder(Answer).decode


async def claim_and_report(line: Line) -> None:
    """A pair, as a worker with one slot asks for it."""
    asked = {"worker": {"name": "bench", "slots": AT_ONCE}, "count": 1, "lease": 30_000}
    (run,) = _answer(await line.post("/api/v1/worker/claim", asked)).runs
    outcome = {"run": run.id, "token": run.token, "seq": run.seq, "kind": "succeed", "output": "null"}
    receipt = await line.post("/api/v1/worker/report", {"outcomes": [outcome]})
    if b'"succeeded"' not in receipt:
        raise RuntimeError(f"{run.id}: {receipt!r}")


def fill(path: Path, runs: int) -> None:
    """A store with runs that wait."""
    clock = SystemClock()
    store = BlockingSqlite(str(path), clock)
    engine = Engine(store, clock)
    run_sync(engine.define(JOB))
    for _ in range(0, runs, FILL):
        run_sync(engine.create([NewRun(JOB, {"n": n}) for n in range(FILL)]))
    run_sync(store.close())


@contextmanager
def served(*words: str, module: str = "bench.hub") -> Iterator[int]:
    """A server in a process of its own; the port it listens on."""
    command = [sys.executable, "-m", module, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.terminate()


def measure(figures: Figures, *, quick: bool) -> None:
    """All figures of the hub."""
    seconds = QUICK if quick else SECONDS
    echoes, pairs = [], []
    with TemporaryDirectory() as folder, served("echo") as bare:
        path = Path(folder) / "hub.db"
        with doing("filling a store"):
            fill(path, 40_000 if quick else 60_000)
        with served("hub", str(path)) as hub:
            for _ in range(ROUNDS):
                echoes.append(asyncio.run(per_second(bare, echo, seconds)))
                pairs.append(asyncio.run(per_second(hub, claim_and_report, seconds)))
                say(f"  {echoes[-1]:,.0f} echoes/s, {pairs[-1]:,.0f} pairs/s")
    figures.note("hub.echo.per_second", median(echoes))
    figures.note("hub.claim_report.per_second", median(pairs))
    figures.note("hub.claim_report.ratio", median(2 * pair / bare for pair, bare in zip(pairs, echoes, strict=True)), at_least=0.3)


# The servers


def serve_app(app: Any) -> None:
    """Serve on any port, which is printed."""
    from windlass.hub.serving import listening, serve

    sock = listening("127.0.0.1", 0)
    print(sock.getsockname()[1], flush=True)
    serve(app, sock)


def main() -> None:
    """Serve what is asked for until told to stop."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    from windlass.hub import Hub, HubApp, HubSettings

    if sys.argv[1] == "echo":

        async def back(request: Request) -> JSONResponse:
            return JSONResponse(await request.json())

        serve_app(Starlette(routes=[Route("/echo", back, methods=["POST"])]))
    else:
        from windlass.config.opening import open_store

        clock = SystemClock()
        serve_app(HubApp(Hub(Engine(open_store(sys.argv[2], clock, blocking=False), clock), clock, HubSettings(open=True))))


if __name__ == "__main__":
    main()
