"""Programs that belong to runs: fetched, verified, cached, and executed as `FILE --params JSON`.

What is executed is what was hashed: the bytes go into a file in memory as they are hashed, which is then sealed, and that file is executed,
whatever becomes of the cache meanwhile.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import logging
import os
import re
import stat
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from windlass.egress import Egress
from windlass.errors import BadInput, EgressFailed, EgressRefused, EgressTooLarge, WindlassError
from windlass.machine import Fail, Report
from windlass.model import Failure, Solver
from windlass.worker.commands import PAYLOAD, TOKEN, CommandExecutor, Watchdog, plain_text
from windlass.worker.context import Call, Context, Sink
from windlass.worker.handlers import Handler
from windlass.worker.launch import CONFINES
from windlass.worker.outcomes import Stopped, failure_of
from windlass.worker.processes import CHUNK, Memory, Raw
from windlass.worker.shortage import needed

_LOG = logging.getLogger("windlass.worker")

MEMORY = 1_024  # MiB
PROCESSES = 16_384  # of the worker's user, all of which the kernel counts: high enough for ordinary programs, and stops a fork bomb
FILE_SIZE = 8_192  # MiB of one file
LARGEST = 256 * 2**20  # bytes of a program
ROOM = 4 * 2**30  # bytes of the cache
PATIENCE = 300.0  # seconds for a download
_IN_ARGUMENTS = 100_000  # bytes; the kernel takes 128 KiB in one argument or variable
_HEAD = 500  # characters of standard error in the failure
_PATH = "/usr/local/bin:/usr/bin:/bin"
_CHECK_EVERY = 0.05  # seconds
_MFD_EXEC = 0x10  # asked for since Linux 6.3, unknown before
_is_checksum = re.compile(r"[0-9a-f]{64}").fullmatch
_ALLOWED_BY = {"plain_http": "solver_plain_http", "only": "solver_hosts", "allow": "solver_allow"}
PART = ".part"  # the suffix of a file for a program that is being fetched


class Mismatch(Exception):
    """The program does not have the checksum that the run names."""


class Unchecked(Exception):
    """The run names no checksum, and this worker executes only programs that have one."""

    def __init__(self) -> None:
        super().__init__(
            "The run names a program without its SHA-256, which this worker does not execute. "
            "Name its checksum, or set solver_unchecked = true where any program at that address may be executed."
        )


class Image:
    """A program on its way to execution: hashed as it is written, then closed to every change."""

    def __init__(self, folder: str) -> None:
        fd = _in_memory()
        self._sealable = fd is not None
        self.path = os.path.join(folder, "solver") if fd is None else f"/proc/self/fd/{fd}"  # where a script's interpreter finds it too
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o500) if fd is None else fd
        self.size, self._hash = 0, hashlib.sha256()

    def write(self, data: bytes) -> None:
        self._hash.update(data)
        self.size += len(data)
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self.fd, rest) :]

    def clear(self) -> None:
        os.ftruncate(self.fd, 0)
        os.lseek(self.fd, 0, os.SEEK_SET)
        self.size, self._hash = 0, hashlib.sha256()

    @property
    def checksum(self) -> str:
        return self._hash.hexdigest()

    def chunks(self) -> Iterator[bytes]:
        """The bytes as they are now."""
        for place in range(0, self.size, CHUNK):
            yield os.pread(self.fd, CHUNK, place)

    def seal(self) -> tuple[int, ...]:
        """Prevent every further change, also by this process; the descriptors that its execution needs."""
        if self._sealable:
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
        again = hashlib.sha256()  # until it was sealed, another process of the same user could write to it, by /proc
        for chunk in self.chunks():
            again.update(chunk)
        if again.digest() != self._hash.digest() or os.fstat(self.fd).st_size != self.size:
            raise Mismatch("The program was changed while it was written.")
        if self._sealable:
            return (self.fd,)
        self.close()  # a file that is open for writing cannot be executed
        return ()

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _in_memory() -> int | None:
    """A file in memory that can be sealed and executed; None where the system has none."""
    if not hasattr(os, "memfd_create"):
        return None
    for flags in (os.MFD_ALLOW_SEALING | _MFD_EXEC, os.MFD_ALLOW_SEALING):
        with suppress(OSError):
            return os.memfd_create("solver", flags | os.MFD_CLOEXEC)
    return None


class Solvers:
    """Provides programs that are verified by their checksum. Any number of workers may share its cache.

    With `unchecked`, a program without a checksum is fetched for every attempt, and never taken from the cache or put there. With `raw`,
    the result is standard output as it is: a text with its last line break, and without a meaning of its lines.
    """

    def __init__(
        self,
        egress: Egress | None = None,
        *,
        cache: str | os.PathLike[str] | None = None,
        memory: int = MEMORY,
        processes: int = PROCESSES,
        file_size: int = FILE_SIZE,
        largest: int = LARGEST,
        room: int = ROOM,
        patience: float = PATIENCE,
        unchecked: bool = False,
        raw: bool = False,
    ) -> None:
        self._egress = egress or Egress()
        self._cache = Path(cache or _default_cache())
        self.memory, self.processes, self.file_size = memory, processes, file_size
        self._largest, self._room, self._patience, self._unchecked, self.raw = largest, room, patience, unchecked, raw
        if not CONFINES:
            _warn_once()
        with self._folder() as folder:  # so that a folder that cannot be used is an error at the start
            self._make_room(folder)

    def fill(self, image: Image, solver: Solver, stop: threading.Event) -> None:
        """Write the program into an image, from the cache or from where it is; Mismatch when its checksum is not the run's."""
        if solver.checksum is None and not self._unchecked:
            raise Unchecked
        self._egress.check(solver.url)  # also for a program in the cache: the allowed hosts may have changed
        if solver.checksum is None:
            self._download(solver.url, image, stop)
        else:
            self._fill_checked(image, solver.url, solver.checksum.lower(), stop)

    def _fill_checked(self, image: Image, url: str, checksum: str, stop: threading.Event) -> None:
        if not _is_checksum(checksum):
            raise Mismatch("The run names no SHA-256.")
        with self._folder() as folder:
            if self._cached(folder, checksum, image):
                return
            with _locked(folder, checksum, stop):
                if self._cached(folder, checksum, image):  # by the process that had the lock
                    return
                self._download(url, image, stop)
                if image.checksum != checksum:
                    raise Mismatch(f"The program's SHA-256 is {image.checksum}, not {checksum}.")
                try:
                    self._keep(folder, checksum, image)
                except OSError as error:
                    _LOG.warning("The solver %s cannot be cached: %s.", checksum, error.strerror)

    @contextmanager
    def _folder(self) -> Iterator[int]:
        """The cache's folder, opened; it must belong to the worker's user alone."""
        try:
            self._cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder = os.open(self._cache, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError as error:
            raise BadInput(f"The folder {self._cache} cannot be used: {error.strerror}.", hint="Name another cache for solvers.") from None
        try:
            about = os.fstat(folder)
            if about.st_uid != os.geteuid() or about.st_mode & 0o077:
                raise BadInput(
                    f"The folder {self._cache} is open to others.",
                    hint="Give it to the worker's user and chmod 700, or name another cache for solvers.",
                )
            yield folder
        finally:
            os.close(folder)

    def _cached(self, folder: int, checksum: str, image: Image) -> bool:
        """Copy the program from the cache; whether it was there. A file with another checksum is removed."""
        with suppress(OSError), _opened(folder, checksum) as fd:
            while image.size <= self._largest and (data := os.read(fd, CHUNK)):
                image.write(data)
            if image.checksum == checksum:
                os.utime(fd)  # the least recently used are removed first
                return True
            os.unlink(checksum, dir_fd=folder)
        image.clear()
        return False

    def _download(self, url: str, image: Image, stop: threading.Event) -> None:
        async def fetch() -> None:
            download = asyncio.create_task(self._egress.fetch(url, timeout=self._patience, limit=self._largest, sink=image.write))
            while not (await asyncio.wait({download}, timeout=_CHECK_EVERY))[0]:
                if stop.is_set():
                    download.cancel()
                    await asyncio.wait({download})
                    raise Stopped("The download was stopped.")
            if (answer := download.result()).status != 200:
                raise EgressFailed(f"HTTP {answer.status}", hint="Try again later.")

        asyncio.run(fetch())

    def _keep(self, folder: int, checksum: str, image: Image) -> None:
        """Put a verified program into the cache, whole or not at all."""
        part = checksum + PART  # only the holder of the lock writes it
        with suppress(FileNotFoundError):
            os.unlink(part, dir_fd=folder)
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder), "wb") as file:
            file.writelines(image.chunks())
        os.replace(part, checksum, src_dir_fd=folder, dst_dir_fd=folder)
        self._make_room(folder)

    def _make_room(self, folder: int) -> None:
        """Remove the least recently used programs, and unfinished downloads of killed workers. A program that runs has its own copy."""
        with os.scandir(folder) as entries:
            files = list(entries)
        for entry in files:
            if entry.name.endswith(PART) and _is_checksum(checksum := entry.name.removesuffix(PART)):
                with suppress(OSError, Stopped), _locked(folder, checksum, None):  # else it is being fetched
                    os.unlink(entry.name, dir_fd=folder)
        kept = [(about.st_mtime, entry.name, about.st_size) for entry in files if (about := _about(entry)) is not None]
        room = self._room
        for _, name, size in sorted(kept, reverse=True):
            room -= size
            if room < 0:
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)


@cache
def _warn_once() -> None:
    _LOG.warning("This system has no no_new_privs: the program of a run can gain rights by setuid programs.")


def _about(entry: os.DirEntry[str]) -> os.stat_result | None:
    with suppress(OSError):
        return entry.stat(follow_symlinks=False) if _is_checksum(entry.name) else None
    return None


def _default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "windlass" / "solvers"


@contextmanager
def _opened(folder: int, name: str) -> Iterator[int]:
    """A plain file of the cache; OSError for links, pipes and all else."""
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(f"{name} is not a file")
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _locked(folder: int, checksum: str, stop: threading.Event | None) -> Iterator[None]:
    """Hold the lock of one program in the cache, for all processes, or raise Stopped; the system frees it when its holder dies."""
    name = f"{checksum}.lock"
    fd = _held(folder, name, stop)
    try:
        yield
    finally:
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)  # while it is held: a process that waits for it finds it unlinked, and opens a new one
        os.close(fd)


def _held(folder: int, name: str, stop: threading.Event | None) -> int:
    while True:
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=folder)
        try:
            while not _lock(fd):
                if stop is None or stop.wait(_CHECK_EVERY):
                    raise Stopped("The download was stopped.")
            if os.fstat(fd).st_nlink:
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _lock(fd: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


class SolverExecutor:
    """A run's own program: fetched and verified, then executed as a command in an empty folder of its own."""

    def __init__(self, solvers: Solvers, solver: Solver, context: Context, call: Call, sink: Sink, watchdog: Watchdog) -> None:
        self.solvers, self.solver, self.context, self.call, self.sink, self.watchdog = solvers, solver, context, call, sink, watchdog
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._program: _Program | None = None

    def run(self) -> Report:
        with TemporaryDirectory(prefix="windlass-solver-", ignore_cleanup_errors=True) as folder, ExitStack() as stack:
            image = Image(folder)
            stack.callback(image.close)
            try:
                with needed("thread"):  # for the download
                    self.solvers.fill(image, self.solver, self._stop)
                program = self._prepared(image, folder)
            except (Mismatch, Unchecked, Stopped, WindlassError) as error:
                return _not_run(error)
            return program.run()

    def _prepared(self, image: Image, folder: str) -> _Program:
        inside = os.path.join(folder, "work")
        os.mkdir(inside, 0o700)
        program = _Program(self, image, inside)
        with self._lock:
            if self._stop.is_set():
                raise Stopped("It was asked to stop before its program began.")
            self._program = program
        return program

    def ask_to_stop(self, why: str) -> None:
        self.context.ask_to_stop(why)
        with self._lock:
            self._stop.set()
            program = self._program
        if program is not None:
            program.ask_to_stop(why)

    def kill(self) -> bool:
        with self._lock:
            self._stop.set()
            program = self._program
        return True if program is None else program.kill()


def _not_run(error: BaseException) -> Report:
    """The report for a program that was not executed."""
    match error:
        case Unchecked():
            return Fail(error=Failure(code="solver_unchecked", message=f"solver_unchecked: {error}"), retry=False)
        case Mismatch():
            return Fail(error=Failure(code="solver_checksum_mismatch", message=f"solver_checksum_mismatch: {error}"), retry=False)
        case EgressRefused():
            setting = f" The setting is {_ALLOWED_BY[error.allowed_by]}." if error.allowed_by else ""
            return Fail(error=Failure(code=error.code, message=f"download refused: {error}{setting}"), retry=False)
        case EgressTooLarge():
            return Fail(error=Failure(code=error.code, message=f"download refused: {error}"), retry=False)
        case EgressFailed():
            return Fail(error=Failure(code=error.code, message=f"download failed: {error.message}"))
        case _:
            return Fail(error=failure_of(error))


class _Program(CommandExecutor):
    """A verified program, executed as a command."""

    def __init__(self, executor: SolverExecutor, image: Image, folder: str) -> None:
        long = len(executor.call.payload.encode()) > _IN_ARGUMENTS
        argv = (image.path, "--params", "-" if long else PAYLOAD)
        handler = Handler(executor.call.job, "command", argv=argv, cwd=folder, memory=executor.solvers.memory)
        super().__init__(handler, executor.context, executor.call, executor.sink, executor.watchdog, descriptors=image.seal())
        self._confined = f"{executor.solvers.processes}:{executor.solvers.file_size}"
        self._variables = {} if long else {"JOB_PARAMS": executor.call.payload}
        self._head, self._raw = "", executor.solvers.raw
        if self._raw:
            self._separator, self._readers["stdout"] = b"", Raw()

    def _in_arguments(self) -> bool:
        return False  # always on standard input as well

    def _environment(self) -> dict[str, str]:
        """Nothing of the worker's own, and not the token: it would allow the program to write as the worker."""
        home = {"PATH": _PATH, "HOME": self.handler.cwd or "", "TMPDIR": self.handler.cwd or "", "LANG": "C.UTF-8"}
        run = {name: value for name, value in self._run_variables().items() if name != TOKEN}
        return home | run | {"JOB_ID": self.call.run, "JOB_TYPE": self.call.job} | self._variables

    def _progress(self, line: bytes) -> bool:
        return not self._raw and super()._progress(line)

    def _result(self, output: bytes) -> Any:
        return plain_text(output) if self._raw else super()._result(output)

    def _read(self, name: str, lines: list[bytes]) -> None:
        if name == "stderr" and len(self._head) < _HEAD:
            self._head += "".join(f"{line.decode('utf-8', 'replace')}\n" for line in lines)
        super()._read(name, lines)

    def _report(self, returncode: int, memory: Memory) -> Report:
        report = super()._report(returncode, memory)
        if not isinstance(report, Fail) or report.error.code != "exited":
            return report
        head = self._head[:_HEAD].strip()
        return Fail(error=Failure(code="solver_failed", message=f"exit code {returncode}: {head}", detail=report.error.detail))
