"""The queue message: the id of a run, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from windlass.engine import checks
from windlass.errors import BadInput

ID, VERSION = "kumofireJobRunId", "version"
CURRENT = 1
LARGEST = 1_024
"""Bytes of a message: an id needs a tenth of it."""

Message = Mapping[str, Any]


class MalformedMessage(BadInput):
    """The body is no message of this protocol. It will never be one, so it is not delivered again."""


class UnsupportedVersion(BadInput):
    """The message is of another version of the protocol."""


def build_message(run_id: str, *, version: bool = False) -> dict[str, Any]:
    """The message for a run, with the version of the protocol for consumers that need it."""
    return ({VERSION: CURRENT} if version else {}) | {ID: run_id}


def parse_message(body: Message | str | bytes) -> str:
    """The id of the run that a message is about. A message without a version is of version 1."""
    message = _read(body)
    version = message.get(VERSION, CURRENT)
    if type(version) is not int:
        raise _malformed("its version is no number")
    if version != CURRENT:
        raise UnsupportedVersion(f"The message has version {version}; this consumer reads version 1.", hint="Upgrade the consumer.")
    if others := sorted(message.keys() - {ID, VERSION}):
        raise _malformed(f"it has {others[0]!r:.80} in it")
    if ID not in message:
        raise _malformed(f"it has no {ID}")
    try:
        return checks.identifier(message[ID], "The id")
    except BadInput as error:
        raise _malformed(f"its {ID} is no id") from error


def _read(body: Message | str | bytes) -> Message:
    if isinstance(body, str | bytes):
        if len(body) > LARGEST:
            raise _malformed(f"it has {len(body):,} bytes")
        try:
            body = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            raise _malformed("it is no JSON") from None
    if not isinstance(body, Mapping) or not all(isinstance(name, str) for name in body):
        raise _malformed("it is no object")
    return body


def _malformed(why: str) -> MalformedMessage:
    return MalformedMessage(f"The message is malformed: {why}.", hint=f'A message is {{"{ID}": "..."}}. It is dropped.')
