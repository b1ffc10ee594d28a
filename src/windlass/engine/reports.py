"""The ends of attempts: reports of workers, many at once, each answered; a repeated report gets the same answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from windlass.answers import Outcome
from windlass.engine import checks
from windlass.engine.ground import PATIENCE, Part
from windlass.errors import BadInput, Conflict, NotFound, OutcomeUnknown, StoreError, WindlassError, of_one
from windlass.machine import (
    TOO_MANY_REQUEUES,
    Fail,
    Refuse,
    Report,
    Requeue,
    Skip,
    Snooze,
    Succeed,
    cancelled,
    lease_lost,
    refusals,
    step,
    wrong_state,
)
from windlass.model import Failure, Receipt, Run, State
from windlass.needs import open_to
from windlass.payload import slices
from windlass.store.records import Change

_FAILED = (State.FAILED, State.QUARANTINED)


class Reports(Part):
    """The verbs by which attempts end."""

    async def report(self, run_id: str, report: Report, *, seq: int | None = None) -> Receipt:
        """End an attempt. Raises LeaseLost under a stale token and Cancelled when the run was cancelled meanwhile."""
        answer = (await self.report_many([Outcome(run_id, report, seq)]))[0]
        if isinstance(answer, WindlassError):
            raise answer
        return answer

    async def report_many(self, outcomes: Sequence[Outcome]) -> list[Receipt | WindlassError]:
        """End many attempts; one answer for each, in the same order. A refused report does not affect the others."""
        checks.count(outcomes, "reports", self.limits.report)
        prepared = [self._prepared(outcome) for outcome in outcomes]
        reports = {index: report for index, report in enumerate(prepared) if isinstance(report, Report)}
        first = await self._first([(index, outcomes[index]) for index in reports])
        became = await self._end({seq: reports[index] for seq, index in first.items()})
        answers: dict[int, Receipt | WindlassError] = {}
        for seq, state in became.items():
            index = first[seq]
            answers[index] = state if isinstance(state, WindlassError) else Receipt(outcomes[index].run, state)
        if len(answers) < len(outcomes):
            for index, report in enumerate(prepared):
                if isinstance(report, WindlassError):
                    answers[index] = report
                elif index not in answers:
                    answers[index] = await self._settle(outcomes[index].run, report)
        return [answers[index] for index in range(len(outcomes))]

    def _prepared(self, outcome: Outcome) -> Report | WindlassError:
        run, report, seq = outcome
        try:
            if seq is None:
                checks.identifier(run, "The run")
            else:
                checks.integer(seq, "seq", 0, 2**63 - 1)
            checks.identifier(report.token, "The token")
            return self._filled(report)
        except WindlassError as error:
            return error

    async def _first(self, outcomes: Sequence[tuple[int, Outcome]]) -> dict[int, int]:
        """For each run its first report; a second one in the same call is answered after it."""
        unknown = [outcome.run for _, outcome in outcomes if outcome.seq is None]
        seqs = await self.records.runs.seqs(unknown)
        first: dict[int, int] = {}
        for index, outcome in outcomes:
            seq = outcome.seq if outcome.seq is not None else seqs.get(outcome.run)
            if seq is not None:
                first.setdefault(seq, index)
        return first

    def _filled(self, report: Report) -> Report:
        """The report within bounds, with the random number and the id that a further attempt may need."""
        if isinstance(report, Succeed):
            checks.json_text(report.output, "The output", self.limits.output)
            if report.output_hash is not None:
                checks.name(report.output_hash, "The output's hash")
            if report.key is not None:
                checks.name(report.key, "The output's key")
            return report
        if isinstance(report, Skip):
            return replace(report, reason=checks.reason(report.reason))
        if isinstance(report, Snooze):
            checks.integer(report.delay, "delay", 0, self.limits.duration)
        if isinstance(report, Fail):
            checks.maybe(report.delay, "delay", 0, self.limits.duration)
            return replace(
                report, error=checks.failure(report.error, self.limits.error), next_id=self.clock.new_id(), chance=self.clock.chance()
            )
        if isinstance(report, Refuse):
            checks.identifier(report.schema, "The schema")
            report = replace(report, error=checks.failure(report.error, self.limits.error))
        return replace(report, next_id=self.clock.new_id())

    async def _end(self, reports: dict[int, Report]) -> dict[int, State | WindlassError]:
        """Move the runs that their workers still hold; the others are left for `_settle`."""
        became: dict[int, State | WindlassError] = {}
        for some in slices(list(reports.items()), list(map(report_size, reports.values())), self.limits.batch):
            done = {seq: report for seq, report in some if isinstance(report, Succeed)}
            became |= await self._written(self._succeed, done)
            became |= await self._written(self._decide, {seq: report for seq, report in some if seq not in done})
        return became

    async def _written(
        self, write: Callable[[dict[int, Any]], Awaitable[dict[int, State]]], reports: dict[int, Any]
    ) -> Mapping[int, State | WindlassError]:
        """Write a set in one batch. A set that the store refuses is halved, until the refused report is alone."""
        try:
            return await write(reports)
        except OutcomeUnknown:
            return {}  # `_settle` reads what became of each run
        except StoreError as error:
            if not of_one(error):
                raise
            if len(reports) == 1:
                return dict.fromkeys(reports, BadInput(f"The store does not take the report: {error.message}", hint=error.hint))
        items, half = list(reports.items()), len(reports) // 2
        return {**await self._written(write, dict(items[:half])), **await self._written(write, dict(items[half:]))}

    async def _succeed(self, done: dict[int, Succeed]) -> dict[int, State]:
        if not done:
            return {}
        rows = [(seq, report.token or "", report.output, report.output_hash, report.key) for seq, report in done.items()]
        now = self.clock.now()
        written = await self.records.work.succeed(rows, self.clock.nonce(), self.clock.nonce(), now, limited=self.ground.lanes.limited)
        await self.ground.wake_after((), written, now)
        return dict.fromkeys(written.seqs, State.SUCCEEDED)

    async def _decide(self, reports: dict[int, Report]) -> dict[int, State]:
        if not reports:
            return {}
        now = self.clock.now()
        runs = [run for run in await self.records.runs.find_seqs(sorted(reports)) if _as_believed(run, reports[run.seq])]
        reports = reports | await self._with_hope(runs, reports, now)
        changes = [Change(run, step(run, reports[run.seq], now), reports[run.seq].name) for run in runs]
        if not changes:
            return {}
        written = await self.ground.write_back("report", changes, now)
        return {change.after.seq: change.after.state for change in changes if change.after.seq in written.seqs}

    async def _with_hope(self, runs: Sequence[Run], reports: dict[int, Report], now: int) -> dict[int, Report]:
        """The refusals among these reports, each with whether a live worker whose code has not refused the run may take it."""
        refused = [(run, report) for run in runs if isinstance(report := reports[run.seq], Refuse)]
        if not refused:
            return {}
        alive = await self.records.workers.schemas_seen(now - self.limits.worker_silence)
        with_hope: dict[int, Report] = {}
        for run, report in refused:
            lane, schemas = await self.ground.lane_of(run), refusals(run, report, now).schemas
            untold = {run.worker: report.schema}  # the schema of this worker is known from the report, even if it registered none
            accepted = [by_handler.get(run.handler, untold.get(worker.name)) for worker, by_handler in alive if open_to(lane, worker)]
            with_hope[run.seq] = replace(report, hope=any(schema not in schemas for schema in accepted))
        return with_hope

    async def _settle(self, run_id: str, report: Report) -> Receipt | WindlassError:
        """The answer to a report whose run was not in the expected state."""
        try:
            return await self._settled(run_id, report)
        except StoreError:
            raise  # no answer at all: repeated, the reports that were stored get the same answer
        except WindlassError as error:
            return error

    async def _settled(self, run_id: str, report: Report) -> Receipt:
        checks.identifier(run_id, "The run")
        for _ in range(PATIENCE):
            run = await self.records.runs.find(run_id)
            if run is None:
                raise NotFound(f"There is no run {run_id}.", hint="Stop working on it and write nothing.")
            if run.token != report.token:
                return await self._repeated_elsewhere(run, report)
            if run.finished_at is not None:
                return self._repeated(run, report)
            became = await (self._end({run.seq: report}) if _as_believed(run, report) else self._confirm(run, report))
            if isinstance(state := became.get(run.seq), WindlassError):
                raise state
            if state is not None:
                return Receipt(run.id, state)
        raise Conflict(f"Run {run_id} kept changing; the report was not stored.", hint="Report again.")

    async def _confirm(self, run: Run, report: Report) -> dict[int, State | WindlassError]:
        """A report on a run that is being cancelled confirms that its worker has stopped; the rest of the report is ignored."""
        now = self.clock.now()
        change = Change(run, step(run, report, now), "confirm")
        try:
            result = await self.ground.write_back("report", [change], now)
        except OutcomeUnknown:
            return {}  # the next read of the run shows the outcome
        if result.seqs:
            raise cancelled(run)
        return {}

    def _repeated(self, run: Run, report: Report) -> Receipt:
        """The first answer again, if this is the report that ended the run."""
        if run.state is State.CANCELLED:
            raise cancelled(run)
        if _same_result(run, report) or _same_failure(run, report) or _same_skip(run, report):
            return Receipt(run.id, run.state, repeated=True)
        raise wrong_state(run, report)

    async def _repeated_elsewhere(self, run: Run, report: Report) -> Receipt:
        """The first answer again, if this report closed an earlier attempt or has the same result as the run's end."""
        if _same_result(run, report):
            return Receipt(run.id, run.state, repeated=True)
        closed = await self.records.runs.closed_attempt(run.seq, report.token or "")
        if closed is None:
            if isinstance(report, Requeue) and not report.begun:  # such a report leaves no closed attempt behind to compare with
                return Receipt(run.id, State.QUEUED, repeated=True)
            raise lease_lost(run)
        outcome, answer, error = closed
        failed_so = isinstance(report, Fail) and outcome == "failed" and error == report.error
        refused_so = isinstance(report, Refuse) and outcome == "returned" and _refused_by(error, report)
        returned_so = isinstance(report, Snooze | Requeue) and outcome == "returned" and error is None
        if failed_so or refused_so or returned_so:
            return Receipt(run.id, answer, repeated=True)
        raise lease_lost(run)


def report_size(report: Report) -> int:
    """The approximate number of bytes it takes of a batch."""
    if isinstance(report, Succeed):
        return len(report.output or "")
    return len(report.error.message) + len(report.error.detail or "") if isinstance(report, Fail) else 0


def _as_believed(run: Run, report: Report) -> bool:
    return run.token == report.token and run.state in (State.CLAIMED, State.RUNNING)


def _same_failure(run: Run, report: Report) -> bool:
    """Whether a run failed by exactly this report."""
    if run.state not in _FAILED or run.error is None:
        return False
    if isinstance(report, Snooze | Requeue):
        return run.error.code == TOO_MANY_REQUEUES
    if isinstance(report, Refuse):
        return _refused_by(run.error, report)
    return isinstance(report, Fail) and run.error == report.error


def _same_skip(run: Run, report: Report) -> bool:
    return run.state is State.SKIPPED and isinstance(report, Skip) and run.reason == report.reason


def _refused_by(error: Failure | None, report: Refuse) -> bool:
    return error is not None and error.refused is not None and replace(error, refused=None) == report.error


def _same_result(run: Run, report: Report) -> bool:
    """Whether a run succeeded with this result: by its key, else by hash where both have one, else by the output itself."""
    if run.state is not State.SUCCEEDED or not isinstance(report, Succeed):
        return False
    if report.key is not None and report.key == run.output_key:
        return True
    return report.output_hash == run.output_hash if report.output_hash and run.output_hash else report.output == run.output
