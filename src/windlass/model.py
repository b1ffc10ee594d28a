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
    """Where a run is in its life."""

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
    """That a payload does not fit the code of workers: which codes, how often in a row, and since when."""

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
    refused: Refusals | None = None  # of a payload that does not fit


class Solver(Struct, frozen=True):
    """A program that a run brings along: where it is, and the SHA-256 of its bytes in hexadecimal."""

    url: str
    checksum: str


class Policy(Struct, frozen=True, omit_defaults=True):
    """What each attempt is executed with, and what happens when it does not succeed. Durations are milliseconds."""

    backoff: tuple[int, ...] | None = None  # delays before each retry, the last one repeated; None: the formula
    backoff_base: int = 5_000  # of the formula, by which five attempts outlast a minute
    exhausted: Literal["failed", "quarantined"] = "failed"
    retry_place: Literal["keep", "tail"] = "keep"
    timeout: int | None = None  # kept by the worker; retryable
    max_returns: int = 1000  # snoozes and give-backs, which burn no try
    grace: int = 30_000  # from a cancel's ask until the run ends without its worker's word
    solver: Solver | None = None
    ageing: int | None = None  # how long a wait one step of priority is worth, as its queue said when it was made


SOLVER = "solver"
"""The tag of workers that run programs which runs bring along; such runs require it by themselves."""


class Requires(Struct, frozen=True, omit_defaults=True):
    """What a worker must have to be offered a run, and what of its cores and memory the run uses up."""

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

    @property
    def limited(self) -> bool:
        """Whether its runs occupy anything: a resource, or cores and memory of their worker."""
        return bool(self.uses or self.cores or self.memory)


class Rate(Struct, frozen=True, omit_defaults=True):
    """So many in a period of so many milliseconds, evenly, after at most `burst` at once (None: all of them)."""

    count: int
    period: int
    burst: int | None = None


class Resource(Struct, frozen=True):
    """A named capacity that runs occupy. The fields are the columns of `job_resources`."""

    name: str
    capacity: int | None  # None: any number
    rates: tuple[Rate, ...]
    max_wait: int  # milliseconds after which a run that lacks several resources has them kept for it
    created_at: int
    updated_at: int


PauseScope = Literal["system", "queue", "job"]


class Pause(Struct, frozen=True):
    """Something of which nothing is handed out. The fields are the columns of `job_pauses`."""

    scope: PauseScope
    name: str  # empty for the whole system
    at: int
    reason: str | None
    who: str | None


class Queue(Struct, frozen=True):
    """What is set for a queue. The fields are the columns of `job_queues`."""

    name: str
    ageing: int  # milliseconds of waiting that one step of priority is worth


class Slot(Struct, frozen=True):
    """A direct call's place at a resource. The fields are the columns of `job_slots`."""

    seq: int
    id: str
    key: str  # of the gate
    token: str
    weight: int
    state: Literal["waiting", "held"]
    who: str | None
    lease: int
    lease_until: int
    created_at: int
    held_at: int | None


FOREVER = 2**62
"""Milliseconds for which a run is kept that is never removed: added to any time, they are a number that can still be stored."""

Keep = int | Literal["forever"]
"""How long an ended run is kept: milliseconds, or the word."""


def kept(ms: int) -> Keep:
    """How long something is kept, in words that people read."""
    return "forever" if ms >= FOREVER else ms


class Options(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a job sets by default and a creation may set itself; None means not said."""

    queue: str | None = None
    priority: int | None = None
    max_attempts: int | None = None
    max_runtime: int | None = None  # milliseconds from the claim; 0: no limit. Final, unlike timeout
    backoff: tuple[int, ...] | None = None
    backoff_base: int | None = None  # milliseconds
    exhausted: Literal["failed", "quarantined"] | None = None
    retry_place: Literal["keep", "tail"] | None = None
    timeout: int | None = None
    max_returns: int | None = None
    grace: int | None = None
    requires: Requires | None = None
    solver: Solver | None = None
    uses: tuple[Use, ...] | None = None
    keep: Keep | None = None  # from its end on; None: as long as is set for all


class Job(Struct, frozen=True):
    """A definition: what runs are made from."""

    id: int
    name: str
    handler: str | None  # None: nobody has defined it yet; runs may wait for it
    payload: dict[str, Any]
    options: Options
    rev: int
    created_at: int
    updated_at: int
    owner: str | None = None  # whose code made it through a hub; None: a person, or a program that works on the store itself
    schema: str | None = None  # the fingerprint of what its last definer takes; None: it has not told
    takes: dict[str, Any] | None = None  # the JSON Schema itself; only where one definition is asked for


class Lane(Struct, frozen=True):
    """The set of runs that the same workers may take."""

    id: int
    queue: str
    job: str
    requires: Needs
    used_at: int | None = None  # to the day; 0: it is being removed
    owner: str | None = None  # whose small token has made it


class Key(Struct, frozen=True):
    """A name that at most one run has: while unfinished, for a time, or for ever."""

    name: str
    lasts: Literal["unfinished", "time", "forever"] = "unfinished"
    period: int | None = None  # milliseconds, with "time"
    scope: str = "key"
    on_duplicate: Literal["return", "compare"] = "return"
    content: str | None = None  # what "compare" compares, where it is not the run itself that was asked for


class NewRun(Struct, frozen=True):
    """A run that is asked for. What is None is taken from the job."""

    job: str
    payload: Any = None
    options: Options = Options()
    due_at: int | None = None
    key: Key | None = None
    after: tuple[str, ...] = ()  # ids of the runs it waits for
    after_end: Literal["success", "any"] = "success"
    retry_of: str | None = None
    schedule: int | None = None
    instant: int | None = None  # of the schedule
    checked: bool = False  # its payload, against the signature of the code that asks; else what the job takes is compared


class Created(Struct, frozen=True, gc=False):
    """The answer to a creation: the run's id, and whether this call made it."""

    id: str
    created: bool
    pruned: bool = False


BeatAnswer = Literal["ok", "stop", "lost", "unknown"]
"""What a beat says of a run: it is held, its worker is to stop, another has it, or a stranger's transaction hides it for now."""

GroupKind = Literal["parallel", "sequential", "graph"]
OnFailure = Literal["stop", "continue", "skip"]
GroupStatus = Literal["running", "completed", "cancelled", "partial"]


class Member(Struct, frozen=True):
    """A run of a group, and the names of the members it waits for; only those of a graph have any."""

    run: NewRun
    name: str | None = None
    after: tuple[str, ...] = ()


class NewGroup(Struct, frozen=True):
    """A group that is asked for."""

    members: tuple[Member, ...]
    kind: GroupKind = "parallel"
    on_failure: OnFailure = "stop"  # what becomes of those that wait for one that did not succeed
    callback: NewRun | None = None  # a run that begins when all members have ended
    name: str | None = None
    key: Key | None = None  # the same key and content again is the same group


class Group(Struct, frozen=True):
    """Runs that start and finish together by rule. The fields are columns of `job_groups`."""

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
    reason: str | None  # why somebody cancelled it
    retry_of: str | None  # the group that this one is the rerun of
    seq: int = 0  # internal key; never shown


class Result(Struct, frozen=True):
    """What became of a run that another one waited for."""

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
    band: int  # minus the priority, or 0 in a queue that ages: a smaller one goes first
    position: int
    payload: str  # JSON text, a snapshot
    due_at: int  # when it may begin; a retry or a snooze moves it on
    created_at: int
    max_attempts: int
    max_runtime: int | None
    policy: Policy
    attempt: int = 1  # ordinal of the current attempt, returned ones counted
    attempt_id: str | None = None  # None: the run's own id, which the first attempt shares
    retry_of: str | None = None  # the attempt before
    burnt: int = 0  # tries used up by attempts that ended badly
    returns: int = 0
    token: str | None = None  # kept after the end, so that a repeated report is known
    worker: str | None = None
    slot: int | None = None
    lease: int | None = None  # length, as granted
    claimed_at: int | None = None
    started_at: int | None = None
    lease_until: int | None = None
    look_at: int | None = None  # when a sweep next looks at this lease
    cancel_asked_at: int | None = None
    finished_at: int | None = None
    reason: str | None = None
    error: Failure | None = None
    output: str | None = None
    output_hash: str | None = None
    progress: str | None = None  # JSON text, the handler's last word on how far it is; kept at the end
    schedule: int | None = None  # what made it; None: somebody asked for it
    instant: int | None = None  # the schedule's instant that it stands for; it never changes
    keys: str | None = None  # JSON text: its keys for those uses of its lane that limit by key, and what its lane has rounded
    parked: str | None = None  # the gate that is full for it; its lane is negative then
    aged: int | None = None  # its priority, where its queue ages
    grouped: int | None = None  # its group's internal key
    keep: int | None = None  # milliseconds from its end on; None: as long as is set for all

    @property
    def priority(self) -> int:
        return -self.band if self.aged is None else self.aged

    @property
    def head_start(self) -> int:
        """Milliseconds of waiting that its priority is worth, where its queue ages."""
        return 0 if self.aged is None else self.aged * (self.policy.ageing or 0)

    @property
    def scheduled_for(self) -> int:
        return self.due_at if self.instant is None else self.instant

    @property
    def current_attempt(self) -> str:
        return self.attempt_id or self.id


IN_A_LIST = 4 * 1024
"""Bytes of a payload, an output or an error that a list still has."""


class Listed(Run, frozen=True, gc=False):
    """A run in a list that lacks what is large. Ask for the run itself to have it."""

    sizes: dict[str, int] = {}  # bytes of what is left out, by its name; in its place is null

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


class Entry(Struct, frozen=True):
    """One change of state, as the journal keeps it."""

    run: str
    rev: int
    at: int
    move: str
    state: State
    attempt: int
    worker: str | None = None
    detail: str | None = None
    job: str = ""  # with queue and before: only where all runs are read together
    queue: str = ""
    before: State | None = None
    before_at: int | None = None
    left: str | None = None  # the queue it was in before, where a patch moved it


class LogLine(Struct, frozen=True):
    """What a handler wrote."""

    attempt: int
    n: int
    at: int
    text: str


class Progress(Struct, frozen=True, omit_defaults=True):
    """How far a run is, as its handler told."""

    fraction: float | None = None  # from 0 to 1
    message: str | None = None


Missed = Literal["skip", "latest", "all"]
Overlap = Literal["allow", "skip", "queue", "cancel"]


class Schedule(Struct, frozen=True):
    """A rule that makes runs of a job. The fields are the columns of `job_schedules`."""

    id: int
    key: str
    job: str
    kind: str  # once, interval, cron
    expr: str
    zone: str
    anchor: int  # from which intervals are counted
    payload: dict[str, Any]  # laid over the job's template
    options: Options
    missed: Missed  # what becomes of instants that nobody was there for
    most: int  # of them are caught up, the latest ones
    max_age: int | None  # milliseconds; older ones are skipped
    overlap: Overlap  # what happens when the run before has not ended
    jitter: int  # milliseconds, up to which a run comes later than its instant
    enabled: bool
    said: str | None  # what code said of it last, as a hash; None: a person made it
    next_at: int | None
    last_at: int | None
    last_run: str | None
    fired: int
    skipped: int
    rev: int
    created_at: int
    updated_at: int
    owner: str | None = None  # as of a job


class Skipped(Struct, frozen=True):
    """Instants that did not become runs, and why."""

    first_at: int
    last_at: int
    number: int
    reason: str
    at: int


class Secret(Struct, frozen=True, omit_defaults=True):
    """A key that signs; one that another has followed signs beside it until a time."""

    key: str
    until: int | None = None

    def __repr__(self) -> str:  # it must not get into a log
        return f"Secret(..., {self.until})"


class Webhook(Struct, frozen=True):
    """An endpoint that is told of changes. None means any."""

    id: str
    name: str
    url: str
    jobs: tuple[str, ...] | None
    queues: tuple[str, ...] | None
    states: tuple[State, ...]  # which a run enters
    delays: tuple[int, ...]  # milliseconds before the second try, the third, and so on
    secrets: tuple[Secret, ...]  # the newest first
    enabled: bool
    reason: str | None  # why it is not
    failures: int  # in a row
    paused_until: int  # nothing is sent before
    begins: str  # the place in the journal behind which it is told
    rev: int
    created_at: int
    updated_at: int


DeliveryStatus = Literal["pending", "delivered", "failed"]


class Delivery(Struct, frozen=True):
    """One change, told to one endpoint."""

    seq: int
    id: str  # the same at every try
    webhook: str
    run: str
    rev: int
    type: str
    status: DeliveryStatus
    tries: int
    next_at: int | None  # when somebody may try; None at the end
    token: str | None  # of whoever tries just now
    answer: int | None  # the status of the last answer
    error: str | None
    created_at: int
    finished_at: int | None


class WorkerInfo(Struct, frozen=True):
    """Who asks for work, and what it can and may take. None means any."""

    name: str
    queues: tuple[str, ...] | None = None
    jobs: tuple[str, ...] | None = None
    tags: tuple[str, ...] = ()
    cores: int = 1  # with the memory: what its runs use up, as far as they require any
    memory: int = 0  # MiB
    slots: int = 1


class Leases(Struct, frozen=True):
    """The leases of one length that a worker holds: how many, how many of them are over, since when, and when the next will be."""

    worker: str
    length: int
    runs: int
    over: int
    over_since: int | None
    ends_at: int | None


LIFE_TAG = 8
"""Characters of base64url, 48 random bits: nobody else's tokens begin with them."""


class Life(Struct, frozen=True):
    """One process that goes by a worker's name: how the tokens of its claims begin, and by what its host knows whether it is gone."""

    tag: str
    process: str


class Worker(Struct, frozen=True):
    """A worker as it was last seen."""

    info: WorkerInfo
    about: dict[str, Any]  # what it tells of itself: host, version, and the like
    metrics: dict[str, int | float]
    metrics_at: int | None
    registered_at: int
    seen_at: int
    alive: bool
    held: int  # runs it holds now
    runs: tuple[str, ...]  # the ids of those it has held for longest
    stopped_at: int | None = None  # as it should; None: it works, or it was never heard of again


class Counts(Struct, frozen=True):
    """How much there was. The fields are columns of `job_minutes` and `job_totals`; times are sums of milliseconds."""

    created: int = 0
    started: int = 0  # attempts that a worker has claimed
    succeeded: int = 0
    failed: int = 0
    quarantined: int = 0
    cancelled: int = 0
    skipped: int = 0
    attempts: int = 0  # attempts that ended, well or badly
    retried: int = 0  # of them: failed or lost, with another one to come
    returned: int = 0  # of them: snoozed, given back, or refused by one worker for another
    lapsed: int = 0  # of them: lost with their worker
    waited: int = 0  # in the queue, until an attempt was claimed
    ran: int = 0  # by attempts that ended


class Receipt(Struct, frozen=True, gc=False):
    """The answer to a report: what the run became."""

    run: str
    state: State
    repeated: bool = False


Scope = Literal["read", "submit", "work", "admin"]
SCOPES: tuple[Scope, ...] = ("read", "submit", "work", "admin")
"""What a token may be good for. `admin` implies the others, which imply nothing."""


class Token(Struct, frozen=True):
    """Who may do what. The fields are the columns of `job_tokens`."""

    id: str
    name: str
    hash: str  # SHA-256 of the secret, which nobody keeps but its owner
    scopes: tuple[Scope, ...]
    worker: str | None  # the only worker it may act as; None: any
    kind: Literal["token", "session", "invitation"]
    created_at: int
    lasts: int | None  # milliseconds from its creation; None: for ever. The one that takes its place lasts as long
    expires_at: int | None  # sooner than that when another has taken its place
    revoked_at: int | None
    used_at: int | None  # in whole minutes
    principal: str  # to whom belongs what code defines with it; several tokens may have the same

    def valid(self, now: int) -> bool:
        """Whether it is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class Principal(NamedTuple):
    """On whose behalf a hub asks. What works on the store itself asks for nobody, and may do everything."""

    name: str
    trusted: bool  # with the scope admin, or where there are no tokens


class Audited(Struct, frozen=True):
    """What somebody did."""

    at: int
    who: str
    what: str
    subject: str


def place(at: int, index: int = 0) -> int:
    """The position of a run that is due at an instant, the index-th of its call."""
    return at * POSITION_STEP + index * INDEX_STEP


class Limits(Struct, frozen=True):
    """Everything is bounded. Sizes are bytes, times milliseconds."""

    payload: int = 256 * 1024
    output: int = 1024 * 1024
    error: int = 16 * 1024
    progress: int = 4 * 1024
    line: int = 8 * 1024
    lines: int = 10_000  # of one attempt
    log: int = 8 * 1024 * 1024  # of all lines of one attempt
    lines_per_call: int = 1_000
    create: int = 10_000  # runs in one call
    claim: int = 1_000
    report: int = 1_000
    batch: int = 16 * 1024 * 1024  # of a set that travels as one; a member that is larger goes alone
    page: int = 1_000
    predecessors: int = 1_000
    waits: int = 100_000  # between the members of one group
    lanes: int = 10_000
    resources: int = 1_000
    placeholders: int = 10_000  # jobs that nobody has defined
    share: int = 10  # percent of each of these that one who may not do everything can have made
    uses: int = 16  # of one job
    pauses: int = 10_000
    queues: int = 10_000  # with settings of their own
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
    deliver_within: int = 7 * 24 * 3600 * 1000  # what could not be told by then is given up
    keep_deliveries: int = 30 * 24 * 3600 * 1000
    worker_silence: int = 60_000  # a worker not seen for longer does not count as alive
    keep_workers: int = 24 * 3600 * 1000  # since they were last seen
    keep_minutes: int = 14 * 24 * 3600 * 1000
    minutes: int = 24 * 60  # that can be asked for at once
    about: int = 4 * 1024
    schemas: int = 2_000  # jobs of which a worker may tell what it accepts
    schema: int = 16 * 1024  # of a job's arguments
    versions: int = 16  # of a job's schema that are kept
    metrics: int = 64  # numbers that a worker may tell of itself
