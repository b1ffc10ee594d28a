"""Commands that remove something by its name share this."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from windlass.cli.context import CommandContext
from windlass.cli.output import line


def drop(context: CommandContext, verb: Callable[[Any, str], Awaitable[None]]) -> int:
    """Remove the record that the command names."""
    name = context.arguments.name
    context.call(verb, name)
    return context.answer(verb, None, f"{line(name)} is gone.")
