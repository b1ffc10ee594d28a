"""Resources of an application's code, and rates as text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from windlass.app.options import Duration, milliseconds
from windlass.defaults import MAX_WAIT
from windlass.durations import duration, spelled
from windlass.errors import BadInput
from windlass.model import PauseScope, Rate, Resource

_WORDS = {"second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
_RATE = re.compile(r"([0-9]{1,9})\s*/\s*(\S+)")


def rate_of(options: Any) -> Rate:
    """A rate from its text: 100/minute, 5/second, 10/30s."""
    if isinstance(options, Rate):
        return options
    match = _RATE.fullmatch(options.strip()) if isinstance(options, str) else None
    try:
        if match is not None:
            return Rate(int(match[1]), _WORDS.get(match[2]) or duration(match[2]))
    except ValueError:
        pass
    raise BadInput(f"{options!r:.80} is not a rate.", hint="Write 100/minute, 5/second, 1000/hour or 10/30s, or make one with Rate(...).")


def rate_text(rate: Rate) -> str:
    """A rate as text."""
    word = next((word for word, period in _WORDS.items() if period == rate.period), None)
    burst = "" if rate.burst is None else f", {rate.burst} at once"
    return f"{rate.count}/{word or spelled(rate.period)}{burst}"


class DeclaredResource(Struct, frozen=True):
    """A resource named by code. With `over`, it is set at every start, replacing later changes."""

    name: str
    capacity: int | None
    rates: tuple[Rate, ...]
    max_wait: int
    over: bool

    def is_like(self, resource: Resource) -> bool:
        """Whether a resource has the settings of the code."""
        return (resource.capacity, resource.rates, resource.max_wait) == (self.capacity, self.rates, self.max_wait)


def declared(
    name: str, capacity: int | None, rates: str | Rate | Iterable[str | Rate], max_wait: Duration | None, over: bool
) -> DeclaredResource:
    """The settings of a resource as the engine takes them."""
    several = [rates] if isinstance(rates, str | Rate) else rates
    read = tuple(map(rate_of, several))
    if capacity is None and not read:
        raise BadInput(f"Nothing limits the resource {name!r}.", hint="Give capacity=1, or rates=['100/minute'].")
    return DeclaredResource(name, capacity, read, MAX_WAIT if max_wait is None else milliseconds(max_wait, "max_wait"), over)


def paused(queue: str | None, job: str | None, everything: bool) -> tuple[PauseScope, str]:
    """What is to be paused or resumed: one of the three."""
    options: list[tuple[PauseScope, str]] = []
    if queue is not None:
        options.append(("queue", queue))
    if job is not None:
        options.append(("job", job))
    if everything:
        options.append(("system", ""))
    if len(options) != 1:
        raise BadInput("Exactly one thing can be paused or resumed.", hint="Give one of queue='...', job='...' and everything=True.")
    return options[0]
