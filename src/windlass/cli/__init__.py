"""The command `windlass`: every command decodes its arguments, calls the engine, and prints the answer."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import sys
import threading
import traceback
from collections.abc import Sequence

from windlass.cli.codes import BROKEN_PIPE, FAILED, INTERRUPTED, code_of
from windlass.cli.output import Output, clean
from windlass.cli.parser import make_parser
from windlass.cli.shell import Shell
from windlass.errors import WindlassError


def main(argv: Sequence[str] | None = None) -> int:
    """Do one command; its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        arguments = _parsed(words)
    except SystemExit as asked:  # argparse has said all there is to say
        return asked.code if isinstance(asked.code, int) else FAILED
    arguments.words = words
    try:
        code = _run(arguments)
    except BrokenPipeError:
        _forget_output()
        code = BROKEN_PIPE
    if argv is None:
        _leave_threads_behind(code)
    return code


def _leave_threads_behind(code: int) -> None:
    """Python waits at its end for every thread in a pool, also for one that a handler has left hanging: then end without it."""
    if any(thread is not threading.main_thread() and not thread.daemon for thread in threading.enumerate()):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    parser = make_parser()
    before = words[: words.index("--")] if "--" in words else words
    arguments, rest = parser.parse_known_args(before if "slot" in before else words)
    if arguments.command == "slot":
        arguments.argv += words[len(before) + 1 :]  # as they are; argparse would take dashes out
    elif "slot" in before:
        arguments, rest = parser.parse_known_args(words)
    if rest and getattr(arguments, "payload", None) is not None and not any(word.startswith("-") for word in rest if word != "-"):
        arguments.payload += rest  # argparse stops taking them at the first option
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return arguments


def _run(arguments: argparse.Namespace) -> int:
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")  # a narrow encoding must not end a command half way
    output = Output(json=getattr(arguments, "json", False))
    try:
        code: int = arguments.run(Shell(arguments, output))
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
        sys.stderr.write(clean(traceback.format_exc()))


def _forget_output() -> None:
    """Let the interpreter end without a second complaint about the same pipe."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


__all__ = ["main"]
