"""The table: each handler reads a request, calls one verb, and answers in the protocol's form."""

from __future__ import annotations

from typing import Any

import msgspec

from windlass.api.gives import Gives
from windlass.api.rows import ANY, DELETE, GET, POST, Param, Verb
from windlass.api.values import to_rfc3339
from windlass.clock import Clock
from windlass.dialects.base import LAST_LINE, Cors, Dialect, Request
from windlass.dialects.so1.refusals import refuse
from windlass.dialects.so1.sessions import Sessions, Verify, loaded, session_of
from windlass.dialects.so1.settings import Settings
from windlass.dialects.so1.stream import JOB_FRAMES
from windlass.dialects.so1.verbs import MAX_PAGE, PAGE, NotValid, OrgJobs, validating
from windlass.dialects.so1.words import Job
from windlass.engine import Engine

_ANY_JSON = Gives(None)
_BODY = 'Send {"action": NAME, "inputs": {...}}.'

VERBS = (
    Verb(
        "create_job", POST, "/api/jobs", "Create a job", _ANY_JSON,
        scope="submit", takes=Any, query=(Param("Idempotency-Key", header=True),), status=202,
    ),
    Verb(
        "list_jobs", GET, "/api/jobs", "The newest jobs", _ANY_JSON,
        scope="read", query=(Param("state"), Param("limit"), Param("cursor")),
    ),
    Verb("get_job", GET, "/api/jobs/{job_id}", "A job", _ANY_JSON, scope="read"),
    Verb("cancel_job", POST, "/api/jobs/{job_id}/cancel", "Cancel a job", _ANY_JSON, scope="submit"),
    Verb("delete_job", DELETE, "/api/jobs/{job_id}", "Cancel a job", _ANY_JSON, scope="submit"),
    Verb(
        "watch_job", GET, "/api/jobs/{job_id}/events", "The events of a job", _ANY_JSON,
        scope="read", query=(Param("cursor"), Param("Last-Event-ID", header=True)),
    ),
    Verb("get_session", GET, "/api/auth/session", "The caller's user and organisation", _ANY_JSON, scope=ANY),
    Verb("get_health", GET, "/health", "Whether the server answers", _ANY_JSON, scope=None),
)  # fmt: skip

_encode = msgspec.json.Encoder().encode
MOCKED = "its setting mock accepts tokens that need no secret."


class Handlers:
    """The handlers of one mounted table."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock

    def _jobs(self, request: Request) -> OrgJobs:
        def act(job_id: str) -> Engine:
            return request.act("cancel", f"job {job_id}")

        return OrgJobs(request.engine, session_of(request.caller), self._settings, request_id=request.id, act=act)

    async def create_job(self, request: Request, data: Any, idempotency_key: str | None) -> Any:
        action, inputs = read_body(data)
        return answer(request, await self._jobs(request).create_job(action, inputs, idempotency_key=idempotency_key, body=data))

    async def list_jobs(self, request: Request, state: str | None, limit: str | None, cursor: str | None) -> Any:
        count = PAGE if limit is None else read_number("limit", limit, MAX_PAGE)
        page = await self._jobs(request).list_jobs(state=state, limit=count, cursor=cursor)
        jobs = msgspec.Raw(_encode(page.jobs))
        more = {} if page.cursor is None else {"cursor": page.cursor}
        return {"requestId": request.id, "jobs": jobs, "data": jobs, **more}

    async def get_job(self, request: Request, job_id: str) -> Any:
        return answer(request, await self._jobs(request).get_job(job_id))

    async def cancel_job(self, request: Request, job_id: str) -> Any:
        return answer(request, await self._jobs(request).cancel_job(job_id))

    async def watch_job(self, request: Request, job_id: str, cursor: str | None, last_event_id: str | None) -> Any:
        view = await self._jobs(request).view(job_id)
        after = None if cursor is None else read_number("cursor", cursor, LAST_LINE)
        with validating("Last-Event-ID"):
            return await request.watch(view.run, view.attempt.n, JOB_FRAMES, after, last_event_id)

    async def get_session(self, request: Request) -> Any:
        session = session_of(request.caller)
        email = {} if session.email is None else {"email": session.email}
        return {"requestId": request.id, "session": {"userId": session.user, "orgId": session.org, **email}}

    async def get_health(self, request: Request) -> Any:
        return {"status": "ok", "timestamp": to_rfc3339(self._clock.now())}


def answer(request: Request, job: Job) -> dict[str, Any]:
    """The answer with one job; some clients read it as `data`."""
    body = msgspec.Raw(_encode(job))
    return {"requestId": request.id, "job": body, "data": body}


def read_body(data: Any) -> tuple[str, dict[str, Any]]:
    """The action and the inputs of a body, which may have other members."""
    if not isinstance(data, dict):
        raise NotValid("body", "The body is not a JSON object.", hint=_BODY)
    action, inputs = data.get("action"), data.get("inputs")
    if not isinstance(action, str):
        raise NotValid("action", "The body names no action.", hint=_BODY)
    if inputs is not None and not isinstance(inputs, dict):
        raise NotValid("inputs", "The inputs are not a JSON object.", hint=_BODY)
    return action, inputs or {}


def read_number(member: str, text: str, largest: int) -> int:
    """A number in the address."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(largest)) and int(text) <= largest):
        raise NotValid(member, f"{member} is {text!r:.40}.", hint=f"Use a number of at most {largest:,}.")
    return int(text)


def mount(settings: Settings, clock: Clock, *, verify: Verify | None = None) -> Dialect:
    """The table for a hub. `verify` identifies callers, instead of the function that the settings name."""
    verify = verify or (None if settings.verify is None else loaded(settings.verify))
    handlers = Handlers(settings, clock)
    return Dialect(
        "",
        VERBS,
        {verb.name: getattr(handlers, "cancel_job" if verb.name == "delete_job" else verb.name) for verb in VERBS},
        refuse,
        name="so1",
        credentials=Sessions(verify, mock=settings.mock),
        strict=False,
        cors=Cors(frozenset(settings.origins), credentials=True, expose=("X-Request-Id",)),
        private=MOCKED if settings.mock else "",
    )
