"""Messages between a worker and the processes of its pool: lines of JSON over a socket."""

from __future__ import annotations

import socket

import msgspec

from windlass.api.problems import Problem
from windlass.machine import Fail, Refuse, Report, Skip, Snooze, Succeed
from windlass.model import Result, Step
from windlass.worker.context import Call
from windlass.worker.handlers import Place

REPORTS: dict[str, type[Report]] = {kind.name: kind for kind in (Succeed, Fail, Snooze, Skip, Refuse)}


class BeginRequest(msgspec.Struct, frozen=True, tag="begin"):
    """To the process: execute this attempt."""

    place: Place
    call: Call
    path: list[str]
    stop: str | None = None  # the reason, if it was asked to stop before it began


class StopRequest(msgspec.Struct, frozen=True, tag="stop"):
    """To the process: stop the attempt."""

    why: str


class ResultsReply(msgspec.Struct, frozen=True, tag="results"):
    """To the process: the answer to a `ResultsRequest`. Requests are answered in their order."""

    results: list[Result]


class StepsReply(msgspec.Struct, frozen=True, tag="steps"):
    """To the process: the answer to a `StepsRequest`."""

    steps: list[Step]


class StepReply(msgspec.Struct, frozen=True, tag="step"):
    """To the process: the answer to a `StoreStepRequest`."""

    step: Step


class RefusedReply(msgspec.Struct, frozen=True, tag="refused"):
    """To the process: why a request has no other answer."""

    problem: Problem


class BegunEvent(msgspec.Struct, frozen=True, tag="begun"):
    """From the process: the attempt begins."""


class LogEvent(msgspec.Struct, frozen=True, tag="line"):
    """From the process: a line for the run's log."""

    text: str


class ProgressEvent(msgspec.Struct, frozen=True, tag="progress"):
    """From the process: the progress of the attempt."""

    text: str


class BeatRequest(msgspec.Struct, frozen=True, tag="beat"):
    """From the process: renew the lease now."""


class ResultsRequest(msgspec.Struct, frozen=True, tag="get_results"):
    """From the process: a page of the results of the runs before this one."""

    after: str | None
    count: int


class StepsRequest(msgspec.Struct, frozen=True, tag="get_steps"):
    """From the process: a page of the completed steps of the run."""

    after: int
    count: int


class StoreStepRequest(msgspec.Struct, frozen=True, tag="store_step"):
    """From the process: store the result of a step."""

    key: str
    output: str


class EndedEvent(msgspec.Struct, frozen=True, tag="ended"):
    """From the process: how the attempt ended."""

    name: str
    report: msgspec.Raw


Request = ResultsRequest | StepsRequest | StoreStepRequest
Reply = ResultsReply | StepsReply | StepReply | RefusedReply
ToProcess = BeginRequest | StopRequest | Reply
FromProcess = BegunEvent | LogEvent | ProgressEvent | BeatRequest | Request | EndedEvent

encode = msgspec.json.Encoder().encode


def send(to: socket.socket, message: ToProcess | FromProcess) -> None:
    """Send one message."""
    to.sendall(encode(message) + b"\n")
