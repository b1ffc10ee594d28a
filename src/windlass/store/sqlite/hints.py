"""Hints between processes on one file: datagrams to the sockets of those who wait, in a folder beside the file."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import select
import socket
import stat
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial

import msgspec

from windlass.clock import SystemClock
from windlass.store.base import LOOK_EVERY
from windlass.store.hints import ANYTHING, Board, Waiter

LONGEST_MESSAGE = 2_000  # bytes; what every system carries in one datagram
LONGEST_FOLDER = 80  # bytes of its path; systems allow 104 or 108 for the whole of a socket's
FULL = 10  # datagrams that a socket holds unread at least; those behind them may have been dropped
MOST_AT_ONCE = 256  # datagrams read before those who wait are told

_CLOCK = SystemClock()  # a timeout is real time, whatever clock the store has
_NUMBERS = itertools.count(1)
_topics: Callable[[bytes], Collection[str]] = msgspec.json.Decoder(set[str] | dict[str, list[str | int]]).decode


class Ear:
    """What a store hears with: a datagram socket that has a name in the folder."""

    def __init__(self, path: str, folder: str) -> None:
        owner = os.stat(path)
        # Whoever may write the database must be able to list the folder, to send, and to clear away what is stale.
        writers = stat.S_IMODE(owner.st_mode) & 0o222 | 0o200
        _make_folder(folder, writers | writers << 1 | writers >> 1, owner)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self.socket.setblocking(False)
            self.name = _bind(self.socket, folder)
            self.path = os.path.join(folder, self.name)
            _own_like(self.path, writers | writers << 1, owner)
        except BaseException:
            self.socket.close()
            raise
        self.users = 0
        self._readers: Counter[asyncio.AbstractEventLoop] = Counter()
        _EARS.add(self)

    def receive(self) -> bytes | None:
        """The next datagram; None when there is none."""
        with suppress(OSError):
            return self.socket.recv(2 * LONGEST_MESSAGE)
        return None

    @contextmanager
    def read_by(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> Iterator[None]:
        """Let a loop call back whenever there is a datagram, for as long as anyone in it asks for that."""
        self._readers[loop] += 1
        loop.add_reader(self.socket, callback)
        try:
            yield
        finally:
            self._readers[loop] -= 1
            if not self._readers[loop]:
                del self._readers[loop]
                loop.remove_reader(self.socket)

    def unlink(self) -> None:
        """Take the name away; the folder goes with the last one."""
        with suppress(OSError):
            os.unlink(self.path)
            os.rmdir(os.path.dirname(self.path))


_EARS: weakref.WeakSet[Ear] = weakref.WeakSet()


def _let_go() -> None:
    for ear in list(_EARS):
        ear.socket.close()


os.register_at_fork(after_in_child=_let_go)  # a child that kept them open would seem to hear for its parent when that is dead


def _own_like(path: str, mode: int, owner: os.stat_result) -> None:
    os.chmod(path, mode)
    if (owner.st_uid, owner.st_gid) != (os.geteuid(), os.getegid()):
        with suppress(PermissionError):
            os.chown(path, owner.st_uid, owner.st_gid)


def _make_folder(folder: str, mode: int, owner: os.stat_result) -> None:
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
        _own_like(folder, mode, owner)


@contextmanager
def _address(folder: str) -> Iterator[str]:
    """A way to the folder that is short enough for the address of a socket in it."""
    if len(os.fsencode(folder)) <= LONGEST_FOLDER:
        yield folder
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _bind(made: socket.socket, folder: str) -> str:
    with _address(folder) as address:
        while True:
            name = f"{os.getpid()}.{next(_NUMBERS)}"
            try:
                made.bind(f"{address}/{name}")
            except OSError as error:
                if error.errno != errno.EADDRINUSE:  # left behind by a process that had the same number
                    raise
            else:
                return name


def _message(topics: Collection[str]) -> bytes:
    """With the runs behind them, or without, or nothing but that there is something."""
    for words in (topics if isinstance(topics, Mapping) else sorted(topics), sorted(topics)):
        if len(message := msgspec.json.encode(words)) <= LONGEST_MESSAGE:
            return message
    return msgspec.json.encode([ANYTHING])


def _said(message: bytes) -> Collection[str]:
    """The topics of a message; none of one that is not ours."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
        return _topics(message)
    return set()


def _clear_away(path: str) -> None:
    """Remove what a process left behind that was killed."""
    with suppress(OSError):
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)


def _ring(pipe: int) -> None:
    with suppress(BlockingIOError):  # it has been rung often enough
        os.write(pipe, b"!")


class FileHints(Board):
    """The hints of one store on a file. Its socket is made by the first wait; without one, those who wait look again soon."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = os.path.realpath(path)  # however it is spelled, the folder is the same
        self._folder = f"{self._path}-hints"
        self._guard, self._draining = threading.Lock(), threading.Lock()
        self._ear: Ear | None = None

    def wake(self, topics: Collection[str]) -> None:
        """Tell those who wait in this store, then those who wait in others."""
        super().wake(topics)
        with suppress(OSError):  # as a rule, because there is no folder: nobody waits
            self._send(topics)

    def _send(self, topics: Collection[str]) -> None:
        own = self._ear.name if self._ear else None
        others = [name for name in os.listdir(self._folder) if name != own]
        if not others:
            return
        message = _message(topics)
        # A new sender each time: what a process that is stopped has not read would fill the buffer of an old one.
        with _address(self._folder) as address, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            for name in others:
                try:
                    sender.sendto(message, f"{address}/{name}")
                except ConnectionRefusedError:
                    _clear_away(os.path.join(self._folder, name))
                except OSError:  # when it is full, it has hints enough
                    continue

    async def wait(self, topics: Collection[str], timeout: float, *, missed: bool = True) -> set[str]:
        with self._hearing() as ear:
            if ear is None:
                return await super().wait(topics, min(timeout, LOOK_EVERY), missed=missed)
            with ear.read_by(asyncio.get_running_loop(), partial(self._drain, ear)):
                return await super().wait(topics, timeout, missed=missed)

    def block(self, topics: Collection[str], timeout: float) -> set[str]:
        with self._hearing() as ear:
            if ear is None:
                return super().block(topics, min(timeout, LOOK_EVERY))
            self._drain(ear)
            bell, rope = os.pipe()
            try:
                os.set_blocking(rope, False)
                with self.waiting(topics, partial(_ring, rope)) as waiter:
                    self._sit(waiter, ear, bell, timeout)
                return waiter.heard
            finally:
                os.close(bell)
                os.close(rope)

    def _sit(self, waiter: Waiter, ear: Ear, bell: int, timeout: float) -> None:
        """Wait for a datagram, or for another thread that has read it, until there is something to hear."""
        poll = select.poll()
        poll.register(ear.socket, select.POLLIN)
        poll.register(bell, select.POLLIN)
        until = _CLOCK.monotonic() + round(min(timeout, 1e9) * 1000)
        while not waiter.heard and not self.closed and (left := until - _CLOCK.monotonic()) > 0:
            poll.poll(min(left, 60_000))
            self._drain(ear)

    def _drain(self, ear: Ear) -> None:
        """Read what there is, and tell it."""
        with self._draining:
            messages = list(itertools.islice(iter(ear.receive, None), MOST_AT_ONCE))
        for said in map(_said, messages) if len(messages) < FULL else ({ANYTHING},):
            super().wake(said)

    @contextmanager
    def _hearing(self) -> Iterator[Ear | None]:
        """The socket, for as long as it is used; None where there can be none."""
        ear = self._take()
        try:
            yield ear
        finally:
            if ear is not None:
                with self._guard:
                    ear.users -= 1
                    if ear is not self._ear and not ear.users:
                        ear.socket.close()

    def _take(self) -> Ear | None:
        with self._guard:
            if self._ear is None or not os.path.lexists(self._ear.path):
                self._renew()
            if self._ear is not None:
                self._ear.users += 1
            return self._ear

    def _renew(self) -> None:
        """Get a socket with a name. What was said before it had one is lost."""
        old, self._ear = self._ear, None
        if old is not None and not old.users:
            old.socket.close()
        with suppress(OSError):
            if not self.closed:
                self._ear = Ear(self._path, self._folder)
                super().wake({ANYTHING})

    def close(self) -> None:
        with self._guard:
            super().close()
            ear, self._ear = self._ear, None
            if ear is not None:
                ear.unlink()
                if not ear.users:
                    ear.socket.close()
