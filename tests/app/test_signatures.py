"""Arguments and results as JSON and back: what a handler receives equals what was passed, and what does not fit is refused in time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Any, Literal, NamedTuple, NewType, NoReturn, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass import App, AsyncApp, Context, Fail, Handle, Skip, Snooze, State
from windlass import payload as json
from windlass.app.signatures import Signature
from windlass.errors import BadInput, RunFailed
from windlass.model import Limits, NewRun
from windlass.store.base import run_sync
from windlass.testing import in_memory
from windlass.worker.handlers import BadPayload

# What people pass


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1
    LARGE = 2


class Word(StrEnum):
    YES = "yes"
    NO = "no"


@dataclass
class Point:
    x: int
    y: float = 0.5
    note: str | None = None


@dataclass(frozen=True)
class Polygon:
    name: str
    points: tuple[Point, ...] = ()
    by_name: dict[str, Point] = field(default_factory=dict)


class Line(msgspec.Struct):
    start: Point
    end: Point | None = None
    colour: Colour = Colour.RED


class Circle(msgspec.Struct, tag=True):
    radius: float


class Square(msgspec.Struct, tag=True):
    side: float


class Options(TypedDict):
    depth: int
    when: NotRequired[datetime]


class Inner(pydantic.BaseModel):
    amount: Decimal
    due: date | None = None


class Order(pydantic.BaseModel):
    number: int = pydantic.Field(alias="No.")
    parts: list[Inner] = []
    colour: Colour = Colour.BLUE


class Pair(NamedTuple):
    left: int
    right: str


UserId = NewType("UserId", int)
Small = Annotated[int, msgspec.Meta(ge=0, le=10)]

# What they are made of: what JSON as it is stored can hold

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
integers = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(allow_nan=False, allow_infinity=False)
zones: Any = st.sampled_from([None, UTC, timezone(timedelta(hours=5, minutes=30)), timezone(-timedelta(hours=9))])
datetimes = st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 30), timezones=zones)  # noqa: DTZ001 - zones are drawn
decimals = st.decimals(allow_nan=False, allow_infinity=False)
points = st.builds(Point, integers, floats, st.none() | texts)
paths = st.builds(Polygon, texts, st.lists(points, max_size=3).map(tuple), st.dictionaries(texts, points, max_size=2))
lines = st.builds(Line, points, st.none() | points, st.sampled_from(Colour))
shapes = st.builds(Circle, floats) | st.builds(Square, floats)
inners = st.builds(Inner, amount=decimals, due=st.none() | st.dates())
orders = st.builds(
    lambda number, parts, colour: Order.model_validate({"No.": number, "parts": parts, "colour": colour}),
    integers,
    st.lists(inners, max_size=2),
    st.sampled_from(Colour),
)
options = st.fixed_dictionaries({"depth": integers}, optional={"when": datetimes})
members = st.lists(st.dictionaries(texts, st.none() | integers, max_size=2), max_size=2)
plain_values = st.recursive(
    st.none() | st.booleans() | integers | floats | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)

VALUES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "int": (int, integers),
    "float": (float, floats),
    "bool": (bool, st.booleans()),
    "str": (str, texts),
    "bytes": (bytes, st.binary(max_size=20)),
    "None": (None, st.none()),
    "anything": (Any, plain_values),
    "dataclass": (Point, points),
    "nested dataclass": (Polygon, paths),
    "struct": (Line, lines),
    "tagged structs": (Circle | Square, shapes),
    "TypedDict": (Options, options),
    "pydantic": (Order, orders),
    "pydantic or None": (Inner | None, st.none() | inners),
    "list of pydantic": (list[Inner], st.lists(inners, max_size=3)),
    "enum": (Colour, st.sampled_from(Colour)),
    "int enum": (Size, st.sampled_from(Size)),
    "str enum": (Word, st.sampled_from(Word)),
    "named tuple": (Pair, st.builds(Pair, integers, texts)),
    "datetime": (datetime, datetimes),
    "date": (date, st.dates()),
    "time": (time, st.times()),
    "timedelta": (timedelta, st.timedeltas(timedelta(days=-10_000), timedelta(days=10_000))),
    "UUID": (UUID, st.uuids()),
    "Decimal": (Decimal, decimals),
    "optional": (int | None, st.none() | integers),
    "union": (int | str | None | list[float], st.none() | integers | texts | st.lists(floats, max_size=3)),
    "union with a dataclass": (Point | int | None, st.none() | integers | points),
    "list": (list[list[int]], st.lists(st.lists(integers, max_size=3), max_size=3)),
    "dict": (dict[str, list[dict[str, int | None]]], st.dictionaries(texts, members, max_size=2)),
    "dict by int": (dict[int, str], st.dictionaries(integers, texts, max_size=3)),
    "dict by UUID": (dict[UUID, Point], st.dictionaries(st.uuids(), points, max_size=3)),
    "dict by enum": (dict[Colour, int], st.dictionaries(st.sampled_from(Colour), integers)),
    "tuple": (tuple[int, str], st.tuples(integers, texts)),
    "long tuple": (tuple[Colour, ...], st.lists(st.sampled_from(Colour), max_size=3).map(tuple)),
    "set": (set[int], st.sets(integers, max_size=3)),
    "frozenset": (frozenset[str], st.frozensets(texts, max_size=3)),
    "Sequence": (Sequence[int], st.lists(integers, max_size=3)),
    "Mapping": (Mapping[str, UUID], st.dictionaries(texts, st.uuids(), max_size=3)),
    "Literal": (Literal["a", "b", 3], st.sampled_from(["a", "b", 3])),
    "NewType": (UserId, integers),
    "Annotated": (Small, st.integers(0, 10)),
}


def _stored(value: Any) -> str:
    return json.encode(value, limit=Limits().payload)


def _taking(kind: Any, *, default: bool) -> Callable[..., Any]:
    def required(value: Any) -> Any:
        return value

    def optional(value: Any = "the default") -> Any:
        return value

    function = optional if default else required
    function.__annotations__ = {"value": kind, "return": kind}
    return function


@pytest.mark.parametrize("default", [False, True], ids=["required", "with a default"])
@pytest.mark.parametrize("name", VALUES)
def test_what_is_received_equals_what_was_passed(name: str, default: bool) -> None:
    kind, values = VALUES[name]
    function = _taking(kind, default=default)
    signature = Signature(function, "echo")
    signature.check()

    @given(values, st.booleans())
    @settings(max_examples=60, deadline=None)
    def round_trip(value: Any, by_name: bool) -> None:
        payload = signature.payload((), {"value": value}) if by_name else signature.payload((value,), {})
        arguments, named = signature.arguments(_stored(payload))
        received = function(*arguments, **named)
        assert received == value
        assert type(received) is type(value)
        result = signature.result(_stored(signature.encode(received)))
        assert result == value
        assert type(result) is type(value)

    round_trip()


def test_it_holds_from_enqueue_to_result_on_a_real_worker() -> None:
    app, received = App(":memory:"), list[Any]()

    def made(kind: Any) -> Callable[..., Any]:
        def echo(value: Any) -> Any:
            received.append(value)
            return value

        echo.__annotations__ = {"value": kind, "return": kind}
        return echo

    jobs = {name: app.job(name=name)(made(kind)) for name, (kind, _) in VALUES.items()}

    @given(st.fixed_dictionaries({name: values for name, (_, values) in VALUES.items()}))
    @settings(max_examples=5, deadline=None)
    def round_trip(passed: dict[str, Any]) -> None:
        received.clear()
        with in_memory(app) as queue:
            handles = [jobs[name].enqueue(value) for name, value in passed.items()]
            queue.drain()
            assert received == list(passed.values())
            assert [handle.wait(1) for handle in handles] == list(passed.values())

    round_trip()


# How arguments are bound


def every_kind(one: int, two: int = 20, /, three: int = 30, four: int = 40, *, five: int, six: int = 60) -> tuple[int, ...]:
    return one, two, three, four, five, six


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=4),
    st.fixed_dictionaries({"five": st.integers(0, 9)}, optional={name: st.integers(0, 9) for name in ("three", "four", "six")}),
)
def test_positional_only_and_keyword_only_parameters_and_defaults(arguments: list[int], named: dict[str, int]) -> None:
    named = {name: value for name, value in named.items() if name not in ("three", "four")[: max(0, len(arguments) - 2)]}
    signature = Signature(every_kind, "every kind")
    back, back_named = signature.arguments(_stored(signature.payload(tuple(arguments), named)))
    assert every_kind(*back, **back_named) == every_kind(*arguments, **named)


def test_a_default_is_taken_when_it_runs_not_when_it_is_enqueued() -> None:
    signature = Signature(every_kind, "every kind")
    assert signature.payload((1,), {"five": 5}) == {"one": 1, "five": 5}


def test_a_default_need_not_fit_its_annotation_or_be_json() -> None:
    marker = object()

    def lenient(value: int = marker) -> Any:  # type: ignore[assignment]
        return value

    signature = Signature(lenient, "lenient")
    arguments, named = signature.arguments(_stored(signature.payload((), {})))
    assert lenient(*arguments, **named) is marker


def test_names_that_look_like_our_own_are_only_names() -> None:
    def odd(self: int, payload: int, job: int, count: int, cls: int, _hidden: int, arguments: int) -> list[int]:
        return [self, payload, job, count, cls, _hidden, arguments]

    signature = Signature(odd, "odd")
    arguments, named = signature.arguments(_stored(signature.payload((1, 2, 3), {"count": 4, "cls": 5, "_hidden": 6, "arguments": 7})))
    assert odd(*arguments, **named) == [1, 2, 3, 4, 5, 6, 7]


def test_unannotated_parameters_take_any_json() -> None:
    signature = Signature(lambda a, b=None: (a, b), "free")
    assert signature.arguments('{"a":{"x":[1,null]}}') == ([{"x": [1, None]}], {})


@pytest.mark.parametrize(
    ("arguments", "named", "says"),
    [
        ((), {"five": 5}, "one"),
        ((1,), {}, "five"),
        ((1, 2, 3, 4, 5), {"five": 5}, "too many positional"),
        ((1,), {"five": 5, "seven": 7}, "seven"),
        ((1, 2, 3), {"three": 3, "five": 5}, "three"),
        ((), {"one": 1, "five": 5}, "one"),
    ],
    ids=["missing", "missing by name", "too many", "unknown", "twice", "positional only by name"],
)
def test_calls_that_python_would_refuse_are_refused_in_its_words(arguments: tuple[Any, ...], named: dict[str, Any], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        Signature(every_kind, "every kind").payload(arguments, named)


# What is refused when it is enqueued

MISFITS: list[tuple[Any, Any]] = [
    (int, "1"), (int, 1.5), (int, True), (int, None), (int, 2**63), (float, "1.0"), (float, float("nan")), (float, float("inf")), (str, 1),
    (str, "a\0b"), (str, "\ud800"), (bool, 1), (Point, {"y": 1.0}), (Point, {"x": "1"}), (Point, 5), (Options, {"when": "never"}),
    (Colour, "green"), (Colour, Size.SMALL), (Size, 3), (datetime, "yesterday"), (UUID, "no"), (Decimal, "ten"), (list[int], [1, "2"]),
    (dict[str, int], {"a": "b"}), (dict[str, int], [1]), (tuple[int, str], (1,)), (int | None, "x"), (Inner, {"amount": "x"}), (Small, 11),
    (Any, object()), (Any, {1, object()}), (Any, float("nan")), (Any, lambda: None), (Literal["a"], "b"), (Circle | Square, Point(1)),
    (None, 0),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(MISFITS)), ids=lambda number: f"{number}: {MISFITS[number][0]}"[:60])
def test_arguments_that_do_not_fit_are_refused_and_nothing_is_stored(number: int) -> None:
    kind, value = MISFITS[number]
    app = App(":memory:")
    for name, default in (("required", False), ("optional", True)):
        job = app.job(name=name)(_taking(kind, default=default))
        with pytest.raises(BadInput):
            job.enqueue(value)
        with pytest.raises(BadInput), app.transaction():
            app.enqueue_many([job.new(value)])
    assert app.runs().runs == []
    app.close()


def test_an_async_app_refuses_them_as_well() -> None:
    async def main() -> None:
        async with AsyncApp(":memory:") as app:
            job: Any = app.job(name="job")(_taking(int, default=False))
            with pytest.raises(BadInput, match=r"Expected `int`, got `str`.*It is job\(value: int\)"):
                await job.enqueue("one")
            assert (await app.runs()).runs == []

    asyncio.run(main())


def test_a_payload_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(BadInput):
        Signature(lambda value: None, "endless").payload((endless,), {})


@pytest.mark.parametrize("kind", [Point | Polygon, Order | int, datetime | str, Callable[[], int], complex], ids=str)
def test_annotations_that_cannot_be_told_apart_or_kept_are_refused(kind: Any) -> None:
    def taking(value: Any) -> None: ...
    def returning() -> Any: ...

    taking.__annotations__["value"] = kind
    returning.__annotations__["return"] = kind
    value = Point(1) if kind == Point | Polygon else 1j
    with pytest.raises(BadInput):
        Signature(taking, "taking").payload((value,), {})
    if kind not in (complex, Callable[[], int]):  # these are only found out by a value
        with pytest.raises(BadInput, match="The result of the job 'returning'"):
            Signature(returning, "returning").check()


def test_an_annotation_that_cannot_be_found_is_refused_with_the_way_out() -> None:
    def lost(value: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821
        pass

    job: Any = App(":memory:").job(name="lost")(lost)
    with pytest.raises(BadInput, match=r"'lost'.*Nowhere.*not only for type checking"):
        job.new(1)


@pytest.mark.parametrize("kind", [NoReturn, Snooze, Skip, Fail, Snooze | None, Skip | None, Snooze | Skip | Fail], ids=str)
def test_functions_that_never_return_a_result_are_jobs_too(kind: Any) -> None:
    def never() -> Any: ...

    never.__annotations__["return"] = kind
    Signature(never, "never").check()


# What is found out when it runs


def _stored_by_another(app: App, job: str, payload: Any) -> Handle[Any]:
    """A run as a program of another version would have made it."""
    run_sync(app.verbs.define(job))
    (created,) = run_sync(app.verbs.create([NewRun(job, payload)]))
    return app.run(created.id)


@pytest.mark.parametrize("payload", [{"value": "1"}, {}, {"value": 1, "more": 2}, {"valve": 1}, [1], "x", {"value": None}], ids=str)
@pytest.mark.parametrize("kind", ["thread", "async"])
def test_a_payload_that_no_longer_fits_fails_at_once_and_the_handler_never_runs(payload: Any, kind: str) -> None:
    app, ran = App(":memory:"), list[int]()

    def plain(value: int) -> None:
        ran.append(value)

    async def awaited(value: int) -> None:
        ran.append(value)

    app.job(name="job")(plain if kind == "thread" else awaited)
    with in_memory(app) as queue:
        handle = _stored_by_another(app, "job", payload)
        (run,) = queue.drain(scheduled=True)
        assert (run.id, run.state, run.attempt, ran) == (handle.id, State.FAILED, 1, [])
        with pytest.raises(RunFailed, match=r"bad_payload: The payload does not fit job\(value: '?int'?\)"):
            handle.wait(1)


def test_positional_parameters_that_cannot_be_given_any_more_do_not_fit() -> None:
    def narrower(one: int = 1, two: int = 2, /) -> None: ...

    with pytest.raises(BadPayload):
        Signature(narrower, "narrower").arguments('{"two":2}')


def test_a_payload_from_before_a_parameter_was_added_still_fits() -> None:
    app = App(":memory:")
    app.job(name="job")(every_kind)
    with in_memory(app) as queue:
        handle = _stored_by_another(app, "job", {"one": 1, "five": 5})
        queue.drain()
        assert handle.wait(1) == (1, 20, 30, 40, 5, 60)


RESULTS: list[tuple[Any, Any]] = [
    (int, "one"), (int, None), (None, 5), (Point, {"y": 1.5}), (list[int], ["a"]), (Inner, {"amount": "x"}), (Small, 11),
    (int | Snooze, "x"), (Any, object()), (Any, float("nan")), (str, "\0"), (Any, {1: object()}), (Any, "x" * (2**20 + 1)),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(RESULTS)), ids=lambda number: f"{number}: {RESULTS[number][0]}"[:60])
@pytest.mark.parametrize("kind", ["thread", "async"])
def test_a_result_that_is_not_what_was_promised_is_a_failure(number: int, kind: str) -> None:
    promised, value = RESULTS[number]

    def plain() -> Any:
        return value

    async def awaited() -> Any:
        return value

    app, function = App(":memory:"), plain if kind == "thread" else awaited
    function.__annotations__["return"] = promised
    with in_memory(app) as queue:
        handle = app.job(name="job", max_attempts=2)(function).enqueue()
        (run,) = queue.drain(scheduled=True)
        assert (run.state, run.attempt) == (State.FAILED, 2)
        with pytest.raises(RunFailed, match="bad_output"):
            handle.wait(1)


def test_words_in_the_return_type_are_no_results() -> None:
    def sometimes(context: Context) -> int | Snooze | Fail:
        match context.attempt:
            case 1:
                return Snooze(5)
            case 2:
                return Fail("not yet", delay=1)
            case _:
                return context.attempt

    app = App(":memory:")
    with in_memory(app) as queue:
        handle = app.job(name="job")(sometimes).enqueue()
        queue.drain(scheduled=True)
        assert handle.wait(1) == 3
        assert [attempt.outcome for attempt in handle.attempts()] == ["returned", "failed", "succeeded"]


def test_a_result_is_read_back_as_its_type_also_by_who_has_only_the_id() -> None:
    app = App(":memory:")
    with in_memory(app) as queue:
        handle = app.job(name="job")(_taking(Line, default=False)).enqueue(Line(Point(1)))
        queue.drain()
        assert app.run(handle.id).wait(1) == Line(Point(1))
        del app.jobs["job"]
        assert app.run(handle.id).wait(1)["start"] == {"x": 1, "y": 0.5, "note": None}


def test_the_context_is_known_by_its_annotation() -> None:
    def by_text(ctx: Context, context: int) -> None: ...
    def without(context: int) -> None: ...

    assert Signature(by_text, "by text").takes_context
    assert Signature(by_text, "by text").payload((1,), {}) == {"context": 1}
    assert not Signature(without, "without").takes_context
    assert Signature(without, "without").payload((1,), {}) == {"context": 1}
