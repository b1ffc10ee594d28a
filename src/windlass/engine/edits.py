"""What people do to runs: cancel, skip, patch."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from windlass import payload as json
from windlass.engine import checks
from windlass.engine.core import PATIENCE
from windlass.engine.fitting import Fitting
from windlass.errors import BadInput, Conflict, Frozen, WrongState
from windlass.gates import amounts_of, keys_text, own_amounts
from windlass.machine import Cancel, Patch, Skip, step
from windlass.model import Lane, Run, State
from windlass.store.records import Change, Written, needs_text
from windlass.store.rows import pack

PATCHABLE = ("payload", "priority", "due_at", "max_attempts", "queue")


class Editing(Fitting):
    """The verbs of people. Each leaves an entry in the journal."""

    async def cancel(self, run_id: str, *, reason: str | None = None, by: str | None = None) -> Run:
        """Cancel at once what waits; ask what runs to stop. Asked again while it stops, it changes nothing."""
        cmd = Cancel(reason=_reason(reason))
        try:
            return await self.change("cancel", run_id, cmd, detail_of(by, reason=cmd.reason))
        except WrongState:
            run = await self.get(run_id)
            if run.state is State.CANCELLING:
                return run
            raise

    async def skip(self, run_id: str, *, reason: str, by: str | None = None) -> Run:
        """End a run that has not been handed out, without executing it."""
        cmd = Skip(reason=checks.reason(reason))
        return await self.change("skip", run_id, cmd, detail_of(by, reason=cmd.reason))

    async def patch(self, run_id: str, *, by: str | None = None, **fields: Any) -> Run:
        """Edit a run that still waits: payload, priority, due_at, max_attempts, queue."""
        unknown = sorted(fields.keys() - set(PATCHABLE))
        if unknown:
            raise Frozen(
                f"Cannot modify {', '.join(unknown)} of a run.", hint=f"These can be patched while it waits: {', '.join(PATCHABLE)}."
            )
        given = {name: value for name, value in fields.items() if value is not None}
        if not given:
            raise BadInput("Nothing to patch.", hint=f"Give at least one of {', '.join(PATCHABLE)}.")
        cmd = self._patch_of(given)
        for _ in range(PATIENCE):
            if cmd.queue is not None:
                await self.refresh_controls()
                cmd = replace(cmd, ageing=self.controls.ageing(cmd.queue))
            before = await self.get(run_id)
            now = self.clock.now()
            step(before, cmd, now)  # raises what is wrong, before a lane is made for it
            if cmd.payload is not None:
                await self.refuse_misfit(before.job, given["payload"], "The payload")
            rev, lane = await self._lane_in(before, cmd.queue or before.queue)
            if cmd.queue is not None:
                cmd = replace(cmd, lane=lane.id)
            if cmd.payload is not None or cmd.queue is not None:
                cmd = replace(cmd, keys=await self._keys_in(before, lane, given))
            change = Change(before, step(before, cmd, now), cmd.name, detail_of(by, fields=sorted(given)))
            if await self.records.patch(change, self.clock.nonce(), now, rev):
                await self.wake_after([change], Written({before.seq}, []), now)
                return change.after
            await self.refresh_controls()
        raise Conflict(f"Run {run_id} kept changing; it was not patched.", hint="Try again.")

    def _patch_of(self, given: dict[str, Any]) -> Patch:
        checked = dict(given)
        if "payload" in given:
            checked["payload"] = json.encode(given["payload"], most=self.limits.payload)
        if "priority" in given:
            checks.integer(given["priority"], "priority", -(2**31) + 1, 2**31 - 1)
        if "due_at" in given:
            checks.instant(given["due_at"], "due_at")
        if "max_attempts" in given:
            checks.integer(given["max_attempts"], "max_attempts", 1, self.limits.attempts)
        if "queue" in given:
            checks.name(given["queue"], "A queue's name")
        return Patch(**checked)

    async def _lane_in(self, run: Run, queue: str) -> tuple[int, Lane]:
        """The lane of a run in its queue or in another, and the revision as of which it is there."""
        needs = (await self.lane_of(run)).requires
        if queue != run.queue:
            cores, memory = amounts_of(needs, run.keys)
            needs = replace(needs, cores=cores, memory=memory)
        wanted = queue, run.job, needs_text(needs)
        rev, lanes = await self.lanes_for({wanted})
        return rev, lanes[wanted]

    async def _keys_in(self, run: Run, lane: Lane, given: dict[str, Any]) -> str | None:
        """Its keys under the payload that it is given or has, and what it uses of a worker if that lane has rounded it."""
        amounts = own_amounts(lane.requires, amounts_of((await self.lane_of(run)).requires, run.keys))
        return keys_text(lane.requires.uses, given["payload"] if "payload" in given else json.decode(run.payload), amounts)


def _reason(text: str | None) -> str | None:
    return None if text is None else checks.reason(text)


def detail_of(by: str | None, **facts: Any) -> str | None:
    """What an entry of the journal tells beside the change, as JSON text."""
    if by is not None:
        facts["by"] = checks.name(by, "Who did it")
    known = {name: value for name, value in facts.items() if value is not None}
    return pack(known) if known else None
