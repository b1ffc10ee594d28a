"""The process in which functions run: `python -m windlass.worker.child`, started by `processes.py` and no one else."""

from __future__ import annotations

import importlib
import logging
import os
import runpy
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from queue import SimpleQueue
from types import FrameType
from typing import Any

import msgspec

from windlass.errors import StoreUnreachable
from windlass.machine import Fail, Report
from windlass.model import Result
from windlass.worker.context import LOGGERS, Context, capture_logs
from windlass.worker.handlers import Handler, Place
from windlass.worker.launch import bind
from windlass.worker.outcomes import Stopped, failure_of
from windlass.worker.processes import CHUNK, Ask, Beat, Begin, Begun, Ended, Line, Lines, Order, Progress, Stop, Told, Word, encode, send
from windlass.worker.shortage import STATUS, Shortage, needed
from windlass.worker.works import attempt


class Child:
    """Works on what it is told, one after the other, until nobody talks to it any more."""

    def __init__(self, parent: socket.socket) -> None:
        self._parent, self._sending = parent, threading.Lock()
        self._orders: SimpleQueue[tuple[Begin, Context]] = SimpleQueue()
        self._asked: SimpleQueue[Future[list[Result]]] = SimpleQueue()
        self._context: Context | None = None
        self._interruptible = False

    # As the sink of what a handler says

    def line(self, text: str) -> None:
        self._say(Line(text))

    def progress(self, text: str) -> None:
        self._say(Progress(text))

    def beat(self) -> None:
        self._say(Beat())

    def results(self, after: str | None, count: int) -> Future[list[Result]]:
        answer: Future[list[Result]] = Future()
        with self._sending:  # they are answered in the order in which they are asked
            self._asked.put(answer)
            send(self._parent, Ask(after, count))
        return answer

    def _say(self, word: Word) -> None:
        with self._sending:
            send(self._parent, word)

    def serve(self) -> None:
        signal.signal(signal.SIGTERM, self._interrupt)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker, which then asks
        try:
            with needed("thread"):
                threading.Thread(target=self._listen, daemon=True).start()
        except Shortage:
            os._exit(STATUS)
        while True:
            order, context = self._orders.get()
            self._say(Begun())
            report = self._attempt(order, context)
            context.close()  # a thread it has left running must not speak for the next
            for stream in (sys.stdout, sys.stderr):
                with suppress(ValueError, OSError):  # the handler may have closed it
                    stream.flush()
            self._say(Ended(report.name, msgspec.Raw(encode(report))))

    def _attempt(self, order: Begin, context: Context) -> Report:
        try:
            sys.path[:] = order.path
            handler = _find(order.place)
        except BaseException as error:
            return Fail(error=failure_of(error))
        try:
            self._interruptible = True
            context.check()
            return attempt(handler, context)
        except Stopped as error:  # between the handler's end and the next line
            return Fail(error=failure_of(error))
        finally:
            self._interruptible = False

    def _listen(self) -> None:
        try:
            with suppress(OSError):  # the worker was killed with words of ours unread
                self._hear()
        finally:
            os.killpg(0, signal.SIGKILL)  # the worker is gone, and with it the right to work; what was started here goes too

    def _hear(self) -> None:
        lines, orders = Lines(), msgspec.json.Decoder(Order)
        while data := self._parent.recv(CHUNK):
            for line in lines.feed(data):
                match orders.decode(line):
                    case Begin() as order:
                        self._context = Context(order.call, self)
                        if order.stop is not None:
                            self._context.ask_to_stop(order.stop)
                        self._orders.put((order, self._context))
                    case Told(results, None):
                        self._asked.get().set_result(results)
                    case Told(_, problem):
                        self._asked.get().set_exception(StoreUnreachable(str(problem), hint="The run is tried again."))
                    case Stop(why):
                        if self._context is not None:
                            self._context.ask_to_stop(why)
                            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._context is None:
            os._exit(0)
        if self._interruptible:
            self._interruptible = False
            self._context.saw_stop = True
            raise Stopped(self._context.why or "a signal")


@cache
def _find(place: Place) -> Handler:
    """The handler of the job that is defined there."""
    found: Any = (
        importlib.import_module(place.module) if place.path is None else _Names(runpy.run_path(place.path, run_name="__windlass__"))
    )
    for name in place.name.split("."):
        found = getattr(found, name)
    handler: Handler = found.handler
    return handler


class _Names:
    def __init__(self, names: Mapping[str, Any]) -> None:
        self.__dict__.update(names)


def main() -> None:
    bind(int(sys.argv[2]), 0)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a file of its own kind only in tests
    capture_logs()
    logging.getLogger(LOGGERS).propagate = False  # what this process prints goes to the same log
    Child(socket.socket(fileno=int(sys.argv[1]))).serve()


if __name__ == "__main__":
    main()
