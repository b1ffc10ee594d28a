"""What every command has at hand: its arguments, the settings, an engine, where it writes, and how it waits."""

from __future__ import annotations

import getpass
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from windlass import config
from windlass.cli.output import Output
from windlass.clock import SystemClock
from windlass.config import FIELDS, Said, Settings
from windlass.engine import Engine
from windlass.store.base import run_sync

PATIENCE = 5.0  # seconds of waiting for a server: somebody sits before the terminal

_never = threading.Event()


class Shell:
    """One call of a command."""

    def __init__(self, arguments: Namespace, output: Output) -> None:
        self.arguments, self.output = arguments, output
        self.clock = SystemClock()

    @cached_property
    def said(self) -> dict[str, Said]:
        """Every setting that somebody said, and where."""
        given: dict[str, Any] = vars(self.arguments)
        return config.look({name: given[name] for name in FIELDS if given.get(name) is not None})

    @property
    def settings(self) -> Settings:
        return Settings(**{name: said.value for name, said in self.said.items()})

    @property
    def store(self) -> str:
        """The address of the store that this command is about."""
        return self.settings.filled().store or ""

    @contextmanager
    def engine(self) -> Iterator[Engine]:
        """An engine on the store, which must exist."""
        store = config.open_store(self.store, self.clock, blocking=True, create=False, patience=PATIENCE)
        try:
            yield Engine(store, self.clock)
        finally:
            run_sync(store.close())

    def pause(self, seconds: float) -> None:
        """Let time pass; Ctrl-C ends it."""
        _never.wait(seconds)


def who() -> str:
    """The person at the terminal, as the journal names them."""
    try:
        return "".join(filter(str.isprintable, getpass.getuser()))[:128] or "cli"
    except (KeyError, OSError, ImportError):
        return "cli"
