"""How much of everything is measured."""

from __future__ import annotations

from typing import NamedTuple


class Sizes(NamedTuple):
    """For the engine's part."""

    rows: int = 1_000_000
    rounds: int = 9
    turns: int = 20
    claims: int = 300
    claims_untidied: int = 300
    lives: int = 50_000
    drained: int = 300_000
    fifties: int = 10


QUICK = Sizes(rows=200_000, rounds=5, turns=10, claims_untidied=60, lives=10_000, drained=50_000, fifties=3)
