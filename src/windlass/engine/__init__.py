"""The verbs. Each reads, asks the machine for the next state, and commits; no verb depends on which store it uses."""

from windlass.answers import AuditPage, Finding, Outcome, Page, PendingWork, Reason, Status, SweepResult
from windlass.engine.claims import ClaimRequest
from windlass.engine.facade import Engine
from windlass.engine.journal import Tail
from windlass.engine.watch import Watch

__all__ = [
    "AuditPage", "ClaimRequest", "Engine", "Finding", "Outcome", "Page", "PendingWork", "Reason", "Status", "SweepResult", "Tail", "Watch",
]  # fmt: skip
