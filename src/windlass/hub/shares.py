"""Room for what stays open: so much for all, and for one principal its share of it, however many tokens it has."""

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
        self._by_principal = Counter[str]()
        self.taken = 0

    @contextmanager
    def for_one(self, caller: Caller) -> Iterator[None]:
        """Room for one more, or LimitReached."""
        name = None if caller.token is None else caller.principal.name
        self._check(name)
        self._count(name, 1)
        try:
            yield
        finally:
            self._count(name, -1)

    def _check(self, name: str | None) -> None:
        if self.taken >= self._most:
            raise LimitReached(f"{self.taken:,} {self._what} already.", hint="Come back in a few seconds, or add another hub.")
        if name is not None and self._by_principal[name] >= self._share:
            raise LimitReached(
                f"{self._by_principal[name]:,} {self._what} for the tokens of {name!r:.80} already, which is their share.",
                hint="End some, or add another hub.",
            )

    def _count(self, name: str | None, by: int) -> None:
        self.taken += by
        if name is not None:
            self._by_principal[name] += by
            if not self._by_principal[name]:
                del self._by_principal[name]
