"""The verbs for synchronous code: each blocks until its answer is there. Written by docs/generate.py from `windlass.api.verbs`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Unpack

from windlass.answers import (
    AuditPage,
    Deliveries,
    Finding,
    Occupants,
    Page,
    Preview,
    Reason,
    ResourceState,
    Retention,
    RunDetail,
    RunFilters,
    Stats,
    Status,
)
from windlass.client.events import StreamEvent, blocking_events
from windlass.client.streaming import StreamingVerbs
from windlass.defaults import MAX_MISSED, MAX_WAIT, SECRET_OVERLAP, SLOT_LEASE, TOKEN_OVERLAP
from windlass.firing import Fire
from windlass.model import (
    STANDARD,
    Attempt,
    Created,
    Delivery,
    Entry,
    Group,
    GroupStatus,
    JobRecord,
    Keep,
    Lane,
    LogLine,
    Missed,
    NewGroup,
    NewRun,
    Options,
    Overlap,
    Pause,
    PauseScope,
    Queue,
    Rate,
    Resource,
    Result,
    Run,
    Schedule,
    Skipped,
    Slot,
    State,
    Step,
    Token,
    Webhook,
    WorkerRecord,
)
from windlass.store.base import run_sync


class BlockingVerbs:
    """All public verbs of a hub."""

    _verbs: StreamingVerbs

    def close(self) -> None:
        """Close the connections."""
        run_sync(self._verbs.close())

    def jobs(self, *, after: str = "", count: int = 100) -> list[JobRecord]:
        """Definitions by name."""
        return run_sync(self._verbs.jobs(after=after, count=count))

    def get_job(self, name: str) -> JobRecord:
        """One definition."""
        return run_sync(self._verbs.get_job(name))

    def define(
        self,
        name: str,
        *,
        handler: str | None = None,
        payload: Mapping[str, Any] | None = None,
        options: Options | None = None,
        schema: Mapping[str, Any] | None = None,
        description: str | None = None,
    ) -> JobRecord:
        """Store a definition; the same one again changes nothing."""
        return run_sync(self._verbs.define(name, handler=handler, payload=payload, options=options, schema=schema, description=description))

    def drop_job(self, name: str) -> None:
        """Remove the placeholder of an undefined job that has no runs."""
        run_sync(self._verbs.drop_job(name))

    def create(self, news: Sequence[NewRun], *, undefined: Literal["refuse", "wait"] = "refuse") -> list[Created]:
        """Store these runs, all or none; the results are in the same order."""
        return run_sync(self._verbs.create(news, undefined=undefined))

    def runs(self, *, cursor: str | None = None, count: int = 100, **filters: Unpack[RunFilters]) -> Page:
        """A page of runs that match all of these filters."""
        return run_sync(self._verbs.runs(cursor=cursor, count=count, **filters))

    def get(self, run_id: str) -> Run:
        """The run with this id, or with an attempt of this id."""
        return run_sync(self._verbs.get(run_id))

    def patch(self, /, run_id: str, *, by: str | None = None, **fields: Any) -> Run:
        """Edit a run that still waits: payload, priority, due_at, max_attempts, queue."""
        return run_sync(self._verbs.patch(run_id, by=by, **fields))

    def cancel(self, run_id: str, *, reason: str | None = None, only: Collection[State | str] | None = None, by: str | None = None) -> Run:
        """Cancel a waiting run at once; stop a running one. With `only`, cancel it only while it is in one of these states."""
        return run_sync(self._verbs.cancel(run_id, reason=reason, only=only, by=by))

    def rerun(self, run_id: str, *, attempt: int | None = None) -> Created:
        """Create a new run from an ended one, or from one attempt: the same payload and rules, a fresh limit of attempts, no key."""
        return run_sync(self._verbs.rerun(run_id, attempt=attempt))

    def attempts(self, run_id: str) -> list[Attempt]:
        """All attempts of a run, oldest first."""
        return run_sync(self._verbs.attempts(run_id))

    def history(self, run_id: str, *, after: int = 0, count: int = 1000) -> list[Entry]:
        """Every change of state of a run, from the beginning or after a revision."""
        return run_sync(self._verbs.history(run_id, after=after, count=count))

    def lines(
        self, run_id: str, *, attempt: int | None = None, after: tuple[int, int] = (0, 0), last: int | None = None, count: int = 100
    ) -> list[LogLine]:
        """The log of a run, or of one attempt, in its order, after (attempt, number); with `last`, only its last lines."""
        return run_sync(self._verbs.lines(run_id, attempt=attempt, after=after, last=last, count=count))

    def steps(self, run_id: str, *, after: int = 0, count: int = 1000) -> list[Step]:
        """The completed steps of a run with their results, in their order, after a number."""
        return run_sync(self._verbs.steps(run_id, after=after, count=count))

    def why(self, run_id: str) -> list[Reason]:
        """Everything that blocks a run now; empty if a worker could claim it at once."""
        return run_sync(self._verbs.why(run_id))

    def move(
        self,
        run_id: str,
        *,
        place: int | None = None,
        to: Literal["top", "bottom"] | None = None,
        before: str | None = None,
        after: str | None = None,
        by: str | None = None,
    ) -> Run:
        """Give a waiting run another place in its queue: the n-th from 0, the "top" or "bottom", or next to another run."""
        return run_sync(self._verbs.move(run_id, place=place, to=to, before=before, after=after, by=by))

    def detail(self, run_id: str) -> RunDetail:
        """A run with its origin, and how many runs are ahead of it."""
        return run_sync(self._verbs.detail(run_id))

    def status(self, run_id: str) -> Status:
        """The status of a run by its id alone."""
        return run_sync(self._verbs.status(run_id))

    def create_group(self, new: NewGroup, *, undefined: Literal["refuse", "wait"] = "refuse") -> Group:
        """Store a group with all its runs, or nothing."""
        return run_sync(self._verbs.create_group(new, undefined=undefined))

    def groups(self, *, status: GroupStatus | None = None, after: str | None = None, count: int = 100) -> list[Group]:
        """Groups, newest first, all or those of a status, after a given one."""
        return run_sync(self._verbs.groups(status=status, after=after, count=count))

    def get_group(self, group_id: str) -> Group:
        """The group with this id."""
        return run_sync(self._verbs.get_group(group_id))

    def members(self, group_id: str, *, after: str | None = None, count: int = 100) -> list[Run]:
        """The runs of a group in the order in which they were added, after a given one."""
        return run_sync(self._verbs.members(group_id, after=after, count=count))

    def cancel_group(self, group_id: str, *, reason: str | None = None, by: str | None = None) -> Group:
        """Cancel all members that have not ended."""
        return run_sync(self._verbs.cancel_group(group_id, reason=reason, by=by))

    def rerun_group(self, group_id: str) -> Group:
        """Create a new group from an ended one: the same runs and dependencies, with fresh limits of attempts."""
        return run_sync(self._verbs.rerun_group(group_id))

    def results(self, run_id: str, *, after: str | None = None, count: int = 100) -> list[Result]:
        """The results of a run's predecessors, or, for the callback of a group, of all members."""
        return run_sync(self._verbs.results(run_id, after=after, count=count))

    def schedules(self, *, after: str = "", count: int = 100) -> list[Schedule]:
        """Schedules by key."""
        return run_sync(self._verbs.schedules(after=after, count=count))

    def get_schedule(self, key: str) -> Schedule:
        """The schedule with this key."""
        return run_sync(self._verbs.get_schedule(key))

    def schedule(
        self,
        key: str,
        job: str,
        *,
        cron: str | None = None,
        every: str | float | None = None,
        at: str | None = None,
        zone: str = "UTC",
        payload: dict[str, Any] | None = None,
        options: Options | None = None,
        missed: Missed = "latest",
        max_missed: int = MAX_MISSED,
        max_age: int | None = None,
        overlap: Overlap = "allow",
        jitter: int = 0,
        enabled: bool = True,
        by_code: bool = False,
        new: bool = False,
        checked: bool = False,
    ) -> Schedule:
        """Store a rule under a key; the same key again updates it. Existing runs do not change."""
        return run_sync(
            self._verbs.schedule(
                key,
                job,
                cron=cron,
                every=every,
                at=at,
                zone=zone,
                payload=payload,
                options=options,
                missed=missed,
                max_missed=max_missed,
                max_age=max_age,
                overlap=overlap,
                jitter=jitter,
                enabled=enabled,
                by_code=by_code,
                new=new,
                checked=checked,
            )
        )

    def set_schedule(self, /, key: str, **fields: Any) -> Schedule:
        """Edit a schedule."""
        return run_sync(self._verbs.set_schedule(key, **fields))

    def remove_schedule(self, key: str) -> None:
        """Remove a schedule. Its runs stay."""
        run_sync(self._verbs.remove_schedule(key))

    def trigger(self, key: str) -> Created:
        """Create a run of a schedule now; its instants do not change."""
        return run_sync(self._verbs.trigger(key))

    def preview(self, key: str, *, start: int | None = None, count: int = 20) -> list[Preview]:
        """The coming instants of a schedule, from now or from a time."""
        return run_sync(self._verbs.preview(key, start=start, count=count))

    def skips(self, key: str, *, count: int = 100) -> list[Skipped]:
        """The skipped instants of a schedule, latest first."""
        return run_sync(self._verbs.skips(key, count=count))

    def outage(self, key: str, start: int, end: int) -> Fire:
        """What a schedule would do at the end of a downtime."""
        return run_sync(self._verbs.outage(key, start, end))

    def pause(self, scope: PauseScope, name: str = "", *, reason: str | None = None, by: str | None = None) -> Pause:
        """Pause a queue, a job, or the whole system: none of its runs are claimed until it is resumed."""
        return run_sync(self._verbs.pause(scope, name, reason=reason, by=by))

    def resume(self, scope: PauseScope, name: str = "") -> bool:
        """Resume what was paused; False when it was not paused."""
        return run_sync(self._verbs.resume(scope, name))

    def pauses(self) -> list[Pause]:
        """All current pauses."""
        return run_sync(self._verbs.pauses())

    def queues(self) -> list[Queue]:
        """The queues that have settings."""
        return run_sync(self._verbs.queues())

    def set_queue(self, name: str, *, aging: int | None) -> Queue | None:
        """Set aging: `aging` milliseconds of waiting are worth one step of priority. None: priorities alone."""
        return run_sync(self._verbs.set_queue(name, aging=aging))

    def resources(self) -> list[ResourceState]:
        """Every resource, and how much of it is occupied."""
        return run_sync(self._verbs.resources())

    def get_resource(self, name: str) -> ResourceState:
        """One resource, and how much of it is occupied."""
        return run_sync(self._verbs.get_resource(name))

    def set_resource(self, name: str, *, capacity: int | None = None, rates: tuple[Rate, ...] = (), max_wait: int = MAX_WAIT) -> Resource:
        """Set the capacity and the rates of a resource; None: unlimited. In effect at once."""
        return run_sync(self._verbs.set_resource(name, capacity=capacity, rates=rates, max_wait=max_wait))

    def add_resource(self, name: str, *, capacity: int | None = None, rates: tuple[Rate, ...] = (), max_wait: int = MAX_WAIT) -> Resource:
        """Set a resource that does not exist yet; an existing one stays as it is."""
        return run_sync(self._verbs.add_resource(name, capacity=capacity, rates=rates, max_wait=max_wait))

    def drop_resource(self, name: str) -> None:
        """Remove a resource that no lane, run or direct call uses."""
        run_sync(self._verbs.drop_resource(name))

    def occupants(self, key: str, *, count: int = 100) -> Occupants:
        """The occupants of a resource, or of a resource under a key."""
        return run_sync(self._verbs.occupants(key, count=count))

    def retention(self) -> Retention:
        """How long ended runs are kept."""
        return run_sync(self._verbs.retention())

    def set_retention(self, *, keep_succeeded: Keep | None = None, keep_others: Keep | None = None, by: str | None = None) -> Retention:
        """Set how long ended runs are kept; None does not change it."""
        return run_sync(self._verbs.set_retention(keep_succeeded=keep_succeeded, keep_others=keep_others, by=by))

    def all_lanes(self, *, after: int = 0, count: int = 100) -> list[Lane]:
        """Lanes by number: the runs that the same workers may take, when each was last used, and which principal created it."""
        return run_sync(self._verbs.all_lanes(after=after, count=count))

    def drop_lane(self, lane: int) -> None:
        """Remove a lane that has no unfinished runs; it is created again when needed."""
        run_sync(self._verbs.drop_lane(lane))

    def reserve(
        self,
        resource: str,
        *,
        key: str | None = None,
        weight: int = 1,
        lease: int = SLOT_LEASE,
        slot_id: str | None = None,
        token: str | None = None,
        actor: str | None = None,
    ) -> Slot:
        """Request the next slot of a resource, ahead of every queue."""
        return run_sync(self._verbs.reserve(resource, key=key, weight=weight, lease=lease, slot_id=slot_id, token=token, actor=actor))

    def renew(self, slot_id: str, token: str, *, lease: int = SLOT_LEASE) -> Slot:
        """Renew a slot, and take it if it is free now. Raises LeaseLost when it is gone."""
        return run_sync(self._verbs.renew(slot_id, token, lease=lease))

    def turn(self, slot_id: str, token: str, *, lease: int = SLOT_LEASE, wait: float | None = None) -> Slot:
        """Renew a waiting slot until it is held, for at most this many seconds."""
        return run_sync(self._verbs.turn(slot_id, token, lease=lease, wait=wait))

    def release(self, slot_id: str, token: str) -> bool:
        """Release a slot, or stop waiting for it; False when it was already gone."""
        return run_sync(self._verbs.release(slot_id, token))

    def slots(self, *, after: int = 0, count: int = 100) -> list[Slot]:
        """Direct calls that hold a slot or wait, in their order."""
        return run_sync(self._verbs.slots(after=after, count=count))

    def workers(self, *, after: str = "", count: int = 100) -> list[WorkerRecord]:
        """Workers by name, live and recent, with what they hold now."""
        return run_sync(self._verbs.workers(after=after, count=count))

    def drop_worker(self, name: str) -> None:
        """Remove a silent worker; a live one registers again."""
        run_sync(self._verbs.drop_worker(name))

    def stats(self, *, minutes: int = 60) -> Stats:
        """The totals, and the counts of the last minutes, including the current one."""
        return run_sync(self._verbs.stats(minutes=minutes))

    def doctor(self) -> list[Finding]:
        """Problems, the worst first, and what to do about each."""
        return run_sync(self._verbs.doctor())

    def tokens(self, *, after: str = "", count: int = 100) -> list[Token]:
        """Tokens in the order of their creation."""
        return run_sync(self._verbs.tokens(after=after, count=count))

    def create_token(
        self, name: str, scopes: Iterable[str], *, worker: str | None = None, principal: str | None = None, expires_in: int | None = None
    ) -> tuple[Token, str]:
        """Create a token; the second value is its secret, which is not stored."""
        return run_sync(self._verbs.create_token(name, scopes, worker=worker, principal=principal, expires_in=expires_in))

    def get_token(self, token_id: str) -> Token:
        """The token with this id, whether it is valid or not."""
        return run_sync(self._verbs.get_token(token_id))

    def revoke_token(self, token_id: str) -> Token:
        """End a token now; one that has ended does not change."""
        return run_sync(self._verbs.revoke_token(token_id))

    def rotate_token(self, token_id: str, *, overlap: int = TOKEN_OVERLAP) -> tuple[Token, str]:
        """Create a token with the same name and rights; the old one stays valid until the overlap is over."""
        return run_sync(self._verbs.rotate_token(token_id, overlap=overlap))

    def audit(self, *, cursor: str | None = None, count: int = 100) -> AuditPage:
        """Audited actions, newest first."""
        return run_sync(self._verbs.audit(cursor=cursor, count=count))

    def webhooks(self) -> list[Webhook]:
        """Every endpoint, oldest first."""
        return run_sync(self._verbs.webhooks())

    def add_webhook(
        self,
        url: str,
        *,
        name: str | None = None,
        jobs: tuple[str, ...] | None = None,
        queues: tuple[str, ...] | None = None,
        states: tuple[State | str, ...] | None = None,
        delays: tuple[int, ...] | None = None,
        secret: str | None = None,
        enabled: bool = True,
        format: str = STANDARD,
    ) -> Webhook:
        """Send changes to an endpoint: of these jobs and queues, or of all, when a run enters one of these states."""
        return run_sync(
            self._verbs.add_webhook(
                url, name=name, jobs=jobs, queues=queues, states=states, delays=delays, secret=secret, enabled=enabled, format=format
            )
        )

    def get_webhook(self, webhook_id: str) -> Webhook:
        """The endpoint with this id."""
        return run_sync(self._verbs.get_webhook(webhook_id))

    def set_webhook(self, /, webhook_id: str, **fields: Any) -> Webhook:
        """Edit an endpoint."""
        return run_sync(self._verbs.set_webhook(webhook_id, **fields))

    def remove_webhook(self, webhook_id: str) -> None:
        """Remove an endpoint and its deliveries."""
        run_sync(self._verbs.remove_webhook(webhook_id))

    def rotate_webhook(self, webhook_id: str, *, overlap: int = SECRET_OVERLAP, secret: str | None = None) -> Webhook:
        """Sign with a new secret; earlier ones also sign until the overlap is over."""
        return run_sync(self._verbs.rotate_webhook(webhook_id, overlap=overlap, secret=secret))

    def deliveries(self, webhook_id: str, *, status: str | None = None, cursor: str | None = None, count: int = 100) -> Deliveries:
        """The deliveries of an endpoint, latest first."""
        return run_sync(self._verbs.deliveries(webhook_id, status=status, cursor=cursor, count=count))

    def deliveries_of(self, run_id: str) -> list[Delivery]:
        """The deliveries of a run's changes, to endpoints and to the address that it names, oldest first."""
        return run_sync(self._verbs.deliveries_of(run_id))

    def get_delivery(self, delivery_id: str) -> Delivery:
        """The delivery with this id."""
        return run_sync(self._verbs.get_delivery(delivery_id))

    def resend(self, delivery_id: str) -> Delivery:
        """Send a delivery again."""
        return run_sync(self._verbs.resend(delivery_id))

    def wait(self, run_id: str, timeout: float | None = None) -> Run:
        """The run once it has ended; TimeoutError when it takes longer."""
        return run_sync(self._verbs.wait(run_id, timeout))

    def events(
        self,
        run_id: str | None = None,
        *,
        job: str | None = None,
        queue: str | None = None,
        state: State | str | None = None,
        after: str | None = None,
    ) -> Iterator[StreamEvent]:
        """Changes from now on, or after the id of an event; with a run, its changes and log lines until its end."""
        return blocking_events(self._verbs.events(run_id, job=job, queue=queue, state=state, after=after))
