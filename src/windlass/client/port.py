"""A worker's port through a hub: claim, heartbeat, report."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from windlass.answers import Outcome
from windlass.api.gives import Done
from windlass.api.port import (
    AddLines,
    BeatRuns,
    BeginLife,
    Claimed,
    ClaimRuns,
    EndLives,
    Hold,
    Lapsed,
    LeaveWorker,
    LivesView,
    Receipts,
    ReceiptView,
    RecoverRuns,
    RegisterWorker,
    RenewedLeases,
    ReportRuns,
    ReportView,
    Started,
    StartRuns,
    StoredStep,
    StoreStep,
    WaitFor,
    WokenTopics,
    WorkerDescription,
    report_view,
)
from windlass.api.problems import error_of
from windlass.client.requester import encoded, place
from windlass.client.transport import ClientRequest
from windlass.client.verbs import LONGEST_WAIT, ON_THE_WAY, RemoteVerbs
from windlass.errors import (
    HubFailed,
    LimitReached,
    NotFound,
    OutcomeUnknown,
    StoreBusy,
    StoreError,
    StoreUnreachable,
    TooLarge,
    TooSlow,
    WindlassError,
)
from windlass.model import BeatAnswer, Life, Receipt, Run, Step, WorkerInfo
from windlass.payload import slices
from windlass.store.records import Held

T = TypeVar("T")

ESCAPED = 6  # bytes of a character in JSON at most
PARCEL = 4 * 1024 * 1024
"""Maximum bytes of one request: outputs and log lines are split into several requests, to stay below the hub's limit on bodies."""


class RemotePort(RemoteVerbs):
    """The port of a worker, beside the public verbs."""

    longest_wait = LONGEST_WAIT

    async def register(
        self, worker: WorkerInfo, *, about: Mapping[str, Any] | None = None, schemas: Mapping[str, str] | None = None
    ) -> None:
        """Register a worker, and mark it as alive."""
        documents = [None if one is None else dict(one) for one in (about, schemas)]
        await self._tell("register", RegisterWorker(WorkerDescription.of(worker), *documents), Done)

    async def begin_life(self, worker: str, life: Life) -> list[Life]:
        """Register a process of a worker; returns all processes under its name, if this token is bound to that name."""
        try:
            return (await self._tell("lives", BeginLife(worker, life), LivesView)).lives
        except NotFound:  # a hub that is older than this verb
            return []

    async def end_lives(self, worker: str, tags: Sequence[str]) -> int:
        """Lapse the leases of these processes, which have ended; returns how many runs."""
        return (await self._tell("lapse", EndLives(worker, list(tags)), Lapsed)).runs

    async def leave(self, worker: str, incarnation: int) -> None:
        """Deregister a process of a worker that has ended and holds nothing."""
        with suppress(NotFound):  # a hub that is older than this verb
            await self._tell("leave", LeaveWorker(worker, incarnation), Done)

    async def worker_metrics(self, worker: str, metrics: Mapping[str, float]) -> None:
        """Report the load of its host."""
        await self._tell("metrics", {"worker": worker, "metrics": metrics}, object)

    async def claim(self, worker: WorkerInfo, *, count: int = 1, lease: int = 30_000, token: str | None = None) -> list[Run]:
        """Claim up to `count` runs; repeated with the same token, it returns those of them that are still held."""
        try:
            return (
                await self._tell("claim", ClaimRuns(WorkerDescription.of(worker), count, lease, token or self.clock.nonce()), Claimed)
            ).runs
        except OutcomeUnknown as unknown:
            unknown.settled = True  # the token is the claim's nonce: a repeated request takes nothing twice and misses nothing
            raise

    async def recover(self, worker: WorkerInfo, token: str) -> list[Run]:
        """The runs that a worker still holds from a claim under this token, whose answer was lost."""
        return (await self._tell("recover", RecoverRuns(worker, token), Claimed)).runs

    async def start_many(self, held: Sequence[Held]) -> set[Held]:
        """Report that these handlers start; returns those that are running."""
        started = await self._tell("start", StartRuns([Hold(*item) for item in held]), Started)
        return {Held(hold.seq, hold.token) for hold in started.started}

    async def beat(self, held: Sequence[Held], *, lease: int = 30_000, progress: Mapping[Held, str] | None = None) -> list[BeatAnswer]:
        """Extend these leases. "stop" when a cancel is requested, "lost" when the run is no longer held, "unknown" when it is locked."""
        texts = progress or {}
        by_index = {index: texts[item] for index, item in enumerate(held) if item in texts}
        body = BeatRuns([Hold(*item) for item in held], lease, by_index)
        return (await self._tell("beat", body, RenewedLeases)).answers

    async def log(self, run_id: str, token: str, lines: Sequence[tuple[int, str]], *, seq: int | None = None) -> None:
        """Append lines numbered by their worker; a repeated line is stored once."""
        for some in parcels(lines, lambda line: ESCAPED * len(line[1])):
            await self._tell("log", AddLines(run_id, token, list(some), seq), Done)

    async def store_step(self, run_id: str, token: str, key: str, output: str, *, seq: int | None = None) -> Step:
        """Store the result of a step; returns what is stored. Repeated, it has no further effect: the first result of a key stays."""
        return (await self._tell("step", StoreStep(run_id, token, key, output, seq), StoredStep)).step

    async def report_many(self, outcomes: Sequence[Outcome]) -> list[Receipt | WindlassError]:
        """End many attempts; one answer for each, in the same order."""
        views = [report_view(outcome) for outcome in outcomes]
        answers: list[Receipt | WindlassError] = []
        for some in parcels(views, _size):
            answers += await self._report(some)
        return answers

    async def _report(self, views: Sequence[ReportView]) -> list[Receipt | WindlassError]:
        """The answers to some reports. A refused set is split into halves, so that one invalid report does not block the others."""
        try:
            return [*map(_answer, (await self._tell("report", ReportRuns(list(views)), Receipts)).receipts)]
        except (TooLarge, TooSlow) as error:
            if len(views) == 1:
                return [error]
            half = len(views) // 2
            return [*await self._report(views[:half]), *await self._report(views[half:])]

    async def wait(self, topics: Collection[str], timeout: float) -> set[str]:
        """The topics with a hint, as soon as there are any; none after this many seconds, or sooner."""
        seconds = min(timeout, self.longest_wait)
        body = WaitFor(sorted(topics), round(seconds * 1000))
        return set((await self._tell("wait", body, WokenTopics, timeout=seconds + ON_THE_WAY)).topics)

    async def _tell(self, what: str, body: Any, kind: type[T], *, timeout: float | None = None) -> T:
        """Send a verb once, without retries: the worker itself repeats what must be repeated.

        A hub whose store fails, or that is overloaded, will recover; its own log has the reason.
        """
        try:
            request = ClientRequest("POST", place("worker", what), timeout or self._timeout, body=encoded(body))
            return await self.ask(request, kind, patience=0.0)
        except LimitReached as error:
            raise StoreBusy(error.message, hint=error.hint) from error
        except (OutcomeUnknown, HubFailed):
            raise
        except StoreError as error:
            raise StoreUnreachable(error.message, hint=error.hint) from error


def _size(view: ReportView) -> int:
    """Maximum bytes of a report; a JSON text has no characters that need the longest escape."""
    error = view.error and len(view.error.message) + len(view.error.detail or "")
    return 400 + 4 * len(view.output or "") + ESCAPED * (error or 0)


def _answer(view: ReceiptView) -> Receipt | WindlassError:
    if view.problem is not None:
        return error_of(view.problem)
    if view.state is None:
        return HubFailed(f"The hub's answer has no outcome for run {view.run}.", hint="Use a hub and a worker of the same version.")
    return Receipt(view.run, view.state, view.repeated)


def parcels(items: Sequence[T], size: Callable[[T], int]) -> Iterator[Sequence[T]]:
    """The items in slices that each fit into one request; a larger item is alone in its slice."""
    return slices(items, [size(item) for item in items], PARCEL)
