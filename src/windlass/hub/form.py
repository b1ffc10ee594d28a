"""The form that every request must have, whatever it asks for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from windlass.errors import BadInput, HeadTooLarge

HEAD, HEADERS = 32 * 1024, 100
"""Bytes of an address with its headers, and how many of these."""
ONCE = {
    b"host", b"authorization", b"content-type", b"content-length", b"idempotency-key", b"last-event-id", b"origin", b"sec-fetch-site",
    b"x-api-key", b"x-idempotency-key",
}  # fmt: skip
"""Headers that a request may have only once: of two, the hub and a proxy before it could each use another."""

_is_host = re.compile(rb"[A-Za-z0-9._~%:\[\]-]*").fullmatch


def check(scope: Mapping[str, Any]) -> None:
    """Raise if the form of a request is wrong."""
    if scope["http_version"] == "0.9":
        raise BadInput("The request names no version of HTTP.", hint="Speak HTTP/1.1.")
    headers = dict(scope["headers"])
    count = len(scope["headers"])
    size = len(scope["query_string"]) + len(scope["path"])
    for name, value in scope["headers"]:
        size += len(name) + len(value)
    if size > HEAD or count > HEADERS:
        raise HeadTooLarge(f"The address and the headers have {size:,} bytes.", hint=f"Send at most {HEAD:,} bytes and {HEADERS} headers.")
    if len(headers) < count:
        _refuse_doubles([name for name, _ in scope["headers"]])
    host = headers.get(b"host", b"")
    if not _is_host(host):
        name = host.decode("latin-1")
        raise BadInput(f"The header Host is {name!r:.80}, which is no name.", hint="Send the hub's own name or address.")


def _refuse_doubles(names: Sequence[bytes]) -> None:
    if twice := sorted(name for name in ONCE if names.count(name) > 1):
        raise BadInput(f"The request has the header {twice[0].decode().title()} more than once.", hint="Send it once.")
