"""Creations of runs: a request repeated under one key creates its runs once."""

from __future__ import annotations

from contextlib import suppress
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec.structs import replace

from windlass.answers import Origin, RunDetail
from windlass.api.answers import CreatedRun, CreatedRuns
from windlass.api.requests import CreateRun, CreateRuns
from windlass.api.views import RUN, RUN_DETAIL
from windlass.engine.checks import key_scope
from windlass.errors import BadInput, WindlassError
from windlass.hub.requests import HubRequest
from windlass.model import Created, Key, NewRun

_canonical = msgspec.json.Encoder(order="sorted").encode


async def answer_of(request: HubRequest, created: Created) -> CreatedRun:
    """The created run, read if possible: it exists in any case, and must not be requested again.

    A run that another call created is shown only to callers with the scope read.
    """
    run, visible = None, created.created or (request.caller.may("read") and not created.pruned)
    with suppress(WindlassError):
        run = RUN.show(await request.hub.engine.get(created.id)) if visible else None
    return CreatedRun(created.id, created.created, created.pruned, run)


def request_key(request: HubRequest, name: str | None, body: Any) -> Key | None:
    """The key of a request, if it has one: the same key and content again return the same run."""
    if name is None:
        return None
    content = blake2b(_canonical(body), digest_size=16).hexdigest()
    period, scope = request.hub.settings.idempotency, key_scope(f"http:{request.caller.principal.name}")
    return Key(name, ttl=period, scope=scope, on_duplicate="compare", content=content)


def _keyed(request: HubRequest, new: NewRun, body: CreateRun, name: str | None) -> NewRun:
    if new.key is None:
        return replace(new, key=request_key(request, name, body))
    if name is not None:
        raise BadInput("Both a key and the header Idempotency-Key are given.", hint="The run's own key is enough; leave the header out.")
    return replace(new, key=request.own(new.key))


async def create_run(request: HubRequest, data: CreateRun, idempotency_key: str | None) -> CreatedRun:
    new = _keyed(request, data.new_run(request.hub.clock.now()), data, idempotency_key)
    (created,) = await request.engine.create([new], undefined=data.undefined)
    return await answer_of(request, created)


async def create(request: HubRequest, data: CreateRuns, idempotency_key: str | None) -> CreatedRuns:
    now = request.hub.clock.now()
    keys = [None if idempotency_key is None or body.key else f"{idempotency_key}/{index}" for index, body in enumerate(data.runs)]
    news = [_keyed(request, body.new_run(now), body, key) for body, key in zip(data.runs, keys, strict=True)]
    waits = {body.undefined for body in data.runs}
    if len(waits) > 1:
        raise BadInput("Some runs may wait for an undefined job and some may not.", hint="Send them in two calls.")
    created = await request.engine.create(news, undefined=waits.pop() if waits else "refuse")
    return CreatedRuns([CreatedRun(one.id, one.created, one.pruned) for one in created])


async def get(request: HubRequest, run_id: str, detail: bool) -> Any:
    engine = request.hub.engine
    return RUN_DETAIL.show(await engine.detail(run_id) if detail else RunDetail.of(await engine.get(run_id), Origin(), None))


async def rerun(request: HubRequest, run_id: str, attempt: int | None, idempotency_key: str | None) -> CreatedRun:
    key = request_key(request, idempotency_key, ("rerun", run_id) if attempt is None else ("rerun", run_id, attempt))
    return await answer_of(request, await request.audited({"run_id": run_id}).rerun(run_id, attempt=attempt, key=key))


async def trigger(request: HubRequest, key: str, idempotency_key: str | None) -> CreatedRun:
    once = request_key(request, idempotency_key, ("trigger", key))
    return await answer_of(request, await request.audited({"key": key}).trigger(key, once=once))


async def steps(request: HubRequest, run_id: str, after: int, count: int) -> Any:
    if not request.caller.may("read"):
        request.caller.check_holds(await request.hub.engine.get(run_id))
    return request.verb.gives.show(await request.hub.engine.steps(run_id, after=after, count=count), {})


HANDLERS = {handler.__name__: handler for handler in (get, create_run, create, rerun, trigger, steps)}
