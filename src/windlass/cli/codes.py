"""Exit codes, which scripts may rely on."""

from __future__ import annotations

from windlass.errors import BadInput, NotFound, Pruned, StoreBusy, StoreUnreachable, Timeout, UnknownJob, WindlassError

OK = 0
FAILED = 1
USAGE = 2
NOT_FOUND = 3
CONFLICT = 4
UNREACHABLE = 5
TIMED_OUT = 124
INTERRUPTED = 130
BROKEN_PIPE = 141

MEANINGS = {
    OK: "done; with --wait or logs -f, the run succeeded",
    FAILED: "an error, the run that was waited for did not succeed, or doctor reports a problem",
    USAGE: "the command line, the payload or a setting cannot be read",
    NOT_FOUND: "there is no such run or job, or no longer",
    CONFLICT: "the state of the run does not allow it, another process was first, or a slot was lost",
    UNREACHABLE: "the store cannot be reached or is busy; later it may work",
    TIMED_OUT: "--timeout is over and the run has not ended, or no slot was free",
    INTERRUPTED: "interrupted by Ctrl-C",
    BROKEN_PIPE: "the reader of the output is gone",
}


def code_of(error: WindlassError) -> int:
    """The exit code of an error."""
    match error:
        case BadInput():
            return USAGE
        case NotFound() | Pruned() | UnknownJob():
            return NOT_FOUND
        case Timeout():
            return TIMED_OUT
        case StoreUnreachable() | StoreBusy():
            return UNREACHABLE
        case _:
            return CONFLICT if error.status == 409 else FAILED
