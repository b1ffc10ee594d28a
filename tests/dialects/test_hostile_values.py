"""Whatever a program gives to the libraries for an argument: an answer, or an error of ours that changes nothing."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any

import pytest

from tests.conformance import dump
from tests.dialects.guards_library import Library
from tests.dialects.kumofire_door import StoreDoor
from tests.harness import Harness
from windlass import App
from windlass.clock import ManualClock
from windlass.dialects import zerog
from windlass.dialects.guards import InvalidOperationError
from windlass.dialects.kumofire import JobDefinition
from windlass.dialects.zerog import ZeroGError
from windlass.errors import BadInput, NotFound, UnknownJob, WindlassError, WrongState
from windlass.store.base import Store, run_sync
from windlass.store.sqlite import BlockingSqlite

VALUES: list[Any] = [
    None, True, 0, -1, 10**30, 1.5, math.nan, math.inf, "", "x", "\0", "\ud800", "x" * 5_000, b"x", [], ["x"], {}, {1: 2}, {"x": "\0"},
    {"x": object()}, (), set(), object(), datetime(2026, 1, 1),  # noqa: DTZ001 - one without a zone
]  # fmt: skip

Call = Callable[[Any], object]


def each(verb: Callable[..., object], usual: Mapping[str, Any], *names: str) -> dict[str, Call]:
    """A call for each of these arguments, beside the usual others."""

    def call(name: str, value: Any) -> object:
        return verb(**{**usual, name: value})

    return {f"{verb} {name}": partial(call, name) for name in names}


def assert_refused_or_done(store: Store, calls: Mapping[str, Call], *errors: type[WindlassError]) -> None:
    """Each value is taken, or refused by one of these errors, which changes nothing."""
    refused = 0
    for name, call in calls.items():
        for value in VALUES:
            before = dump(store)
            error = _error(partial(call, value))
            if error is not None:
                refused += 1
                assert isinstance(error, errors), (name, value, error)
                assert (dump(store) == before, error.message[-1], error.status // 100) == (True, ".", 4), (name, value, error)
    assert refused > len(calls)


def _error(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


@pytest.fixture
def h() -> Iterator[Harness]:
    clock = ManualClock()
    harness = Harness(BlockingSqlite(":memory:", clock), clock)
    yield harness
    run_sync(harness.store.close())


def test_guards(h: Harness) -> None:
    s = Library(h, capacity=100)  # no call waits for another
    s.create_schedule("story", "0 0 1 1 *", name="night")
    s.handler("call")(lambda: None)
    job, held = s.job(), s.dispatch_job(s.job()).job_id
    calls = {
        **each(s.create_template, {"template_id": "new"},
               "template_id", "job_type", "default_params", "retry_policy", "description", "resources"),
        **each(partial(s.update_template, "story"), {}, "job_type", "default_params", "retry_policy", "description", "nothing"),
        **each(s.create_schedule, {"template_id": "story", "cron": "0 0 1 1 *"},
               "template_id", "cron", "timezone", "enabled", "params", "name"),
        **each(partial(s.update_schedule, "night"), {}, "template_id", "cron", "timezone", "enabled", "params", "nothing"),
        **each(s.create_job, {"template_id": "story"}, "template_id", "params", "priority", "position", "webhook_url", "webhook_events"),
        **each(partial(s.update_job, job), {}, "params", "priority", "position", "nothing"),
        **each(partial(s.update_jobrun, held), {"error": 5}, "status", "exit_code", "artifacts", "nothing"),
        **each(s.create_group, {"jobs": [{"template_id": "story"}]}, "jobs", "sequential", "name"),
        **{f"member {name}": lambda value, name=name: s.create_group([{"template_id": "story", name: value}])
           for name in ("template_id", "params", "priority", "nothing")},
        **each(s.execute_direct, {"job_type": "call"}, "job_type", "params", "timeout"),
        **each(s.list_jobs, {}, "status", "limit"),
        **{read.__name__: read for read in (
            s.get_template, s.get_schedule, s.delete_schedule, s.load_job, s.dispatch_job, s.cancel_job, s.load_jobrun, s.retry_run,
            s.load_group, s.cancel_group, s.compute_group_status, s.list_jobruns, s.list_groups,
        )},
    }  # fmt: skip
    assert_refused_or_done(h.store, calls, InvalidOperationError, NotFound)


def test_kumofire(h: Harness) -> None:
    app = App(":memory:", clock=h.clock)
    app._opened, app._pid = h.engine, os.getpid()
    door = StoreDoor(app)
    door.create()
    usual: dict[str, Any] = {"name": "email", "schedule_type": "cron", "schedule_expr": "0 0 1 1 *"}
    door(door.jobs.upsert_schedule(**usual, schedule_key="night"))

    def verb(name: str) -> Callable[..., object]:
        return lambda *args, **fields: door(getattr(door.jobs, name)(*args, **fields))

    def definition(**fields: Any) -> object:
        return door(door.another(definitions=[JobDefinition(**fields)]).dispatch())

    calls = {
        **each(verb("create"), {"name": "email"}, "name", "payload", "run_at", "max_attempts", "dedupe_key"),
        **each(verb("create_schedule"), usual,
               "name", "payload", "schedule_type", "schedule_expr", "timezone", "schedule_key", "max_attempts", "enabled"),
        **each(partial(verb("update_schedule_by_key"), "night"), {},
               "schedule_type", "schedule_expr", "timezone", "payload", "max_attempts", "enabled", "nothing"),
        **each(definition, {"name": "bill"}, "name", "handler", "payload_template", "default_options"),
        **{name: verb(name) for name in (
            "get_status", "history", "cancel", "get_schedule", "get_schedule_by_key", "disable_schedule_by_key", "consume",
        )},
        "limit": lambda value: door(door.jobs.dispatch(limit=value)),
        "lease_ms": lambda value: door.another(lease_ms=value),
        "resend_ms": lambda value: door.another(resend_ms=value),
    }  # fmt: skip
    assert_refused_or_done(h.store, calls, BadInput, UnknownJob)


def test_zerog(h: Harness) -> None:
    backend = zerog.backend("memory", clock=h.clock)
    backend._opened = h.engine
    resize = zerog.jobs.define(name="resize", handler=len)
    runner = zerog.JobRunner(backend=backend).register(resize)
    h(backend.enqueue("resize"))
    held = h(backend.claim("w1"))
    assert held is not None

    def verb(coroutine: Callable[..., Any], *args: Any) -> Callable[..., object]:
        return lambda *rest, **fields: h(coroutine(*args, *rest, **fields))

    calls = {
        "input": verb(runner.enqueue, resize),
        "job": lambda value: h(runner.enqueue(value, {})),
        **each(verb(backend.enqueue), {"name": "resize"}, "name", "input", "max_attempts"),
        **each(verb(backend.claim), {"worker_id": "w2"}, "worker_id", "lease_ms"),
        "complete": verb(backend.complete),
        "fail": lambda value: h(backend.fail(value, "it broke", True)),
        "error": lambda value: h(backend.fail(held.id, value, False, worker_id="nobody")),
        "status": verb(backend.status),
        "cancel": verb(backend.cancel),
        **each(zerog.jobs.define, {"name": "x", "handler": len}, "name", "handler", "input", "output", "max_attempts", "backoff_ms"),
    }
    assert_refused_or_done(h.store, calls, BadInput, ZeroGError, WrongState)
