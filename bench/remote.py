"""The remote worker's part: the same backlog drained by the same worker, on the store's file and through a hub, in turn."""

from __future__ import annotations

import statistics

from bench.figures import Figures, doing
from bench.hub import served
from bench.places import SqlitePlace, open_sqlite
from bench.worker import Sizes, drain, fill


def measure(figures: Figures, *, quick: bool) -> None:
    """All figures of the remote worker."""
    with open_sqlite() as sqlite:
        drained(figures, sqlite, Sizes(quick))


def drained(figures: Figures, place: SqlitePlace, sizes: Sizes) -> None:
    """256 slots, batches as large as they come."""
    near, far = [], []
    with doing(f"{sizes.backlog:,} runs drained through a hub, {sizes.rounds} rounds"):
        for _ in range(sizes.rounds):
            address = place.make()
            fill(address, sizes.backlog)
            near.append(sizes.backlog / drain(address)[0])
            address = place.make()
            fill(address, sizes.backlog)
            with served("hub", address) as port:
                far.append(sizes.backlog / drain(f"http://127.0.0.1:{port}")[0])
    ratios = [through / direct for through, direct in zip(far, near, strict=True)]
    figures.note("remote.drain.ratio", statistics.median(ratios), at_least=0.3)
    figures.note("remote.drain.ratio_spread", f"{min(ratios):.2f} to {max(ratios):.2f}")
    figures.note("remote.drain.per_s", statistics.median(far))
    figures.note("remote.drain.in_process_per_s", statistics.median(near))
