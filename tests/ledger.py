"""The ledger: what was promised, written down outside the store by those who heard it, and compared with the store afterwards.

Each line is a letter and words: `E id` a creation was answered, `E id key` one with a key; `S id token` before the effect of a
handler, `X id token` after it; `R id token state` a report was answered; `C id` a cancel and `K id` a skip were answered;
`P id payload` a patch was answered; `L id token n` a log line was taken; `O id` from here on retention may remove it. Those lines are
written only after the answer, so whatever is in the ledger must be in the store; what is in the store but not in the ledger
happened while its caller died. Workers that are watched also write `S id token worker`, `T id token report` before a report is sent,
`N id token code` when the answer is another than `R`,
`B id token` when what was not begun is given back, which leaves no attempt, and `Z id token why` when a handler is told to stop.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.invariants import Snapshot
from windlass.errors import OutcomeUnknown, StoreBusy, StoreFull, StoreUnreachable
from windlass.machine import ENDED
from windlass.model import Run, State

PAD = "."  # behind the token in a result that is to be large; no token has it


class Line(NamedTuple):
    """One thing that somebody knows to have happened."""

    what: str
    run: str
    rest: tuple[str, ...] = ()


class Ledger:
    """Appends lines that are on disk before the next thing is done."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY | os.O_SYNC, 0o600)

    def write(self, what: str, run: str, *rest: object) -> None:
        os.write(self._file, f"{' '.join((what, run, *map(str, rest)))}\n".encode())

    def close(self) -> None:
        os.close(self._file)


def read(path: Path) -> list[Line]:
    """What has been written; nothing if nobody came so far."""
    words = [line.split(" ") for line in path.read_text().splitlines()] if path.exists() else []
    return [Line(what, run, tuple(rest)) for what, run, *rest in words]


class Tail:
    """Reads a ledger while it is written; every look sees all whole lines so far."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self.lines = path, 0, list[Line]()

    def look(self) -> list[Line]:
        """All that has been written."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._offset)
                whole, _, rest = file.read().rpartition(b"\n")
                self._offset = file.tell() - len(rest)
            self.lines += [Line(what, run, tuple(more)) for what, run, *more in map(str.split, whole.decode().splitlines())]
        return self.lines


def _of(lines: Iterable[Line], *letters: str) -> list[Line]:
    return [line for line in lines if line.what in letters]


def _tokens(run: Run, now: Snapshot) -> list[str]:
    """The tokens under which a run was held and closed, and the one it has now."""
    closed = [attempt.token or "" for attempt in now.attempts.get(run.seq, ())]
    return [*closed, *([run.token] if run.token else [])]


def lost(lines: Sequence[Line], now: Snapshot) -> set[str]:
    """Runs whose creation was answered and that have not ended, or are gone before their time."""
    removable = {line.run for line in _of(lines, "O")}
    kept = {run.id for run in now.runs.values() if run.state in ENDED}
    return {line.run for line in _of(lines, "E")} - kept - removable


def ended_twice(lines: Sequence[Line], now: Snapshot) -> set[str]:
    """Runs with more than one end in the journal, or with two answers that each speak of an end."""
    journal = {now.runs[seq].id for seq, entries in now.journal.items() if sum(entry.state in ENDED for entry in entries) > 1}
    answers = Counter(line.run for line in _of(lines, "R") if line.rest[1] in ENDED)
    return journal | {run for run, count in answers.items() if count > 1}


def stale_accepted(lines: Sequence[Line], now: Snapshot) -> set[str]:
    """Runs for which a report was accepted under a token that is not that of the attempt it ended."""
    runs = now.by_id()
    stale = set()
    for line in _of(lines, "R"):
        if line.run in runs:
            run, (token, state) = runs[line.run], line.rest
            fresh = token == run.token if state in ENDED else token in _tokens(run, now)
            stale |= set() if fresh else {line.run}
    return stale


def executed_without_attempt(lines: Sequence[Line], now: Snapshot) -> set[str]:
    """Runs whose handler was called under a token that no attempt has, or twice under the same."""
    runs, calls = now.by_id(), Counter((line.run, line.rest[0]) for line in _of(lines, "S"))
    unknown = {run for run, token in calls if run in runs and token not in _tokens(runs[run], now)}
    return unknown | {run for (run, _), count in calls.items() if count > 1}


def succeeded_without_effect(lines: Sequence[Line], now: Snapshot) -> set[str]:
    """Runs that ended well although no handler got to its end under their token."""
    effects = {(line.run, line.rest[0]) for line in _of(lines, "X")}
    return {run.id for run in now.runs.values() if run.state is State.SUCCEEDED and (run.id, run.token) not in effects}


def forgotten(lines: Sequence[Line], now: Snapshot) -> list[Line]:
    """Answers that are no longer true: of reports, cancels, skips, patches, log lines and steps."""
    runs = now.by_id()
    return [line for line in lines if line.run in runs and not _still_true(line, runs[line.run], now)]


def _still_true(line: Line, run: Run, now: Snapshot) -> bool:
    match line.what:
        case "R":
            return line.rest[1] == run.state if line.rest[1] in ENDED else line.rest[0] in _tokens(run, now)
        case "C":
            return run.state is State.CANCELLED
        case "K":
            return run.state is State.SKIPPED
        case "P":
            return run.payload == line.rest[0]
        case "L":
            return any(kept.run == run.seq and kept.n == int(line.rest[1]) for kept in now.lines)
        case "D":
            return tuple(line.rest) in {(step.key, step.output) for step in now.steps.get(run.seq, ())}
        case _:
            return True


def results_of_others(now: Snapshot) -> set[str]:
    """Runs that ended well with a result that was not made under their token, where every handler returns its token."""
    return {run.id for run in now.runs.values() if run.state is State.SUCCEEDED and (run.output or "")[1:-1].rstrip(PAD) != run.token}


def unfinished_executions(lines: Sequence[Line]) -> set[Line]:
    """Calls of handlers that never got to their end."""
    ends = {(line.run, line.rest[0]) for line in _of(lines, "X")}
    return {line for line in _of(lines, "S") if (line.run, line.rest[0]) not in ends}


TRANSIENT = {error.code for error in (StoreBusy, StoreFull, StoreUnreachable, OutcomeUnknown)}


def given_up(lines: Sequence[Line]) -> set[str]:
    """Runs whose worker got no other answer to its report than that the store was away, and did not ask again."""
    last = {(line.run, line.rest[0]): line.rest[1] for line in _of(lines, "T", "R", "N")}
    return {run for (run, _), answer in last.items() if answer in TRANSIENT}


def reruns(lines: Sequence[Line]) -> int:
    """How many calls of handlers there were beyond one for each run."""
    calls = _of(lines, "S")
    return len(calls) - len({line.run for line in calls})


def check(lines: Sequence[Line], now: Snapshot) -> None:
    """Nothing acknowledged is lost, nothing is done twice, nothing stale was accepted."""
    for wrong in (lost, ended_twice, stale_accepted, executed_without_attempt, succeeded_without_effect):
        assert not (found := wrong(lines, now)), f"{wrong.__name__}: {found}"
    assert not (broken := forgotten(lines, now)), f"forgotten: {broken}"
