"""The agent's side of the protocol: the port of a worker to any hub that speaks it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Raw, Struct

from windlass.answers import Outcome
from windlass.client.transport import ClientRequest, HubResponse, Transport
from windlass.clock import Clock
from windlass.errors import BadInput, LeaseLost, StoreUnreachable, TooLarge, WindlassError
from windlass.machine import Fail, Refuse, Report, Requeue, Skip, Snooze, Succeed
from windlass.model import BeatAnswer, Failure, Life, Policy, Receipt, Result, Run, Solver, State, Step, WorkerInfo
from windlass.payload import reader
from windlass.store.records import Held

_LOG = logging.getLogger("windlass.forge")

LEASE, BEAT_EVERY = 60_000, 10_000
"""Milliseconds after which the hub gives a job without a heartbeat to others, and between two heartbeats."""
TIMEOUT, BEAT_TIMEOUT = 30.0, 10.0
REASON = 4_000  # characters
LATEST = 2**47
"""Milliseconds since 1970 that a date can be made of; no time of a job is later, and none lasts longer."""
_OWN_WORDS = ("solver_", "egress_", "failed")
"""How the codes of failures begin whose message says what they are."""


class ClaimedJob(Struct, frozen=True):
    """A job as a claim answers it. Members that no worker needs are ignored."""

    id: str
    type: str
    params: Raw = Raw(b'"{}"')  # JSON in a text; some hubs send the value itself
    priority: float = 0
    attempts: int = 1
    max_attempts: int = 3
    max_runtime_ms: float | None = None
    created_at: float | None = None
    solver_url: str | None = None
    solver_checksum: str | None = None


class ForgePort:
    """A worker's port to a hub of this protocol, for one job at a time.

    The protocol has no tokens: a worker and a job identify a lease. What the engine calls the token of a run is made here, of its id
    and its number of attempts.
    """

    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        worker: str,
        *,
        about: Mapping[str, Any],
        types: Sequence[str],
        poll_every: float,
        registered: threading.Event,
        timeout: float = TIMEOUT,
    ) -> None:
        self.clock, self.longest_wait = clock, poll_every  # seconds between two claims when there is nothing to do
        self._transport, self._timeout, self._worker = transport, timeout, worker
        self._about, self._types, self._registered = about, list(types), registered
        self._started = ""  # the token of the run whose first heartbeat was sent with its claim
        self._problem = ""

    async def register(
        self, worker: WorkerInfo, *, about: Mapping[str, Any] | None = None, schemas: Mapping[str, str] | None = None
    ) -> None:
        """Register the worker once. Where that fails it works all the same, and tries again later."""
        if self._registered.is_set():
            return
        try:
            await self._post("/api/workers/register", {"worker_id": self._worker, **self._about})
            self._registered.set()
        except WindlassError as error:
            _LOG.warning("The worker could not be registered: %s", error)

    async def claim(self, worker: WorkerInfo, *, count: int, lease: int, token: str | None = None) -> list[Run]:
        """Claim a job, if there is one. A hub that does not answer well is asked again after the usual interval."""
        try:
            answer = await self._post("/api/jobs/claim", {"worker_id": self._worker} | ({"types": self._types} if self._types else {}))
            job, self._problem = _job_of(answer), ""
            return [] if job is None else await self._begin(_run_of(job, self._worker, self.clock.now()))
        except WindlassError as error:
            if str(error) != self._problem:
                _LOG.warning("No job could be claimed; it is tried again every %g s: %s", self.longest_wait, error)
            self._problem = str(error)
            return []

    async def _begin(self, run: Run) -> list[Run]:
        """Send the first heartbeat of a job with a program, before that is fetched; none where another worker has the job already."""
        if run.policy.solver is None:
            return [run]
        held = _held(run)
        try:
            answers = await self.beat([held], lease=LEASE)
        except WindlassError as error:
            _LOG.warning("The first heartbeat of job %s failed: %s", run.id, error)
            return [run]
        self._started = held.token
        return [run] if answers == ["ok"] else []

    async def start_many(self, held: Sequence[Held]) -> set[Held]:
        """Report that these jobs run, unless that is done; returns those that do."""
        waiting = [item for item in held if item.token != self._started]
        answers = await self.beat(waiting, lease=LEASE) if waiting else []
        return set(held) - {item for item, answer in zip(waiting, answers, strict=True) if answer != "ok"}

    async def beat(self, held: Sequence[Held], *, lease: int, progress: Mapping[Held, str] | None = None) -> list[BeatAnswer]:
        """Send a heartbeat for each of these jobs. The protocol has no word for progress."""
        return [await self._beat(_job_id(item.token)) for item in held]

    async def _beat(self, job_id: str) -> BeatAnswer:
        try:
            await self._post(_path(job_id, "heartbeat"), {"worker_id": self._worker})
        except LeaseLost:
            return "lost"
        except BadInput as error:  # of a hub that expects other heartbeats: the job may still be reported
            raise StoreUnreachable(error.message, hint=error.hint) from error
        return "ok"

    async def report_many(self, outcomes: Sequence[Outcome]) -> list[Receipt | WindlassError]:
        """Report how jobs ended; a refusal is the answer for its job, a hub that does not answer is an error."""
        return [await self._report(outcome) for outcome in outcomes]

    async def _report(self, outcome: Outcome) -> Receipt | WindlassError:
        verb, body = word_of(outcome.report)
        try:
            answer = await self._post(_path(outcome.run, verb), {"worker_id": self._worker, **body})
        except (BadInput, LeaseLost) as error:
            return error
        return Receipt(outcome.run, State.SUCCEEDED if verb == "result" else _state_of(answer))

    async def send_metrics(self, node: str, snapshots: Sequence[Mapping[str, Any]]) -> None:
        """Send one snapshot, or several as a batch."""
        path = f"/api/ingest/{_quoted(node)}{'/batch' if len(snapshots) > 1 else ''}"
        headers = {"x-node-name": self._about["name"]} if "name" in self._about else {}
        await self._post(path, list(snapshots) if len(snapshots) > 1 else snapshots[0], headers)

    async def wait(self, topics: Collection[str], timeout: float) -> set[str]:
        """Let time pass: a hub of this protocol gives no hints."""
        await asyncio.sleep(timeout)
        return set()

    async def close(self) -> None:
        await self._transport.close()

    async def _post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> HubResponse:
        request = ClientRequest("POST", path, self._timeout, body=msgspec.json.encode(body), headers=headers)
        answer = await self._transport.send(request)
        if not 200 <= answer.status < 300:
            raise _refusal(answer)
        return answer

    # Verbs that the protocol does not have

    async def begin_life(self, worker: str, life: Life) -> list[Life]:
        return []

    async def end_lives(self, worker: str, tags: Sequence[str]) -> int:
        return 0

    async def leave(self, worker: str, incarnation: int) -> None: ...

    async def worker_metrics(self, worker: str, metrics: Mapping[str, float]) -> None: ...

    async def recover(self, worker: WorkerInfo, token: str) -> list[Run]:
        return []

    async def log(self, run_id: str, token: str, lines: Sequence[tuple[int, str]], *, seq: int | None = None) -> None: ...

    async def results(self, run_id: str, *, after: str | None = None, count: int = 100) -> list[Result]:
        return []

    async def steps(self, run_id: str, *, after: int = 0, count: int = 1_000) -> list[Step]:
        return []

    async def store_step(self, run_id: str, token: str, key: str, output: str, *, seq: int | None = None) -> Step:
        raise BadInput(
            f"The result of the step {key!r} cannot be stored: this protocol has no steps.",
            hint="Use the worker of a windlass hub, or a handler without steps.",
        )


def _quoted(part: str) -> str:
    return quote(part, safe="").replace(".", "%2E")


def _path(job_id: str, verb: str) -> str:
    return f"/api/jobs/{_quoted(job_id)}/{verb}"


def _held(run: Run) -> Held:
    return Held(run.seq, run.token or "")


def _job_id(token: str) -> str:
    return token.rpartition(":")[0]


def _refusal(answer: HubResponse) -> WindlassError:
    """The error of an answer. What a later request may change counts as a hub that does not answer."""
    text = f"The hub answered with {answer.status}: {_error_text(answer)}"
    match answer.status:
        case 404 | 409:
            return LeaseLost(text, hint="The job belongs to another worker, or has ended.")
        case 413:
            return TooLarge(text, hint="Report less.")
        case 400 | 422:
            return BadInput(text, hint="The documentation of the hub lists what it accepts.")
        case 401 | 403:
            return StoreUnreachable(text, hint="Set FORGE_INGEST_SECRET to the hub's secret.")
        case _:
            return StoreUnreachable(text, hint="Look into the hub's log.")


def _error_text(answer: HubResponse) -> str:
    try:
        return str(msgspec.json.decode(answer.body)["error"])[:200]
    except (msgspec.DecodeError, TypeError, KeyError):
        return answer.body[:200].decode("utf-8", "replace")


def _job_of(answer: HubResponse) -> ClaimedJob | None:
    """The job of a claim; None if there is none."""
    try:
        job: ClaimedJob | None = reader(ClaimedJob | None)(answer.body or b"null")
        return job
    except (msgspec.DecodeError, RecursionError) as error:
        raise StoreUnreachable(f"The hub's answer to a claim is no job: {error}.", hint="Check HUB_URL, and the hub's version.") from None


def _run_of(job: ClaimedJob, worker: str, now: int) -> Run:
    """The run as a worker of windlass executes it."""
    solver = Solver(job.solver_url, job.solver_checksum) if job.solver_url else None
    created_at = int(job.created_at) if job.created_at and 0 < job.created_at < LATEST else now
    return Run(
        seq=0,
        id=job.id,
        rev=0,
        state=State.CLAIMED,
        job=job.type,
        queue="forge",
        lane=0,
        priority_key=-int(job.priority),
        position=0,
        payload=_payload_of(job.params),
        due_at=created_at,
        created_at=created_at,
        max_attempts=job.max_attempts,
        max_runtime=None if job.max_runtime_ms is None else int(min(job.max_runtime_ms, LATEST)),
        policy=Policy(solver=solver, on_exhausted="quarantined"),
        attempt=max(1, job.attempts),
        failures=max(0, job.attempts - 1),
        token=f"{job.id}:{job.attempts}",
        worker=worker,
        lease=LEASE,
        claimed_at=now,
    )


def _payload_of(params: Raw) -> str:
    text = bytes(params).decode()
    return str(msgspec.json.decode(text)) if text.startswith('"') else text


def _state_of(answer: HubResponse) -> State:
    """The state of a job after a failure."""
    try:
        is_pending = msgspec.json.decode(answer.body)["newStatus"] == "pending"
    except (msgspec.DecodeError, TypeError, KeyError):
        is_pending = False
    return State.QUEUED if is_pending else State.QUARANTINED


def word_of(report: Report) -> tuple[str, dict[str, Any]]:
    """How a report is told to the hub: the verb, and its body."""
    match report:
        case Succeed():
            return "result", _result_of(report.output or "null")
        case Fail() | Refuse():
            return "fail", {"reason": _reason_of(report.error)}
        case Snooze():
            return "fail", {"reason": f"The handler asked to be called again in {report.delay / 1000:g} s, which this protocol cannot do."}
        case Skip():
            return "fail", {"reason": f"The handler skipped the job, which this protocol cannot do: {report.reason}"[:REASON]}
        case Requeue():
            return "fail", {"reason": "The worker stopped before the job had ended."}
        case _:
            raise TypeError(f"{type(report)} is not a report.")


def _result_of(output: str) -> dict[str, Any]:
    """A text goes as it is, so that standard output arrives byte for byte; anything else as its JSON. Either is hashed as it is stored."""
    text = str(msgspec.json.decode(output)) if output.startswith('"') else output
    return {"result": text if output.startswith('"') else Raw(output.encode()), "result_hash": hashlib.sha256(text.encode()).hexdigest()}


def _reason_of(failure: Failure) -> str:
    known = failure.code.startswith(_OWN_WORDS) or failure.message.startswith(failure.code)
    return (failure.message if known else f"{failure.code}: {failure.message}")[:REASON]
