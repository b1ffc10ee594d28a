"""Between records and rows: each method is one batch of named statements, without any rule of its own."""

from __future__ import annotations

from collections.abc import Mapping

from windlass.model import Limits
from windlass.once import once
from windlass.store import sql
from windlass.store.base import Store
from windlass.store.records import (
    access,
    announcements,
    changes,
    claims,
    controls,
    creations,
    groups,
    journal,
    limiters,
    places,
    retention,
    scales,
    slots,
    stats,
    webhooks,
    workers,
)
from windlass.store.records.access import AccessRecords
from windlass.store.records.announcements import AnnouncementRecords
from windlass.store.records.batches import Act, Batches
from windlass.store.records.changes import Change, Held, MoveResult, ReadyQueue
from windlass.store.records.claims import ClaimRecords
from windlass.store.records.controls import ControlRecords
from windlass.store.records.creations import Advance, CreationRecords, Winner
from windlass.store.records.doctor import DoctorRecords
from windlass.store.records.groups import GroupRecords
from windlass.store.records.jobs import JobRecords, SchemaVersion
from windlass.store.records.journal import JournalRecords
from windlass.store.records.lanes import KnownLanes, LaneRecords, needs_from, needs_text
from windlass.store.records.limiters import LimiterRecords
from windlass.store.records.places import PlaceRecords
from windlass.store.records.retention import ExpiredRun, RetentionRecords
from windlass.store.records.runs import RunRecords
from windlass.store.records.scales import ScaleRecords
from windlass.store.records.schedules import ScheduleRecords, Unfinished
from windlass.store.records.slots import SlotRecords
from windlass.store.records.stats import StatRecords
from windlass.store.records.steps import StepRecords
from windlass.store.records.sweeps import Pages, PageSizes, SweepRecords
from windlass.store.records.webhooks import DeliveryRecords, WebhookRecords
from windlass.store.records.work import WorkRecords
from windlass.store.records.workers import WorkerRecords

_GUARDED = (*creations.KEYS, "lock_predecessors", "refuse_taken", "refuse_create")
_WAITED = ("journal_created", "add_waits", *changes.SETTLE)
_ENDED = ("lock_groups", "write_back", "journal_moves")
_WRITE_BACK = (*_ENDED, "close_attempts", *changes.FOLLOW)
_RELEASE_HOLDS = ("lock_limiters_of", *limiters.RELEASE_HOLDS)

BATCHES: Mapping[str, tuple[str, ...]] = {
    "define": ("define", "tell_schema", "drop_schemas"),
    "placeholder": ("define_placeholders",),
    "lanes": ("lock_lanes", "add_lanes", "use_lanes", "close_lanes", "raise_removed"),
    "drop_lanes": ("lock_lanes", "drop_lanes", "raise_removed"),
    "drop_jobs": ("drop_placeholders",),
    "create": (*_GUARDED, "create", "create_plain", *_WAITED, "add_notify", *creations.LATER),
    "create_group": (
        *creations.KEYS,
        "refuse_taken",
        "refuse_create",
        "create",
        "create_plain",
        "journal_created",
        "add_notify",
        *groups.MADE,
    ),
    "register": ("register",),
    "start": ("start", "journal"),
    "beat": ("beat",),
    "log": ("lock_run", "add_lines"),
    "step": ("lock_run", "add_step"),
    "report": ("succeed", "journal", *_WRITE_BACK, *_RELEASE_HOLDS),
    "cancel": (*_ENDED, *changes.FOLLOW),
    "skip": (*_ENDED, *changes.FOLLOW),
    "patch": ("patch", "journal_moves", "keep_payload"),
    "dispatch": ("dispatch", "journal"),
    "settle": (*changes.FOLLOW, "drop_checks"),
    "probe": ("unlocked", "unlocked_old"),
    "lapse": (*_WRITE_BACK, *_RELEASE_HOLDS),
    "postpone_check": ("postpone_check",),
    "prune": retention.PRUNE,
    "drop_keys": ("drop_keys",),
    "schedule": ("add_schedule", "edit_schedule", "add_skips"),
    "unschedule": ("drop_skips", "drop_schedule"),
    "fire": ("unfinished_of_schedules", "advance_schedules", "refuse_fire", "add_skips", *_GUARDED, "create", *_WAITED),
    **claims.BATCHES,
    **controls.BATCHES,
    **limiters.BATCHES,
    **slots.BATCHES,
    **groups.BATCHES,
    **places.BATCHES,
    **journal.BATCHES,
    **announcements.BATCHES,
    **access.BATCHES,
    **webhooks.BATCHES,
    **workers.BATCHES,
    **stats.BATCHES,
    **scales.BATCHES,
    **retention.BATCHES,
}
"""The statements that write, by the verb whose batch they are in. Every place between two of them is a fault point."""


def fault_points(dialect: str) -> list[str]:
    """The names of all places where a fault can be set, in and between the batches that write."""
    queries = sql.load(dialect)
    inside = [f"{verb}.after_{name}" for verb, names in BATCHES.items() for name in names if queries[name].writes]
    writing = [verb for verb, names in BATCHES.items() if any(queries[name].writes for name in names)]
    around = [f"{verb}.{place}" for verb in writing for place in ("before_begin", "before_commit", "after_commit")]
    return sorted(inside + around)


class Records:
    """All stored records, over any store. Records of one kind are read and written in one class."""

    def __init__(self, store: Store, act: Act | None = None, limit: int = Limits().batch) -> None:
        self.batches = Batches(store, act, limit)

    @property
    def store(self) -> Store:
        return self.batches.store

    @once
    def unaudited(self) -> Records:
        """The same without the audited action, for batches that only prepare it."""
        return Records(self.store, limit=self.batches.limit)

    @once
    def jobs(self) -> JobRecords:
        return JobRecords(self.batches)

    @once
    def lanes(self) -> LaneRecords:
        return LaneRecords(self.batches)

    @once
    def creations(self) -> CreationRecords:
        return CreationRecords(self.batches)

    @once
    def runs(self) -> RunRecords:
        return RunRecords(self.batches)

    @once
    def groups(self) -> GroupRecords:
        return GroupRecords(self.batches)

    @once
    def schedules(self) -> ScheduleRecords:
        return ScheduleRecords(self.batches)

    @once
    def claims(self) -> ClaimRecords:
        return ClaimRecords(self.batches)

    @once
    def work(self) -> WorkRecords:
        return WorkRecords(self.batches)

    @once
    def steps(self) -> StepRecords:
        return StepRecords(self.batches)

    @once
    def workers(self) -> WorkerRecords:
        return WorkerRecords(self.batches)

    @once
    def places(self) -> PlaceRecords:
        return PlaceRecords(self.batches)

    @once
    def controls(self) -> ControlRecords:
        return ControlRecords(self.batches)

    @once
    def limiters(self) -> LimiterRecords:
        return LimiterRecords(self.batches)

    @once
    def slots(self) -> SlotRecords:
        return SlotRecords(self.batches)

    @once
    def journal(self) -> JournalRecords:
        return JournalRecords(self.batches)

    @once
    def announcements(self) -> AnnouncementRecords:
        return AnnouncementRecords(self.batches)

    @once
    def webhooks(self) -> WebhookRecords:
        return WebhookRecords(self.batches)

    @once
    def deliveries(self) -> DeliveryRecords:
        return DeliveryRecords(self.batches)

    @once
    def access(self) -> AccessRecords:
        return AccessRecords(self.batches)

    @once
    def sweeps(self) -> SweepRecords:
        return SweepRecords(self.batches)

    @once
    def retention(self) -> RetentionRecords:
        return RetentionRecords(self.batches)

    @once
    def scales(self) -> ScaleRecords:
        return ScaleRecords(self.batches)

    @once
    def doctor(self) -> DoctorRecords:
        return DoctorRecords(self.batches)

    @once
    def stats(self) -> StatRecords:
        return StatRecords(self.batches, self.journal)


__all__ = [
    "BATCHES", "Act", "Advance", "Change", "ExpiredRun", "Held", "KnownLanes", "MoveResult", "PageSizes", "Pages", "ReadyQueue", "Records",
    "SchemaVersion", "Unfinished", "Winner", "fault_points", "needs_from", "needs_text",
]  # fmt: skip
