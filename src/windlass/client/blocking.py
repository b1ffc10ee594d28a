"""The verbs for plain code: each blocks until its answer is there. Written by docs/generate.py from `windlass.api.verbs`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from windlass.client.verbs import RemoteVerbs
from windlass.engine import AuditPage, Finding, Page, Reason, Status
from windlass.engine.access import OVERLAP
from windlass.engine.controls import Occupants, ResourceState
from windlass.engine.core import MAX_WAIT
from windlass.engine.limiting import SLOT_LEASE
from windlass.engine.retention import Retention
from windlass.engine.schedules import MOST, Preview
from windlass.engine.stats import Stats
from windlass.engine.webhooks import DELAYS, SECRET_OVERLAP, Deliveries
from windlass.firing import Fire
from windlass.machine import ENDED
from windlass.model import (
    Attempt,
    Created,
    Delivery,
    Entry,
    Group,
    GroupStatus,
    Job,
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
    Token,
    Webhook,
    Worker,
)
from windlass.store.base import run_sync


class BlockingVerbs:
    """Everything that people ask of a hub."""

    _verbs: RemoteVerbs

    def close(self) -> None:
        """Let go of the connections."""
        run_sync(self._verbs.close())

    def jobs(self, *, after: str = "", count: int = 100) -> list[Job]:
        """Definitions by name."""
        return run_sync(self._verbs.jobs(after=after, count=count))

    def get_job(self, name: str) -> Job:
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
    ) -> Job:
        """Store a definition; the same one again changes nothing."""
        return run_sync(self._verbs.define(name, handler=handler, payload=payload, options=options, schema=schema))

    def drop_job(self, name: str) -> None:
        """Forget a job that nobody has defined, and that has no runs."""
        run_sync(self._verbs.drop_job(name))

    def create(self, news: Sequence[NewRun], *, undefined: Literal["refuse", "wait"] = "refuse") -> list[Created]:
        """Store these runs, all or none; the answers are in the same order."""
        return run_sync(self._verbs.create(news, undefined=undefined))

    def runs(
        self,
        *,
        job: str | None = None,
        queue: str | None = None,
        state: State | str | None = None,
        cursor: str | None = None,
        count: int = 100,
    ) -> Page:
        """A page of runs."""
        return run_sync(self._verbs.runs(job=job, queue=queue, state=state, cursor=cursor, count=count))

    def get(self, run_id: str) -> Run:
        """The run with this id, or with an attempt of this id."""
        return run_sync(self._verbs.get(run_id))

    def patch(self, run_id: str, *, by: str | None = None, **fields: Any) -> Run:
        """Edit a run that still waits: payload, priority, due_at, max_attempts, queue."""
        return run_sync(self._verbs.patch(run_id, by=by, **fields))

    def cancel(self, run_id: str, *, reason: str | None = None, by: str | None = None) -> Run:
        """Cancel at once what waits; ask what runs to stop."""
        return run_sync(self._verbs.cancel(run_id, reason=reason, by=by))

    def rerun(self, run_id: str) -> Created:
        """Make a new run from an ended one: the same payload and rules, a fresh limit, no key."""
        return run_sync(self._verbs.rerun(run_id))

    def attempts(self, run_id: str) -> list[Attempt]:
        """All attempts of a run, oldest first."""
        return run_sync(self._verbs.attempts(run_id))

    def history(self, run_id: str, *, after: int = 0, count: int = 1000) -> list[Entry]:
        """Every change of state of a run, from the beginning or behind a revision."""
        return run_sync(self._verbs.history(run_id, after=after, count=count))

    def lines(self, run_id: str, *, after: tuple[int, int] = (0, 0), count: int = 100) -> list[LogLine]:
        """The log of a run in the order it was written, behind (attempt, number)."""
        return run_sync(self._verbs.lines(run_id, after=after, count=count))

    def why(self, run_id: str) -> list[Reason]:
        """Everything that holds a run back now; empty for one that a worker could take at once."""
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
        """Give a run that waits another place in its queue: the n-th from 0, the "top" or "bottom", or next to another run."""
        return run_sync(self._verbs.move(run_id, place=place, to=to, before=before, after=after, by=by))

    def status(self, run_id: str) -> Status:
        """How a run is doing, for those who have only its id."""
        return run_sync(self._verbs.status(run_id))

    def create_group(self, new: NewGroup, *, undefined: Literal["refuse", "wait"] = "refuse") -> Group:
        """Store a group with all its runs, or nothing."""
        return run_sync(self._verbs.create_group(new, undefined=undefined))

    def groups(self, *, status: GroupStatus | None = None, after: str | None = None, count: int = 100) -> list[Group]:
        """Groups, newest first, all or those of a status, from behind one of them on."""
        return run_sync(self._verbs.groups(status=status, after=after, count=count))

    def get_group(self, group_id: str) -> Group:
        """The group with this id."""
        return run_sync(self._verbs.get_group(group_id))

    def members(self, group_id: str, *, after: str | None = None, count: int = 100) -> list[Run]:
        """The runs of a group in the order in which they were given, from behind one of them on."""
        return run_sync(self._verbs.members(group_id, after=after, count=count))

    def cancel_group(self, group_id: str, *, reason: str | None = None, by: str | None = None) -> Group:
        """Cancel all members that have not ended."""
        return run_sync(self._verbs.cancel_group(group_id, reason=reason, by=by))

    def rerun_group(self, group_id: str) -> Group:
        """Make a new group from one that has ended: the same runs with fresh limits, waiting for each other in the same way."""
        return run_sync(self._verbs.rerun_group(group_id))

    def results(self, run_id: str, *, after: str | None = None, count: int = 100) -> list[Result]:
        """What became of the runs that a run has waited for, or of the members of the group at whose end it is called."""
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
        most: int = MOST,
        max_age: int | None = None,
        overlap: Overlap = "allow",
        jitter: int = 0,
        enabled: bool = True,
        by_code: bool = False,
        new: bool = False,
        checked: bool = False,
    ) -> Schedule:
        """Store a rule under a key; the same key again updates it. Runs already made stay as they are."""
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
                most=most,
                max_age=max_age,
                overlap=overlap,
                jitter=jitter,
                enabled=enabled,
                by_code=by_code,
                new=new,
                checked=checked,
            )
        )

    def set_schedule(self, key: str, **fields: Any) -> Schedule:
        """Edit a schedule."""
        return run_sync(self._verbs.set_schedule(key, **fields))

    def remove_schedule(self, key: str) -> None:
        """Forget a schedule. Its runs stay."""
        run_sync(self._verbs.remove_schedule(key))

    def trigger(self, key: str) -> Created:
        """Make a run of a schedule now; its instants are not touched."""
        return run_sync(self._verbs.trigger(key))

    def preview(self, key: str, *, start: int | None = None, count: int = 20) -> list[Preview]:
        """The coming instants of a schedule, from now or from a time."""
        return run_sync(self._verbs.preview(key, start=start, count=count))

    def skips(self, key: str, *, count: int = 100) -> list[Skipped]:
        """What was due and did not become a run, latest first."""
        return run_sync(self._verbs.skips(key, count=count))

    def outage(self, key: str, start: int, end: int) -> Fire:
        """What a schedule would do at the end of a downtime."""
        return run_sync(self._verbs.outage(key, start, end))

    def pause(self, scope: PauseScope, name: str = "", *, reason: str | None = None, by: str | None = None) -> Pause:
        """Hand nothing out of a queue, of a job, or of the whole system."""
        return run_sync(self._verbs.pause(scope, name, reason=reason, by=by))

    def resume(self, scope: PauseScope, name: str = "") -> bool:
        """Hand out again; False when it was not paused."""
        return run_sync(self._verbs.resume(scope, name))

    def pauses(self) -> list[Pause]:
        """What is paused now."""
        return run_sync(self._verbs.pauses())

    def queues(self) -> list[Queue]:
        """The queues for which something is set."""
        return run_sync(self._verbs.queues())

    def set_queue(self, name: str, *, ageing: int | None) -> Queue | None:
        """Let waiting count: `ageing` milliseconds are worth one step of priority. None: priorities alone."""
        return run_sync(self._verbs.set_queue(name, ageing=ageing))

    def resources(self) -> list[ResourceState]:
        """Every resource, and how much of it is occupied."""
        return run_sync(self._verbs.resources())

    def get_resource(self, name: str) -> ResourceState:
        """One resource, and how much of it is occupied."""
        return run_sync(self._verbs.get_resource(name))

    def set_resource(self, name: str, *, capacity: int | None = None, rates: tuple[Rate, ...] = (), max_wait: int = MAX_WAIT) -> Resource:
        """Say how much there is of a resource, and how often it may be used; None: any number. In effect at once."""
        return run_sync(self._verbs.set_resource(name, capacity=capacity, rates=rates, max_wait=max_wait))

    def add_resource(self, name: str, *, capacity: int | None = None, rates: tuple[Rate, ...] = (), max_wait: int = MAX_WAIT) -> Resource:
        """Say how much there is of a resource that is not there yet; one that is stays as it was set."""
        return run_sync(self._verbs.add_resource(name, capacity=capacity, rates=rates, max_wait=max_wait))

    def drop_resource(self, name: str) -> None:
        """Forget a resource that no lane, run or direct call uses."""
        run_sync(self._verbs.drop_resource(name))

    def occupants(self, key: str, *, count: int = 100) -> Occupants:
        """Who occupies a gate: a resource, or a resource under a key."""
        return run_sync(self._verbs.occupants(key, count=count))

    def retention(self) -> Retention:
        """How long ended runs are kept."""
        return run_sync(self._verbs.retention())

    def set_retention(self, *, keep_succeeded: Keep | None = None, keep_others: Keep | None = None, by: str | None = None) -> Retention:
        """Say how long ended runs are kept; None stays as it is."""
        return run_sync(self._verbs.set_retention(keep_succeeded=keep_succeeded, keep_others=keep_others, by=by))

    def all_lanes(self, *, after: int = 0, count: int = 100) -> list[Lane]:
        """Lanes by number: what of a queue the same workers may take, when it was last used, and which small token has made it."""
        return run_sync(self._verbs.all_lanes(after=after, count=count))

    def drop_lane(self, lane: int) -> None:
        """Remove a lane that has no unfinished runs; one that is needed again is made again."""
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
        who: str | None = None,
    ) -> Slot:
        """Ask for the next slot of a resource, ahead of every queue."""
        return run_sync(self._verbs.reserve(resource, key=key, weight=weight, lease=lease, slot_id=slot_id, token=token, who=who))

    def renew(self, slot_id: str, token: str, *, lease: int = SLOT_LEASE) -> Slot:
        """Keep a slot, and have it if its turn has come. Raises LeaseLost when it is gone."""
        return run_sync(self._verbs.renew(slot_id, token, lease=lease))

    def turn(self, slot_id: str, token: str, *, lease: int = SLOT_LEASE, wait: float | None = None) -> Slot:
        """Keep a slot that waits until its turn has come, for so many seconds at most."""
        return run_sync(self._verbs.turn(slot_id, token, lease=lease, wait=wait))

    def release(self, slot_id: str, token: str) -> bool:
        """Give a slot back, or leave the line; False when it was gone already."""
        return run_sync(self._verbs.release(slot_id, token))

    def slots(self, *, after: int = 0, count: int = 100) -> list[Slot]:
        """Direct calls that hold something or wait, in their order."""
        return run_sync(self._verbs.slots(after=after, count=count))

    def workers(self, *, after: str = "", count: int = 100) -> list[Worker]:
        """Workers by name, the living and the lately seen, with what they hold now."""
        return run_sync(self._verbs.workers(after=after, count=count))

    def drop_worker(self, name: str) -> None:
        """Forget a worker that is silent; one that lives registers again."""
        run_sync(self._verbs.drop_worker(name))

    def stats(self, *, minutes: int = 60) -> Stats:
        """The totals, and what there was in the last so many minutes, the current one included."""
        return run_sync(self._verbs.stats(minutes=minutes))

    def doctor(self) -> list[Finding]:
        """What is wrong, the worst first, and what to do about it."""
        return run_sync(self._verbs.doctor())

    def tokens(self, *, after: str = "", count: int = 100) -> list[Token]:
        """Tokens in the order in which they were made."""
        return run_sync(self._verbs.tokens(after=after, count=count))

    def create_token(
        self, name: str, scopes: Iterable[str], *, worker: str | None = None, principal: str | None = None, expires_in: int | None = None
    ) -> tuple[Token, str]:
        """Make a token; the second value is its secret, which is not stored."""
        return run_sync(self._verbs.create_token(name, scopes, worker=worker, principal=principal, expires_in=expires_in))

    def get_token(self, token_id: str) -> Token:
        """The token with this id, whether it is good or not."""
        return run_sync(self._verbs.get_token(token_id))

    def revoke_token(self, token_id: str) -> Token:
        """End a token now; one that has ended stays as it is."""
        return run_sync(self._verbs.revoke_token(token_id))

    def rotate_token(self, token_id: str, *, overlap: int = OVERLAP) -> tuple[Token, str]:
        """Make a token that may do the same under the same name; the old one stays good until the overlap is over."""
        return run_sync(self._verbs.rotate_token(token_id, overlap=overlap))

    def audit(self, *, cursor: str | None = None, count: int = 100) -> AuditPage:
        """What was done, newest first."""
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
        states: tuple[State | str, ...] = ENDED,
        delays: tuple[int, ...] = DELAYS,
        secret: str | None = None,
        enabled: bool = True,
    ) -> Webhook:
        """Send changes to an endpoint: of these jobs and queues, or of all, when a run enters one of these states."""
        return run_sync(
            self._verbs.add_webhook(url, name=name, jobs=jobs, queues=queues, states=states, delays=delays, secret=secret, enabled=enabled)
        )

    def get_webhook(self, webhook_id: str) -> Webhook:
        """The endpoint with this id."""
        return run_sync(self._verbs.get_webhook(webhook_id))

    def set_webhook(self, webhook_id: str, **fields: Any) -> Webhook:
        """Edit an endpoint."""
        return run_sync(self._verbs.set_webhook(webhook_id, **fields))

    def remove_webhook(self, webhook_id: str) -> None:
        """Forget an endpoint and its deliveries."""
        run_sync(self._verbs.remove_webhook(webhook_id))

    def rotate_webhook(self, webhook_id: str, *, overlap: int = SECRET_OVERLAP, secret: str | None = None) -> Webhook:
        """Sign with a new secret; those before it sign too until the overlap is over."""
        return run_sync(self._verbs.rotate_webhook(webhook_id, overlap=overlap, secret=secret))

    def deliveries(self, webhook_id: str, *, status: str | None = None, cursor: str | None = None, count: int = 100) -> Deliveries:
        """What was sent to an endpoint, latest first."""
        return run_sync(self._verbs.deliveries(webhook_id, status=status, cursor=cursor, count=count))

    def get_delivery(self, delivery_id: str) -> Delivery:
        """The delivery with this id."""
        return run_sync(self._verbs.get_delivery(delivery_id))

    def resend(self, delivery_id: str) -> Delivery:
        """Have a delivery tried again from now on."""
        return run_sync(self._verbs.resend(delivery_id))
