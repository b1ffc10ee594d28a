"""The tests that every dialect must pass, as plain functions. A new dialect's own test file is a few lines:

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
    def test_my_dialect(case):
        with my_door() as door:
            case(door)

where `my_door()` is a context manager that returns a `DialectDoor`: the dialect on a hub whose store has no runs, and the engine of
that store.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

from windlass.api.rows import ANY, Verb
from windlass.dialects.base import Dialect, Words
from windlass.engine import Engine
from windlass.machine import ENDED, Fail, Succeed
from windlass.model import SCOPES, Failure, NewRun, Options, Run, State, WorkerInfo
from windlass.store.base import run_sync

JOB = "dialect"
UNKNOWN_IDS = ("0", "-1", "x" * 300, "é", "null", "00000000000070008000000000000000", "00000000-0000-7000-8000-000000000000", "%00", "a b")
HOSTILE_BODIES = (
    b"", b"{", b"\xff\xfe", b"null", b"[]", b"7", b'"text"', b"NaN", b'{"type": NaN}', b"[" * 100_000, b'{"a":' * 10_000,
    b'{"type": "\\u0000", "action": "\\u0000", "worker_id": "\\u0000"}',
    b'{"type": "\\ud800", "action": "\\ud800", "worker_id": "\\ud800"}',
    b'{"type": 1, "action": 1, "worker_id": 1}',
    b'{"type": {}, "action": {}, "worker_id": {}}',
    b'{"type": "' + b"x" * 200 + b'", "action": "' + b"x" * 200 + b'", "worker_id": "' + b"x" * 200 + b'"}',
    b'{"type": "x", "action": "x", "priority": "high", "inputs": 7, "worker_id": ["x"], "cores": "many"}',
    b'{"type": "x", "action": "x", "priority": 1e999, "inputs": 1e999, "worker_id": "x", "cores": 1e999, "types": [7], "reason": {}}',
    b'{"padding": "' + b"x" * 10_000_000 + b'"}',
)  # fmt: skip
"""Bodies that no verb takes."""


class DialectAnswer(NamedTuple):
    """The answer to a request."""

    status: int
    body: bytes


class DialectDoor(ABC):
    """A dialect on a hub, and the engine of its store, which blocks. Paths are those of its table."""

    engine: Engine
    dialect: Dialect
    words: Words
    queue: str
    credential: Mapping[str, str]
    """Headers that show a caller who may do whatever the dialect has."""
    wrong: Mapping[str, str]
    """Headers with a credential of the dialect's kind that is not valid."""

    @abstractmethod
    def ask(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = {}) -> DialectAnswer:
        """The answer to a request with these headers beside those that every request has; of a stream only its beginning."""

    @abstractmethod
    def is_error(self, body: bytes) -> bool:
        """Whether a body has the form of the dialect's errors."""

    @abstractmethod
    def path_of(self, run: Run) -> str:
        """The path at which a run is read."""

    @abstractmethod
    def word_in(self, body: bytes) -> str:
        """The word for the state of the run that a body shows."""

    @abstractmethod
    def listed(self) -> set[str]:
        """The ids of all runs that the dialect lists, as the engine has them."""

    def new_run(self, queue: str | None = None) -> NewRun:
        """A run as the dialect would create it, in its queue or in another."""
        return NewRun(JOB, {}, Options(queue=queue or self.queue))

    def get(self, path: str) -> DialectAnswer:
        """The answer to a caller that may do everything."""
        return self.ask("GET", path, headers=self.credential)

    def create(self, queue: str | None = None) -> Run:
        """A new run of its queue or of another."""
        (created,) = run_sync(self.engine.create([self.new_run(queue)], undefined="wait"))
        return run_sync(self.engine.get(created.id))

    def runs(self) -> list[Run]:
        """All runs of the store."""
        return run_sync(self.engine.runs(count=1_000)).runs


Case = Callable[[DialectDoor], None]
CASES: list[Case] = []


def _case(function: Case) -> Case:
    CASES.append(function)
    return function


def _check(holds: bool, *facts: object) -> None:
    if not holds:
        raise AssertionError(", ".join(repr(fact)[:300] for fact in facts))


def _path(verb: Verb) -> str:
    """A path of a verb whose parameters name nothing."""
    return re.sub(r"\{[^}]*\}", UNKNOWN_IDS[5], verb.template)


def _refused(door: DialectDoor, answer: DialectAnswer, *facts: object) -> None:
    _check(400 <= answer.status < 500 and door.is_error(answer.body), *facts, answer)


@_case
def every_state_has_a_word_and_every_word_its_states(door: DialectDoor) -> None:
    for state in State:
        word = door.words.label(state)
        _check(state in door.words.states(word), state, word)
        _check(all(door.words.label(other) == word for other in door.words.states(word)), word)
    _check(door.words.states("no such word") == ())


@_case
def a_path_or_a_method_that_it_does_not_have_is_refused_in_its_own_form(door: DialectDoor) -> None:
    for verb in door.dialect.verbs:
        below, other = door.get(f"{_path(verb)}/no/such/path"), door.ask("PURGE", _path(verb), headers=door.credential)
        _check(below.status == HTTPStatus.NOT_FOUND and door.is_error(below.body), verb.path, below)
        _check(other.status in (HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_FOUND) and door.is_error(other.body), verb.path, other)


@_case
def a_caller_without_a_valid_credential_is_refused(door: DialectDoor) -> None:
    run_sync(door.engine.create_token("first", ("admin",)))  # a hub without any token may be open
    for verb in _closed_verbs(door):
        answer = door.ask(verb.method, _path(verb), headers=door.wrong)
        _check(answer.status == HTTPStatus.UNAUTHORIZED and door.is_error(answer.body), verb.path, answer)
    for verb in _closed_verbs(door):
        answer = door.ask(verb.method, _path(verb))
        _check(answer.status == HTTPStatus.UNAUTHORIZED and door.is_error(answer.body), verb.path, answer)


@_case
def a_token_of_windlass_may_do_what_its_scopes_say(door: DialectDoor) -> None:
    for scope in SCOPES:
        _, secret = run_sync(door.engine.create_token(f"small/{scope}", (scope,)))
        for verb in _closed_verbs(door):
            answer = door.ask(verb.method, _path(verb), b"{}", {"authorization": f"Bearer {secret}"})
            admits = scope == "admin" or scope in _scopes_of(verb)
            _check(admits == (answer.status not in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)), scope, verb.path, answer)
            _check(answer.status < 400 or door.is_error(answer.body), scope, verb.path, answer)


def _closed_verbs(door: DialectDoor) -> Iterator[Verb]:
    return (verb for verb in door.dialect.verbs if verb.scope is not None)


def _scopes_of(verb: Verb) -> tuple[str, ...]:
    scope = verb.scope or ()
    return SCOPES if scope == ANY else (scope,) if isinstance(scope, str) else scope


@_case
def hostile_bodies_are_refused_and_change_nothing(door: DialectDoor) -> None:
    before = door.runs()
    for verb in door.dialect.verbs:
        if verb.takes is not None:
            for body in HOSTILE_BODIES:
                if body or not verb.optional:
                    answer = door.ask(verb.method, _path(verb), body, door.credential)
                    _check(answer.status < 500 and (answer.status < 400 or door.is_error(answer.body)), verb.path, body[:80], answer)
    _check(door.runs() == before)


@_case
def an_id_that_no_run_has_is_refused_whatever_its_form(door: DialectDoor) -> None:
    run = door.create()
    for unknown in UNKNOWN_IDS:
        path = door.path_of(run).rpartition("/")[0] + f"/{unknown}"
        _refused(door, door.get(path), unknown)
    _check(door.runs() == [run])


@_case
def a_run_of_another_queue_is_not_listed(door: DialectDoor) -> None:
    own, other = door.create(), door.create("elsewhere")
    _check(door.listed() == {own.id}, own.id, other.id)


@_case
def each_state_of_a_run_is_shown_by_its_word_whoever_moved_it(door: DialectDoor) -> None:
    for state, run in _lives(door):
        _check(run.state is state, run)
        answer = door.get(door.path_of(run))
        _check(answer.status == HTTPStatus.OK and door.word_in(answer.body) == door.words.label(state), state, answer)
        if state in ENDED:
            _check(door.get(door.path_of(run)) == answer, state)


def _lives(door: DialectDoor) -> Iterator[tuple[State, Run]]:
    """Runs that the native verbs have brought into each state but one."""
    engine = door.engine
    (created,) = run_sync(
        engine.create([NewRun(JOB, {}, Options(queue=door.queue), due_at=door.engine.clock.now() + 1_000_000)], undefined="wait")
    )
    yield State.SCHEDULED, run_sync(engine.get(created.id))
    skipped = door.create()
    yield State.QUEUED, skipped
    yield State.SKIPPED, run_sync(engine.skip(skipped.id, reason="duplicate"))
    yield State.CANCELLED, run_sync(engine.cancel(door.create().id))
    for end in (State.SUCCEEDED, State.FAILED, State.CANCELLING):
        run = _claimed(door)
        yield State.CLAIMED, run
        run_sync(engine.start(run.id, run.token or ""))
        yield State.RUNNING, run_sync(engine.get(run.id))
        if end is State.CANCELLING:
            run_sync(engine.cancel(run.id))
        else:
            report: Any = Succeed(token=run.token, output="7") if end is State.SUCCEEDED else _failure(run)
            run_sync(engine.report(run.id, report))
        yield end, run_sync(engine.get(run.id))


def _claimed(door: DialectDoor) -> Run:
    door.create()
    (run,) = run_sync(door.engine.claim(WorkerInfo("worker", queues=(door.queue,), jobs=(JOB,), slots=100)))
    return run


def _failure(run: Run) -> Fail:
    return Fail(token=run.token, error=Failure("boom", "it broke"), retry=False)
