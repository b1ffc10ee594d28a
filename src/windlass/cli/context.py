"""The context of a command: its arguments, the settings, the verbs, its output, and how it waits."""

from __future__ import annotations

import getpass
import inspect
from argparse import Namespace
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from rich.console import RenderableType
from rich.table import Table

from windlass import config
from windlass.api.rows import row_of
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

P = ParamSpec("P")
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

    def fields(self, names: Sequence[str]) -> dict[str, Any]:
        """Those of these fields that were given on the command line."""
        arguments = vars(self.arguments)
        return {name: arguments[name] for name in names if name in arguments}

    @cached_property
    def verbs(self) -> Verbs:
        """The verbs of the hub, or of the store, which must exist."""
        address = self.hub or self.store
        return open_engine(self.settings, address, self.clock, blocking=True, create=False, patience=PATIENCE)

    @property
    def store_verbs(self) -> Engine:
        """The verbs of the store itself, for what a hub does not offer."""
        if self.hub:
            raise BadInput(
                "This does not go through a hub.", hint="Name the store: --store shop.db, or --store postgresql://host/database."
            )
        assert isinstance(self.verbs, Engine)
        return self.verbs

    def __enter__(self) -> CommandContext:
        return self

    def __exit__(self, *error: object) -> None:
        if "verbs" in vars(self):
            run_sync(self.verbs.close())

    def call(self, verb: Callable[Concatenate[Any, P], Awaitable[T]], /, *arguments: P.args, **options: P.kwargs) -> T:
        """The answer of a verb. An action is audited under the name of the actor; a hub audits it by the token."""
        row, verbs = row_of(verb), self.verbs
        if row.audit is not None and isinstance(verbs, Engine):
            words = inspect.signature(verb).bind(verbs, *arguments, **options)
            words.apply_defaults()
            verbs = verbs.by(actor(), *row.action(words.arguments))
        answer: T = run_sync(getattr(verbs, row.name)(*arguments, **options))
        return answer

    def answer(self, verb: Any, value: Any, *parts: RenderableType, **arguments: Any) -> int:
        """Print the answer of a verb: as a hub would, or as these texts and tables for people."""
        if self.output.json:
            self.output.document(plain(verb, value, **arguments))
            return OK
        for part in parts:
            if isinstance(part, str):
                self.output.raw(part)
            else:
                self.output.console.print(part)
        return OK

    def answer_list(
        self, verb: Any, records: Sequence[T], drawn: Callable[[Sequence[T], int], Table], nothing: str, *, page: Any = None
    ) -> int:
        """Print the records that a verb has listed: as a hub would, as a table, or that there are none. A page has a cursor for more."""
        if self.output.json:
            self.output.document(plain(verb, records if page is None else page, count=vars(self.arguments).get("limit")))
        elif records:
            self.output.console.print(drawn(records, self.clock.now()))
        else:
            self.output.note(nothing)
        if page is not None and page.cursor:
            self.output.note(f"There are more: add --cursor {page.cursor}")
        return OK

    def pause(self, seconds: float) -> None:
        """Wait; Ctrl-C ends the wait."""
        nap(seconds)


def actor() -> str:
    """The user who gives the command, as the journal and the audit name them."""
    try:
        return "".join(filter(str.isprintable, getpass.getuser()))[:128] or "cli"
    except (KeyError, OSError, ImportError):
        return "cli"
