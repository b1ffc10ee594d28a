"""Takes: claims of one run by its id, under the rules of every claim but for the order of the queue."""

from __future__ import annotations

from windlass.answers import Reason
from windlass.defaults import LEASE
from windlass.engine.claims import ClaimRequest, Claims
from windlass.engine.ground import PATIENCE, Ground, Part
from windlass.engine.provision import Provision
from windlass.engine.runs import Runs
from windlass.engine.why import Why
from windlass.errors import BadInput, Conflict, NotClaimable
from windlass.machine import LIVE, Claim, step
from windlass.model import Lane, Run, WorkerInfo
from windlass.needs import open_to
from windlass.store.records.claims import Head


class Takes(Part):
    """The verb by which a worker claims a run that it names."""

    def __init__(self, ground: Ground, runs: Runs, claims: Claims, reasons: Why, provision: Provision) -> None:
        super().__init__(ground)
        self._runs, self._claims, self._reasons, self._provision = runs, claims, reasons, provision

    async def take(self, run_id: str, worker: WorkerInfo, *, lease: int = LEASE, nonce: str | None = None, token: str | None = None) -> Run:
        """Claim this very run, whatever stands before it in its queue; nonce, token and lease as for `claim`.

        Raises WrongState unless the run is queued, and NotClaimable where a pause, a limit, its needs or the worker's one slot do not
        admit it now. Repeated under the nonce or token that holds the run, it returns the run again; a new try needs a new nonce.
        """
        request = self._claims.asking(worker, lease=lease, nonce=nonce, token=token)
        for _ in range(PATIENCE):
            run = await self._runs.get(run_id)
            if run.state in LIVE and (run.token, run.worker) == (request.token, worker.name):
                return run
            # Raises WrongState, with the same message as every refused transition.
            step(run, Claim(grant=request.token, worker=worker.name, lease=lease), self.clock.now())
            if (claimed := await self._taken(run, request)) is not None:
                return claimed
            await self._check_nonce(request)
            if reasons := await self._reasons.why_not(run, worker):
                raise _not_claimable(run, reasons)
        raise Conflict(f"Run {run_id} kept changing; it was not claimed.", hint="Try again.")

    async def _taken(self, run: Run, request: ClaimRequest) -> Run | None:
        """The run as claimed; None where it or the controls have changed, or something does not admit it."""
        lane, rev = await self.ground.lane_of(run), self.ground.controls.rev
        if not self._is_open(lane, request.worker) or not await self._provision.use([lane.id]):
            return None
        request.over = False
        head = Head(run.seq, run.priority_key, run.position, lane.id, run.due_at, run.keys)
        await self._claims.claim_head(request, head, rev)
        taken = next((one for one in request.runs if one.seq == run.seq), None)
        if taken is not None:
            self.ground.hints.taken([taken.id, taken.seq])
        return taken

    def _is_open(self, lane: Lane, worker: WorkerInfo) -> bool:
        return open_to(lane, worker) and not self.ground.controls.paused(lane)

    async def _check_nonce(self, request: ClaimRequest) -> None:
        if request.call is not None:
            calls = await self.records.claims.calls_under([request.token])
            if calls.get(request.token, request.call) != request.call:
                raise BadInput("This nonce was used for another claim.", hint="Send a new one with every claim that is not a repeated one.")


def _not_claimable(run: Run, reasons: list[Reason]) -> NotClaimable:
    hint = "Leave it to the workers that claim from its queue, or try again when nothing holds it back; `windlass why ID` tells."
    return NotClaimable(f"Run {run.id} cannot be claimed now. {reasons[0].text}", hint=hint, reasons=reasons)
