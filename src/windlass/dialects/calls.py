"""Coroutines of handlers in tasks of their own, which must not end the event loop."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, NamedTuple


class Caught(NamedTuple):
    """What a handler has returned; or raised, if it asked the process to end."""

    result: Any = None
    error: BaseException | None = None

    def value(self) -> Any:
        """The result; raises the error."""
        if self.error is not None:
            raise self.error
        return self.result


async def caught(handling: Awaitable[Any]) -> Caught:
    """Await a handler. In a task, `sys.exit()` would end the event loop, and with it all other handlers; it ends this attempt only."""
    try:
        return Caught(await handling)
    except (SystemExit, KeyboardInterrupt) as error:
        return Caught(error=error)
