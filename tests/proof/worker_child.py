"""An app whose handlers keep the ledger, and a process that starts workers for it, to be killed, paused and stopped.

`serve` reads orders from its standard input, one JSON object a line: it forks for each worker, so that one costs a few milliseconds
instead of the start of an interpreter. Nothing is open before the fork, and no worker outlives the process that bore it. The app alone
is `tests.proof.worker_child:app`, for `windlass work`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import mmap
import os
import signal
import struct
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, cast

from tests.ledger import PAD, Ledger
from windlass import App, Context, Stopped
from windlass.clock import SystemClock
from windlass.engine import Outcome
from windlass.errors import WindlassError
from windlass.machine import Requeue
from windlass.model import Limits, Receipt
from windlass.worker import Port, Worker
from windlass.worker.launch import bind

# Variables: where the ledger is, which worker a handler belongs to, how many seconds a worker's store waits for its server, and where
# it is written by how much the clock was set and how long the machine slept.
LEDGER, WORKER, PATIENCE, TIMES = "TORTURE_LEDGER", "TORTURE_WORKER", "TORTURE_PATIENCE", "TORTURE_TIMES"
FOREVER = 3_600.0


@cache
def ledger() -> Ledger:
    """This process's hold on the ledger."""
    return Ledger(Path(os.environ[LEDGER]))


class Witness:
    """A worker's port, with what is reported (T), what of it is accepted (R), given back as it came (B) or answered else (N)."""

    def __init__(self, port: Port) -> None:
        self._port = port

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    async def report_many(self, outcomes: Sequence[Outcome]) -> list[Receipt | WindlassError]:
        for outcome in outcomes:
            ledger().write("T", outcome.run, outcome.report.token, outcome.report.name)
        answers = await self._port.report_many(outcomes)
        for outcome, answer in zip(outcomes, answers, strict=True):
            self._write(outcome, answer)
        return answers

    def _write(self, outcome: Outcome, answer: Receipt | WindlassError) -> None:
        if isinstance(outcome.report, Requeue) and not outcome.report.begun:
            ledger().write("B", outcome.run, outcome.report.token)
        elif isinstance(answer, Receipt) and not answer.repeated:
            ledger().write("R", outcome.run, outcome.report.token, answer.state)
        else:
            ledger().write("N", outcome.run, outcome.report.token, "repeated" if isinstance(answer, Receipt) else answer.code)


def make_impatient(engine: Any, seconds: float) -> None:
    """Let a store give up soon, so that whoever uses it must cope with a server that is away."""
    engine.records.store._patience = seconds


class Times:
    """By how much the clock of a machine, or of its server, was set, and for how long the machine slept, in milliseconds: for all."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 16)

    @property
    def both(self) -> tuple[int, int]:
        return struct.unpack("qq", self._map[:16])

    def write(self, was_set: int, slept: int) -> None:
        self._map[:16] = struct.pack("qq", was_set, slept)


class Disturbed(SystemClock):
    """A clock that is set and sleeps as the test says. Beside a server it is the server's that is set, which nobody is told of."""

    def __init__(self, times: Times) -> None:
        super().__init__()
        self._times, self._known = times, 0

    def wall(self) -> int:
        return super().wall() + sum(self._times.both)

    def monotonic(self) -> int:
        return super().monotonic() + self._times.both[1]

    def now(self) -> int:
        return super().now() - (0 if self._offset is None else self._times.both[0] - self._known)

    def align(self, server_now: int) -> None:
        super().align(server_now)
        self._known = self._times.both[0]


class WitnessedApp(App):
    """An app whose workers are watched, where there is a ledger."""

    @asynccontextmanager
    async def worker(self, **settings: Any) -> AsyncIterator[Worker]:
        os.environ[WORKER] = str(os.getpid())
        if TIMES in os.environ:
            self.clock = Disturbed(Times(os.environ[TIMES]))
        async with super().worker(**settings) as worker:
            if PATIENCE in os.environ:
                make_impatient(worker.runtime.port, float(os.environ[PATIENCE]))
            if LEDGER in os.environ:
                worker.runtime.port = cast(Port, Witness(worker.runtime.port))
            yield worker


SMALL = Limits(batch=64 * 1024)
"""So that what is large is larger than a set may be, wherever it comes."""
app = WitnessedApp(limits=SMALL)


def begin(context: Context) -> None:
    ledger().write("S", context.run, context.token, os.environ[WORKER])


def end(context: Context) -> str:
    """What every handler returns: who holds the result can be seen from it."""
    ledger().write("X", context.run, context.token)
    return context.token


def told(context: Context) -> None:
    ledger().write("Z", context.run, context.token, context.why)


@app.job(name="coroutine", max_attempts=1_000, backoff=[0.02])
async def coroutine(context: Context, seconds: float) -> str:
    begin(context)
    await asyncio.sleep(seconds)
    return end(context)


@app.job(name="large", max_attempts=1_000, backoff=[0.02])
async def large(context: Context, seconds: float, text: str) -> str:
    """As `coroutine`, with much to carry there and back."""
    begin(context)
    await asyncio.sleep(seconds)
    return end(context) + PAD * 900_000


@app.job(name="thread", max_attempts=1_000, backoff=[0.02])
def thread(context: Context, seconds: float) -> str:
    begin(context)
    context.pause(seconds)
    return end(context)


@app.job(name="process", kind="process", max_attempts=1_000, backoff=[0.02])
def process(context: Context, seconds: float) -> str:
    begin(context)
    context.pause(seconds)
    return end(context)


WRITE = 'echo "$1 $WINDLASS_RUN_ID $WINDLASS_TOKEN $TORTURE_WORKER" >> "$TORTURE_LEDGER"'
SCRIPT = f"""
write() {{ {WRITE}; }}
write S; sleep "$1" & wait $!; write X
printf '"%s"' "$WINDLASS_TOKEN"
"""
app.command("command", ["/bin/sh", "-c", SCRIPT, "sh", "0.01"], max_attempts=1_000, backoff=[0.02])
app.command("long command", ["/bin/sh", "-c", SCRIPT, "sh", "1"], max_attempts=1_000, backoff=[0.02])


@app.job(name="stubborn", max_attempts=1_000, backoff=[0.02])
def stubborn(context: Context, seconds: float) -> str:
    """Does not stop when asked to; left alone it ends."""
    begin(context)
    if context.attempt == 1:
        asyncio.run(SystemClock().sleep(seconds))
    return end(context)


@app.job(name="blocking coroutine", max_attempts=1_000, backoff=[0.02])
async def blocking_coroutine(context: Context, seconds: float) -> str:
    """Nothing else on its loop goes on meanwhile."""
    begin(context)
    threading.Event().wait(seconds)
    return end(context)


# Handlers of a worker that will be paused: the first attempt waits for what comes, the next one works for as long as that takes.


AGAIN = 0.3


@app.job(name="waiting coroutine", backoff=[0.02], max_attempts=1_000)
async def waiting_coroutine(context: Context) -> str:
    begin(context)
    try:
        await asyncio.sleep(FOREVER if context.attempt == 1 else AGAIN)
    except asyncio.CancelledError:
        told(context)
        raise
    return end(context)


@app.job(name="waiting thread", backoff=[0.02], max_attempts=1_000)
def waiting_thread(context: Context) -> str:
    begin(context)
    wait_to_be_told(context)
    return end(context)


@app.job(name="waiting process", kind="process", backoff=[0.02], max_attempts=1_000)
def waiting_process(context: Context) -> str:
    begin(context)
    wait_to_be_told(context)
    return end(context)


def wait_to_be_told(context: Context) -> None:
    try:
        context.pause(FOREVER if context.attempt == 1 else AGAIN)
    except Stopped:
        told(context)
        raise


@app.job(name="blind coroutine", backoff=[0.02], max_attempts=1_000)
async def blind_coroutine(context: Context, seconds: float) -> str:
    """Ends by itself, while its worker is paused or right after."""
    begin(context)
    await asyncio.sleep(seconds if context.attempt == 1 else AGAIN)
    return end(context)


@app.job(name="blind thread", backoff=[0.02], max_attempts=1_000)
def blind_thread(context: Context, seconds: float) -> str:
    """The same, and it never looks whether it should stop."""
    begin(context)
    asyncio.run(SystemClock().sleep(seconds if context.attempt == 1 else AGAIN))
    return end(context)


# Handlers of a worker that is measured


@app.job(name="nothing")
async def nothing(payload: str) -> None:
    """The least that a handler can be."""


@app.job(name="vitals")
async def vitals() -> dict[str, int]:
    """What this process holds now."""
    gc.collect()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {
        "rss_kb": int(status["VmRSS"].split()[0]),
        "threads": int(status["Threads"]),
        "tasks": len(asyncio.all_tasks()),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "children": len(children),
    }


# The process that starts workers


def serve() -> None:
    """Do what is asked for, until nobody asks any more; then nothing is left."""
    living: set[int] = set()
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "start":
            living.add(pid := _start(order))
            _answer(pid)
        else:
            status = os.waitpid(order["pid"], 0)[1]
            living.discard(order["pid"])
            _answer(os.waitstatus_to_exitcode(status))
    for pid in living:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _answer(number: int) -> None:
    print(number, flush=True)


def _start(order: dict[str, Any]) -> int:
    server = os.getpid()
    if pid := os.fork():
        return pid
    code = 1
    try:
        bind(0, server)
        os.environ.update(order["environment"])
        _speak_into(order["log"])
        app.work(**order["settings"])
        code = 0
    except BaseException:
        logging.getLogger("tests").exception("A worker ended with an error.")
    finally:
        logging.shutdown()
        os._exit(code)


def _speak_into(path: str) -> None:
    log = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, nothing), (1, log), (2, log)):
        os.dup2(source, target)
    logging.basicConfig(level="WARNING", format="%(asctime)s %(process)d %(levelname)s %(message)s", force=True)
