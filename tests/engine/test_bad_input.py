"""Bad input gets a clear error and changes nothing; what is accepted comes back equal."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from threading import Barrier
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conformance import dump, running, unchanged
from tests.grounds import set_ground
from tests.harness import Harness, token
from tests.tiers import long
from windlass import payload
from windlass.clock import ManualClock
from windlass.engine import Engine
from windlass.errors import BadInput, WindlassError
from windlass.machine import Fail, Requeue, Snooze, Succeed
from windlass.model import Failure, Key, Limits, NewRun, Options, Requires, Run, WorkerInfo
from windlass.store.base import run_sync
from windlass.store.postgres import BlockingPostgres
from windlass.store.records import Held

Case = Callable[[], object]

NOT_JSON: dict[str, Any] = {
    "NaN": math.nan,
    "Infinity": math.inf,
    "-Infinity": -math.inf,
    "2^63": 2**63,
    "-2^63 - 1": -(2**63) - 1,
    "5000 digits": 10**5000,
    "a lone surrogate": "\ud800",
    "the other half": "a\udfff",
    "a surrogate in a key": {"\ud800": 1},
    "NUL": "a\0b",
    "NUL in a key": {"a\0b": 1},
    "a key that is a number": {1: 1},
    "a key that is None": {None: 1},
    "a set": {1, 2},
    "bytes": b"text",
    "an object": object(),
    "a function": len,
    "a complex number": 1j,
    "a struct": Failure("a", "b"),
}
TOO_DEEP: list[Any] = []
for _ in range(payload.DEPTH):
    TOO_DEEP = [TOO_DEEP]

BAD_DURATIONS: tuple[Any, ...] = (-1, 1.5, 1.0, True, False, "5", "1s", math.inf, 10 * 366 * 24 * 3_600_000 + 1, 2**63, 2**70, (1,))
BAD_NAMES: tuple[Any, ...] = ("", "x" * 129, "a\nb", "a\0b", "\x7f", "a\ud800", None, 5, b"mail", ("mail",))
BAD_IDS: tuple[Any, ...] = ("", "x" * 65, "a b", "../etc", "ü", "a\0", "a\n", "%00", "a;--", None, 5, b"abc", 1.5)
BAD_COUNTS: tuple[Any, ...] = (0, -1, 10**9, 2**63, True, 1.0, "10", None)


def _error(case: Case) -> BaseException | None:
    try:
        case()
    except BaseException as error:
        return error
    return None


def assert_refused(h: Harness, cases: Mapping[Any, Case], code: str = "bad_input") -> None:
    """Each case raises an error of ours with that code, which says what to do next; the store stays as it was."""
    before = dump(h.store)
    for name, case in cases.items():
        error = _error(case)
        assert isinstance(error, WindlassError), (name, error)
        assert error.code == code, (name, error)
        assert 400 <= error.status < 500, name
        assert error.message.endswith("."), name
        assert error.hint.endswith("."), name
        assert len(str(error)) < 1_000, name
    after = dump(h.store)
    assert after == before, [table for table in after if after[table] != before[table]]


def each(values: tuple[Any, ...], verb: Callable[[Any], object], what: str = "") -> dict[str, Case]:
    """One case for each value."""
    return {f"{what} {value!r:.60}": partial(verb, value) for value in values}


def each_field(fields: tuple[str, ...], values: tuple[Any, ...], verb: Callable[..., object]) -> dict[str, Case]:
    """One case for each field and value."""
    return {f"{field} {value!r:.60}": partial(verb, **{field: value}) for field in fields for value in values}


# Creation


def test_an_unknown_job_is_refused(h: Harness) -> None:
    cases: dict[str, Case] = {
        "alone": lambda: h.create("ghost"),
        "among others": lambda: h(h.engine.create([NewRun("mail"), NewRun("ghost"), NewRun("mail")])),
        "with a queue of its own": lambda: h.create("ghost", options=Options(queue="new")),
    }
    assert_refused(h, cases, "unknown_job")


def test_an_unknown_job_may_be_waited_for(h: Harness) -> None:
    (made,) = h(h.engine.create([NewRun("ghost")], undefined="wait"))
    assert h.get(made.id).job == "ghost"
    assert_refused(h, each(("bogus", "", 5, True), lambda word: h(h.engine.create([NewRun("ghost")], undefined=word))))


def test_a_payload_that_is_not_json_is_refused(h: Harness) -> None:
    verbs: dict[str, Callable[[Any], object]] = {
        "alone": lambda value: h.create(payload=value),
        "inside": lambda value: h.create(payload={"list": [1, {"value": value}]}),
        "beside a good one": lambda value: h(h.engine.create([NewRun("mail", 1), NewRun("mail", value)])),
        "in a template": lambda value: h.define("new", payload={"value": value}),
    }
    values = NOT_JSON | {"too deep": TOO_DEEP}
    assert_refused(h, {f"{name} {where}": partial(verb, value) for name, value in values.items() for where, verb in verbs.items()})


def test_a_refused_payload_leaves_no_lane_no_job_and_no_key(h: Harness) -> None:
    def twice(value: Any, **how: Any) -> object:
        key = Key("k", **how)
        return h(h.engine.create([NewRun("mail", 1, key=key), NewRun("mail", value, key=key)]))

    cases: dict[str, Case] = {
        "a queue of its own": lambda: h.create(payload=math.nan, options=Options(queue="new")),
        "undefined": lambda: h(h.engine.create([NewRun("ghost", math.nan)], undefined="wait")),
        "the second of a key": lambda: twice({1, 2}),
        "the second of a key, compared": lambda: twice(object(), on_duplicate="compare"),
        "two contents for a key": lambda: twice(2, on_duplicate="compare"),
        "two contents for a key in a new queue": lambda: h(
            h.engine.create(
                [NewRun("mail", n, options=Options(queue="new"), key=Key("k", on_duplicate="compare")) for n in (1, 2)],
            )
        ),
        "a key": lambda: h.create(payload=math.nan, key=Key("k")),
    }
    assert_refused(h, cases)
    missing = NewRun("ghost", 1, after=("nobody",))
    assert_refused(h, {"no predecessor": lambda: h(h.engine.create([missing], undefined="wait"))}, "not_found")


def test_a_payload_that_is_too_large_is_refused(h: Harness) -> None:
    limit = h.engine.limits.payload
    shared: list[Any] = []
    for _ in range(60):
        shared = [shared, shared]
    cases: dict[str, Case] = {
        "text": lambda: h.create(payload="x" * limit),
        "in bytes, not characters": lambda: h.create(payload="ü" * (limit // 2)),
        "many members": lambda: h.create(payload=[0] * limit),
        "the same list twice, sixty times": lambda: h.create(payload=shared),
        "in a new queue": lambda: h.create(payload="x" * limit, options=Options(queue="new")),
        "undefined": lambda: h(h.engine.create([NewRun("ghost", "x" * limit)], undefined="wait")),
        "template": lambda: h.define("new", payload={"text": "x" * limit}),
    }
    assert_refused(h, cases, "too_large")
    assert h.get(h.create(payload="x" * (limit - 2))).payload == '"' + "x" * (limit - 2) + '"'


def test_a_payload_that_gets_too_large_over_its_template_is_refused(h: Harness) -> None:
    half = "x" * (h.engine.limits.payload // 2)
    h.define("fat", payload={"a": half})
    assert_refused(h, {"both": lambda: h.create("fat", payload={"b": half}, options=Options(queue="new"))}, "too_large")


def test_too_many_runs_in_one_call_are_refused(h: Harness) -> None:
    limits = h.engine.limits
    ids = tuple(f"run-{n}" for n in range(limits.predecessors + 1))
    cases: dict[str, Case] = {
        "runs": lambda: h(h.engine.create([NewRun("mail")] * (limits.create + 1))),
        "predecessors": lambda: h.create(after=ids),
        "delays": lambda: h.define("new", backoff=(1,) * (limits.attempts + 1)),
        "beats": lambda: h(h.engine.beat([Held(1, "token")] * (limits.report + 1))),
    }
    assert_refused(h, cases, "too_large")


def test_bad_durations_are_refused(h: Harness) -> None:
    run = running(h)
    fields = ("max_runtime", "timeout", "grace")
    cases = each_field(fields, BAD_DURATIONS, lambda **options: h.create(options=Options(**options)))
    cases |= each_field(fields, BAD_DURATIONS, partial(h.define, "new"))
    cases |= each(BAD_DURATIONS, lambda value: h.define("new", backoff=(1, value)), "backoff")
    cases |= each((5, "5", [5], {5}), lambda value: h.define("new", backoff=value), "backoff")
    cases |= each((0, *BAD_DURATIONS), lambda value: h.create(key=Key("k", ttl=value)), "ttl")
    cases |= each((0, *BAD_DURATIONS), lambda value: h.claim(lease=value), "claim")
    cases |= each((0, *BAD_DURATIONS), lambda value: h(h.engine.beat([Held(run.seq, token(run))], lease=value)), "beat")
    cases |= each(BAD_DURATIONS, lambda value: h.fail(run, delay=value), "fail")
    cases |= each((None, *BAD_DURATIONS), lambda value: h.report(run, Snooze(token=run.token, delay=value)), "snooze")
    assert_refused(h, cases)


def test_bad_limits_are_refused(h: Harness) -> None:
    run_id = h.create()
    huge = (2**31, 2**63, -(2**31), 1.5, True, "3")
    cases = each_field(("max_attempts", "max_requeues", "priority"), huge, lambda **options: h.create(options=Options(**options)))
    cases |= each((0, -1), lambda value: h.create(options=Options(max_attempts=value)), "max_attempts")
    cases |= each((1, "yes"), lambda value: h.create(options=Options(attempt_per_claim=value)), "attempt_per_claim")
    cases |= each_field(("max_attempts", "priority"), huge, lambda **edit: h(h.engine.patch(run_id, **edit)))
    needs = ("cores", "memory")
    cases |= each_field(needs, (-1, 2**50, 1.5, True, "1"), lambda **requires: h.define("new", requires=Requires(**requires)))
    cases |= each_field(needs, (-1, 2**50, 1.5, True, "1", None), h.claim)
    cases |= each((0, -1, 2**50, 1.5, True, "1", None), lambda value: h.claim(slots=value), "slots")
    assert_refused(h, cases)


def test_bad_words_are_refused(h: Harness) -> None:
    before = h.create()
    words: tuple[Any, ...] = ("bogus", "", 5, True)
    cases = each_field(("on_exhausted", "retry_place"), words, lambda **options: h.create(options=Options(**options)))
    cases |= each_field(("on_duplicate",), words, lambda **how: h.create(key=Key("k", **how)))
    cases |= each(("bogus", "", "time", True, 0, 1.5, None), lambda value: h.create(key=Key("k", ttl=value)), "ttl")
    cases |= each(words, lambda value: h.create(after=(before,), after_end=value), "after_end")
    assert_refused(h, cases)


@pytest.mark.parametrize("unknown", ["queu", "retries", "state"])
def test_an_option_that_does_not_exist_is_refused(unknown: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=unknown):
        msgspec.convert({unknown: 1}, Options)
    given: dict[str, Any] = {unknown: 1}
    with pytest.raises(TypeError, match=unknown):
        Options(**given)


def test_bad_names_are_refused(h: Harness) -> None:
    run_id = h.create()
    verbs: dict[str, Callable[[Any], object]] = {
        "define": h.define,
        "handler": lambda name: h(h.engine.define("new", handler=name)),
        "create": h.create,
        "create, waiting": lambda name: h(h.engine.create([NewRun(name)], undefined="wait")),
        "queue": lambda name: h.create(options=Options(queue=name)),
        "patch": lambda name: h(h.engine.patch(run_id, queue=name)),
        "scope": lambda name: h.create(key=Key("k", scope=name)),
        "worker": lambda name: h.claim(worker=name),
        "worker's queue": lambda name: h.claim(queues=(name,)),
        "worker's job": lambda name: h.claim(jobs=("mail", name)),
        "worker's tag": lambda name: h.claim(tags=(name,)),
        "a required tag": lambda name: h.define("new", requires=Requires(tags=(name,))),
        "by": lambda name: h(h.engine.cancel(run_id, by=name)),
        "list of a job": lambda name: h(h.engine.runs(job=name)),
        "list of a queue": lambda name: h(h.engine.runs(queue=name, state="queued")),
    }
    said_nothing = ("handler", "queue", "patch", "by", "list of a job", "list of a queue")  # where None means just that
    cases: dict[str, Case] = {}
    for what, verb in verbs.items():
        cases |= each(tuple(name for name in BAD_NAMES if name is not None or what not in said_nothing), verb, what)
    assert_refused(h, cases)
    for good in ("x" * 128, "ü 漢字 🙂", "a/b:c;--'\"%s"):
        h.define(good)
        assert h.get(h.create(good, options=Options(queue=good))).queue == good


def test_a_worker_says_what_it_takes_in_tuples(h: Harness) -> None:
    assert_refused(h, each_field(("queues", "jobs", "tags"), (["mail"], "mail", {"mail"}, 5), h.claim))


def test_bad_keys_are_refused(h: Harness) -> None:
    cases = each(("", "x" * 256, "a\nb", "a\0b", "\ud800", None, 5), lambda name: h.create(key=Key(name)), "name")
    cases |= {
        "a time to live that is none": lambda: h.create(key=Key("k", ttl="time")),  # type: ignore[arg-type]
        "the engine's own scope": lambda: h.create(key=Key("k", scope="claim")),
    }
    assert_refused(h, cases)


def test_bad_times_are_refused(h: Harness) -> None:
    run_id = h.create()
    values = (-1, 32_503_680_000_000, 2**63, 1.5, True, "2030-01-01", math.nan)
    cases = each(values, lambda at: h.create(due_at=at)) | each(values, lambda at: h(h.engine.patch(run_id, due_at=at)), "patch")
    assert_refused(h, cases)


# Ids, tokens, nonces


def test_bad_ids_are_refused(h: Harness) -> None:
    run = running(h)
    verbs: dict[str, Callable[[Any], object]] = {
        "get": h.get,
        "status": lambda run_id: h(h.engine.status(run_id)),
        "history": lambda run_id: h(h.engine.history(run_id)),
        "attempts": lambda run_id: h(h.engine.attempts(run_id)),
        "lines": lambda run_id: h(h.engine.lines(run_id)),
        "why": lambda run_id: h(h.engine.why(run_id)),
        "cancel": lambda run_id: h(h.engine.cancel(run_id)),
        "skip": lambda run_id: h(h.engine.skip(run_id, reason="no")),
        "patch": lambda run_id: h(h.engine.patch(run_id, priority=1)),
        "rerun": lambda run_id: h(h.engine.rerun(run_id)),
        "start": lambda run_id: h(h.engine.start(run_id, token(run))),
        "log": lambda run_id: h(h.engine.log(run_id, token(run), [(1, "x")])),
        "report": lambda run_id: h(h.engine.report(run_id, Succeed(token=run.token))),
        "after": lambda run_id: h.create(after=(run_id,)),
        "start's token": lambda held: h(h.engine.start(run.id, held)),
        "log's token": lambda held: h(h.engine.log(run.id, held, [(1, "x")])),
        "report's token": lambda held: h(h.engine.report(run.id, Requeue(token=held))),
        "beat's token": lambda held: h(h.engine.beat([Held(run.seq, held)])),
    }
    cases: dict[str, Case] = {}
    for what, verb in verbs.items():
        cases |= each(BAD_IDS, verb, what)
    cases |= each(tuple(value for value in BAD_IDS if value is not None), lambda value: h.create(retry_of=value), "retry_of")
    cases |= each((-1, 2**63, 1.5, "1", None), lambda seq: h(h.engine.beat([Held(seq, token(run))])), "seq of a beat")
    cases |= each((-1, 2**63, 1.5, "1"), lambda seq: h(h.engine.start(run.id, token(run), seq=seq)), "seq of a start")
    assert_refused(h, cases)


def test_ids_of_nobody_are_not_found(h: Harness) -> None:
    nobody = h.clock.new_id()
    cases: dict[str, Case] = {
        "get": lambda: h.get(nobody),
        "cancel": lambda: h(h.engine.cancel(nobody)),
        "patch": lambda: h(h.engine.patch(nobody, queue="new")),
        "rerun": lambda: h(h.engine.rerun(nobody)),
        "report": lambda: h(h.engine.report(nobody, Succeed(token=h.clock.nonce()))),
        "start": lambda: h(h.engine.start(nobody, h.clock.nonce())),
        "after": lambda: h.create(after=(nobody,), options=Options(queue="new")),
    }
    assert_refused(h, cases, "not_found")


def test_bad_nonces_are_refused(h: Harness) -> None:
    h.create()

    def claim(nonce: Any) -> object:
        return h(h.engine.claim(WorkerInfo("w1"), nonce=nonce))

    def claim_under(token: Any) -> object:
        return h(h.engine.claim(WorkerInfo("w1"), token=token))

    assert_refused(h, each(("", "short", "x" * 65, 5), claim_under))
    assert_refused(h, each(("", "short", "x" * 21, "x" * 65, "x" * 21 + " ", "x" * 22 + "\0", "ü" * 22, 5, True, b"x" * 22), claim))


# Lists and cursors


def test_bad_counts_are_refused(h: Harness) -> None:
    run_id = h.create()
    verbs: dict[str, Callable[[Any], object]] = {
        "claim": h.claim,
        "runs": lambda count: h(h.engine.runs(count=count)),
        "queued": lambda count: h(h.engine.runs(state="queued", count=count)),
        "history": lambda count: h(h.engine.history(run_id, count=count)),
        "tail": lambda count: h(h.engine.tail(count=count)),
        "lines": lambda count: h(h.engine.lines(run_id, count=count)),
        "ranked": lambda count: h(h.engine.ranked("q", limit=count)),
        "jobs": lambda count: h(h.engine.jobs(count=count)),
    }
    cases: dict[str, Case] = {}
    for what, verb in verbs.items():
        cases |= each(BAD_COUNTS, verb, what)
    cases |= each((-1, 2**63, 1.5, True, "1", None), lambda after: h(h.engine.history(run_id, after=after)), "history after")
    cases |= each((-1, 2**63, 1.5, True, "1", None), lambda after: h(h.engine.lines(run_id, after=(1, after))), "lines after")
    cases |= each((0, -1, 1_001, 1.5, True, "1"), lambda last: h(h.engine.lines(run_id, last=last)), "last lines")
    cases |= each((0, -1, 2**63, 1.5, True, "1"), lambda attempt: h(h.engine.lines(run_id, attempt=attempt)), "lines of an attempt")
    cases |= each((-1, 2**63, 1.5, True, "1"), lambda until: h(h.engine.lines(run_id, until=until)), "lines until")
    cases |= each((-1, 2**63, 1.5, True, "1", None), lambda offset: h(h.engine.ranked("q", offset=offset)), "offset")
    cases |= each(("\ud800", "a\0", 5), lambda after: h(h.engine.jobs(after=after)), "jobs after")
    assert_refused(h, cases)


def test_bad_states_are_refused(h: Harness) -> None:
    cases = each(("bogus", "", "QUEUED", 5, True, ["queued"]), lambda state: h(h.engine.runs(state=state)))
    bad: tuple[Any, ...] = ("queued", [], ["bogus"], [5], 5, [["queued"]])
    cases |= each(bad, lambda states: h(h.engine.runs(queue="q", states=states)), "states")
    cases |= each(bad, lambda states: h(h.engine.ranked("q", states)), "states to rank")
    cases |= each(bad, lambda states: h(h.engine.cancel("r", only=states)), "states to cancel in")
    assert_refused(h, cases)


def _cursor(parts: Any) -> str:
    return base64.urlsafe_b64encode(parts if isinstance(parts, bytes) else msgspec.json.encode(parts)).rstrip(b"=").decode()


LISTS: tuple[dict[str, Any], ...] = (
    {},
    {"job": "mail"},
    {"job": "bill"},
    {"state": "succeeded"},
    {"state": "failed"},
    {"job": "mail", "state": "succeeded"},
    {"state": "scheduled"},
    {"state": "waiting"},
    {"state": "running"},
    {"state": "queued"},
    {"state": "queued", "job": "mail"},
    {"state": "queued", "queue": "default"},
    {"queue": "default"},
    {"queue": "default", "state": "failed"},
    {"queue": "default", "states": ("queued", "failed")},
    {"states": ("queued", "failed")},
    {"job": "mail", "states": ("queued", "succeeded")},
    {"created_since": 1},
    {"text": "019"},
    {"ended_since": 1, "worker": "w1"},
)


def _real_cursors(h: Harness) -> dict[int, str]:
    """A cursor of every list, as the engine gives it; each list has two runs."""
    h.define("bill", max_attempts=1)
    for _ in range(2):
        h.create()
        h.succeed(h.started())
        h.create("bill")
        h.fail(h.started())
        running(h)
        h.create(due_at=h.clock.now() + 1_000)
        h.create(after=(h.create(due_at=h.clock.now() + 1_000),))
    h.create(), h.create()
    cursors = {index: h(h.engine.runs(**how, count=1)).cursor for index, how in enumerate(LISTS)}
    assert None not in cursors.values()
    return {index: cursor for index, cursor in cursors.items() if cursor}


FORGED: tuple[Any, ...] = (
    "", "x", "random text", "é", "====", "A" * 300_000, 5, b"W10", ["list_newest", 5], True,
    *map(_cursor, (
        b"", b"[", b"[" * 50_000, b"\xff\xfe", b"{}", b"null", b'"text"', b"1e999", [], [[]], {"a": 1}, ["due", 5], ["tail", 5],
        ["list_newest"], ["list_newest", None], ["list_newest", "5"], ["list_newest", 1.5], ["list_newest", True], ["list_newest", [5]],
        ["list_newest", 2**63], ["list_newest", -(2**63) - 1], ["list_newest", 5, 5], ["list_newest'--", 5],
        ["queued", None, None, 0, 0], ["queued", None, None, 0, 0, 2**64], ["queued", None, None, 0.5, 0, 0],
        ["queued", None, None, "0", 0, 0], ["tail", "", "", 0], ["tail", "", "", 0, 0, 0], ["tail", 1, "", 0, 0], ["tail", "1", "", 0, 0],
        ["tail", "1:2:3;", "", 0, 0], ["tail", "1:2:", ":", 0, 0], ["tail", "", "", 1.5, 0], ["tail", "", "", True, 0],
        ["tail", "", "", 0, 2**63], ["tail", "1:1:", "x" * 9, 0, 0],
    )),
)  # fmt: skip


def test_forged_cursors_are_refused(h: Harness) -> None:
    def page(how: dict[str, Any], cursor: Any) -> object:
        return h(h.engine.runs(**how, cursor=cursor))

    cases = each(FORGED, lambda cursor: h(h.engine.tail(cursor)), "tail")
    for how in LISTS:
        cases |= each(FORGED, partial(page, how), repr(how))
    assert_refused(h, cases)


def test_a_cursor_of_another_list_is_refused(h: Harness) -> None:
    def page(how: dict[str, Any], cursor: Any) -> object:
        return h(h.engine.runs(**how, cursor=cursor))

    real, tail = _real_cursors(h), h(h.engine.tail()).cursor
    cases: dict[str, Case] = {}
    for index, how in enumerate(LISTS):
        others = {f"{LISTS[other]}": cursor for other, cursor in real.items() if other != index} | {"tail": tail}
        cases |= {f"{other} for {how}": partial(page, how, cursor) for other, cursor in others.items()}
        cases[f"{how} for tail"] = partial(lambda cursor: h(h.engine.tail(cursor)), real[index])
    assert_refused(h, cases)
    for index, how in enumerate(LISTS):
        first, second = h(h.engine.runs(**how, count=1)), h(h.engine.runs(**how, count=1, cursor=real[index]))
        assert len({run.id for run in (*first.runs, *second.runs)}) == 2, how


@pytest.mark.parametrize(
    "places", [["9:9:", "", 0, 0], ["5:3:", "", 0, 0], ["18446744073709551615:18446744073709551615:", "", 0, 0], ["1:1:", "1:1:", -5, -5]]
)
def test_a_cursor_that_looks_right_never_breaks_the_tail(h: Harness, places: list[Any]) -> None:
    h.create()
    with unchanged(h):
        error = _error(lambda: h(h.engine.tail(_cursor(["tail", *places]))))
    assert error is None or isinstance(error, BadInput), error


# What workers send


def test_bad_log_lines_are_refused(h: Harness) -> None:
    run = running(h)

    def log(*lines: Any) -> object:
        return h(h.engine.log(run.id, token(run), lines))

    cases = each((0, -1, 2**31 + 1, 2**63, 1.5, True, "1", None), lambda n: log((1, "good"), (n, "text")), "number")
    cases |= each((None, 5, b"text", ["text"]), lambda text: log((1, "good"), (2, text)), "text")
    assert_refused(h, cases)
    assert_refused(h, {"too many": lambda: log(*((n, "x") for n in range(1, 1_002)))}, "too_large")


def test_lines_are_cut_and_dropped_at_their_limits(h: Harness) -> None:
    set_ground(h.engine, limits=Limits(line=10, lines=5))
    run = running(h)
    h(h.engine.log(run.id, token(run), [(1, "0123456789abc"), (2, "ü" * 9), (3, "a\0b\ud800c")]))
    h(h.engine.log(run.id, token(run), [(n, f"line {n}") for n in range(4, 9)]))
    h(h.engine.log(run.id, token(run), [(9, "line 9"), (1, "again")]))
    kept = [line.text for line in h(h.engine.lines(run.id))]
    assert kept == ["0123456789", "ü" * 5, "a\ufffdb?c", "line 4", "line 5"]


def test_an_attempt_logs_no_more_than_its_limit_of_bytes(h: Harness) -> None:
    set_ground(h.engine, limits=Limits(line=100, lines=100, log=1_000))
    run = running(h)

    def kept() -> dict[int, str]:
        return {line.n: line.text for line in h(h.engine.lines(run.id))}

    def log(*lines: tuple[int, str]) -> None:
        for _ in range(2):  # the second time changes nothing
            h(h.engine.log(run.id, token(run), lines))

    log(*((n, "\u00fc" * 45) for n in range(1, 6)))
    log(*((n, "x" * 90) for n in range(4, 11)))
    assert kept() == {n: "\u00fc" * 45 if n < 6 else "x" * 90 for n in range(1, 11)}
    log(*((n, "x" * 90) for n in range(9, 20)))
    notice = "Further lines were dropped: an attempt may log 1,000 bytes."
    assert kept() == {n: "\u00fc" * 45 if n < 6 else "x" * 90 for n in range(1, 12)} | {12: notice}
    log((20, "x"), (3, "other"), (100, ""))
    assert len(kept()) == 12
    h.fail(run, delay=0)
    h(h.engine.log(run.id, token(h.claimed()), [(1, "anew")]))
    assert [line.text for line in h(h.engine.lines(run.id, after=(2, 0)))] == ["anew"]


@pytest.mark.parametrize("order", [range(100, 0, -1), [*range(50, 101), *range(1, 51)], [*range(2, 101, 2), *range(1, 101, 2)]])
def test_no_order_of_lines_makes_more_room_for_them(h: Harness, order: Sequence[int]) -> None:
    set_ground(h.engine, limits=Limits(line=100, lines=100, log=1_000))
    run = running(h)
    for n in order:
        h(h.engine.log(run.id, token(run), [(n, "\u00fc" * 50)]))
    notice = "Further lines were dropped: an attempt may log 1,000 bytes."
    assert sum(len(line.text.encode()) for line in h(h.engine.lines(run.id)) if line.text != notice) <= 1_000


def test_a_line_that_comes_late_is_kept(h: Harness) -> None:
    run = running(h)
    h(h.engine.log(run.id, token(run), [(n, f"line {n}") for n in range(9_000, 10_000)]))
    h(h.engine.log(run.id, token(run), [(n, f"line {n}") for n in range(8_000, 9_000)]))
    h(h.engine.log(run.id, token(run), [(1, "x" * 8_192)]))
    assert [line.text for line in h(h.engine.lines(run.id, count=3))] == ["x" * 209, "line 8000", "line 8001"]


def test_a_resent_line_takes_no_room_from_a_new_one(h: Harness) -> None:
    set_ground(h.engine, limits=Limits(lines=5))
    run = running(h)
    h(h.engine.log(run.id, token(run), [(n, f"line {n}") for n in (1, 2, 3)]))
    h(h.engine.log(run.id, token(run), [(n, f"line {n}") for n in (2, 3, 4, 5, 6)]))
    assert [line.n for line in h(h.engine.lines(run.id))] == [1, 2, 3, 4, 5]


def test_an_output_that_cannot_be_kept_is_refused(h: Harness) -> None:
    run = running(h)
    cases = each((b'"x"', 5, {"a": 1}, '"a\0b"', '"\ud800"'), lambda output: h.succeed(run, output))
    cases |= each((5, "x" * 129, "a\0", "\ud800", b"x"), lambda digest: h.report(run, Succeed(token=run.token, output_hash=digest)), "hash")
    assert_refused(h, cases)
    limit = h.engine.limits.output
    large: dict[str, Case] = {
        "characters": lambda: h.succeed(run, '"' + "x" * limit + '"'),
        "bytes": lambda: h.succeed(run, '"' + "ü" * (limit // 2) + '"'),
    }
    assert_refused(h, large, "too_large")
    h.succeed(run, '"' + "x" * (limit - 2) + '"')
    assert len(h.get(run.id).output or "") == limit


def test_a_huge_error_is_cut_and_a_bad_one_refused(h: Harness) -> None:
    run = running(h)
    cases = each(BAD_NAMES, lambda code: h.fail(run, Failure(code, "message")), "code")
    cases |= each((5, None, b"text"), lambda message: h.fail(run, Failure("boom", message)), "message")
    cases |= each((5, b"text", ["text"]), lambda detail: h.fail(run, Failure("boom", "message", detail)), "detail")
    assert_refused(h, cases)
    h.report(run, Fail(token=run.token, error=Failure("boom", "ü" * 100_000, "a\0\ud800" + "x" * 1_000_000)))
    kept = h.get(run.id).error
    assert kept is not None
    assert kept.detail is not None
    assert len(msgspec.json.encode(kept)) <= h.engine.limits.error
    assert kept.message == "ü" * (h.engine.limits.error // 8)
    assert kept.detail.startswith("a\ufffd?xxx")


def test_bad_reasons_are_refused(h: Harness) -> None:
    run_id = h.create()
    reasons = ("", "x" * 1_001, 5, b"text")
    cases = each(reasons, lambda reason: h(h.engine.cancel(run_id, reason=reason)), "cancel")
    cases |= each((*reasons, None), lambda reason: h(h.engine.skip(run_id, reason=reason)), "skip")
    cases |= {"nothing to patch": lambda: h(h.engine.patch(run_id))}
    assert_refused(h, cases)
    assert h(h.engine.cancel(run_id, reason="a\0b\ud800\n")).reason == "a\ufffdb?\n"
    assert h.get(run_id).reason == "a\ufffdb?\n"


# Text from outside


NOT_JSON_TEXTS: tuple[str | bytes, ...] = (
    '{"a": 1, "a": 2}', '{"a": {"b": 1, "b": 1}}', "NaN", "[Infinity]", "-Infinity", '{"a": NaN}', "1e999", "-1e999", str(2**63),
    str(-(2**63) - 1), "9" * 4_000, "9" * 5_000, "", " ", "1 2", "{} x", "[1,]", "{'a': 1}", "[1", '"a', "nul", "// c\n1", "01", "+1",
    ".5", "1.", "0x1", '"\n"', '"\\x"', "\ufeff1", b"\xef\xbb\xbf1", b'"\xff"', b'"\xc0\x80"', b'"\xed\xa0\x80"', '"a"'.encode("utf-16"),
    "1".encode("utf-32-le"), '"\ud800"', '"\\ud800"', '"\\u0000"', '{"\\u0000": 1}', "[" * 65 + "]" * 65, "[" * 100_000,
    "[" * 100_000 + "]" * 100_000, '{"a":' * 100_000,
)  # fmt: skip


@pytest.mark.parametrize("text", NOT_JSON_TEXTS, ids=range(len(NOT_JSON_TEXTS)))
def test_a_text_that_is_not_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(BadInput) as refused:
        payload.parse(text, limit=1_000_000)
    assert refused.value.hint.endswith(".")
    assert len(str(refused.value)) < 1_000


@pytest.mark.parametrize(
    "text", ['"' + "x" * 99 + '"', '"' + "ü" * 50 + '"', b'"' + b"x" * 99 + b'"', " " * 101, "[" + "0," * 60 + "0]"], ids=range(5)
)
def test_a_text_that_is_too_large_is_refused(text: str | bytes) -> None:
    with pytest.raises(BadInput) as refused:
        payload.parse(text, limit=100)
    assert refused.value.code == "too_large"


@contextmanager
def _accepted() -> Iterator[list[bool]]:
    """Whether the block was let through; only an error of ours may stop it."""
    answer = [True]
    try:
        yield answer
    except BadInput:
        answer[0] = False


def _same(one: Any, other: Any) -> bool:
    """Equal in type too: 1, 1.0 and True are three things, and so are 0.0 and -0.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return repr(one) == repr(other)


_TEXT = st.text(st.characters(), max_size=20) | st.sampled_from(
    ["\0", "\ud800", "\ud83d\ude00", "\\u0000", "'\"", "%s", ":now", "{}", "\x7f\x80", "\u2028"]
)
_NUMBERS = (
    st.integers()
    | st.integers(-(2**65), 2**65)
    | st.sampled_from([math.nan, math.inf, 2**63 - 1, -(2**63), 2**63, 2**53 + 1, 0, -0.0, 5e-324, 1.7976931348623157e308, 1e22, 1e16, 0.1])
    | st.floats()
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | _NUMBERS | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=12,
)
"""Values of JSON's types, some of which no store can keep."""


@long
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(ANYTHING, min_size=1, max_size=10))
def test_what_is_accepted_comes_back_equal(h: Harness, values: list[Any]) -> None:
    kept: list[list[Any]] = []
    refused: list[list[Any]] = []
    for value in values:
        with _accepted() as accepted:
            payload.check([value])
        (kept if accepted[0] else refused).append([value])
    if refused:
        assert_refused(h, {f"{n} {value!r:.60}": partial(h.create, payload=value) for n, value in enumerate(refused)})
    made = h(h.engine.create([NewRun("mail", value) for value in kept]))
    assert all(_same(payload.decode(h.get(one.id).payload), value) for one, value in zip(made, kept, strict=True))


@settings(max_examples=400, deadline=None)
@given(value=ANYTHING)
def test_encode_and_parse_agree_on_what_is_json(value: Any) -> None:
    with _accepted() as encoded:
        assert _same(payload.decode(payload.encode(value, limit=10_000)), value)
    with _accepted() as parsed:
        assert _same(payload.parse(json.dumps(value, ensure_ascii=False), limit=10_000), value)
    assert encoded == parsed


@settings(max_examples=400, deadline=None)
@given(
    text=st.text(st.sampled_from('[]{},:"\\u0d8ae+-.1 nulltrfs\ud800\0'), max_size=20) | st.binary(max_size=8) | ANYTHING.map(json.dumps)
)
def test_what_parse_accepts_encode_accepts_too(text: str | bytes) -> None:
    with _accepted() as accepted:
        value = payload.parse(text, limit=10_000)
    if accepted[0]:
        assert _same(payload.decode(payload.encode(value, limit=10_000)), value)
        assert json.loads(text) == value


def test_lines_that_are_sent_at_once_have_no_more_room_together(emptied_postgres: str) -> None:
    clock = ManualClock()
    stores = [BlockingPostgres(emptied_postgres, clock) for _ in range(4)]
    h = Harness(stores[0], clock)
    h.define()
    engines, together = [Engine(store, clock, Limits(line=100, lines=1_000, log=10_000)) for store in stores], Barrier(4)

    def send(number: int, run: Run) -> None:
        together.wait()
        run_sync(engines[number].log(run.id, token(run), [(number * 100 + n, "x" * 100) for n in range(1, 101)]))

    with ThreadPoolExecutor(4) as threads:
        for _ in range(10):
            run = running(h)
            list(threads.map(partial(send, run=run), range(4)))
            assert sum(len(line.text) for line in h(h.engine.lines(run.id, count=1_000))) <= 10_100
    for store in stores:
        run_sync(store.close())
