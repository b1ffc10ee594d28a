"""Opens an app's store or hub when it is first needed."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from windlass.clock import Clock, SystemClock
from windlass.config import load
from windlass.config.addresses import MEMORY, located
from windlass.config.opening import open_engine
from windlass.config.settings import DEFAULTS, Settings
from windlass.engine import Engine
from windlass.errors import BadInput
from windlass.model import Limits
from windlass.store.base import run_sync

if TYPE_CHECKING:
    from windlass.api.verbs import Verbs
    from windlass.client import RemotePort

_CARRIED: list[Verbs] = []  # opened before a fork: never used here, and never closed, because they belong to the parent


class Opening:
    """The store or the hub of an app."""

    _blocking = True

    def __init__(self, store: str | os.PathLike[str] | None, clock: Clock | None, limits: Limits | None) -> None:
        self._said_store = None if store is None else os.fspath(store)
        self.clock: Clock = clock or SystemClock()
        self.limits = limits or Limits()
        self._opening, self._pid = threading.Lock(), 0
        self._opened: Engine | RemotePort | None = None
        self._defined: set[str] = set()  # jobs that are already defined there
        self._declared: set[str] = set()  # and resources
        self._under_test = False

    @property
    def address(self) -> str:
        """The address of the store or hub: the argument, else WINDLASS_HUB or WINDLASS_STORE, else windlass.toml, else windlass.db."""
        return self._said_store or (settings := load()).hub or settings.store or DEFAULTS.store or ""

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

        Opened when first used, and again in a forked process (on SQLite: if it was closed before the fork).
        """
        if self._opened is None or self._pid != os.getpid():
            with self._opening:
                if self._opened is not None and self._pid != os.getpid():
                    _CARRIED.append(self._opened)
                    self._opened = None
                if self._opened is None:
                    blocking = self._blocking or self._in_memory()
                    settings = Settings() if self._under_test else load()  # a test uses its own limits, not those of a nearby file
                    self._opened = open_engine(settings, self.address, self.clock, blocking=blocking, limits=self.limits)
                    self._pid, self._defined, self._declared = os.getpid(), set(), set()
        return self._opened

    def _in_memory(self) -> bool:
        return located(self.address).place == MEMORY

    @contextlib.contextmanager
    def in_memory(self, clock: Clock, limits: Limits) -> Iterator[None]:
        """Use an empty store in memory and another clock for the block, and restore the app afterwards: the basis of `windlass.testing`."""
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
        if self._under_test:  # the tested code may close the app, and the test read it afterwards
            return
        verbs, self._opened = self._opened, None
        if verbs is not None and self._pid == os.getpid():
            await verbs.close()
