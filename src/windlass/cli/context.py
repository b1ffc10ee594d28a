"""What every command is called with: its arguments, the settings, an engine, its output, and how it waits."""

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
from windlass.config.opening import open_engine
from windlass.config.settings import EVERY, SETTINGS, Settings
from windlass.engine import Engine
from windlass.errors import BadInput
from windlass.store.base import run_sync

if TYPE_CHECKING:
    from windlass.api.verbs import Verbs

T = TypeVar("T")

PATIENCE = 5.0  # seconds for which an unreachable server is retried: a person waits for the answer


class CommandContext:
    """One call of a command."""

    def __init__(self, arguments: Namespace, output: Output) -> None:
        self.arguments, self.output = arguments, output
        self.clock = SystemClock()

    @cached_property
    def values(self) -> dict[str, config.Value]:
        """Every setting that has a value, and its source."""
        arguments, command = vars(self.arguments), self.arguments.command
        flags = [name for name, setting in SETTINGS.items() if setting.commands == EVERY or command in setting.commands]
        return config.lookup({name: arguments[name] for name in flags if name in arguments})

    @property
    def settings(self) -> Settings:
        return Settings(**{name: value for name, (value, _) in self.values.items()})

    @property
    def store(self) -> str:
        """The address of the store that this command is about."""
        return self.settings.filled().store or ""

    @property
    def hub(self) -> str | None:
        """The hub that is used instead of the store; a store on the command line comes before a hub from elsewhere."""
        arguments = vars(self.arguments)
        if arguments.get("store") and arguments.get("hub"):
            raise BadInput("Both --store and --hub are given.", hint="Give one of them.")
        return None if arguments.get("store") else self.settings.hub

    @contextmanager
    def engine(self) -> Iterator[Verbs]:
        """The verbs of the hub, or of the store, which must exist."""
        address = self.hub or self.store
        engine = open_engine(self.settings, address, self.clock, blocking=True, create=False, patience=PATIENCE)
        try:
            yield engine
        finally:
            run_sync(engine.close())

    @contextmanager
    def store_engine(self) -> Iterator[Engine]:
        """The verbs of the store itself, for what a hub does not offer."""
        if self.hub:
            raise BadInput(
                "This does not go through a hub.", hint="Name the store: --store shop.db, or --store postgresql://host/database."
            )
        with self.engine() as engine:
            assert isinstance(engine, Engine)
            yield engine

    @overload
    def audited(self, engine: Engine, what: str, subject: str) -> Engine: ...
    @overload
    def audited(self, engine: Verbs, what: str, subject: str) -> Verbs: ...
    def audited(self, engine: Verbs, what: str, subject: str) -> Verbs:
        """The same engine for one action of the actor, with an entry in the audit; a hub writes its own entry, by the token."""
        return engine.by(actor(), what, subject) if isinstance(engine, Engine) else engine

    def answer(self, verb: Any, value: Any, text: str, **arguments: Any) -> int:
        """Print the answer of a verb: as a hub would, or as a text for people."""
        if self.output.json:
            self.output.document(plain(verb, value, **arguments))
        else:
            self.output.raw(text)
        return OK

    def answer_list(
        self, verb: Any, records: Sequence[T], drawn: Callable[[Sequence[T], int], Table], nothing: str, *, page: Any = None
    ) -> int:
        """Print the records that a verb has listed: as a hub would, as a table, or that there are none."""
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


def actor() -> str:
    """The user who gives the command, as the journal and the audit name them."""
    try:
        return "".join(filter(str.isprintable, getpass.getuser()))[:128] or "cli"
    except (KeyError, OSError, ImportError):
        return "cli"
