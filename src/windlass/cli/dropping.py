"""Commands that remove something by its name share this."""

from __future__ import annotations

from typing import Literal

from windlass.api.verbs import Verbs
from windlass.cli.context import CommandContext
from windlass.cli.output import line
from windlass.store.base import run_sync


def drop(context: CommandContext, kind: Literal["resource", "job", "worker"]) -> int:
    """Remove the record that the command names."""
    name, verb = context.arguments.name, f"drop_{kind}"
    with context.engine() as engine:
        run_sync(getattr(context.audited(engine, "remove", f"{kind} {name}"), verb)(name))
    return context.answer(getattr(Verbs, verb), None, f"{line(name)} is gone.")
