"""Where an app's runs are kept: the store or the hub, opened when it is first needed."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from windlass.clock import Clock, SystemClock
from windlass.config import MEMORY, Settings, load, located, open_engine
from windlass.engine import Engine
from windlass.errors import BadInput
from windlass.model import Limits
from windlass.store.base import run_sync

if TYPE_CHECKING:
    from windlass.api.verbs import Verbs
    from windlass.client import RemotePort

DEFAULT_STORE = "windlass.db"

_CARRIED: list[Verbs] = []  # opened before a fork: never used here, and never closed, because they are the parent's


class Opening:
    """The store or the hub of an app."""

    _blocking = True

    def __init__(self, store: str | os.PathLike[str] | None, clock: Clock | None, limits: Limits | None) -> None:
        self._said_store = None if store is None else os.fspath(store)
        self.clock: Clock = clock or SystemClock()
        self.limits = limits or Limits()
        self._opening, self._pid = threading.Lock(), 0
        self._opened: Engine | RemotePort | None = None
        self._defined: set[str] = set()  # jobs that what is open knows already
        self._declared: set[str] = set()  # and resources
        self._under_test = False

    @property
    def address(self) -> str:
        """Where the runs are kept: what was said, else WINDLASS_HUB or WINDLASS_STORE, else windlass.toml, else windlass.db."""
        return self._said_store or (set_ := load()).hub or set_.store or DEFAULT_STORE

    @property
    def engine(self) -> Engine:
        """The engine on the app's own store."""
        verbs = self.verbs
        if not isinstance(verbs, Engine):
            raise BadInput("This app asks a hub, which keeps the engine to itself.", hint="Use the app's own methods, or `app.verbs`.")
        return verbs

    @property
    def verbs(self) -> Engine | RemotePort:
        """The verbs of the store or the hub.

        Opened when first asked for, and anew in a forked process (on SQLite: if it was closed before the fork).
        """
        if self._opened is None or self._pid != os.getpid():
            with self._opening:
                if self._opened is not None and self._pid != os.getpid():
                    _CARRIED.append(self._opened)
                    self._opened = None
                if self._opened is None:
                    blocking = self._blocking or self._in_memory()
                    settings = Settings() if self._under_test else load()  # a test goes by its own limits, not by a file that lies near it
                    self._opened = open_engine(settings, self.address, self.clock, blocking=blocking, limits=self.limits)
                    self._pid, self._defined, self._declared = os.getpid(), set(), set()
        return self._opened

    def _in_memory(self) -> bool:
        return located(self.address).place == MEMORY

    @contextlib.contextmanager
    def in_memory(self, clock: Clock, limits: Limits) -> Iterator[None]:
        """Work on an empty store in memory, by another clock, for the block, and as before afterwards: `windlass.testing` is made of it."""
        before = vars(self).copy()
        self._said_store, self.clock, self.limits = MEMORY, clock, limits
        self._opened, self._pid, self._defined, self._declared, self._under_test = None, 0, set(), set(), True
        try:
            yield
        finally:
            self._under_test = False
            run_sync(self._close())
            vars(self).update(before)

    async def _close(self) -> None:
        if self._under_test:  # what is tested may close the app, and the test look afterwards
            return
        opened, self._opened = self._opened, None
        if opened is not None and self._pid == os.getpid():
            await opened.close()
