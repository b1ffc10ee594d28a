"""Converts a hub's answers back into the engine's errors."""

from __future__ import annotations

from http import HTTPStatus

import msgspec

from windlass.api.problems import Problem, error_of
from windlass.client.transport import HubResponse
from windlass.errors import HubFailed, OutcomeUnknown, TooLarge, TooSlow, WindlassError
from windlass.payload import reader


def refusal(answer: HubResponse) -> WindlassError:
    """The error of an answer."""
    try:
        return error_of(reader(Problem)(answer.body))
    except msgspec.DecodeError:
        pass
    if answer.status in (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.REQUEST_TIMEOUT):
        kind = TooLarge if answer.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE else TooSlow
        return kind(
            f"Something before the hub answered with {answer.status}.",
            hint="Send less, or configure it to pass bodies of 8 MiB, as a hub accepts.",
        )
    if answer.status >= 500:
        return OutcomeUnknown(
            f"Something before the hub, or a hub that is just ending, answered with {answer.status}.",
            hint="It may or may not have happened: check before you repeat it.",
        )
    if 300 <= answer.status < 400:
        where = answer.headers.get("location", "another address")
        return HubFailed(f"The hub's address redirects to {where:.200}.", hint="Name the hub's own address: redirects are not followed.")
    return HubFailed(f"The answer was {answer.status}, and not from a hub.", hint="Check the address of the hub, and its version.")
