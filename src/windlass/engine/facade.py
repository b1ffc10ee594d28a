"""The engine: every verb in one place, each of them a method of one part."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from windlass.clock import Clock
from windlass.doctor import Doctor
from windlass.engine.access import Access
from windlass.engine.announcing import Announcing
from windlass.engine.claims import Claims
from windlass.engine.creations import Creations
from windlass.engine.edits import Edits
from windlass.engine.fires import Fires
from windlass.engine.ground import Ground
from windlass.engine.groups import Groups
from windlass.engine.holds import Holds
from windlass.engine.jobs import Jobs
from windlass.engine.journal import Journal
from windlass.engine.lists import Lists
from windlass.engine.lives import Lives
from windlass.engine.moves import Moves
from windlass.engine.origins import Origins
from windlass.engine.outbox import Outbox
from windlass.engine.parts import Parts
from windlass.engine.pauses import Pauses
from windlass.engine.queues import Queues
from windlass.engine.removal import Removal
from windlass.engine.reports import Reports
from windlass.engine.resources import Resources
from windlass.engine.retention import RetentionRules
from windlass.engine.rollup import Rollup
from windlass.engine.runs import Runs
from windlass.engine.schedules import Schedules
from windlass.engine.sending import DeliveryRules
from windlass.engine.slots import Slots
from windlass.engine.steps import RunSteps
from windlass.engine.sweeps import Sweeps
from windlass.engine.takes import Takes
from windlass.engine.unused import Unused
from windlass.engine.webhooks import Webhooks
from windlass.engine.why import Why
from windlass.engine.workers import Workers
from windlass.model import Limits, Principal
from windlass.once import once
from windlass.store.base import Hints, Store
from windlass.store.records import Records

MAX_REMEMBERED = 256
"""Principals for which an engine keeps a derived engine, since every request of a hub needs one."""

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class verb(Generic[P, R]):
    """A method of a part as a verb of the engine, with its signature and its docstring. It is bound once for each engine."""

    def __init__(self, part: once[T], method: Callable[Concatenate[T, P], R]) -> None:
        self._part, self._method = part.name, method

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, engine: None, owner: type) -> Callable[Concatenate[Any, P], R]: ...

    @overload
    def __get__(self, engine: Engine, owner: type) -> Callable[P, R]: ...

    def __get__(self, engine: Engine | None, owner: type) -> Callable[..., R]:
        if engine is None:
            return self._method
        bound: Callable[..., R] = getattr(getattr(engine.parts, self._part), self._method.__name__)
        engine.__dict__[self._name] = bound
        return bound


class Engine:
    """A durable queue over one store. Verbs await only their store."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        limits: Limits | None = None,
        hints: Hints | None = None,
        keeps: Mapping[str, int] | None = None,
    ) -> None:
        self._begin(Ground(store, clock, limits, hints, keeps))

    def _begin(self, ground: Ground) -> Self:
        self.parts, self.clock, self.limits = Parts(ground), ground.clock, ground.limits
        self._others: dict[Principal | None, Self] = {}
        return self

    def _over(self, ground: Ground) -> Self:
        return type(self).__new__(type(self))._begin(ground)

    def on(self, store: Store) -> Self:
        """The same engine writing through another store, such as a caller's open transaction.

        Lanes and definitions are still written separately: a caller's transaction must not lock them.
        """
        return self._over(self.parts.ground.on(store))

    def by(self, actor: str, what: str, subject: str) -> Self:
        """The same engine for one audited action: the batch that performs it also writes the audit entry."""
        return self._over(self.parts.ground.by(actor, what, subject))

    def on_behalf_of(self, principal: Principal | None) -> Self:
        """The same engine for requests of a principal, who may be untrusted, through a hub."""
        engine = self._others.get(principal)
        if engine is None:
            if len(self._others) >= MAX_REMEMBERED:
                self._others = {}
            engine = self._others[principal] = self._over(self.parts.ground.on_behalf_of(principal))
        return engine

    @property
    def records(self) -> Records:
        """The records of its store."""
        return self.parts.ground.records

    @property
    def hints(self) -> Hints:
        """The hints that wake waiters."""
        return self.parts.ground.hints

    @property
    def commits_together(self) -> bool:
        """Whether concurrent writes share one commit."""
        return getattr(self.parts.ground.home.store, "commits_together", False)

    async def wait(self, topics: Collection[str], timeout: float) -> set[str]:
        """Returns the topics with a hint as soon as there are any, none after `timeout` seconds. See `Hints`."""
        return await self.parts.ground.hints.wait(topics, timeout)

    async def wake(self, topics: Collection[str]) -> None:
        """Wake the waiters on these topics after a write that concerns them."""
        await self.parts.ground.wake(topics)

    def deliver_by(self, rules: DeliveryRules) -> None:
        """Check addresses and formats by the rules of the sender in this process, whatever verb they are given to."""
        self.parts.ground.sending.rules = rules

    async def close(self) -> None:
        """Close the store."""
        await self.parts.ground.records.store.close()

    # Jobs

    define = verb(Parts.jobs, Jobs.define)
    version_of = verb(Parts.jobs, Jobs.version_of)
    jobs = verb(Parts.jobs, Jobs.page)
    find_job = verb(Parts.jobs, Jobs.find)
    get_job = verb(Parts.jobs, Jobs.get)
    drop_job = verb(Parts.unused, Unused.drop_job)

    # Runs

    create = verb(Parts.creations, Creations.create)
    transaction = verb(Parts.creations, Creations.transaction)
    rerun = verb(Parts.creations, Creations.rerun)
    get = verb(Parts.runs, Runs.get)
    status = verb(Parts.runs, Runs.status)
    runs = verb(Parts.lists, Lists.page)
    ranked = verb(Parts.lists, Lists.ranked)
    detail = verb(Parts.origins, Origins.detail)
    origins = verb(Parts.origins, Origins.origins)
    ahead = verb(Parts.origins, Origins.ahead)
    get_many = verb(Parts.runs, Runs.get_many)
    attempts = verb(Parts.runs, Runs.attempts)
    attempts_of = verb(Parts.runs, Runs.attempts_of)
    history = verb(Parts.runs, Runs.history)
    lines = verb(Parts.runs, Runs.lines)
    steps = verb(Parts.steps, RunSteps.page)
    moment = verb(Parts.runs, Runs.moment)
    why = verb(Parts.reasons, Why.why)
    cancel = verb(Parts.edits, Edits.cancel)
    skip = verb(Parts.edits, Edits.skip)
    patch = verb(Parts.edits, Edits.patch)
    move = verb(Parts.moves, Moves.move)

    # Groups

    create_group = verb(Parts.groups, Groups.create)
    get_group = verb(Parts.groups, Groups.get)
    groups = verb(Parts.groups, Groups.page)
    members = verb(Parts.groups, Groups.members)
    results = verb(Parts.groups, Groups.results)
    cancel_group = verb(Parts.groups, Groups.cancel)
    rerun_group = verb(Parts.groups, Groups.rerun)

    # Work

    register = verb(Parts.workers, Workers.register)
    worker_metrics = verb(Parts.workers, Workers.metrics)
    seen = verb(Parts.workers, Workers.seen)
    counts_by_worker = verb(Parts.workers, Workers.counts)
    begin_life = verb(Parts.lives, Lives.begin_life)
    lives = verb(Parts.lives, Lives.lives)
    end_lives = verb(Parts.lives, Lives.end_lives)
    leave = verb(Parts.lives, Lives.leave)
    claim = verb(Parts.claims, Claims.claim)
    claim_many = verb(Parts.claims, Claims.claim_many)
    take = verb(Parts.takes, Takes.take)
    asking = verb(Parts.claims, Claims.asking)
    can_join = verb(Parts.claims, Claims.can_join)
    recover = verb(Parts.claims, Claims.recover)
    start = verb(Parts.holds, Holds.start)
    start_many = verb(Parts.holds, Holds.start_many)
    beat = verb(Parts.holds, Holds.beat)
    log = verb(Parts.holds, Holds.log)
    store_step = verb(Parts.steps, RunSteps.store)
    report = verb(Parts.reports, Reports.report)
    report_many = verb(Parts.reports, Reports.report_many)
    left = verb(Parts.workers, Workers.left)
    workers = verb(Parts.workers, Workers.page)
    living = verb(Parts.workers, Workers.living)
    drop_worker = verb(Parts.workers, Workers.drop)

    # Schedules

    schedule = verb(Parts.schedules, Schedules.store)
    get_schedule = verb(Parts.schedules, Schedules.get)
    schedules = verb(Parts.schedules, Schedules.page)
    set_schedule = verb(Parts.schedules, Schedules.edit)
    remove_schedule = verb(Parts.schedules, Schedules.remove)
    trigger = verb(Parts.schedules, Schedules.trigger)
    skips = verb(Parts.schedules, Schedules.skips)
    preview = verb(Parts.schedules, Schedules.preview)
    outage = verb(Parts.schedules, Schedules.outage)
    due_schedules = verb(Parts.fires, Fires.due_schedules)
    fire_schedule = verb(Parts.fires, Fires.fire_schedule)

    # Limits

    pause = verb(Parts.pauses, Pauses.pause)
    resume = verb(Parts.pauses, Pauses.resume)
    pauses = verb(Parts.pauses, Pauses.all)
    set_queue = verb(Parts.queues, Queues.set)
    queues = verb(Parts.queues, Queues.all)
    set_resource = verb(Parts.resources, Resources.set)
    add_resource = verb(Parts.resources, Resources.add)
    get_resource = verb(Parts.resources, Resources.get)
    resources = verb(Parts.resources, Resources.all)
    drop_resource = verb(Parts.resources, Resources.drop)
    occupants = verb(Parts.resources, Resources.occupants)
    all_lanes = verb(Parts.unused, Unused.lanes)
    drop_lane = verb(Parts.unused, Unused.drop_lane)
    reserve = verb(Parts.slots, Slots.reserve)
    renew = verb(Parts.slots, Slots.renew)
    turn = verb(Parts.slots, Slots.turn)
    release = verb(Parts.slots, Slots.release)
    slots = verb(Parts.slots, Slots.page)

    # The journal

    tail = verb(Parts.journal, Journal.tail)
    tail_end = verb(Parts.journal, Journal.tail_end)
    follow = verb(Parts.journal, Journal.follow)
    roll_up = verb(Parts.rollup, Rollup.roll_up)
    totals = verb(Parts.rollup, Rollup.totals)
    stats = verb(Parts.rollup, Rollup.stats)
    to_announce = verb(Parts.announcing, Announcing.to_announce)
    announce = verb(Parts.announcing, Announcing.announce)

    # Webhooks

    add_webhook = verb(Parts.webhooks, Webhooks.add)
    webhooks = verb(Parts.webhooks, Webhooks.all)
    get_webhook = verb(Parts.webhooks, Webhooks.get)
    set_webhook = verb(Parts.webhooks, Webhooks.edit)
    rotate_webhook = verb(Parts.webhooks, Webhooks.rotate)
    remove_webhook = verb(Parts.webhooks, Webhooks.remove)
    deliveries = verb(Parts.webhooks, Webhooks.deliveries)
    deliveries_of = verb(Parts.webhooks, Webhooks.deliveries_of)
    get_delivery = verb(Parts.webhooks, Webhooks.get_delivery)
    resend = verb(Parts.webhooks, Webhooks.resend)
    delivery_formats = verb(Parts.outbox, Outbox.formats)
    make_deliveries = verb(Parts.outbox, Outbox.make)
    claim_deliveries = verb(Parts.outbox, Outbox.claim)
    next_delivery_in = verb(Parts.outbox, Outbox.next_in)
    delivered = verb(Parts.outbox, Outbox.delivered)
    not_delivered = verb(Parts.outbox, Outbox.not_delivered)

    # Access

    create_token = verb(Parts.access, Access.create_token)
    rotate_token = verb(Parts.access, Access.rotate_token)
    revoke_token = verb(Parts.access, Access.revoke_token)
    get_token = verb(Parts.access, Access.get_token)
    tokens = verb(Parts.access, Access.tokens)
    any_token = verb(Parts.access, Access.any_token)
    find_token = verb(Parts.access, Access.find_token)
    invite = verb(Parts.access, Access.invite)
    sign_in = verb(Parts.access, Access.sign_in)
    ticket = verb(Parts.access, Access.ticket)
    find_ticket = verb(Parts.access, Access.find_ticket)
    audit = verb(Parts.access, Access.audit)

    # Maintenance

    sweep = verb(Parts.sweeps, Sweeps.sweep)
    lapse = verb(Parts.sweeps, Sweeps.lapse)
    open_limiters = verb(Parts.slots, Slots.open_limiters)
    fire = verb(Parts.fires, Fires.fire)
    fire_all = verb(Parts.fires, Fires.fire_all)
    settle = verb(Parts.sweeps, Sweeps.settle)
    dispatch = verb(Parts.sweeps, Sweeps.dispatch)
    prune = verb(Parts.removal, Removal.prune)
    tidy = verb(Parts.sweeps, Sweeps.tidy)
    retention = verb(Parts.retention, RetentionRules.get)
    set_retention = verb(Parts.retention, RetentionRules.set)
    shortest_retention = verb(Parts.retention, RetentionRules.shortest)
    doctor = verb(Parts.doctor, Doctor.examine)
