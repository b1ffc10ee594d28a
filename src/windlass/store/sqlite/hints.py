"""Hints between processes on one file: datagrams to the sockets of waiting processes, in a folder beside the file."""

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
from windlass.payload import reader
from windlass.store.base import JOURNAL, LOOK_EVERY
from windlass.store.hints import ANYTHING, Paced, Waiter, Waiters
from windlass.store.sqlite.files import MEMORY
from windlass.store.sqlite.folders import (
    PRIVATE,
    CachedNames,
    Folder,
    Unusable,
    address_of,
    clear_away,
    open_to_writers,
    opened,
    plain,
    reached_by_writers,
)

LONGEST_MESSAGE = 2_000  # bytes that every system accepts in one datagram
FULL = 10  # unread datagrams that a socket holds at least; later ones may have been dropped
MAX_AT_ONCE = 256  # datagrams read before the waiters are woken

_READS = "j"  # the suffix of sockets for hints about the journal
_LOG = logging.getLogger(__name__)
_CLOCK = SystemClock()  # a timeout is real time, whatever clock the store has
_NUMBERS = itertools.count(1)
_topics: Callable[[bytes], Collection[str]] = reader(set[str] | dict[str, list[str | int]])


class HintSocket:
    """The receiving side of a store: a datagram socket with a name in the folder."""

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
        """Register a callback for datagrams in a loop, while a waiter in it needs it."""
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
        """Remove the name; the folder is removed with the last one, if this user can create it again."""
        with suppress(OSError, Unusable), opened(self._folder, self._file) as folder:
            os.unlink(self.name, dir_fd=folder.fd)
            if folder.status.st_uid == os.geteuid():
                os.rmdir(self._folder)


_EARS: weakref.WeakSet[HintSocket] = weakref.WeakSet()


def _let_go() -> None:
    for sock in list(_EARS):
        sock.socket.close()


os.register_at_fork(after_in_child=_let_go)  # a child that kept them open would seem to listen for its dead parent


def _bind(sock: socket.socket, folder: Folder, mark: str = "") -> str:
    with suppress(OSError):  # where the system checks the folder alone
        os.fchmod(sock.fileno(), PRIVATE)
    while True:
        name = f"{os.getpid()}.{next(_NUMBERS)}{mark}"
        try:
            sock.bind(f"{folder.address}/{name}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:  # left by a process with the same number
                raise
        else:
            return name


def _message(topics: Collection[str]) -> bytes:
    """The topics with their runs, or without them, or only that there is a hint."""
    for words in (topics if isinstance(topics, Mapping) else sorted(topics), sorted(topics)):
        if len(message := msgspec.json.encode(words)) <= LONGEST_MESSAGE:
            return message
    return msgspec.json.encode([ANYTHING])


def _said(message: bytes) -> Collection[str]:
    """The topics of a message; none if it was not sent by windlass."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
        return _topics(message)
    return set()


def _ring(rope: socket.socket) -> None:
    """Sends to a socket object, not a descriptor: the number of a closed one may be that of another file by now."""
    with suppress(OSError):  # it has enough hints, or its wait was interrupted and is over
        rope.send(b"!")


class FileHints(Waiters):
    """The hints of one store on a file. Its socket is created by the first wait; without one, waiters poll.

    Hints of the journal have separate sockets, marked by their names: they are sent to consumers of the journal only.
    """

    def __init__(self, path: str, *, journal: bool = False) -> None:
        super().__init__()
        self._journal = journal
        self._path = os.path.realpath(path)  # the folder is the same for every spelling of the path
        self._folder = f"{self._path}-hints"
        self._guard, self._draining = threading.Lock(), threading.Lock()
        self._socket: HintSocket | None = None
        self._names = CachedNames()
        self._warned = False

    def wake(self, topics: Collection[str]) -> None:
        """Wake the waiters of this store, then those of others."""
        super().wake(topics)
        try:
            if (private := plain(self._folder)) is not None:
                self._send(topics, private)
                return
            with opened(self._folder, self._path) as folder:
                self._send(topics, folder)
        except OSError:  # usually because there is no folder: nothing waits
            return
        except Unusable as why:
            self._warn(why)

    def _send(self, topics: Collection[str], folder: Folder) -> None:
        own = self._socket.name if self._socket else None
        others = [name for name in self._names.of(folder) if name != own and name.endswith(_READS) is self._journal]
        if not others:
            return
        message = _message(topics)
        # A new sender each time: datagrams that a stopped process has not read would fill the buffer of an old one.
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            way = None if folder.shared else folder.address
            for name in others:
                try:
                    with nullcontext(f"{way}/{name}") if way else address_of(folder, name) as address:
                        sender.sendto(message, address)
                except ConnectionRefusedError:
                    clear_away(folder, name)
                except OSError:  # when it is full, it has enough hints
                    continue

    def _warn(self, why: Unusable) -> None:
        if not self._warned:
            self._warned = True
            _LOG.warning("Processes on %s do not wake each other; waiting processes poll every %g s. %s", self._path, LOOK_EVERY, why)

    async def wait(self, topics: Collection[str], timeout: float, *, missed: bool = True) -> set[str]:
        with self._hearing() as sock:
            if sock is None:
                return await super().wait(topics, min(timeout, LOOK_EVERY), missed=missed)
            with sock.read_by(asyncio.get_running_loop(), partial(self._drain, sock)):
                return await super().wait(topics, timeout, missed=missed)

    def block(self, topics: Collection[str], timeout: float) -> set[str]:
        with self._hearing() as sock:
            if sock is None:
                return super().block(topics, min(timeout, LOOK_EVERY))
            self._drain(sock)
            bell, rope = socket.socketpair()
            with bell, rope:
                rope.setblocking(False)
                with self.waiting(topics, partial(_ring, rope)) as waiter:
                    self._sit(waiter, sock, bell, timeout)
                return waiter.topics

    def _sit(self, waiter: Waiter, sock: HintSocket, bell: socket.socket, timeout: float) -> None:
        """Wait for a datagram, or for another thread that has read it, until there is a hint."""
        poll = select.poll()
        poll.register(sock.socket, select.POLLIN)
        poll.register(bell, select.POLLIN)
        until = _CLOCK.monotonic() + round(min(timeout, 1e9) * 1000)
        while not waiter.topics and not self.closed and (left := until - _CLOCK.monotonic()) > 0:
            poll.poll(min(left, 60_000))
            self._drain(sock)

    def _drain(self, sock: HintSocket) -> None:
        """Read the datagrams, and wake the waiters."""
        with self._draining:
            messages = list(itertools.islice(iter(sock.receive, None), MAX_AT_ONCE))
        for topics in map(_said, messages) if len(messages) < FULL else ({ANYTHING},):
            super().wake(topics)

    @contextmanager
    def _hearing(self) -> Iterator[HintSocket | None]:
        """The socket, while it is used; None if there can be none."""
        sock = self._take()
        try:
            yield sock
        finally:
            if sock is not None:
                with self._guard:
                    sock.users -= 1
                    if sock is not self._socket and not sock.users:
                        sock.socket.close()

    def _take(self) -> HintSocket | None:
        with self._guard:
            if self._socket is None or not os.path.lexists(self._socket.path):
                self._renew()
            if self._socket is not None:
                self._socket.users += 1
            return self._socket

    def _renew(self) -> None:
        """Create a socket with a name. Hints from before are lost."""
        old, self._socket = self._socket, None
        if old is not None and not old.users:
            old.socket.close()
        if self.closed:
            return
        try:
            self._socket = HintSocket(self._path, self._folder, _READS if self._journal else "")
        except OSError:
            return
        except Unusable as why:
            self._warn(why)
        else:
            super().wake({ANYTHING})

    def close(self) -> None:
        with self._guard:
            super().close()
            sock, self._socket = self._socket, None
            if sock is not None:
                sock.unlink()
                if not sock.users:
                    sock.socket.close()


class StoreHints:
    """All hints of one store: those of the journal, and all others."""

    def __init__(self, path: str) -> None:
        in_memory = path == MEMORY
        self._others, self._journal = (Waiters(), Waiters()) if in_memory else (FileHints(path), FileHints(path, journal=True))
        self.journaled = Paced(partial(self._journal.wake, (JOURNAL,)))
        """To be called after a commit that added to the journal."""
        self.taken = self._others.taken

    @property
    def closed(self) -> bool:
        return self._others.closed

    def wake(self, topics: Collection[str]) -> None:
        """Wake the waiters for these topics, in this process and in others."""
        if JOURNAL in topics:
            self.journaled()
            topics = [topic for topic in topics if topic != JOURNAL]
        if topics:
            self._others.wake(topics)

    def waiters(self, topics: Collection[str]) -> Waiters:
        """The hints object for those topics."""
        return self._journal if JOURNAL in topics else self._others

    def close(self) -> None:
        """Send pending hints, and wake all waiters for the close."""
        self.journaled.settle()
        self._others.close()
        self._journal.close()
