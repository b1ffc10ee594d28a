"""The verbs. Each reads, lets the machine decide, and commits; nothing here knows which store it has."""

from windlass.engine.claims import Claiming
from windlass.engine.reading import Page, Reading, Reason, Status, Tail
from windlass.engine.reports import Outcome, Reporting
from windlass.engine.sweeping import Sweeping, Swept, Watch


class Engine(Claiming, Reporting, Reading, Sweeping):
    """A durable queue over one store."""


__all__ = ["Engine", "Outcome", "Page", "Reason", "Status", "Swept", "Tail", "Watch"]
