"""Resources as the application's code names them, and rates as people write them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from windlass.app.options import Duration, milliseconds
from windlass.durations import duration, spelled
from windlass.engine.core import MAX_WAIT
from windlass.errors import BadInput
from windlass.model import PauseScope, Rate, Resource

_WORDS = {"second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
_RATE = re.compile(r"([0-9]{1,9})\s*/\s*(\S+)")


def rate_of(said: Any) -> Rate:
    """A rate from its text: 100/minute, 5/second, 10/30s."""
    if isinstance(said, Rate):
        return said
    match = _RATE.fullmatch(said.strip()) if isinstance(said, str) else None
    try:
        if match is not None:
            return Rate(int(match[1]), _WORDS.get(match[2]) or duration(match[2]))
    except ValueError:
        pass
    raise BadInput(f"{said!r:.80} is not a rate.", hint="Write 100/minute, 5/second, 1000/hour or 10/30s, or make one with Rate(...).")


def rate_text(rate: Rate) -> str:
    """A rate as people write it."""
    word = next((word for word, period in _WORDS.items() if period == rate.period), None)
    burst = "" if rate.burst is None else f", {rate.burst} at once"
    return f"{rate.count}/{word or spelled(rate.period)}{burst}"


class Declared(Struct, frozen=True):
    """A resource that code names. With `over`, it is set anew at every start, whatever was set meanwhile."""

    name: str
    capacity: int | None
    rates: tuple[Rate, ...]
    max_wait: int
    over: bool

    def is_like(self, found: Resource) -> bool:
        """Whether a resource is set as the code says."""
        return (found.capacity, found.rates, found.max_wait) == (self.capacity, self.rates, self.max_wait)


def declared(name: str, capacity: int | None, rates: str | Rate | Iterable[str | Rate], max_wait: Duration | None, over: bool) -> Declared:
    """What was said of a resource, as the engine keeps it."""
    several = [rates] if isinstance(rates, str | Rate) else rates
    read = tuple(map(rate_of, several))
    if capacity is None and not read:
        raise BadInput(f"Nothing limits the resource {name!r}.", hint="Give capacity=1, or rates=['100/minute'].")
    return Declared(name, capacity, read, MAX_WAIT if max_wait is None else milliseconds(max_wait, "max_wait"), over)


def paused(queue: str | None, job: str | None, everything: bool) -> tuple[PauseScope, str]:
    """What is to be paused or resumed: one of the three."""
    said: list[tuple[PauseScope, str]] = []
    if queue is not None:
        said.append(("queue", queue))
    if job is not None:
        said.append(("job", job))
    if everything:
        said.append(("system", ""))
    if len(said) != 1:
        raise BadInput("It is not clear what is meant.", hint="Give one of queue='...', job='...' and everything=True.")
    return said[0]
