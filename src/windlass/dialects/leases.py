"""The leases that a process has handed out: with their tokens most reports need no read. What is not known here is read from the store."""

from __future__ import annotations

from typing import NamedTuple

from windlass.model import Run

REMEMBERED = 10_000


class Lease(NamedTuple):
    """A worker's right to report on a run."""

    run: str
    seq: int
    token: str
    worker: str


class KnownLeases:
    """The latest leases, by their runs."""

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}

    def add(self, run: Run) -> None:
        """Remember the lease of a run that was just claimed."""
        if len(self._leases) >= REMEMBERED:
            del self._leases[next(iter(self._leases))]
        self._leases[run.id] = lease_of(run)

    def find(self, run_id: str) -> Lease | None:
        """The latest lease of a run, whichever worker has it."""
        return self._leases.get(run_id)

    def pop(self, run_id: str | None, worker: str) -> Lease | None:
        """The lease of a worker, which is used once: what it is worth is decided by the engine."""
        lease = self._leases.get(run_id or "")
        return self._leases.pop(lease.run) if lease is not None and lease.worker == worker else None


def lease_of(run: Run) -> Lease:
    """The lease under which a run is held."""
    return Lease(run.id, run.seq, run.token or "", run.worker or "")
