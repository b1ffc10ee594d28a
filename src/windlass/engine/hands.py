"""What the claims of one process reach for, so that they do not all reach for the same runs and all but one come away with nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

from windlass.store.records import Head


class Hands:
    """The claims that are under way in this process: how much they want in all, and what they reach for."""

    def __init__(self) -> None:
        self._wanted, self._adding = 0, Lock()
        self._reached: set[int] = set()

    @contextmanager
    def wanting(self, count: int) -> Iterator[None]:
        """Be one who wants so many."""
        self._want(count)
        try:
            yield
        finally:
            self._want(-count)

    def _want(self, count: int) -> None:
        with self._adding:
            self._wanted += count

    def wide(self, width: int, own: int, most: int) -> int:
        """How many heads to look at for what one wants itself, so that there is something for the others too.

        In steps, so that those who look at the same time ask the store the same.
        """
        others = self._wanted - own
        return min(1 << (width + others - 1).bit_length(), max(width, most)) if others > 0 else width

    @contextmanager
    def reaching(self, heads: Sequence[Head], count: int) -> Iterator[Sequence[Head]]:
        """Reach for so many of these heads: for those that nobody else reaches for, and only where they are too few for others."""
        mine = sorted(heads, key=lambda head: head.seq in self._reached)[:count]
        own = {head.seq for head in mine} - self._reached
        self._reached.update(own)
        try:
            yield mine
        finally:
            self._reached.difference_update(own)
