"""Answers as JSON, in the form in which a hub answers the same verb, so that scripts read one form."""

from __future__ import annotations

from typing import Any

import msgspec

from windlass.api.rows import row_of


def plain(verb: Any, value: Any, **arguments: Any) -> Any:
    """The answer of a verb to these arguments, as the API shows it."""
    return to_plain(row_of(verb).gives.show(value, arguments))


def to_plain(view: Any) -> Any:
    """A view as lists, dictionaries and texts."""
    return msgspec.json.decode(msgspec.json.encode(view))
