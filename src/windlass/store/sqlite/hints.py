"""Hints between processes on one file: datagrams to the sockets of those who wait, in a folder beside the file."""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import os
import select
import socket
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial

import msgspec

from windlass.clock import SystemClock
from windlass.store.base import JOURNAL, LOOK_EVERY
from windlass.store.hints import ANYTHING, Board, Paced, Waiter
from windlass.store.sqlite.files import MEMORY
from windlass.store.sqlite.folders import (
    PRIVATE,
    Folder,
    Unusable,
    address_of,
    clear_away,
    open_to_writers,
    opened,
    plain,
    reached_by_writers,
)

LONGEST_MESSAGE = 2_000  # bytes; what every system carries in one datagram
FULL = 10  # datagrams that a socket holds unread at least; those behind them may have been dropped
MOST_AT_ONCE = 256  # datagrams read before those who wait are told

_READS = "j"  # how the name of a socket ends that hears of the journal
_LOG = logging.getLogger(__name__)
_CLOCK = SystemClock()  # a timeout is real time, whatever clock the store has
_NUMBERS = itertools.count(1)
_topics: Callable[[bytes], Collection[str]] = msgspec.json.Decoder(set[str] | dict[str, list[str | int]]).decode


class Ear:
    """What a store hears with: a datagram socket that has a name in the folder."""

    def __init__(self, path: str, folder: str, mark: str = "") -> None:
        self._file, self._folder = path, folder
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self.socket.setblocking(False)
            with reached_by_writers(folder, path) as opened_folder:
                self.name = _bind(self.socket, opened_folder, mark)
                if opened_folder.shared:
                    open_to_writers(self.socket, opened_folder, self.name)
            self.path = os.path.join(folder, self.name)
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
        """Take the name away; the folder goes with the last one, if this user can make it again."""
        with suppress(OSError, Unusable), opened(self._folder, self._file) as folder:
            os.unlink(self.name, dir_fd=folder.fd)
            if folder.status.st_uid == os.geteuid():
                os.rmdir(self._folder)


_EARS: weakref.WeakSet[Ear] = weakref.WeakSet()


def _let_go() -> None:
    for ear in list(_EARS):
        ear.socket.close()


os.register_at_fork(after_in_child=_let_go)  # a child that kept them open would seem to hear for its parent when that is dead


def _bind(made: socket.socket, folder: Folder, mark: str = "") -> str:
    with suppress(OSError):  # where the system asks the folder alone
        os.fchmod(made.fileno(), PRIVATE)
    while True:
        name = f"{os.getpid()}.{next(_NUMBERS)}{mark}"
        try:
            made.bind(f"{folder.address}/{name}")
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


def _ring(pipe: int) -> None:
    with suppress(BlockingIOError):  # it has been rung often enough
        os.write(pipe, b"!")


class FileHints(Board):
    """The hints of one store on a file. Its socket is made by the first wait; without one, those who wait look again soon.

    Hints of the journal have sockets of their own, marked in their names: nothing of it is sent to those who do not read it.
    """

    def __init__(self, path: str, *, journal: bool = False) -> None:
        super().__init__()
        self._journal = journal
        self._path = os.path.realpath(path)  # however it is spelled, the folder is the same
        self._folder = f"{self._path}-hints"
        self._guard, self._draining = threading.Lock(), threading.Lock()
        self._ear: Ear | None = None
        self._warned = False

    def wake(self, topics: Collection[str]) -> None:
        """Tell those who wait in this store, then those who wait in others."""
        super().wake(topics)
        try:
            if (private := plain(self._folder)) is not None:
                self._send(topics, private)
                return
            with opened(self._folder, self._path) as folder:
                self._send(topics, folder)
        except OSError:  # as a rule, because there is no folder: nobody waits
            return
        except Unusable as why:
            self._warn(why)

    def _send(self, topics: Collection[str], folder: Folder) -> None:
        own = self._ear.name if self._ear else None
        others = [name for name in folder.names() if name != own and name.endswith(_READS) is self._journal]
        if not others:
            return
        message = _message(topics)
        # A new sender each time: what a process that is stopped has not read would fill the buffer of an old one.
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            way = None if folder.shared else folder.address
            for name in others:
                try:
                    with nullcontext(f"{way}/{name}") if way else address_of(folder, name) as address:
                        sender.sendto(message, address)
                except ConnectionRefusedError:
                    clear_away(folder, name)
                except OSError:  # when it is full, it has hints enough
                    continue

    def _warn(self, why: Unusable) -> None:
        if not self._warned:
            self._warned = True
            _LOG.warning("Processes on %s do not wake each other; what waits looks again every %g s. %s", self._path, LOOK_EVERY, why)

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
        if self.closed:
            return
        try:
            self._ear = Ear(self._path, self._folder, _READS if self._journal else "")
        except OSError:
            return
        except Unusable as why:
            self._warn(why)
        else:
            super().wake({ANYTHING})

    def close(self) -> None:
        with self._guard:
            super().close()
            ear, self._ear = self._ear, None
            if ear is not None:
                ear.unlink()
                if not ear.users:
                    ear.socket.close()


class StoreHints:
    """All hints of one store: those of the journal, and all others."""

    def __init__(self, path: str) -> None:
        in_memory = path == MEMORY
        self._others, self._journal = (Board(), Board()) if in_memory else (FileHints(path), FileHints(path, journal=True))
        self.journaled = Paced(partial(self._journal.wake, (JOURNAL,)))
        """To be called after a commit that added to the journal."""
        self.taken = self._others.taken

    @property
    def closed(self) -> bool:
        return self._others.closed

    def wake(self, topics: Collection[str]) -> None:
        """Tell those who wait for one of these topics, in this process and in others."""
        if JOURNAL in topics:
            self.journaled()
            topics = [topic for topic in topics if topic != JOURNAL]
        if topics:
            self._others.wake(topics)

    def board(self, topics: Collection[str]) -> Board:
        """Where those topics are heard."""
        return self._journal if JOURNAL in topics else self._others

    def close(self) -> None:
        """Say what is owed, and send home all who wait."""
        self.journaled.settle()
        self._others.close()
        self._journal.close()
