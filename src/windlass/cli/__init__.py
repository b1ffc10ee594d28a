"""The command `windlass`: every command reads its arguments, calls the engine, and prints the answer."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from windlass.cli.codes import BROKEN_PIPE, FAILED, INTERRUPTED, code_of
from windlass.cli.parser import parse
from windlass.errors import BadInput, WindlassError

if TYPE_CHECKING:
    from windlass.cli.output import Output


def main(argv: Sequence[str] | None = None) -> int:
    """Execute one command; its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        arguments = parse(words)
    except SystemExit as end:  # argparse has printed help
        return end.code if isinstance(end.code, int) else FAILED
    except BadInput as error:
        _output(json="--json" in words).error(error)
        return code_of(error)
    try:
        code = _run(arguments)
    except BrokenPipeError:
        _discard_output()
        code = BROKEN_PIPE
    if argv is None:
        _leave_threads_behind(code)
    return code


def _leave_threads_behind(code: int) -> None:
    """Python waits at exit for every thread of a pool, and a handler may hang in one: then end the process without waiting."""
    if any(thread is not threading.main_thread() and not thread.daemon for thread in threading.enumerate()):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _output(*, json: bool) -> Output:
    from windlass.cli.output import Output  # here, because help needs no rich

    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")  # characters that the encoding does not have must not end a command halfway
    return Output(json=json)


def _run(arguments: argparse.Namespace) -> int:
    from windlass.cli.context import CommandContext

    output = _output(json=getattr(arguments, "json", False))
    try:
        with CommandContext(arguments, output) as context:
            code: int = arguments.run(context)
        sys.stdout.flush()
        return code
    except WindlassError as error:
        _trace()
        output.error(error)
        return code_of(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if _unread(error):
            raise BrokenPipeError from error
        _trace()
        hint = "This is a bug in windlass; please report it with the traceback that WINDLASS_DEBUG=1 shows."
        output.error(WindlassError(f"{type(error).__name__}: {error}.", hint=hint))
        return FAILED


def _unread(error: Exception) -> bool:
    """Whether the reader of the output is gone: a pipe was closed, or a terminal."""
    closed = isinstance(error, OSError) and error.errno == errno.EIO and not sys.stdout.isatty()
    return closed or isinstance(error, BrokenPipeError)


def _trace() -> None:
    if os.environ.get("WINDLASS_DEBUG"):
        import traceback

        from windlass.cli.output import clean

        sys.stderr.write(clean(traceback.format_exc()))


def _discard_output() -> None:
    """Let the interpreter end without a second error about the same pipe."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


__all__ = ["main"]
