"""Bounds on open requests and streams: a total, and a share of it for each principal, however many tokens it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from windlass.errors import LimitReached
from windlass.hub.auth import ANONYMOUS, Caller


class OpenShares:
    """Counts open requests or streams. Callers of an open hub have no share: there are no others."""

    def __init__(self, what: str, limit: int, share: int) -> None:
        self._what, self._limit, self._share = what, limit, max(1, limit * share // 100)
        self._by_principal = Counter[str]()
        self.taken = 0

    @contextmanager
    def for_one(self, caller: Caller) -> Iterator[None]:
        """Count one more while the block runs, or raise LimitReached."""
        name = None if caller is ANONYMOUS else caller.principal.name
        self._check(name)
        self._count(name, 1)
        try:
            yield
        finally:
            self._count(name, -1)

    def _check(self, name: str | None) -> None:
        if self.taken >= self._limit:
            raise LimitReached(f"{self.taken:,} {self._what} already.", hint="Come back in a few seconds, or add another hub.")
        if name is not None and self._by_principal[name] >= self._share:
            raise LimitReached(
                f"{self._by_principal[name]:,} {self._what} for {name!r:.80} already, which is its share.",
                hint="End some, or add another hub.",
            )

    def _count(self, name: str | None, by: int) -> None:
        self.taken += by
        if name is not None:
            self._by_principal[name] += by
            if not self._by_principal[name]:
                del self._by_principal[name]
