"""Fault points, at which a test can kill, stop, delay or fail this process. A point costs one test of a flag when off.

    WINDLASS_FAULTS='report.before_commit=kill@3,claim.after_commit=delay:50ms'

`@3` means the third time the place is reached, and only then; without it, every time.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from windlass.errors import BadInput, OutcomeUnknown, StoreBusy, StoreFull, WindlassError

VARIABLE = "WINDLASS_FAULTS"

_RAISED: dict[str, Callable[..., WindlassError]] = {
    "busy": StoreBusy,
    "full": StoreFull,
    "unknown": partial(OutcomeUnknown, settled=True),  # the transaction has ended before the caller gets the error
}
_RULE = re.compile(r"(?P<point>[a-z_]+\.[a-z0-9_]+)=(?P<action>kill|stop|drop|raise:\w+|delay:\d+ms)(?:@(?P<nth>[1-9]\d*))?")


class FaultRule(NamedTuple):
    """The action at a point, and at which of its visits (None: at each)."""

    act: Callable[[], None]
    nth: int | None


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _raise(kind: str) -> Callable[[], None]:
    if kind not in _RAISED:
        raise BadInput(f"There is no fault 'raise:{kind}'.", hint=f"Use one of raise:{', raise:'.join(_RAISED)}.")

    def act() -> None:
        raise _RAISED[kind](f"Injected fault: {kind}.", hint=f"Unset {VARIABLE} to run without faults.")

    return act


def _delay(ms: int) -> Callable[[], None]:
    return lambda: time.sleep(ms / 1000)  # noqa: TID251 - the one place that really lets time pass


def _action(text: str) -> Callable[[], None]:
    verb, _, detail = text.partition(":")
    match verb:
        case "kill":
            return _kill
        case "stop":
            return _stop
        case "drop":
            return _raise("unknown")
        case "raise":
            return _raise(detail)
        case _:
            return _delay(int(detail.removesuffix("ms")))


def parse(text: str) -> dict[str, FaultRule]:
    """Parse a comma-separated list of rules; refuse an invalid one."""
    rules = {}
    for part in filter(None, map(str.strip, text.split(","))):
        match = _RULE.fullmatch(part)
        if match is None:
            raise BadInput(
                f"Cannot read the fault '{part}'.",
                hint="Write it as verb.point=kill|stop|drop|raise:busy|delay:50ms, with @N for the N-th time.",
            )
        rules[match["point"]] = FaultRule(_action(match["action"]), int(match["nth"]) if match["nth"] else None)
    return rules


class Faults:
    """The armed rules and how often each point was reached."""

    def __init__(self, text: str = "") -> None:
        self.arm(text)

    def arm(self, text: str) -> None:
        """Replace the rules; an empty text turns all faults off."""
        self.rules = parse(text)
        self.visits: dict[str, int] = {}
        self.seen: set[str] | None = None
        self.on = bool(self.rules)

    def record(self) -> set[str]:
        """Collect the names of the points that are reached from now on."""
        self.seen, self.on = set(), True
        return self.seen

    def hit(self, point: str) -> None:
        """Perform the action set for this point. Callers test `on` first."""
        if self.seen is not None:
            self.seen.add(point)
        rule = self.rules.get(point)
        if rule is None:
            return
        self.visits[point] = visit = self.visits.get(point, 0) + 1
        if rule.nth is None or rule.nth == visit:
            rule.act()


FAULTS = Faults(os.environ.get(VARIABLE, ""))
