"""The one key of the protocol, in the header X-API-Key. Tokens of windlass work beside it."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from windlass.dialects.base import Identity
from windlass.errors import Unauthorized
from windlass.model import SCOPES

ACTOR = "guards"
"""The caller that shows the key, in the audit."""


class ApiKey:
    """Callers that show the key may do whatever the protocol has: it knows no others."""

    def __init__(self, key: str | None) -> None:
        """Without a key, no header is asked for."""
        self._key = (key or "").strip().encode()

    @property
    def required(self) -> bool:
        return bool(self._key)

    async def identify(self, headers: Mapping[bytes, bytes], *, local: bool) -> Identity | None:
        """The caller that shows the key. A wrong one is refused even beside a token: its sender has no use for the token."""
        key = headers.get(b"x-api-key")
        if key is None or not self._key:
            return None
        if not hmac.compare_digest(key.strip(), self._key):
            raise Unauthorized("The API key is wrong.", hint="Send that of this server as X-API-Key.")
        return Identity(ACTOR, frozenset(SCOPES), trusted=True)
