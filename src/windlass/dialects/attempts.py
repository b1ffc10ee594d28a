"""The attempts of a run as jobs of their own, for protocols in which a retry is a new job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from windlass.model import Attempt, Run


def created_at(run: Run, attempts: Sequence[Attempt]) -> Iterator[tuple[Attempt, int]]:
    """All attempts of a run, oldest first, and when each was created: a further one when the one before it has ended."""
    at = run.created_at
    for attempt in attempts:
        yield attempt, at
        at = max(at, attempt.finished_at or 0)
