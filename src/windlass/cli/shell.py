"""What every command has at hand: its arguments, the settings, an engine, where it writes, and how it waits."""

from __future__ import annotations

import getpass
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, overload

from rich.table import Table

from windlass import config
from windlass.cli.codes import OK
from windlass.cli.documents import plain
from windlass.cli.output import Output
from windlass.clock import SystemClock, nap
from windlass.config import FIELDS, Said, Settings
from windlass.engine import Engine
from windlass.errors import BadInput
from windlass.store.base import run_sync

if TYPE_CHECKING:
    from windlass.api.verbs import Verbs

T = TypeVar("T")

PATIENCE = 5.0  # seconds of waiting for a server: somebody sits before the terminal


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

    @property
    def hub(self) -> str | None:
        """The hub that is asked instead of the store; a store on the command line comes before a hub that is set elsewhere."""
        given = vars(self.arguments)
        if given.get("store") and given.get("hub"):
            raise BadInput("Both --store and --hub are given.", hint="Give one of them.")
        return None if given.get("store") else self.settings.hub

    @contextmanager
    def engine(self) -> Iterator[Verbs]:
        """The verbs of the hub, or of the store, which must exist."""
        address = self.hub or self.store
        engine = config.open_engine(self.settings, address, self.clock, blocking=True, create=False, patience=PATIENCE)
        try:
            yield engine
        finally:
            run_sync(engine.close())

    @contextmanager
    def store_engine(self) -> Iterator[Engine]:
        """The verbs of the store itself, for what is not asked through a hub."""
        if self.hub:
            raise BadInput(
                "This is not asked through a hub.", hint="Name the store: --store shop.db, or --store postgresql://host/database."
            )
        with self.engine() as engine:
            assert isinstance(engine, Engine)
            yield engine

    @overload
    def act(self, engine: Engine, what: str, subject: str) -> Engine: ...
    @overload
    def act(self, engine: Verbs, what: str, subject: str) -> Verbs: ...
    def act(self, engine: Verbs, what: str, subject: str) -> Verbs:
        """The same engine for one act of the person at the terminal, which the audit will remember; a hub remembers it by its token."""
        return engine.by(who(), what, subject) if isinstance(engine, Engine) else engine

    def answer(self, verb: Any, value: Any, text: str, **arguments: Any) -> int:
        """Print what a verb has answered: as a hub would, or as a text for people."""
        if self.output.json:
            self.output.document(plain(verb, value, **arguments))
        else:
            self.output.raw(text)
        return OK

    def answer_list(
        self, verb: Any, records: Sequence[T], drawn: Callable[[Sequence[T], int], Table], nothing: str, *, page: Any = None
    ) -> int:
        """Print a list that a verb has answered, or the page that has it: as a hub would, as a table, or that there is nothing."""
        if self.output.json:
            self.output.document(plain(verb, records if page is None else page, count=vars(self.arguments).get("limit")))
        elif records:
            self.output.console.print(drawn(records, self.clock.now()))
        else:
            self.output.note(nothing)
        return OK

    def pause(self, seconds: float) -> None:
        """Let time pass; Ctrl-C ends it."""
        nap(seconds)


def who() -> str:
    """The person at the terminal, as the journal names them."""
    try:
        return "".join(filter(str.isprintable, getpass.getuser()))[:128] or "cli"
    except (KeyError, OSError, ImportError):
        return "cli"
