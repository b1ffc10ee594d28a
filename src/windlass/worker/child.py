"""The process in which functions run: `python -m windlass.worker.child`, started by `process_pool.py` only."""

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

from windlass.api.problems import error_of
from windlass.machine import Fail, Report
from windlass.model import Result, Step
from windlass.payload import reader
from windlass.worker.context import LOGGERS, Context, capture_logs
from windlass.worker.executors import attempt
from windlass.worker.handlers import Handler, Place
from windlass.worker.launch import bind
from windlass.worker.messages import (
    BeatRequest,
    BeginRequest,
    BegunEvent,
    EndedEvent,
    FromProcess,
    LogEvent,
    ProgressEvent,
    RefusedReply,
    Request,
    ResultsReply,
    ResultsRequest,
    StepReply,
    StepsReply,
    StepsRequest,
    StopRequest,
    StoreStepRequest,
    ToProcess,
    encode,
    send,
)
from windlass.worker.outcomes import Stopped, failure_of
from windlass.worker.processes import CHUNK, Lines
from windlass.worker.shortage import STATUS, Shortage, needed


class HandlerProcess:
    """Executes attempts, one after the other, until its worker closes the socket."""

    def __init__(self, parent: socket.socket) -> None:
        self._parent, self._sending = parent, threading.Lock()
        self._requests: SimpleQueue[tuple[BeginRequest, Context]] = SimpleQueue()
        self._replies: SimpleQueue[Future[Any]] = SimpleQueue()
        self._context: Context | None = None
        self._interruptible = False

    # As the sink of a handler's output

    def line(self, text: str) -> None:
        self._send(LogEvent(text))

    def progress(self, text: str) -> None:
        self._send(ProgressEvent(text))

    def beat(self) -> None:
        self._send(BeatRequest())

    def results(self, after: str | None, count: int) -> Future[list[Result]]:
        return self._request(ResultsRequest(after, count))

    def steps(self, after: int, count: int) -> Future[list[Step]]:
        return self._request(StepsRequest(after, count))

    def store_step(self, key: str, output: str) -> Future[Step]:
        return self._request(StoreStepRequest(key, output))

    def _request(self, request: Request) -> Future[Any]:
        reply: Future[Any] = Future()
        with self._sending:  # replies come in the order of the requests
            self._replies.put(reply)
            send(self._parent, request)
        return reply

    def _send(self, message: FromProcess) -> None:
        with self._sending:
            send(self._parent, message)

    def serve(self) -> None:
        signal.signal(signal.SIGTERM, self._interrupt)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker, which then sends a request to stop
        try:
            with needed("thread"):
                threading.Thread(target=self._listen, daemon=True).start()
        except Shortage:
            os._exit(STATUS)
        while True:
            request, context = self._requests.get()
            self._send(BegunEvent())
            report = self._attempt(request, context)
            context.close()  # a thread that it has left running must not write into the log of the next
            for stream in (sys.stdout, sys.stderr):
                with suppress(ValueError, OSError):  # the handler may have closed it
                    stream.flush()
            self._send(EndedEvent(report.name, msgspec.Raw(encode(report))))

    def _attempt(self, request: BeginRequest, context: Context) -> Report:
        try:
            sys.path[:] = request.path
            handler = _find(request.place)
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
            with suppress(OSError):  # the worker was killed before it had read all messages
                self._receive()
        finally:
            os.killpg(0, signal.SIGKILL)  # without its worker it must not go on, nor may what it has started

    def _receive(self) -> None:
        lines, read = Lines(), reader(ToProcess)
        while data := self._parent.recv(CHUNK):
            for line in lines.feed(data):
                match read(line):
                    case BeginRequest() as request:
                        self._context = Context(request.call, self)
                        if request.stop is not None:
                            self._context.ask_to_stop(request.stop)
                        self._requests.put((request, self._context))
                    case ResultsReply(answer) | StepsReply(answer) | StepReply(answer):
                        self._replies.get().set_result(answer)
                    case RefusedReply(problem):
                        self._replies.get().set_exception(error_of(problem))
                    case StopRequest(why):
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
    target: Any = (
        importlib.import_module(place.module) if place.path is None else _Names(runpy.run_path(place.path, run_name="__windlass__"))
    )
    for name in place.name.split("."):
        target = getattr(target, name)
    handler: Handler = target.handler
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
    HandlerProcess(socket.socket(fileno=int(sys.argv[1]))).serve()


if __name__ == "__main__":
    main()
