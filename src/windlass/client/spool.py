"""Reports that the hub has not accepted yet, on disk: they outlive the worker."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

from windlass.answers import Outcome
from windlass.api.port import ReportView, report_of, report_view
from windlass.errors import Conflict, StoreBusy, StoreError, WindlassError
from windlass.machine import Report
from windlass.model import Limits, Receipt
from windlass.payload import reader

_LOG = logging.getLogger("windlass.worker")

LIMIT = 256 * 1024 * 1024
"""Maximum bytes of one file. Reports beyond it stay in memory only, which is logged."""
SUFFIX = ".reports"
SLICE = Limits().report


def default_folder() -> Path:
    """The folder for persistent state of this user's programs."""
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state", "windlass", "reports").expanduser()


class _Reports(Protocol):
    async def report_many(self, outcomes: Sequence[Outcome]) -> list[Receipt | WindlassError]: ...


class Spool:
    """A file of reports of one worker, one line each, next to those of workers that have ended."""

    def __init__(self, folder: Path, hub: str, worker: str, nonce: str, *, limit: int = LIMIT) -> None:
        name = re.sub(r"[^A-Za-z0-9.-]", "_", worker)[:64]
        self._folder = folder / blake2b(hub.encode(), digest_size=8).hexdigest()  # a report is useless to another hub
        self._path, self._limit = self._folder / f"{name}.{nonce}{SUFFIX}", limit
        self._file: int | None = None
        self._kept: dict[tuple[str, str | None], Report] = {}  # the newest report in the file for each hold that is not answered yet

    def keep(self, outcomes: Iterable[Outcome]) -> None:
        """Write the reports that are not in the file yet; when this returns, they are on disk, or the log has the reason.

        A new report for the same hold replaces the previous one, which was refused and will never be accepted.
        """
        new = [outcome for outcome in outcomes if self._kept.get(_name(outcome)) != outcome.report]
        if not new:
            return
        try:
            self._append(b"".join(msgspec.json.encode(report_view(outcome)) + b"\n" for outcome in new))
        except OSError as error:
            _LOG.error("%d reports could not be kept on disk, and would be lost with this process: %s", len(new), error)
        else:
            self._kept.update((_name(outcome), outcome.report) for outcome in new)

    def drop(self, outcomes: Iterable[Outcome]) -> None:
        """Drop reports that were answered. The file is emptied when all its reports are; sending one again is harmless."""
        if not self._kept:
            return
        for outcome in outcomes:
            self._kept.pop(_name(outcome), None)
        if not self._kept and self._file is not None:
            os.ftruncate(self._file, 0)

    async def deliver(self, port: _Reports) -> None:
        """Send the reports of workers that have ended; called again after an error, it continues where it stopped."""
        for path in await asyncio.to_thread(lambda: sorted(self._folder.glob(f"*{SUFFIX}"))):
            with _locked(path) as file:
                if file is None or path == self._path:
                    continue
                reports = _read(file, path)
                while outcomes := await asyncio.to_thread(lambda: list(islice(reports, SLICE))):  # noqa: B023 - it is awaited here
                    await _send(port, outcomes)
                path.unlink()

    def close(self) -> None:
        """Keep the file if there are reports in it."""
        if self._file is None:
            return
        if not self._kept:
            self._path.unlink(missing_ok=True)
        os.close(self._file)
        self._file = None

    def _append(self, lines: bytes) -> None:
        if self._file is None:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = self._opened()
            _sync_folder(self._folder)
        size = os.fstat(self._file).st_size
        if size + len(lines) > self._limit:
            raise OSError(f"{self._path} would be larger than {self._limit:,} bytes")
        try:
            _write_all(self._file, lines)
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, size)
            raise

    def _opened(self) -> int:
        """The file, locked: a process that can lock it knows that this one has ended, and may just have removed it."""
        while True:
            file = os.open(self._path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file).st_nlink:
                return file
            os.close(file)


def _name(outcome: Outcome) -> tuple[str, str | None]:
    return outcome.run, outcome.report.token


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _locked(path: Path) -> Iterator[BinaryIO | None]:
    """A file, if the worker that wrote it has ended and no other process reads it."""
    try:
        file = path.open("rb")
    except FileNotFoundError:  # another worker was first
        yield None
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield None
            return
        yield file if path.exists() else None


def _read(file: BinaryIO, path: Path) -> Iterator[Outcome]:
    """The reports in a file; the newest of several for one hold."""
    newest = {_name(outcome): number for number, outcome in _lines(file) if isinstance(outcome, Outcome)}
    for number, outcome in _lines(file):
        if not isinstance(outcome, Outcome):
            _LOG.error("Line %d of %s cannot be read and is skipped: %s", number, path, outcome)
        elif newest[_name(outcome)] == number:
            yield outcome


def _lines(file: BinaryIO) -> Iterator[tuple[int, Outcome | Exception]]:
    file.seek(0)
    for number, line in enumerate(file, 1):
        try:
            yield number, report_of(reader(ReportView)(line))
        except (msgspec.DecodeError, WindlassError) as error:
            yield number, error


async def _send(port: _Reports, outcomes: Sequence[Outcome]) -> None:
    for outcome, answer in zip(outcomes, await port.report_many(outcomes), strict=True):
        if isinstance(answer, StoreError):
            raise answer
        if isinstance(answer, Conflict):  # other reports were first each time: it is still unanswered
            raise StoreBusy(answer.message, hint=answer.hint)
        if isinstance(answer, WindlassError):
            _LOG.warning("The report of run %s came too late and is dropped: %s", outcome.run, answer.message)
        else:
            _LOG.info("The report of run %s was sent late: %s.", outcome.run, answer.state)
