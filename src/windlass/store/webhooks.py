"""Whom to tell of changes, and what was told."""

from __future__ import annotations

from collections.abc import Mapping

from windlass.store.rows import Rows

BATCHES: Mapping[str, tuple[str, ...]] = {}


class WebhookRecords(Rows):
    """Whom to tell of changes, and what was told."""
