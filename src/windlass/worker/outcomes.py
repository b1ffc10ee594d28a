"""How an attempt ends: a handler returns, or raises, also `Snooze`, `Skip` or `Fail`; each becomes one report."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from windlass import payload as json
from windlass.errors import WindlassError
from windlass.machine import Fail as FailReport
from windlass.machine import Report, Succeed
from windlass.machine import Skip as SkipReport
from windlass.machine import Snooze as SnoozeReport
from windlass.model import Failure, Limits

_OUTPUT = Limits().output
_DETAIL = 6_000
_REASON = 1_000
LONGEST = Limits().duration // 1000  # seconds

Encode = Callable[[Any], Any]
Backoff = Callable[[int, BaseException], float]


class Snooze(Exception):
    """Raise or return it to be called again after so many seconds. It does not count as a failure."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"Snoozed for {seconds} s.")
        self.seconds = seconds


class Skip(Exception):
    """Raise or return it to end the run as skipped, for this reason: nothing is left to do. It is not retried and has no result."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Fail(Exception):
    """Raise or return it to end the attempt badly on purpose; `retry=False` ends the run, `delay` sets the seconds until the next try."""

    def __init__(self, message: str, *, retry: bool = True, delay: float | None = None, code: str = "failed") -> None:
        super().__init__(message)
        self.retry, self.delay, self.code = retry, delay, code


class Stopped(BaseException):
    """Raised in a handler that runs in a process of its own when it is asked to stop."""


class BadOutput(Exception):
    """The handler returned something that does not fit its job, or cannot be stored."""


class OutOfMemory(Exception):
    """The handler needed more memory than its job allows."""


def milliseconds(seconds: Any) -> int | None:
    """A duration as it is stored; None for what is none, or longer than a store keeps."""
    return round(max(0, seconds) * 1000) if isinstance(seconds, int | float) and seconds <= LONGEST else None


def returned(value: Any, encode: Encode | None = None) -> Report:
    """The report for the value that a handler returned."""
    if isinstance(value, Snooze | Skip | Fail):
        return raised(value)
    try:
        output = value if encode is None else encode(value)
        return Succeed() if output is None else Succeed(output=json.encode(output, limit=_OUTPUT, what="The result"))
    except (WindlassError, msgspec.ValidationError, TypeError, ValueError) as error:
        return raised(BadOutput(f"The handler's result cannot be kept: {error}"))


def raised(error: BaseException, *, attempt: int = 1, backoff: Backoff | None = None) -> Report:
    """The report for the exception that a handler raised."""
    match error:
        case Snooze():
            return _snoozed(error)
        case Skip():
            return SkipReport(reason=_text(error)[:_REASON] or "skipped")
        case Fail():
            failure = Failure(code=_code(error.code), message=_text(error))
            return FailReport(error=failure, retry=error.retry, delay=_delay(error.delay, error, attempt, backoff))
        case _:
            return FailReport(error=failure_of(error), delay=_delay(None, error, attempt, backoff))


def _delay(seconds: float | None, error: BaseException, attempt: int, backoff: Backoff | None) -> int | None:
    """Milliseconds; None: the formula decides, also where the backoff fails, because that must not hide the error itself."""
    if seconds is None and backoff is not None:
        with suppress(Exception):
            seconds = backoff(attempt, error)
    return milliseconds(seconds)


def _snoozed(snooze: Snooze) -> Report:
    delay = milliseconds(snooze.seconds)
    if delay is None:
        return FailReport(error=Failure(code="bad_delay", message=f"Snooze({snooze.seconds!r:.40}) is not a number of seconds."))
    return SnoozeReport(delay=delay)


_CODES: dict[type[BaseException], str] = {MemoryError: "out_of_memory", OutOfMemory: "out_of_memory", BadOutput: "bad_output"}


def paced(report: Report, attempt: int, backoff: Backoff | None) -> Report:
    """The report of a process that died or a command that failed, with the delay of the job's own backoff."""
    if backoff is None or not isinstance(report, FailReport) or report.delay is not None:
        return report
    error = Fail(report.error.message, code=report.error.code)
    return replace(report, delay=_delay(None, error, attempt, backoff))


def failure_of(error: BaseException) -> Failure:
    """An exception as it is stored: its class, its text and its traceback."""
    code = _CODES.get(type(error)) or type(error).__qualname__[:128]
    return Failure(code=code, message=_text(error) or code, detail=_detail(error))


def _code(code: Any) -> str:
    """A code that can be stored."""
    return code if isinstance(code, str) and 0 < len(code) <= 128 and code.isprintable() else "failed"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "The error has no text: its __str__ raises."


def _detail(error: BaseException) -> str | None:
    if error.__traceback__ is None:
        return None
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:
        return None  # an exception that cannot be formatted must not prevent the report
    # The end of a traceback is where the error was raised.
    return text if len(text) <= _DETAIL else "...\n" + text[-_DETAIL:]
