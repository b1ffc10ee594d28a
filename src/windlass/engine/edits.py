"""Edits of runs by people: cancel, skip, patch."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from msgspec.structs import replace

from windlass import payload as json
from windlass.defaults import PATCHABLE
from windlass.engine import checks
from windlass.engine.ground import PATIENCE, Ground, Part
from windlass.engine.payloads import Payloads
from windlass.engine.provision import Provision
from windlass.engine.runs import Runs
from windlass.errors import BadInput, Conflict, OutcomeUnknown, WrongState, in_doubt
from windlass.limiters import amounts_of, keys_text, own_amounts
from windlass.machine import Cancel, Command, Patch, Skip, step
from windlass.model import Lane, Run, State
from windlass.store.records import Change, MoveResult, needs_text
from windlass.store.rows import pack


class Edits(Part):
    """The verbs for operators. Each leaves an entry in the journal."""

    def __init__(self, ground: Ground, runs: Runs, provision: Provision, payloads: Payloads) -> None:
        super().__init__(ground)
        self._runs, self._provision, self._payloads = runs, provision, payloads

    async def cancel(
        self, run_id: str, *, reason: str | None = None, only: Collection[State | str] | None = None, by: str | None = None
    ) -> Run:
        """Cancel a run that waits at once; ask one that runs to stop. Repeated while it stops, the call changes nothing.

        With `only`, a run in any other state is not cancelled: the call raises WrongState.
        """
        cmd = Cancel(reason=_reason(reason), only=None if only is None else checks.states(only, "A cancel with `only`"))
        try:
            return await self._change("cancel", run_id, cmd, detail_of(by, reason=cmd.reason))
        except WrongState:
            run = await self._runs.get(run_id)
            if run.state is State.CANCELLING and State.CANCELLING in (cmd.only or State):
                return run
            raise

    async def skip(self, run_id: str, *, reason: str, by: str | None = None) -> Run:
        """End a run that has not been handed out, without executing it."""
        cmd = Skip(reason=checks.reason(reason))
        return await self._change("skip", run_id, cmd, detail_of(by, reason=cmd.reason))

    async def _change(self, verb: str, run_id: str, cmd: Command, detail: str | None = None) -> Run:
        """Read, decide, write; read again after losing a race."""
        for _ in range(PATIENCE):
            before = await self._runs.get(run_id)
            now = self.clock.now()
            after = step(before, cmd, now)
            changes = [Change(before, after, cmd.name, detail)]
            try:
                result = await self.ground.write_back(verb, changes, now)
                if result.seqs:
                    return after
            except OutcomeUnknown as unknown:
                with in_doubt(unknown):
                    current = await self._runs.get(run_id)
                if current.rev >= after.rev and current.state is after.state:
                    return current
                if not unknown.settled:
                    raise
        raise Conflict(f"Run {run_id} kept changing; {cmd.name} was not done.", hint="Try again.")

    async def patch(self, /, run_id: str, *, by: str | None = None, **fields: Any) -> Run:
        """Edit a run that still waits: payload, priority, due_at, max_attempts, queue."""
        checks.patchable(fields)
        changes = {name: value for name, value in fields.items() if value is not None}
        if not changes:
            raise BadInput("Nothing to patch.", hint=f"Give at least one of {', '.join(PATCHABLE)}.")
        cmd = self._patch_of(changes)
        for _ in range(PATIENCE):
            if cmd.queue is not None:
                await self.ground.refresh_controls()
                cmd = replace(cmd, aging=self.ground.controls.aging(cmd.queue))
            before = await self._runs.get(run_id)
            now = self.clock.now()
            step(before, cmd, now)  # raises before a lane is created for a patch that is not allowed
            if cmd.payload is not None:
                await self._payloads.refuse_misfit(before.job, changes["payload"], "The payload")
            rev, lane = await self._lane_in(before, cmd.queue or before.queue)
            if cmd.queue is not None:
                cmd = replace(cmd, lane=lane.id)
            if cmd.payload is not None or cmd.queue is not None:
                cmd = replace(cmd, keys=await self._keys_in(before, lane, changes))
            change = Change(before, step(before, cmd, now), cmd.name, detail_of(by, fields=sorted(changes)))
            if await self.records.work.patch(change, self.clock.nonce(), now, rev):
                await self.ground.wake_after([change], MoveResult({before.seq}, []), now)
                return change.after
            await self.ground.refresh_controls()
        raise Conflict(f"Run {run_id} kept changing; it was not patched.", hint="Try again.")

    def _patch_of(self, changes: dict[str, Any]) -> Patch:
        checked = dict(changes)
        if "payload" in changes:
            checked["payload"] = json.encode(changes["payload"], limit=self.limits.payload)
        if "priority" in changes:
            checks.integer(changes["priority"], "priority", -(2**31) + 1, 2**31 - 1)
        if "due_at" in changes:
            checks.instant(changes["due_at"], "due_at")
        if "max_attempts" in changes:
            checks.integer(changes["max_attempts"], "max_attempts", 1, self.limits.attempts)
        if "queue" in changes:
            checks.name(changes["queue"], "A queue's name")
        return Patch(**checked)

    async def _lane_in(self, run: Run, queue: str) -> tuple[int, Lane]:
        """The lane of a run in its own queue or in another, and the revision for which it holds."""
        needs = (await self.ground.lane_of(run)).requires
        if queue != run.queue:
            cores, memory = amounts_of(needs, run.keys)
            needs = replace(needs, cores=cores, memory=memory)
        key = queue, run.job, needs_text(needs)
        rev, lanes = await self._provision.lanes_for({key})
        return rev, lanes[key]

    async def _keys_in(self, run: Run, lane: Lane, changes: dict[str, Any]) -> str | None:
        """The run's keys under its new or present payload, and its own amounts where the lane is rounded."""
        amounts = own_amounts(lane.requires, amounts_of((await self.ground.lane_of(run)).requires, run.keys))
        return keys_text(lane.requires.uses, changes["payload"] if "payload" in changes else json.decode(run.payload), amounts)


def _reason(text: str | None) -> str | None:
    return None if text is None else checks.reason(text)


def detail_of(by: str | None, **facts: Any) -> str | None:
    """The detail of a journal entry, as JSON text."""
    if by is not None:
        facts["by"] = checks.name(by, "The actor's name")
    known = {name: value for name, value in facts.items() if value is not None}
    return pack(known) if known else None
