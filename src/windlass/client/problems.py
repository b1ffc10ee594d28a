"""From what a hub answers back to the very errors that the engine raises."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from http import HTTPStatus

import msgspec

from windlass.api.problems import Problem
from windlass.client.transport import Answer
from windlass.errors import HubFailed, OutcomeUnknown, TooLarge, TooSlow, WindlassError


@cache
def _kinds() -> Mapping[str, type[WindlassError]]:
    """Every error by its code; where a code is inherited, it is the ancestor's."""
    # What a hub did not expect has ended it somewhere on the way.
    kinds: dict[str, type[WindlassError]] = {WindlassError.code: OutcomeUnknown}
    found = [WindlassError]
    for kind in found:
        found += kind.__subclasses__()
        kinds.setdefault(kind.code, kind)
    return kinds


def error_of(problem: Problem) -> WindlassError:
    """The error that a problem tells of."""
    kind = _kinds().get(problem.code, HubFailed)
    error = kind.__new__(kind)
    WindlassError.__init__(
        error, problem.detail, hint=problem.hint
    )  # those with a message of their own have made it where they were raised
    return error


def refusal(answer: Answer) -> WindlassError:
    """The error that an answer tells of."""
    try:
        return error_of(msgspec.json.decode(answer.body, type=Problem))
    except msgspec.DecodeError:
        pass
    if answer.status in (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.REQUEST_TIMEOUT):
        kind = TooLarge if answer.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE else TooSlow
        return kind(f"Something before the hub answered with {answer.status}.", hint="Send less, or let it pass what a hub takes: 8 MiB.")
    if answer.status >= 500:
        return OutcomeUnknown(
            f"Something before the hub, or a hub that is just ending, answered with {answer.status}.",
            hint="It may or may not have happened: look before you ask again.",
        )
    if 300 <= answer.status < 400:
        where = answer.headers.get("location", "another address")
        return HubFailed(
            f"The hub's address leads on to {where:.200}.", hint="Name the hub's own address: nothing is sent elsewhere unasked."
        )
    return HubFailed(f"The answer was {answer.status}, and not a hub's.", hint="Check the address of the hub, and its version.")
