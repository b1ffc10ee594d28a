"""The routes of the Forge job queue: each decodes, calls one verb, and encodes."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Annotated, Any

from msgspec import Meta, Struct

from windlass.api.gives import Gives
from windlass.api.rows import DELETE, GET, POST, Param, Verb
from windlass.clock import Clock
from windlass.dialects.base import ANYWHERE, Cors, Dialect, Identity, NoRoute, Reply, Request
from windlass.dialects.forge.bodies import FailureToStore, JobToCreate, ResultToStore, TypesToClaim, WorkerName, WorkerToRegister, whole
from windlass.dialects.forge.fleet import SNAPSHOTS, Fleet, NodeView, Snapshot, metrics_of
from windlass.dialects.forge.frames import JobEvents
from windlass.dialects.forge.verbs import CreatedJob, JobQueue, Missing, NotAssigned, NotCancellable, ReportedFailure, SubmittedResult
from windlass.dialects.forge.words import PAGE, QUEUE, Job, run_id_of
from windlass.dialects.leases import KnownLeases
from windlass.engine import checks
from windlass.errors import LimitReached, NotFound, Pruned, StoreError, Unauthorized, WindlassError

REQUIRED = "Set secret in [dialects.forge], or the variable FORGE_INGEST_SECRET."


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings in [dialects.forge]."""

    secret: str | None = None
    queue: str = QUEUE
    open_reads: bool = False
    open_events: bool = True

    def __post_init__(self) -> None:
        checks.name(self.queue, "A queue's name")


class SharedSecret:
    """The one secret of the protocol, as a bearer token: for producers, workers and dashboards alike."""

    def __init__(self, secret: str | None) -> None:
        self._secret = (secret or "").strip().encode()

    @property
    def required(self) -> bool:
        """Whether it is set."""
        return bool(self._secret)

    async def identify(self, headers: Mapping[bytes, bytes], *, local: bool) -> Identity | None:
        """The caller that shows the secret."""
        scheme, _, secret = headers.get(b"authorization", b"").partition(b" ")
        if not self._secret or scheme.lower() != b"bearer" or not hmac.compare_digest(secret.strip(), self._secret):
            return None  # it may be a token of windlass
        return Identity("forge", frozenset({"read", "submit", "work"}), trusted=True)


_TEXTS: tuple[tuple[type[WindlassError], str], ...] = (
    (Unauthorized, "unauthorized"),
    (NotCancellable, "not found or not cancellable"),
    (NotFound, "not found"),
    (Pruned, "not found"),
    (NotAssigned, "job not assigned to this worker"),
    (StoreError, "the store cannot do this now"),
)


def refuse(request: Request, error: Exception) -> Reply:
    """The answer to an error."""
    if isinstance(error, WindlassError):
        return _refusal(error)
    if isinstance(error, NoRoute):
        headers = {} if error.methods is None else {"Allow": error.methods}
        return Reply({"error": error.status.phrase.lower()}, error.status, headers)
    return Reply({"error": "internal error"}, HTTPStatus.INTERNAL_SERVER_ERROR)


def _refusal(error: WindlassError) -> Reply:
    usual = error.message if isinstance(error, Missing) else str(error)
    text = next((text for kind, text in _TEXTS if isinstance(error, kind)), usual)
    status = HTTPStatus.NOT_FOUND if isinstance(error, Pruned) else error.status
    headers = {"Retry-After": "1"} if isinstance(error, StoreError | LimitReached) else {}
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    return Reply({"error": text}, status, headers)


def _worker(request: Request, body: WorkerName) -> str:
    """The worker of a request, for which the caller may speak."""
    if not body.worker_id:
        raise Missing("worker_id required")
    request.caller.check_worker(body.worker_id)
    return body.worker_id


class _Routes:
    """The handlers of one mounted dialect."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._queue, self._fleet, self._events, self._leases = settings.queue, Fleet(clock), JobEvents(), KnownLeases()

    def _jobs(self, request: Request) -> JobQueue:
        return JobQueue(request.engine, self._queue, request.work, self._leases)

    # Jobs

    async def create_job(self, request: Request, data: JobToCreate) -> CreatedJob:
        return await self._jobs(request).create_job(
            data.type or "",
            data.params,
            priority=whole(data.priority, "priority"),
            max_attempts=whole(data.max_attempts, "max_attempts"),
            max_runtime_ms=whole(data.max_runtime_ms, "max_runtime_ms"),
            solver_url=data.solver_url,
            solver_checksum=data.solver_checksum,
        )

    async def list_jobs(self, request: Request, status: str | None, limit: int, offset: int) -> list[Job]:
        return await self._jobs(request).list_jobs(status or None, limit, offset)

    async def get_job(self, request: Request, id: str) -> Job:
        return await self._jobs(request).get_job(id, any_queue=request.caller.may("read"))

    async def cancel_job(self, request: Request, id: str) -> None:
        await JobQueue(request.act("cancel", f"run {run_id_of(id) or id[:80]}"), self._queue).cancel_job(id)

    async def follow_jobs(self, request: Request, last_event_id: str | None) -> Any:
        return request.follow(self._queue, self._events, last_event_id)

    # Workers

    async def register_worker(self, request: Request, data: WorkerToRegister) -> None:
        worker_id = _worker(request, data)
        await self._jobs(request).register_worker(worker_id, name=data.name, cores=data.cores, ram_gb=data.ram_gb, tags=data.tags)

    async def claim_job(self, request: Request, data: TypesToClaim) -> Job | Reply:
        job = await self._jobs(request).claim_job(_worker(request, data), data.types)
        return Reply(status=HTTPStatus.NO_CONTENT) if job is None else job

    async def heartbeat_job(self, request: Request, id: str, data: WorkerName) -> None:
        await self._jobs(request).heartbeat_job(id, _worker(request, data))

    async def submit_result(self, request: Request, id: str, x_idempotency_key: str | None, data: ResultToStore) -> SubmittedResult:
        worker_id = _worker(request, data)
        how = {"result_hash": data.result_hash, "idempotency_key": x_idempotency_key}
        return await self._jobs(request).submit_result(id, worker_id, data.result, **how)

    async def fail_job(self, request: Request, id: str, data: FailureToStore) -> ReportedFailure:
        return await self._jobs(request).fail_job(id, _worker(request, data), data.reason or "")

    async def counts_by_worker(self, request: Request) -> dict[str, int]:
        return await self._jobs(request).counts_by_worker()

    # The fleet

    async def ingest(self, request: Request, node: str, x_node_name: str | None, data: Snapshot) -> None:
        await self._ingest(request, node, x_node_name, [data])

    async def ingest_batch(self, request: Request, node: str, x_node_name: str | None, data: list[Snapshot]) -> None:
        await self._ingest(request, node, x_node_name, data)

    async def _ingest(self, request: Request, node: str, name: str | None, snapshots: list[Snapshot]) -> None:
        request.caller.check_worker(node)
        if self._fleet.add(node, name, snapshots):
            with suppress(NotFound):  # it sends measurements without being a worker
                await request.engine.worker_metrics(node, metrics_of(snapshots[-1]))

    async def list_nodes(self, request: Request) -> list[NodeView]:
        return self._fleet.views()

    async def list_snapshots(self, request: Request, id: str, limit: int) -> Any:
        return self._fleet.snapshots(id, min(limit, SNAPSHOTS))

    async def follow_fleet(self, request: Request) -> Any:
        return request.emit(self._fleet.frames())

    async def follow_node(self, request: Request, id: str) -> Any:
        return request.emit(self._fleet.frames(id))

    async def health(self, request: Request) -> dict[str, Any]:
        return {"ok": True, "mode": "hub", "clients": self._fleet.watchers, "nodes": len(self._fleet)}


def _rows(reads: str | None, events: str | None) -> tuple[Verb, ...]:
    """The table; `reads` and `events` are the scopes of what a dashboard needs."""
    number, limit = Annotated[int, Meta(ge=0, le=2**53)], "limit"
    listing = (Param("status"), Param(limit, number, PAGE), Param("offset", number, 0))
    stream: dict[str, Any] = {"scope": events, "ticket": True}
    last_id, key, name = (Param(header, header=True) for header in ("Last-Event-ID", "X-Idempotency-Key", "X-Node-Name"))
    nothing, any_json = Gives(None), Gives(Any)
    created, no_content = int(HTTPStatus.CREATED), int(HTTPStatus.NO_CONTENT)
    return (
        Verb("create_job", POST, "/api/jobs", "Create a job", Gives(CreatedJob), "submit", takes=JobToCreate, status=created),
        Verb("list_jobs", GET, "/api/jobs", "List jobs", Gives(list[Job]), reads, listing, repeatable=True),
        Verb("get_job", GET, "/api/jobs/{id}", "A job", Gives(Job), reads, repeatable=True),
        Verb("cancel_job", DELETE, "/api/jobs/{id}", "Cancel a job", nothing, "submit", status=no_content),
        Verb("follow_jobs", GET, "/api/jobs/events", "Changes of jobs, as they happen", nothing, query=(last_id,), **stream),
        Verb("counts_by_worker", GET, "/api/jobs/counts-by-worker", "How many jobs each worker has", any_json, reads),
        Verb("register_worker", POST, "/api/workers/register", "Register", nothing, "work", takes=WorkerToRegister, status=no_content),
        Verb("claim_job", POST, "/api/jobs/claim", "Claim a job", Gives(Job | None), "work", takes=TypesToClaim),
        Verb("heartbeat_job", POST, "/api/jobs/{id}/heartbeat", "Renew a lease", nothing, "work", takes=WorkerName, status=no_content),
        Verb("submit_result", POST, "/api/jobs/{id}/result", "Complete a job", Gives(SubmittedResult), "work", (key,), ResultToStore),
        Verb("fail_job", POST, "/api/jobs/{id}/fail", "Report a failure", Gives(ReportedFailure), "work", takes=FailureToStore),
        Verb("ingest", POST, "/api/ingest/{node}", "Send a snapshot", nothing, "work", (name,), dict[str, Any], status=no_content),
        Verb("ingest_batch", POST, "/api/ingest/{node}/batch", "Send snapshots", nothing, "work", (name,), list[dict[str, Any]],
             status=no_content),
        Verb("list_nodes", GET, "/api/fleet", "List nodes", Gives(list[NodeView]), reads),
        Verb("follow_fleet", GET, "/api/fleet/events", "Changes of nodes, as they happen", nothing, **stream),
        Verb("list_snapshots", GET, "/api/nodes/{id}/snapshot", "Snapshots of a node", any_json, reads, (Param(limit, number, SNAPSHOTS),)),
        Verb("follow_node", GET, "/api/nodes/{id}/events", "Changes of a node, as they happen", nothing, **stream),
        Verb("health", GET, "/api/health", "Whether the hub lives", any_json, None),
    )  # fmt: skip


def mount(settings: Settings, clock: Clock) -> Dialect:
    """The dialect for a hub."""
    routes = _Routes(settings, clock)
    verbs = _rows(None if settings.open_reads else "read", None if settings.open_events else "read")
    return Dialect(
        prefix="",
        verbs=verbs,
        handlers={verb.name: getattr(routes, verb.name) for verb in verbs},
        refuse=refuse,
        name="forge",
        credentials=SharedSecret(settings.secret),
        strict=False,
        cors=Cors(frozenset({ANYWHERE})),
        required=REQUIRED,
    )
