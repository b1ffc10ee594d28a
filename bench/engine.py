"""The engine's part: its verbs against the raw loop, claims in large tables, creations beside a drain, bytes."""

from __future__ import annotations

from bench.beside import beside_drain
from bench.claims import claims_among_finished, claims_among_queued, fifty_claims
from bench.figures import Figures
from bench.lives import lives, log_of_a_run, size_of_a_run
from bench.places import Place, open_postgres, open_sqlite
from bench.sizes import QUICK, Sizes


def measure(figures: Figures, *, quick: bool) -> None:
    """All figures of the engine."""
    sizes = QUICK if quick else Sizes()
    figures.note("engine.rows_for_1m", sizes.rows)
    with open_sqlite() as sqlite:
        measure_place(figures, sqlite, sizes)
        beside_drain(figures, sqlite, sizes)
    with open_postgres() as postgres:
        figures.note("machine.postgres", postgres.version)
        measure_place(figures, postgres, sizes)
    log_of_a_run(figures, sizes)


def measure_place(figures: Figures, place: Place, sizes: Sizes) -> None:
    """The figures that every store has."""
    for part in (lives, size_of_a_run, fifty_claims, claims_among_queued, claims_among_finished):
        part(figures, place, sizes)
