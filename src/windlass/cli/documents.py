"""Answers as JSON: what a hub would answer to the same verb, so that a script reads one form wherever it asks."""

from __future__ import annotations

from typing import Any

import msgspec

from windlass.api.rows import Verb


def plain(verb: Any, value: Any, **arguments: Any) -> Any:
    """What a verb has answered to these arguments, as the API shows it."""
    row: Verb = verb.row
    return to_plain(row.gives.show(value, arguments))


def to_plain(view: Any) -> Any:
    """A view as lists, dictionaries and texts."""
    return msgspec.json.decode(msgspec.json.encode(view))
