"""The verbs of the document, over the engine: those of jobs, of groups, and of the scheduler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from windlass.dialects.guards.errors import InvalidOperationError
from windlass.dialects.guards.jobs import LARGEST_PAGE, PAGE, READS, JobsAndRuns, word_of
from windlass.dialects.guards.records import CumulativeStats, JobGroup, QueueCounts, RecoveryStats, SchedulerStatus
from windlass.dialects.guards.rules import check_boolean, check_integer, check_list, check_members, valid
from windlass.dialects.guards.settings import RESOURCE
from windlass.dialects.guards.views import group_of
from windlass.dialects.guards.words import GROUP_WORDS, WORDS, GroupStatus, JobStatus, engine_group_status
from windlass.errors import BadInput, NotFound, WindlassError, WrongState
from windlass.limiters import parts_of
from windlass.machine import LIVE
from windlass.model import Attempt, Group, Member, NewGroup, NewRun, Run, State
from windlass.worker.lives import is_gone

MEMBER_FIELDS = ("template_id", "params", "priority", "webhook_url", "webhook_events")
"""The members by which a job of a group is given."""
MAX_MEMBERS = 20_000
"""Jobs that are read for one list of groups."""
_PAGE = 1_000


class SchedulerVerbs(JobsAndRuns):
    """All verbs over one queue of an engine."""

    # Groups

    async def create_group(self, jobs: Sequence[dict[str, Any]], *, sequential: bool = False, name: str | None = None) -> JobGroup:
        """Create jobs together, each given by the arguments of `create_job` without position: all or none.

        In a sequential group each waits for the end of the one before, and a failure, after its retries, cancels the rest.
        """
        check_boolean(sequential, "sequential")
        members = tuple([Member(await self._member(job)) for job in check_list(jobs, "jobs")])
        await self.provide()
        with valid("jobs"):
            new = NewGroup(members, "sequential" if sequential else "parallel", name=name)
            group = await self._act("create", "a group").create_group(new)
        return await self.load_group(group.id)

    async def _member(self, job: Any) -> NewRun:
        with valid("jobs"):
            if not isinstance(job, dict) or not job.get("template_id"):
                raise BadInput(
                    f"A job of a group is given as an object with a template_id, not as {job!r:.80}.", hint='Write {"template_id": ...}.'
                )
            check_members(job, MEMBER_FIELDS, "jobs", "A job of a group")
        return self._new(await self._definition(job["template_id"]), **{key: value for key, value in job.items() if key != "template_id"})

    async def load_group(self, group_id: str) -> JobGroup:
        """A group; NotFound where there is none."""
        group = await self._group(group_id)
        return group_of(group, await self._members(group.id))

    async def _group(self, group_id: Any) -> Group:
        try:
            return await self.engine.get_group(group_id)
        except BadInput as error:
            raise NotFound(f"There is no group {group_id!r:.80}.", hint="Check the id.") from error

    async def _members(self, group_id: str) -> list[tuple[Run, Sequence[Attempt]]]:
        runs: list[Run] = []
        while page := await self.engine.members(group_id, after=runs[-1].id if runs else None, count=_PAGE):
            runs += page
        members: list[tuple[Run, Sequence[Attempt]]] = []
        for begin in range(0, len(runs), _PAGE):
            attempts = await self.engine.attempts_of(runs[begin : begin + _PAGE])
            members += [(run, attempts[run.id]) for run in runs[begin : begin + _PAGE]]
        return members

    async def list_groups(self, status: str | None = None, limit: int = PAGE) -> list[JobGroup]:
        """The newest groups, with a status or all; at most 200, and fewer where they have many thousand jobs."""
        word = word_of(status, tuple(GroupStatus))
        check_integer(limit, "limit", 1, LARGEST_PAGE)
        engine_word = None if word is None else engine_group_status(word)
        groups: list[JobGroup] = []
        after, read = None, 0
        for _ in range(READS):
            page = await self.engine.groups(status=engine_word, after=after, count=limit)
            for group in page:
                if (read := read + group.total) > MAX_MEMBERS and groups:
                    return groups
                members = await self._members(group.id)
                if members and members[0][0].queue == self.settings.queue:
                    groups.append(group_of(group, members))
            if len(page) < limit or len(groups) >= limit:
                break
            after = page[-1].id
        return groups[:limit]

    async def cancel_group(self, group_id: str, *, reason: str | None = None) -> JobGroup:
        """Cancel the jobs of a group that have not ended; InvalidOperationError when it has ended."""
        group = await self._group(group_id)
        if any(run.queue != self.settings.queue for run, _ in await self._members(group.id)):
            raise NotFound(
                f"There is no group {group_id} in the queue {self.settings.queue}.", hint="Groups of other queues can only be read."
            )
        with valid("reason"):
            try:
                await self._act("cancel", f"group {group.id}").cancel_group(group.id, reason=reason)
            except WrongState as error:
                raise InvalidOperationError(error.message, hint=error.hint) from error
        return await self.load_group(group_id)

    async def compute_group_status(self, group: JobGroup | str) -> GroupStatus:
        """The present status of a group: RUNNING until all of its jobs have ended."""
        group_id = group.group_id if isinstance(group, JobGroup) else group
        return GROUP_WORDS[(await self._group(group_id)).status]

    # The scheduler

    async def recover(self) -> RecoveryStats:
        """Fail the jobs of processes of this machine that are proven gone, and of leases that are over; each is retried by its rule.

        Twice in a row it is as once. Direct calls whose caller is gone lose their slots.
        """
        running, slots = await self._running(), await self._reservations()
        errors = await self.recover_gone(running)
        await self.engine.lapse()
        await self.engine.open_limiters()
        now = {run.id: run for run in await self.engine.get_many([run.id for run in running])} if running else {}
        lost = [now[run.id] for run in running if run.id in now and now[run.id].failures > run.failures]
        return RecoveryStats(
            running_jobs_recovered=len(lost),
            reservations_expired=max(0, slots - await self._reservations()),
            retries_created=sum(run.state not in (State.FAILED, State.QUARANTINED) for run in lost),
            errors=errors,
        )

    async def recover_gone(self, running: Sequence[Run] | None = None) -> list[str]:
        """The same without a look at leases: only what processes of this machine held that are proven gone. Returns what failed."""
        errors = []
        for worker in sorted({run.worker for run in running or await self._running() if run.worker is not None}):
            try:
                if gone := [life.tag for life in await self.engine.lives(worker) if is_gone(life.process)]:
                    await self.engine.end_lives(worker, gone)
            except WindlassError as error:
                errors.append(str(error))
        return errors

    async def _running(self, count: int = _PAGE) -> list[Run]:
        return (await self.engine.runs(queue=self.settings.queue, states=LIVE, count=count)).runs

    async def _reservations(self) -> int:
        """How many direct calls have the next slot or wait for it."""
        return sum(parts_of(slot.key)[0] == RESOURCE for slot in await self.engine.slots(count=_PAGE))

    async def status(self, *, running: bool = True) -> SchedulerStatus:
        """What the scheduler does: it is running where it was started and its queue is not paused."""
        current, pauses = await self._running(1), await self.engine.pauses()
        paused = any(pause.scope == "system" or (pause.scope, pause.name) == ("queue", self.settings.queue) for pause in pauses)
        states, counts = await self._totals()
        return SchedulerStatus(
            scheduler_running=running and not paused,
            current_job_id=current[0].current_attempt if current else None,
            queue_length=sum(states[state] for state in WORDS.states(JobStatus.QUEUED)),
            cumulative_stats=CumulativeStats(
                total_executed=counts["attempts"] - counts["returned"],
                succeeded=counts["succeeded"],
                failed=counts["failed"] + counts["quarantined"] + counts["retried"],
                cancelled=counts["cancelled"],
                skipped=counts["skipped"],
            ),
            has_active_reservation=await self._reservations() > 0,
        )

    async def counts(self) -> QueueCounts:
        """How many jobs are QUEUED, and how many really run."""
        states, _ = await self._totals()
        return QueueCounts(sum(states[state] for state in WORDS.states(JobStatus.QUEUED)), sum(states[state] for state in LIVE))

    async def _totals(self) -> tuple[Counter[State], Counter[str]]:
        """How many runs of the queue are in each state, and what was ever counted of it, up to now."""
        await self.engine.roll_up()
        _, totals = await self.engine.totals(count=_PAGE)
        states, counts = Counter[State](), Counter[str]()
        for (queue, _), total in totals.items():
            if queue == self.settings.queue:
                states.update(total.unfinished)
                counts.update(msgspec.structs.asdict(total.counts))
        return states, counts
