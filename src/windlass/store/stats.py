"""Workers as they describe themselves, and how much there was in each minute."""

from __future__ import annotations

from collections.abc import Mapping

from windlass.store.rows import Rows

BATCHES: Mapping[str, tuple[str, ...]] = {}


class StatRecords(Rows):
    """Workers as they describe themselves, and how much there was in each minute."""
