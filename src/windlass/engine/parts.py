"""The engine's parts over one ground, each with the others that it needs."""

from __future__ import annotations

from windlass.doctor import Doctor, Subject
from windlass.engine.access import Access
from windlass.engine.announcing import Announcing
from windlass.engine.claims import Claims
from windlass.engine.creations import Creations
from windlass.engine.edits import Edits
from windlass.engine.fires import Fires
from windlass.engine.ground import Ground
from windlass.engine.groups import Groups
from windlass.engine.heads import Heads
from windlass.engine.holds import Holds
from windlass.engine.jobs import Jobs
from windlass.engine.journal import Journal
from windlass.engine.lists import Lists
from windlass.engine.lives import Lives
from windlass.engine.moves import Moves
from windlass.engine.notices import Notices
from windlass.engine.origins import Origins
from windlass.engine.outbox import Outbox
from windlass.engine.parking import Parking
from windlass.engine.pauses import Pauses
from windlass.engine.payloads import Payloads
from windlass.engine.provision import Provision
from windlass.engine.queues import Queues
from windlass.engine.removal import Removal
from windlass.engine.reports import Reports
from windlass.engine.resources import Resources
from windlass.engine.retention import RetentionRules
from windlass.engine.rollup import Rollup
from windlass.engine.runs import Runs
from windlass.engine.schedules import Schedules
from windlass.engine.slots import Slots
from windlass.engine.steps import RunSteps
from windlass.engine.sweeps import Sweeps
from windlass.engine.takes import Takes
from windlass.engine.unused import Unused
from windlass.engine.webhooks import Webhooks
from windlass.engine.why import Why
from windlass.engine.workers import Workers
from windlass.once import once


class Parts:
    """All parts over one ground."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground

    # Shared by the other parts

    @once
    def provision(self) -> Provision:
        return Provision(self.ground)

    @once
    def jobs(self) -> Jobs:
        return Jobs(self.ground, self.provision)

    @once
    def payloads(self) -> Payloads:
        return Payloads(self.ground, self.jobs)

    @once
    def heads(self) -> Heads:
        return Heads(self.ground)

    @once
    def parking(self) -> Parking:
        return Parking(self.ground)

    # Runs

    @once
    def runs(self) -> Runs:
        return Runs(self.ground)

    @once
    def creations(self) -> Creations:
        return Creations(self.ground, self.runs, self.jobs, self.provision, self.payloads, self.notices)

    @once
    def edits(self) -> Edits:
        return Edits(self.ground, self.runs, self.provision, self.payloads)

    @once
    def moves(self) -> Moves:
        return Moves(self.ground, self.runs)

    @once
    def origins(self) -> Origins:
        return Origins(self.ground, self.runs)

    @once
    def reasons(self) -> Why:
        return Why(self.ground, self.runs, self.heads)

    @once
    def groups(self) -> Groups:
        return Groups(self.ground, self.runs, self.creations, self.payloads)

    @once
    def lists(self) -> Lists:
        return Lists(self.ground, self.groups, self.schedules)

    # Work

    @once
    def workers(self) -> Workers:
        return Workers(self.ground)

    @once
    def lives(self) -> Lives:
        return Lives(self.ground)

    @once
    def claims(self) -> Claims:
        return Claims(self.ground, self.heads, self.provision)

    @once
    def takes(self) -> Takes:
        return Takes(self.ground, self.runs, self.claims, self.reasons, self.provision)

    @once
    def holds(self) -> Holds:
        return Holds(self.ground, self.runs)

    @once
    def steps(self) -> RunSteps:
        return RunSteps(self.ground, self.runs, self.holds)

    @once
    def reports(self) -> Reports:
        return Reports(self.ground)

    # Schedules

    @once
    def schedules(self) -> Schedules:
        fires = Parts(self.ground.unaudited()).fires
        trusted = Parts(self.ground.on_behalf_of(None)).creations
        return Schedules(self.ground, self.jobs, self.provision, self.payloads, fires, trusted)

    @once
    def fires(self) -> Fires:
        return Fires(self.ground, self.creations, self.edits)

    # Limits

    @once
    def pauses(self) -> Pauses:
        return Pauses(self.ground)

    @once
    def queues(self) -> Queues:
        return Queues(self.ground)

    @once
    def resources(self) -> Resources:
        return Resources(self.ground, self.provision, self.parking)

    @once
    def slots(self) -> Slots:
        return Slots(self.ground, self.parking)

    # The journal and its consumers

    @once
    def journal(self) -> Journal:
        return Journal(self.ground)

    @once
    def rollup(self) -> Rollup:
        return Rollup(self.ground, self.journal)

    @once
    def notices(self) -> Notices:
        return Notices(self.ground, self.journal)

    @once
    def webhooks(self) -> Webhooks:
        return Webhooks(self.ground, self.journal, self.notices)

    @once
    def outbox(self) -> Outbox:
        return Outbox(self.ground, self.journal, self.notices, self.webhooks)

    @once
    def announcing(self) -> Announcing:
        return Announcing(self.ground, self.journal)

    # Access

    @once
    def access(self) -> Access:
        return Access(self.ground)

    # Maintenance

    @once
    def retention(self) -> RetentionRules:
        return RetentionRules(self.ground)

    @once
    def removal(self) -> Removal:
        return Removal(self.ground, self.retention, self.workers, self.parking, self.notices)

    @once
    def unused(self) -> Unused:
        return Unused(self.ground)

    @once
    def sweeps(self) -> Sweeps:
        return Sweeps(self.ground, self.fires, self.slots, self.parking, self.removal, self.unused)

    @once
    def doctor(self) -> Doctor:
        ground = self.ground
        return Doctor(
            Subject(
                ground.records,
                ground.clock,
                ground.limits,
                ground.steady,
                pooler=getattr(ground.home.store, "behind_pooler", False),
                unread=self.journal.unread,
                overdue=self.retention.overdue,
            )
        )
