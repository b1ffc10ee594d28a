"""Who may do what, and who did what."""

from __future__ import annotations

from collections.abc import Mapping

from windlass.store.rows import Rows

BATCHES: Mapping[str, tuple[str, ...]] = {}


class AccessRecords(Rows):
    """Who may do what, and who did what."""
