"""The records that cross every boundary: frozen, typed, parsed once."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, NamedTuple, Self

from msgspec import Struct

from windlass import payload as json

POSITION_STEP = 2**20
"""Positions per millisecond: room for those of one call, and for moves in between."""
INDEX_STEP = 2**6
"""Positions between two runs of one call."""


class State(StrEnum):
    """The state of a run."""

    WAITING = "waiting"
    SCHEDULED = "scheduled"
    QUEUED = "queued"
    CLAIMED = "claimed"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    QUARANTINED = "quarantined"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


class Refusals(Struct, frozen=True, omit_defaults=True):
    """A payload that does not fit the code of workers: which fingerprints, how often in a row, and since when."""

    schemas: tuple[str, ...]  # fingerprints of what they accept
    count: int
    since: int
    attempt: int  # the last one
    worker: str | None = None  # its worker


class Failure(Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """Why an attempt did not succeed."""

    code: str
    message: str
    detail: str | None = None  # a traceback, or the end of standard error
    refused: Refusals | None = None  # for a payload that does not fit


class Solver(Struct, frozen=True):
    """A program that a run names: its URL, and the SHA-256 of its bytes in hexadecimal.

    Without a checksum it may be another program at every attempt; workers execute it only if they are set to.
    """

    url: str
    checksum: str | None = None


class Policy(Struct, frozen=True, omit_defaults=True):
    """How attempts are executed, and what happens when one does not succeed. Durations are milliseconds."""

    backoff: tuple[int, ...] | None = None  # delays before each retry, the last one repeated; None: the formula
    backoff_base: int = 5_000  # of the formula; with it, five attempts outlast a minute
    on_exhausted: Literal["failed", "quarantined"] = "failed"
    retry_place: Literal["keep", "tail"] = "keep"
    timeout: int | None = None  # enforced by the worker; retryable
    max_requeues: int = 1000  # of snoozes and requeues, which count as no failure
    attempt_per_claim: bool = False  # a claim that is requeued before its start is an attempt, too, so no attempt is offered twice
    grace: int = 30_000  # from a cancel until the run ends without a report of its worker
    solver: Solver | None = None
    aging: int | None = None  # how much waiting one step of priority is worth, in its queue when it was created
    handler: str | None = None  # what executes it; None: the handler that is called like its job


SOLVER = "solver"
"""The tag of workers that execute programs named by runs; such runs require it automatically."""


class Requires(Struct, frozen=True, omit_defaults=True):
    """What a worker must have to get a run, and the cores and memory that the run takes from it."""

    tags: tuple[str, ...] = ()
    cores: int = 0
    memory: int = 0  # MiB


class Use(Struct, frozen=True, omit_defaults=True):
    """What a run occupies of a resource while a worker has it. With `per`, the limits hold for each value of that payload field."""

    resource: str
    weight: int = 1
    per: str | None = None


class Needs(Requires, frozen=True, omit_defaults=True):
    """What a lane requires of a worker, and which resources its runs occupy."""

    uses: tuple[Use, ...] = ()
    handler: str | None = None  # None: the one that is called like the job of the lane

    @property
    def limited(self) -> bool:
        """Whether its runs occupy anything: a resource, or cores and memory of their worker."""
        return bool(self.uses or self.cores or self.memory)


class Rate(Struct, frozen=True, omit_defaults=True):
    """A count per period in milliseconds, evenly, after at most `burst` at once (None: all of them)."""

    count: int
    period: int
    burst: int | None = None


class Resource(Struct, frozen=True):
    """A named capacity that runs occupy. The fields are the columns of `job_resources`."""

    name: str
    capacity: int | None  # None: any number
    rates: tuple[Rate, ...]
    max_wait: int  # milliseconds after which a run that lacks several resources has them reserved
    created_at: int
    updated_at: int


PauseScope = Literal["system", "queue", "job"]


class Pause(Struct, frozen=True):
    """A pause: no runs of its target are claimed. The fields are the columns of `job_pauses`."""

    scope: PauseScope
    name: str  # empty for the whole system
    at: int
    reason: str | None
    actor: str | None


class Queue(Struct, frozen=True):
    """The settings of a queue. The fields are the columns of `job_queues`."""

    name: str
    aging: int  # milliseconds of waiting that one step of priority is worth


class Slot(Struct, frozen=True):
    """A direct call that waits for or holds a slot. The fields are the columns of `job_slots`."""

    seq: int
    id: str
    key: str  # of the limiter
    token: str
    weight: int
    state: Literal["waiting", "held"]
    actor: str | None
    lease: int
    lease_until: int
    created_at: int
    held_at: int | None


FOREVER = 2**62
"""Milliseconds for which a run that is never removed is kept: added to any time, the sum can still be stored."""

Keep = int | Literal["forever"]
"""How long an ended run is kept: milliseconds, or "forever"."""


def kept(ms: int) -> Keep:
    """How long something is kept, as text for people."""
    return "forever" if ms >= FOREVER else ms


class Options(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A job's defaults, which a creation may override; None means not set."""

    queue: str | None = None
    priority: int | None = None
    max_attempts: int | None = None
    max_runtime: int | None = None  # milliseconds from the claim; 0: no limit. Final, unlike timeout
    backoff: tuple[int, ...] | None = None
    backoff_base: int | None = None  # milliseconds
    on_exhausted: Literal["failed", "quarantined"] | None = None
    retry_place: Literal["keep", "tail"] | None = None
    timeout: int | None = None
    max_requeues: int | None = None
    attempt_per_claim: bool | None = None
    grace: int | None = None
    requires: Requires | None = None
    solver: Solver | None = None
    uses: tuple[Use, ...] | None = None
    keep: Keep | None = None  # from its end; None: the store's setting


class JobRecord(Struct, frozen=True):
    """A definition, from which runs are created."""

    id: int
    name: str
    handler: str | None  # None: it is not defined yet; runs may wait for it
    payload: dict[str, Any]
    options: Options
    rev: int
    created_at: int
    updated_at: int
    owner: str | None = None  # the principal whose code defined it through a hub; None: an operator, or a program on the store itself
    schema: str | None = None  # the fingerprint of its last definer's signature; None: not given
    description: str | None = None  # for people
    takes: dict[str, Any] | None = None  # the JSON Schema itself; only when a single definition is read

    @property
    def own_handler(self) -> str | None:
        """Its handler, unless that is called like the job."""
        return None if self.handler == self.name else self.handler


class Lane(Struct, frozen=True):
    """The set of runs that the same workers may take."""

    id: int
    queue: str
    job: str
    requires: Needs
    used_at: int | None = None  # rounded to the day; 0: it is being removed
    owner: str | None = None  # the principal without admin that created it

    @property
    def handler(self) -> str:
        """What a worker must have to execute its runs."""
        return self.requires.handler or self.job


class Key(Struct, frozen=True):
    """A name that at most one run has: while unfinished, for a time, or for ever."""

    name: str
    ttl: int | Literal["unfinished", "forever"] = "unfinished"  # milliseconds, or as long as the run has not ended
    scope: str = "key"
    on_duplicate: Literal["return", "compare"] = "return"
    content: str | None = None  # what "compare" compares, if not the requested run itself

    def until(self, now: int) -> int | None:
        """When time makes it free; None: never."""
        return now + self.ttl if isinstance(self.ttl, int) else None


STANDARD = "standard"
"""The format of webhooks that have no other."""


class Notify(Struct, frozen=True, forbid_unknown_fields=True):
    """An address that is notified of the changes of one run."""

    url: str
    format: str = STANDARD
    events: tuple[str, ...] | None = None  # of the format; None: those that it sends unless others are named


class NewRun(Struct, frozen=True):
    """A requested run. Fields that are None are taken from the job."""

    job: str
    payload: Any = None
    options: Options = Options()
    due_at: int | None = None
    key: Key | None = None
    after: tuple[str, ...] = ()  # ids of the runs it waits for
    after_end: Literal["success", "any"] = "success"
    retry_of: str | None = None
    schedule: int | None = None
    instant: int | None = None  # only for runs of a schedule
    checked: bool = False  # the payload was checked against the caller's own signature; otherwise the job's schemas are checked
    meta: dict[str, Any] | None = None  # the caller's own facts about the run, which never change
    id: str | None = None  # of the run, chosen by the caller: a run that exists is not created again. None: a new one
    notify: Notify | None = None  # of its changes; kept with the run, and with its reruns


class Created(Struct, frozen=True, gc=False):
    """The result of a creation: the run's id, and whether this call created it."""

    id: str
    created: bool
    pruned: bool = False


BeatAnswer = Literal["ok", "stop", "lost", "unknown"]
"""The answer to a heartbeat: held, to be stopped, lost to another claim, or unknown because another transaction has it locked."""

GroupKind = Literal["parallel", "sequential", "graph"]
OnFailure = Literal["stop", "continue", "skip"]
GroupStatus = Literal["running", "completed", "cancelled", "partial"]


class Member(Struct, frozen=True):
    """A run of a group, and the names of the members it waits for; only those of a graph have any."""

    run: NewRun
    name: str | None = None
    after: tuple[str, ...] = ()


class NewGroup(Struct, frozen=True):
    """A requested group."""

    members: tuple[Member, ...]
    kind: GroupKind = "parallel"
    on_failure: OnFailure = "stop"  # what happens to dependents of a member that did not succeed
    callback: NewRun | None = None  # a run that starts when all members have ended
    name: str | None = None
    key: Key | None = None  # the same key and content again return the same group


class Group(Struct, frozen=True):
    """Runs with rules for their order. The fields are columns of `job_groups`."""

    id: str
    name: str | None
    kind: GroupKind
    on_failure: OnFailure
    total: int
    succeeded: int
    failed: int  # or quarantined
    cancelled: int  # or skipped
    status: GroupStatus  # completed: all succeeded; cancelled: all were cancelled or skipped; partial: anything else
    callback: str | None  # the id of the run at its end
    created_at: int
    finished_at: int | None
    reason: str | None  # why it was cancelled
    retry_of: str | None  # the group that this one is the rerun of
    seq: int = 0  # internal key; never shown


class Result(Struct, frozen=True):
    """The result of a predecessor."""

    id: str
    job: str
    state: State
    output: str | None  # JSON text

    @property
    def value(self) -> Any:
        """The output as plain values."""
        return None if self.output is None else json.decode(self.output)


class Run(Struct, frozen=True, gc=False):
    """One request to execute a job, with its current or last attempt. The fields are the columns of `job_runs`."""

    seq: int  # internal key; never shown
    id: str
    rev: int  # one more with every entry in the journal
    state: State
    job: str
    queue: str
    lane: int
    priority_key: int  # minus the priority, or 0 in a queue that ages: a smaller one goes first
    position: int
    payload: str  # JSON text, a snapshot
    due_at: int  # when it may start; a retry or a snooze moves it
    created_at: int
    max_attempts: int
    max_runtime: int | None
    policy: Policy
    attempt: int = 1  # ordinal of the current attempt, returned ones counted
    attempt_id: str | None = None  # None: the run's own id, which the first attempt shares
    retry_of: str | None = None  # the previous attempt
    failures: int = 0  # attempts that ended badly
    requeues: int = 0
    token: str | None = None  # kept after the end, so that a repeated report is recognised
    worker: str | None = None
    slot: int | None = None
    lease: int | None = None  # length, as granted
    claimed_at: int | None = None
    started_at: int | None = None
    lease_until: int | None = None
    lease_check_at: int | None = None  # when a sweep next checks this lease
    cancel_asked_at: int | None = None
    finished_at: int | None = None
    reason: str | None = None
    error: Failure | None = None
    output: str | None = None
    output_hash: str | None = None
    progress: str | None = None  # JSON text, the handler's latest progress; kept at the end
    schedule: int | None = None  # the schedule that created it; None: a caller did
    instant: int | None = None  # the schedule's instant that it belongs to; it never changes
    keys: str | None = None  # JSON text: its keys for uses of its lane that are limited by key, and the amounts that its lane has rounded
    parked: str | None = None  # the limiter that is full for it; its lane is negative meanwhile
    aging_priority: int | None = None  # its priority, if its queue has aging
    grouped: int | None = None  # its group's internal key
    keep: int | None = None  # milliseconds from its end; None: the store's setting
    meta: str | None = None  # JSON text of an object, as its creation gave it
    output_key: str | None = None  # the name that the worker gave its output

    @property
    def priority(self) -> int:
        return -self.priority_key if self.aging_priority is None else self.aging_priority

    @property
    def head_start(self) -> int:
        """Milliseconds of waiting that its priority is worth, if its queue has aging."""
        return 0 if self.aging_priority is None else self.aging_priority * (self.policy.aging or 0)

    @property
    def handler(self) -> str:
        """The name under which a worker finds what executes it."""
        return self.policy.handler or self.job

    @property
    def scheduled_for(self) -> int:
        return self.due_at if self.instant is None else self.instant

    @property
    def current_attempt(self) -> str:
        return self.attempt_id or self.id


IN_A_LIST = 4 * 1024
"""Bytes up to which a list includes a payload, an output or an error."""


class Listed(Run, frozen=True, gc=False):
    """A run in a list, without its large members. Fetch the run itself to get them."""

    sizes: dict[str, int] = {}  # bytes of each member left out, by name; its value is null

    @classmethod
    def of(cls, run: Run, sizes: dict[str, int]) -> Self:
        values = {name: getattr(run, name) for name in Run.__struct_fields__}
        return cls(**values | {"payload": "null" if "payload" in sizes else run.payload, "sizes": sizes})


class Attempt(Struct, frozen=True):
    """One execution of a run; a closed one never changes."""

    run: str
    n: int
    id: str
    retry_of: str | None
    outcome: str  # failed, lapsed, returned for a closed one; else the run's own state
    worker: str | None
    token: str | None
    claimed_at: int | None
    started_at: int | None
    finished_at: int | None
    error: Failure | None
    payload: str | None = None  # JSON text, if it is not the run's: the run was patched after this attempt


class Entry(Struct, frozen=True):
    """One change of state, as the journal has it."""

    run: str
    rev: int
    at: int
    move: str
    state: State
    attempt: int
    worker: str | None = None
    detail: str | None = None
    job: str = ""  # with queue and before: only where the entries of all runs are read
    queue: str = ""
    before: State | None = None
    before_at: int | None = None
    left: str | None = None  # the previous queue, if a patch moved it


class LogLine(Struct, frozen=True):
    """A log line of a handler."""

    attempt: int
    n: int
    at: int
    text: str


class Step(Struct, frozen=True):
    """A completed step of a run."""

    key: str
    output: str  # JSON text
    at: int
    n: int  # its number among the steps of its run, from 1

    @property
    def value(self) -> Any:
        """The output as plain values."""
        return json.decode(self.output)


class Progress(Struct, frozen=True, omit_defaults=True):
    """The progress of a run, as its handler reported it."""

    fraction: float | None = None  # from 0 to 1
    message: str | None = None


Missed = Literal["skip", "latest", "all"]
Overlap = Literal["allow", "skip", "queue", "cancel"]


class Schedule(Struct, frozen=True):
    """A rule that creates runs of a job. The fields are the columns of `job_schedules`."""

    id: int
    key: str
    job: str
    kind: str  # once, interval, cron
    expr: str
    zone: str
    anchor: int  # from which intervals are counted
    payload: dict[str, Any]  # merged over the job's template
    options: Options
    missed: Missed  # what happens to instants that passed during downtime
    max_missed: int  # how many of them are caught up, the latest ones
    max_age: int | None  # milliseconds; older ones are skipped
    overlap: Overlap  # what happens when the previous run has not ended
    jitter: int  # milliseconds by which a run may be later than its instant
    enabled: bool
    code_hash: str | None  # of its definition by code; None: an operator created it
    next_at: int | None
    last_at: int | None
    last_run: str | None
    fired: int
    skipped: int
    rev: int
    created_at: int
    updated_at: int
    owner: str | None = None  # as for a job


class Skipped(Struct, frozen=True):
    """Instants that did not become runs, and why."""

    first_at: int
    last_at: int
    number: int
    reason: str
    at: int


class Secret(Struct, frozen=True, omit_defaults=True):
    """A signing key; one that was replaced also signs until a time."""

    key: str
    until: int | None = None

    def __repr__(self) -> str:  # it must not be logged
        return f"Secret(..., {self.until})"


class Webhook(Struct, frozen=True):
    """An endpoint that is notified of changes. None means any."""

    id: str
    name: str
    url: str
    jobs: tuple[str, ...] | None
    queues: tuple[str, ...] | None
    states: tuple[State, ...] | None  # that a run enters; None: in which the format has an event
    delays: tuple[int, ...] | None  # milliseconds before the second attempt, the third, and so on; None: those of the format
    secrets: tuple[Secret, ...]  # the newest first
    enabled: bool
    reason: str | None  # why it is disabled
    failures: int  # consecutive failures
    paused_until: int  # nothing is sent before
    begins: str  # the offset in the journal after which it is notified
    rev: int
    created_at: int
    updated_at: int
    format: str = STANDARD
    origin: str | None = None  # of addresses that runs name; None: an endpoint that was added


DeliveryStatus = Literal["pending", "delivered", "failed"]


class Delivery(Struct, frozen=True):
    """One change, sent to one endpoint."""

    seq: int
    id: str  # the same for every attempt
    webhook: str
    run: str
    rev: int
    type: str
    status: DeliveryStatus
    tries: int
    next_at: int | None  # when the next attempt may be made; None at the end
    token: str | None  # of the current sender
    answer: int | None  # the status of the last answer
    error: str | None
    created_at: int
    finished_at: int | None
    url: str | None = None  # the address, if its run names it


class WorkerInfo(Struct, frozen=True):
    """A worker that claims, and what it can and may take. None means any."""

    name: str
    queues: tuple[str, ...] | None = None
    jobs: tuple[str, ...] | None = None  # names of handlers: it takes runs of every job that has one of them
    tags: tuple[str, ...] = ()
    cores: int = 1  # with the memory: the capacity for runs that require any
    memory: int = 0  # MiB
    slots: int = 1
    programs: bool = False  # it also takes runs that bring a program, of whatever job


class Leases(Struct, frozen=True):
    """The leases of one length that a worker holds: how many, how many of them have expired, since when, and when the next will."""

    worker: str
    length: int
    runs: int
    over: int
    over_since: int | None
    ends_at: int | None


LIFE_TAG = 8
"""Characters of base64url, 48 random bits: the tokens of no other process begin with them."""


class Life(Struct, frozen=True):
    """One process under a worker's name: the prefix of its claims' tokens, and how its host can tell whether it is gone."""

    tag: str
    process: str


class WorkerRecord(Struct, frozen=True):
    """A worker as it last registered."""

    info: WorkerInfo
    about: dict[str, Any]  # what it reports of itself: host, version, and the like
    metrics: dict[str, int | float]
    metrics_at: int | None
    registered_at: int
    seen_at: int
    alive: bool
    held: int  # runs that it holds now
    runs: tuple[str, ...]  # the ids of those it has held for longest
    stopped_at: int | None = None  # in an orderly way; None: it works, or was lost


class Counts(Struct, frozen=True):
    """Counts. The fields are columns of `job_minutes` and `job_totals`; times are sums of milliseconds."""

    created: int = 0
    started: int = 0  # attempts that a worker has claimed
    succeeded: int = 0
    failed: int = 0
    quarantined: int = 0
    cancelled: int = 0
    skipped: int = 0
    attempts: int = 0  # attempts that ended, with any outcome
    retried: int = 0  # of these: failed or lost, with a retry to come
    returned: int = 0  # of these: snoozed, requeued, or refused by one worker for another
    lapsed: int = 0  # of these: lost with their worker
    waited: int = 0  # in the queue, until an attempt was claimed
    ran: int = 0  # by attempts that ended


class Receipt(Struct, frozen=True, gc=False):
    """The answer to a report: the new state of the run."""

    run: str
    state: State
    repeated: bool = False


Scope = Literal["read", "submit", "work", "admin"]
SCOPES: tuple[Scope, ...] = ("read", "submit", "work", "admin")
"""What a token may permit. `admin` implies the others, which imply nothing."""


class Token(Struct, frozen=True):
    """A credential and its rights. The fields are the columns of `job_tokens`."""

    id: str
    name: str
    hash: str  # SHA-256 of the secret; the secret itself is not stored
    scopes: tuple[Scope, ...]
    worker: str | None  # the only worker it may act as; None: any
    kind: Literal["token", "session", "invitation"]
    created_at: int
    ttl: int | None  # milliseconds from its creation; None: for ever. Its successor gets the same
    expires_at: int | None  # earlier than that once a successor has replaced it
    revoked_at: int | None
    used_at: int | None  # in whole minutes
    principal: str  # the owner of what code defines with it; several tokens may share one

    def valid(self, now: int) -> bool:
        """Whether it is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class Principal(NamedTuple):
    """The principal on whose behalf a hub calls. A program on the store itself has none, and may do everything."""

    name: str
    trusted: bool  # with the scope admin, or without any tokens


class AuditEntry(Struct, frozen=True):
    """One audited action."""

    at: int
    actor: str
    what: str
    subject: str


def place(at: int, index: int = 0) -> int:
    """The position of a run that is due at an instant, the index-th of its call."""
    return at * POSITION_STEP + index * INDEX_STEP


class Limits(Struct, frozen=True):
    """Everything is bounded. Sizes are bytes, times milliseconds."""

    payload: int = 256 * 1024
    meta: int = 4 * 1024
    output: int = 1024 * 1024
    error: int = 16 * 1024
    progress: int = 4 * 1024
    line: int = 8 * 1024
    lines: int = 10_000  # of one attempt
    log: int = 8 * 1024 * 1024  # of all lines of one attempt
    lines_per_call: int = 1_000
    step: int = 64 * 1024  # the result of a step
    steps: int = 1_000  # of one run
    create: int = 10_000  # runs in one call
    claim: int = 1_000
    report: int = 1_000
    batch: int = 16 * 1024 * 1024  # of a set that is passed as one parameter; a larger member is passed alone
    page: int = 1_000
    predecessors: int = 1_000
    waits: int = 100_000  # between the members of one group
    lanes: int = 10_000
    resources: int = 1_000
    placeholders: int = 10_000  # jobs that are not defined
    share: int = 10  # percent of each of these that one principal without admin may create
    uses: int = 16  # of one job
    pauses: int = 10_000
    queues: int = 10_000  # with their own settings
    slots: int = 10_000  # direct calls that wait or hold
    attempts: int = 1_000
    lease: int = 24 * 3600 * 1000
    duration: int = 10 * 366 * 24 * 3600 * 1000
    keep_succeeded: int = 7 * 24 * 3600 * 1000
    keep_others: int = 30 * 24 * 3600 * 1000
    keep_claim_nonces: int = 10 * 60 * 1000
    keep_audit: int = 90 * 24 * 3600 * 1000
    tokens: int = 10_000
    webhooks: int = 200
    deliver_within: int = 7 * 24 * 3600 * 1000  # entries that could not be sent by then are dropped
    keep_deliveries: int = 30 * 24 * 3600 * 1000
    worker_silence: int = 60_000  # a worker that has been silent for longer does not count as alive
    keep_workers: int = 24 * 3600 * 1000  # since their last heartbeat
    keep_minutes: int = 14 * 24 * 3600 * 1000
    minutes: int = 24 * 60  # that can be requested at once
    about: int = 4 * 1024
    schemas: int = 2_000  # jobs for which a worker may register a fingerprint
    schema: int = 16 * 1024  # of a job's arguments
    description: int = 4 * 1024  # of a job
    versions: int = 16  # of a job's schema that are kept
    metrics: int = 64  # measurements that a worker may report
