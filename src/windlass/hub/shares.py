"""Room for what stays open: so much for all, and for one token its share of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from windlass.errors import LimitReached
from windlass.hub.auth import Caller


class Room:
    """Counts what is open. Callers without a token have no share: where they are let in, they are all there is."""

    def __init__(self, what: str, most: int, share: int) -> None:
        self._what, self._most, self._share = what, most, max(1, most * share // 100)
        self._by_token = Counter[str]()
        self.taken = 0

    @contextmanager
    def for_one(self, caller: Caller) -> Iterator[None]:
        """Room for one more, or LimitReached."""
        token = None if caller.token is None else caller.token.id
        self._check(token)
        self._count(token, 1)
        try:
            yield
        finally:
            self._count(token, -1)

    def _check(self, token: str | None) -> None:
        if self.taken >= self._most:
            raise LimitReached(f"{self.taken:,} {self._what} already.", hint="Come back in a few seconds, or add another hub.")
        if token is not None and self._by_token[token] >= self._share:
            raise LimitReached(
                f"{self._by_token[token]:,} {self._what} with this token already, which is its share.",
                hint="End some, use another token, or add another hub.",
            )

    def _count(self, token: str | None, by: int) -> None:
        self.taken += by
        if token is not None:
            self._by_token[token] += by
            if not self._by_token[token]:
                del self._by_token[token]
