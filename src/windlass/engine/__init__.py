"""The verbs. Each reads, lets the machine decide, and commits; nothing here knows which store it has."""

from windlass.engine.access import Access, AuditPage
from windlass.engine.claims import Ask, Claiming
from windlass.engine.doctor import Doctor, Finding
from windlass.engine.groups import Grouping
from windlass.engine.holding import Holding
from windlass.engine.leases import Leaving, Left
from windlass.engine.lives import Living
from windlass.engine.moves import Moving
from windlass.engine.reading import Page, Reading, Reason, Status, Tail
from windlass.engine.reports import Outcome, Reporting
from windlass.engine.sweeping import Sweeping, Swept
from windlass.engine.watch import Watch
from windlass.engine.webhooks import Telling


class Engine(Moving, Claiming, Living, Leaving, Holding, Reporting, Grouping, Sweeping, Telling, Doctor, Reading, Access):
    """A durable queue over one store."""


__all__ = ["Ask", "AuditPage", "Engine", "Finding", "Left", "Outcome", "Page", "Reason", "Status", "Swept", "Tail", "Watch"]
