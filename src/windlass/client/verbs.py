"""The verbs of people, as the engine has them: the same names, arguments, answers and errors, through a hub."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set
from typing import Any, Literal, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Raw, Struct

from windlass import payload as json
from windlass import wire
from windlass.client.problems import refusal
from windlass.client.transport import Transport
from windlass.clock import Clock
from windlass.engine import Finding, Page, Reason, Status, checks
from windlass.engine.edits import PATCHABLE
from windlass.engine.schedules import EDITABLE, MOST, Preview, outage_of
from windlass.engine.stats import Stats
from windlass.errors import (
    AWAY,
    BadInput,
    Frozen,
    HubFailed,
    NotFound,
    OutcomeUnknown,
    UnknownJob,
    WrongState,
)
from windlass.firing import Fire
from windlass.machine import ENDED
from windlass.model import (
    Attempt,
    Created,
    Entry,
    Job,
    Limits,
    LogLine,
    Missed,
    NewRun,
    Options,
    Overlap,
    Run,
    Schedule,
    Skipped,
    State,
    Worker,
)

T = TypeVar("T")

_LOG = logging.getLogger("windlass.client")

API = "/api/v1"
TIMEOUT = 30.0  # seconds for an answer
PATIENCE = 10.0  # seconds in which what can safely be asked again is asked again
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0


def place(*parts: str) -> str:
    """A path of the API; a name in it may hold any character."""
    return API + "".join("/" + quote(part, safe="").replace(".", "%2E") for part in parts)


def encoded(body: Any) -> bytes:
    """A body as it is sent."""
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadInput(f"What is to be sent is not JSON: {error}.", hint="Send texts, numbers, lists and objects.") from None


def said(**words: str | int | None) -> dict[str, str | int]:
    """The words of a query that are said."""
    return {name: value for name, value in words.items() if value is not None}


class Verbs:
    """A durable queue behind a hub. What is safe to repeat is repeated for `patience` seconds when the hub is away."""

    def __init__(self, transport: Transport, clock: Clock, *, patience: float = PATIENCE, timeout: float = TIMEOUT) -> None:
        self.transport, self.clock, self.limits = transport, clock, Limits()
        self._patience, self._timeout = patience, timeout

    async def close(self) -> None:
        """Let go of the connections."""
        await self.transport.close()

    async def ask(
        self,
        method: str,
        path: str,
        kind: type[T],
        *,
        query: Mapping[str, str | int] | None = None,
        body: Struct | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        safe: bool = False,
        timeout: float | None = None,
        patience: float | None = None,
    ) -> T:
        """The hub's answer. What is `safe` may reach the hub twice; anything else only when it has surely not been done."""
        content = body if body is None or isinstance(body, bytes) else encoded(body)
        until = self.clock.monotonic() + round(1000 * (self._patience if patience is None else patience))
        pause = FIRST_PAUSE
        sent = dict(headers or {}) | ({"content-type": "application/json"} if content is not None else {})
        while True:
            try:
                return await self._ask_once(method, path, kind, query, content, sent, timeout or self._timeout)
            except AWAY as error:
                if (isinstance(error, OutcomeUnknown) and not safe) or self.clock.monotonic() + round(pause * 1000) > until:
                    raise
                _LOG.info("The hub does not answer, trying again in %.1f s: %s", pause, error)
            await self.transport.pause(pause * (0.5 + self.clock.chance() / 2))
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _ask_once(
        self,
        method: str,
        path: str,
        kind: type[T],
        query: Mapping[str, str | int] | None,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout: float,
    ) -> T:
        answer = await self.transport.send(method, path, query=query, body=body, headers=headers, timeout=timeout)
        if not 200 <= answer.status < 300:
            raise refusal(answer)
        try:
            return msgspec.json.decode(answer.body or b"null", type=kind)
        except msgspec.DecodeError as error:
            raise HubFailed(f"The hub's answer cannot be read: {error}.", hint="Use a hub and a client of the same version.") from None

    async def _look(self, path: str, kind: type[T], **words: str | int | None) -> T:
        return await self.ask("GET", path, kind, query=said(**words), safe=True)

    # Jobs

    async def define(
        self,
        name: str,
        *,
        handler: str | None = None,
        payload: Mapping[str, Any] | None = None,
        options: Options | None = None,
        schema: Mapping[str, Any] | None = None,
    ) -> Job:
        """Store a definition; the same one again changes nothing."""
        checks.name(name, "A job's name")
        template = json.encode(dict(payload or {}), most=self.limits.payload, what="The payload template")
        chosen = checks.options(options or Options(), self.limits)
        takes = None if schema is None else Raw(checks.schema(schema, self.limits).encode())
        body = encoded({"handler": handler or name, "payload": Raw(template.encode()), "options": chosen, "schema": takes})
        return wire.job_of(await self.ask("PUT", place("jobs", name), wire.JobView, body=body, safe=True))

    async def jobs(self, *, after: str = "", count: int = 100) -> list[Job]:
        """Definitions by name."""
        checks.integer(count, "count", 1, self.limits.page)
        return [wire.job_of(view) for view in (await self._look(place("jobs"), wire.Jobs, after=after, count=count)).jobs]

    async def get_job(self, name: str) -> Job:
        """One definition."""
        return wire.job_of(await self._look(place("jobs", checks.name(name, "A job's name")), wire.JobView))

    async def drop_job(self, name: str) -> None:
        """Forget a job that nobody has defined, and that has no runs."""
        await self.ask("DELETE", place("jobs", checks.name(name, "A job's name")), wire.Done)

    async def definitions(self, names: Set[str], undefined: Literal["refuse", "wait"]) -> dict[str, Job]:
        """The definitions of these jobs; UnknownJob when one is missing that must not be."""
        found = {}
        for name in sorted(names):
            try:
                found[name] = await self.get_job(name)
            except NotFound as error:
                if undefined == "refuse":
                    raise UnknownJob(f"No job is called {name!r}.", hint="Define it first.") from error
        return found

    # Making runs

    async def create(self, news: Sequence[NewRun], *, undefined: Literal["refuse", "wait"] = "refuse") -> list[Created]:
        """Store these runs, all or none; the answers are in the same order."""
        checks.count(news, "runs", self.limits.create)
        checks.choice(undefined, "undefined", ("refuse", "wait"))
        asked = [self._asked(new, undefined) for new in news]
        if not asked:
            return []
        # A key of the user's own that is free again at the run's end does not tell a repetition from a second request.
        safe = all(new.key is None or new.key.lasts != "unfinished" for new in news)
        headers = {"idempotency-key": self.clock.nonce()}
        body = encoded({"runs": asked})
        made = await self.ask("POST", place("runs", "batch"), wire.CreatedRuns, body=body, headers=headers, safe=safe)
        # Without a key of its own a run is always new, also when the first answer was lost and this is the second.
        return [Created(one.id, one.created or new.key is None, one.pruned) for new, one in zip(news, made.runs, strict=True)]

    def _asked(self, new: NewRun, undefined: str) -> dict[str, Any]:
        if new.retry_of is not None or new.schedule is not None:
            raise BadInput("A run's origin cannot be told to a hub.", hint="Use rerun or trigger.")
        text = json.encode(new.payload, most=self.limits.payload)
        if new.due_at is not None:
            checks.instant(new.due_at, "due_at")
        return {
            "job": checks.name(new.job, "A job's name"),
            "payload": Raw(text.encode()),
            "options": checks.options(new.options, self.limits),
            "scheduled_for": wire.maybe_told(new.due_at),
            "key": new.key,
            "after": new.after,
            "after_end": new.after_end,
            "undefined": undefined,
            "checked": new.checked,
        }

    async def rerun(self, run_id: str) -> Created:
        """Make a new run from an ended one: the same payload and rules, a fresh limit, no key."""
        return await self._made(place("runs", checks.identifier(run_id, "The run"), "rerun"))

    async def trigger(self, key: str) -> Created:
        """Make a run of a schedule now; its instants are not touched."""
        return await self._made(place("schedules", checks.name(key, "A schedule's key"), "trigger"))

    async def _made(self, path: str) -> Created:
        made = await self.ask("POST", path, wire.CreatedRun, headers={"idempotency-key": self.clock.nonce()}, safe=True)
        return Created(made.id, created=True, pruned=made.pruned)

    # Looking at runs

    async def get(self, run_id: str) -> Run:
        """The run with this id, or with an attempt of this id. What a hub does not tell, such as its token, is None or 0."""
        return wire.run_of(await self._look(place("runs", checks.identifier(run_id, "The run")), wire.RunView))

    async def status(self, run_id: str) -> Status:
        """How a run is doing, for those who have only its id."""
        run = await self.get(run_id)
        return Status(run.id, run.job, run.state, run.burnt, run.max_attempts, run.due_at, run.started_at, run.finished_at, run.error)

    async def runs(
        self,
        *,
        job: str | None = None,
        queue: str | None = None,
        state: State | str | None = None,
        cursor: str | None = None,
        count: int = 100,
    ) -> Page:
        """A page of runs."""
        checks.integer(count, "count", 1, self.limits.page)
        page = await self._look(place("runs"), wire.RunPage, job=job, queue=queue, state=state, cursor=cursor, count=count)
        return Page([wire.run_of(view) for view in page.runs], page.cursor)

    async def attempts(self, run_id: str) -> list[Attempt]:
        """All attempts of a run, oldest first."""
        found = (await self._look(self._of(run_id, "attempts"), wire.Attempts)).attempts
        return [wire.attempt_of(found[0].id, view) for view in found]  # the first shares the run's own id

    async def history(self, run_id: str, *, after: int = 0, count: int = 1_000) -> list[Entry]:
        """Every change of state of a run, from the beginning or behind a revision."""
        checks.integer(count, "count", 1, self.limits.page)
        found = await self._look(self._of(run_id, "history"), wire.History, after=after, count=count)
        return [wire.entry_of(event) for event in found.events]

    async def lines(self, run_id: str, *, after: tuple[int, int] = (0, 0), count: int = 100) -> list[LogLine]:
        """The log of a run in the order it was written, behind (attempt, number)."""
        checks.integer(count, "count", 1, self.limits.page)
        attempt, n = after
        cursor = wire.line_cursor(attempt, n) if attempt else 0
        found = await self._look(self._of(run_id, "logs"), wire.Lines, after=cursor, count=count)
        return [wire.line_of(view) for view in found.lines]

    async def why(self, run_id: str) -> list[Reason]:
        """Everything that holds a run back now; empty for one that a worker could take at once."""
        return (await self._look(self._of(run_id, "why"), wire.Why)).reasons

    def _of(self, run_id: str, what: str) -> str:
        return place("runs", checks.identifier(run_id, "The run"), what)

    # Changing runs

    async def cancel(self, run_id: str, *, reason: str | None = None, by: str | None = None) -> Run:
        """Cancel at once what waits; ask what runs to stop. Who does it is known by the token, whatever `by` says."""
        path, body = self._of(run_id, "cancel"), wire.CancelRun(reason)
        try:
            return wire.run_of(await self.ask("POST", path, wire.RunView, body=body))
        except OutcomeUnknown:
            pass
        try:
            return wire.run_of(await self.ask("POST", path, wire.RunView, body=body, safe=True))
        except WrongState:
            run = await self.get(run_id)
            if run.state is State.CANCELLED:
                return run  # the first ask was heard
            raise

    async def patch(self, run_id: str, /, *, by: str | None = None, **fields: Any) -> Run:
        """Edit a run that still waits: payload, priority, due_at, max_attempts, queue."""
        if unknown := sorted(fields.keys() - set(PATCHABLE)):
            raise Frozen(
                f"Cannot modify {', '.join(unknown)} of a run.", hint=f"These can be patched while it waits: {', '.join(PATCHABLE)}."
            )
        given = {name: value for name, value in fields.items() if value is not None}
        if "payload" in given:
            given["payload"] = Raw(json.encode(given["payload"], most=self.limits.payload).encode())
        if "due_at" in given:
            checks.instant(given["due_at"], "due_at")
            given["scheduled_for"] = wire.told(given.pop("due_at"))
        path = place("runs", checks.identifier(run_id, "The run"))
        return wire.run_of(await self.ask("PATCH", path, wire.RunView, body=encoded(given)))

    async def move(
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
        body = wire.MoveRun(place, to, before, after)
        return wire.run_of(await self.ask("POST", self._of(run_id, "move"), wire.RunView, body=body))

    # Schedules

    async def schedule(
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
        overrides = json.encode(payload or {}, most=self.limits.payload, what="The schedule's payload")
        words = {
            "job": job, "cron": cron, "every": every if every is None else str(every), "at": at, "zone": zone,
            "payload": Raw(overrides.encode()), "options": checks.options(options or Options(), self.limits),
            "missed": missed, "most": most, "max_age": max_age,
            "overlap": overlap, "jitter": jitter, "enabled": enabled, "by_code": by_code, "new": new, "checked": checked,
        }  # fmt: skip
        return wire.schedule_of(await self.ask("PUT", self._key(key), wire.ScheduleView, body=encoded(words), safe=not new))

    async def get_schedule(self, key: str) -> Schedule:
        """The schedule with this key."""
        return wire.schedule_of(await self._look(self._key(key), wire.ScheduleView))

    async def schedules(self, *, after: str = "", count: int = 100) -> list[Schedule]:
        """Schedules by key."""
        checks.integer(count, "count", 1, self.limits.page)
        found = await self._look(place("schedules"), wire.Schedules, after=after, count=count)
        return [wire.schedule_of(view) for view in found.schedules]

    async def set_schedule(self, key: str, /, **fields: Any) -> Schedule:
        """Edit a schedule."""
        unknown = sorted(fields.keys() - set(EDITABLE))
        if unknown or not fields:
            raise BadInput(
                f"Cannot modify {', '.join(unknown) or 'nothing'} of a schedule.", hint=f"These can be set: {', '.join(EDITABLE)}."
            )
        return wire.schedule_of(await self.ask("PATCH", self._key(key), wire.ScheduleView, body=encoded(fields)))

    async def remove_schedule(self, key: str) -> None:
        """Forget a schedule. Its runs stay."""
        await self.ask("DELETE", self._key(key), object)

    async def skips(self, key: str, *, count: int = 100) -> list[Skipped]:
        """What was due and did not become a run, latest first."""
        checks.integer(count, "count", 1, self.limits.page)
        found = await self._look(f"{self._key(key)}/skips", wire.Skips, count=count)
        return [wire.skipped_of(view) for view in found.skips]

    async def outage(self, key: str, start: int, end: int) -> Fire:
        """What a schedule would do at the end of a downtime."""
        return outage_of(await self.get_schedule(key), start, end)

    async def preview(self, key: str, *, start: int | None = None, count: int = 20) -> list[Preview]:
        """The coming instants of a schedule, from now or from a time."""
        checks.integer(count, "count", 1, self.limits.page)
        found = await self._look(f"{self._key(key)}/preview", wire.Previews, start=wire.maybe_told(start), count=count)
        return [Preview(wire.heard(view.at, "at"), view.local, view.clock_changes) for view in found.next]

    def _key(self, key: str) -> str:
        return place("schedules", checks.name(key, "A schedule's key"))

    # Workers and counts

    async def workers(self, *, after: str = "", count: int = 100) -> list[Worker]:
        """Workers by name, the living and the lately seen, with what they hold now."""
        checks.integer(count, "count", 1, self.limits.page)
        found = await self._look(place("workers"), wire.Workers, after=after, count=count)
        return [wire.worker_of(view) for view in found.workers]

    async def drop_worker(self, name: str) -> None:
        """Forget a worker that is silent; one that lives tells itself again."""
        await self.ask("DELETE", place("workers", checks.name(name, "A worker's name")), wire.Done)

    async def stats(self, *, minutes: int = 60) -> Stats:
        """The totals, and what there was in the last so many minutes, the current one included."""
        checks.integer(minutes, "minutes", 1, self.limits.minutes)
        return wire.stats_of(await self._look(place("stats"), wire.StatsView, minutes=minutes))

    async def doctor(self) -> list[Finding]:
        """What is wrong with the hub and its store, the worst first, and what to do about it."""
        return (await self._look(place("doctor"), wire.Diagnosis)).findings

    # Ends

    async def wait_for(self, run_id: str, timeout: float | None = None) -> Run:
        """The run once it has ended. Looks again after a tenth of the time that has passed, so that the answer is at most a tenth late."""
        began = self.clock.monotonic()
        while (run := await self.get(run_id)).state not in ENDED:
            waited = (self.clock.monotonic() - began) / 1000
            if timeout is not None and waited >= timeout:
                raise TimeoutError(f"Run {run_id} is still {run.state} after {timeout} s; it goes on.")
            longest = 1.0 if timeout is None else min(1.0, timeout - waited)
            await self.transport.pause(max(0.005, min(waited / 10, longest)))
        return run
