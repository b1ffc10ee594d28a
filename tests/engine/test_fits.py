"""What a job takes, as a door knows it: nothing is refused that the code would read, and no document does any harm."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntFlag
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.app.test_signatures import VALUES, _stored, _taking
from windlass.app.signatures import Signature
from windlass.engine import fits
from windlass.errors import BadInput
from windlass.model import Limits
from windlass.worker.handlers import BadPayload


class Flags(IntFlag):
    A = 1
    B = 2


class Lenient(Enum):
    X = "x"

    @classmethod
    def _missing_(cls, value: object) -> Lenient:
        return cls.X


class Alone(msgspec.Struct, tag=True):
    radius: float


class Row(msgspec.Struct, array_like=True):
    one: int
    two: str = ""


class Tree(msgspec.Struct):
    name: str
    below: list[Tree] = []


class Exact(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    some_name: int
    other_name: int | None = None


class Loose(pydantic.BaseModel):
    number: int
    at: datetime | None = None


@dataclass
class Bounded:
    small: Annotated[int, msgspec.Meta(ge=0, lt=10)]
    share: Annotated[float, msgspec.Meta(gt=0, le=0.1)] = 0.1
    code: Annotated[str, msgspec.Meta(min_length=2, max_length=3, pattern="^[a-z]+$")] = "ab"
    few: Annotated[list[int], msgspec.Meta(min_length=1, max_length=2)] = field(default_factory=lambda: [1])
    raw: Annotated[bytes, msgspec.Meta(max_length=2)] = b""


Email = Annotated[str, msgspec.Meta(extra_json_schema={"minLength": 100})]

KINDS: dict[str, Any] = {name: kind for name, (kind, _) in VALUES.items()} | {
    "flags": Flags,
    "enum of anything": Lenient,
    "one tagged struct": Alone,
    "one tagged struct or a number": Alone | int,
    "array": Row,
    "tree": Tree,
    "exact": Exact,
    "bounded": Bounded,
    "model": Loose,
    "models": dict[str, list[Loose | None]],
    "annotated by hand": Email,
    "dict by date": dict[date, Decimal],
    "anything in lists": list[Any],
    "numbers": int | float | None,
    "texts": Literal["1", 1, None],
}

scalars = st.sampled_from([
    None, True, False, 0, 1, -1, 3, 7, 10, 1.0, 0.05, 1.5, 2**53 + 1, "", "x", "5", "ab", "red", "yes", "YWI=", "1.50", "1e3", "Alone",
    "Circle", "2031-05-04", "2031-05-04T09:00:00Z", "P1D", "12:00:00", "7d9f2c3e-8f7a-4a52-9d5e-0c6f3a1b2c4d",
])  # fmt: skip
names = st.sampled_from([
    "value", "valu", "x", "y", "note", "name", "points", "by_name", "start", "end", "colour", "radius", "side", "type", "depth", "when",
    "No.", "parts", "amount", "due", "number", "at", "below", "someName", "some_name", "otherName", "small", "share", "code",
    "few", "raw", "1", "red",
])  # fmt: skip
anything = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4), max_leaves=8)


def signature_of(kind: Any, *, default: bool = False) -> Signature:
    return Signature(_taking(kind, default=default), "echo")


def reads(signature: Signature, payload: Any) -> bool:
    try:
        signature.arguments(_stored(payload))
    except (BadPayload, pydantic.ValidationError, TypeError):
        return False
    return True


def door(signature: Signature, payload: Any) -> str | None:
    """What a door says of it."""
    document = signature.schema
    wrong = None if document is None else fits.misfit(document, payload)
    return None if wrong is None else str(wrong)


@pytest.mark.parametrize("name", KINDS)
def test_whatever_the_code_reads_is_accepted(name: str) -> None:
    signature, optional = signature_of(KINDS[name]), signature_of(KINDS[name], default=True)
    near = VALUES[name][1].map(lambda value: signature.payload((value,), {})["value"]) if name in VALUES else anything

    @given(near | anything, st.dictionaries(names, anything, max_size=1))
    @settings(max_examples=25, deadline=None)
    def accepted(value: Any, more: dict[str, Any]) -> None:
        for payload in ({"value": value}, {"value": value, **more}, more, value):
            for one in (signature, optional):
                if reads(one, payload):
                    assert door(one, payload) is None

    accepted()


BOUNDED = {"small": 3}

ACCEPTED: list[tuple[Any, Any]] = [
    (int, 1), (int, 1.0), (float, 1), (Decimal, 5), (Decimal, 5.5), (Decimal, "5.5"), (Flags, 3), (Lenient, "q"), (Alone, {"radius": 1}),
    (Alone | int, {"radius": 1}), (Row, [1]), (Row, [1, "", 3]), (dict[int, int], {"1": 1}), (Loose, {"number": "5", "at": 0}),
    (Email, "short"), (Tree, {"name": "a", "below": [{"name": "b"}]}), (bytes, "YWI="), (Exact, {"someName": 1}), (int | None, None),
    (set[int], [1, 1]),
    (Bounded, BOUNDED | {"raw": "YWI="}), (timedelta, "P1D"), (UUID, "7d9f2c3e8f7a4a529d5e0c6f3a1b2c4d"),
    (Annotated[float, msgspec.Meta(le=2.0**53)], 2**53 + 1),
]  # fmt: skip
REFUSED: list[tuple[Any, Any, str]] = [
    (int, "wide", "'value' must be an integer, not 'wide'"),
    (int, None, "'value' must be an integer, not null"),
    (int, True, "'value' must be an integer, not true"),
    (int | None, "x", "'value' must be an integer or null, not 'x'"),
    (str, 5, "'value' must be a text, not 5"),
    (list[int], [1, "2"], "'value[1]' must be an integer, not '2'"),
    (list[int], {"a": 1}, "'value' must be a list, not an object"),
    (Literal["a", "b"], "c", "'value' must be 'a' or 'b', not 'c'"),
    (Tree, {"name": "a", "below": [{"nam": "b"}]}, "'value.below[0].name' is missing"),
    (Exact, {"someNane": 1}, "'value.someNane' is unknown; 'someName' may be meant"),
    (Exact | None, {"someNane": 1}, "'value.someNane' is unknown; 'someName' may be meant"),
    (tuple[int, str], [1], "'value' must be a list of at least 2 items, not a list of 1"),
    (Bounded, {"small": 10}, "'value.small' must be less than 10, not 10"),
    (Bounded, BOUNDED | {"share": 0.2}, "'value.share' must be at most 0.1, not 0.2"),
    (Bounded, BOUNDED | {"code": "a"}, "'value.code' must be a text of at least 2 characters, not 'a'"),
    (Bounded, BOUNDED | {"few": [1, 2, 3]}, "'value.few' must be a list of at most 2 items, not a list of 3"),
    (dict[str, int], {"a": "b"}, "'value.a' must be an integer, not 'b'"),
]


@pytest.mark.parametrize("number", range(len(ACCEPTED)), ids=lambda number: f"{ACCEPTED[number]}"[:60])
def test_what_is_read_in_other_words_is_accepted(number: int) -> None:
    kind, value = ACCEPTED[number]
    signature = signature_of(kind)
    assert kind is int or reads(signature, {"value": value})
    assert door(signature, {"value": value}) is None


@pytest.mark.parametrize("number", range(len(REFUSED)), ids=lambda number: f"{REFUSED[number]}"[:60])
def test_what_no_code_reads_is_refused_with_its_place(number: int) -> None:
    kind, value, says = REFUSED[number]
    signature = signature_of(kind)
    assert not reads(signature, {"value": value})
    assert door(signature, {"value": value}) == says


def thumbnail(image: str, width: int = 320, *, imageURL: str | None = None) -> None: ...


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        ({"imag": "x"}, "'imag' is unknown; 'image' may be meant"),
        ({"IMAGE": "x"}, "'IMAGE' is unknown; 'image' may be meant"),
        ({"image": "x", "widht": 5}, "'widht' is unknown; 'width' may be meant"),
        ({"image": "x", "imageUrl": ""}, "'imageUrl' is unknown; 'imageURL' may be meant"),
        ({"image": "x", "colour": 5}, "'colour' is unknown"),
        ({"width": 5}, "'image' is missing"),
        ({}, "'image' is missing"),
        ([], "it must be an object, not a list of 0"),
        ("x", "it must be an object, not 'x'"),
    ],
)
def test_the_member_that_was_meant_is_named(payload: Any, says: str) -> None:
    assert door(Signature(thumbnail, "thumbnail"), payload) == says


def test_what_a_job_takes_is_a_sentence() -> None:
    document = Signature(thumbnail, "thumbnail").schema
    assert document is not None
    assert fits.takes(document) == "It takes image (a text). It may take imageURL (a text or null), width (an integer)."


# The document


def test_the_fingerprint_is_that_of_the_document() -> None:
    for kind in (int, Tree, Loose, dict[int, Alone]):
        signature = signature_of(kind)
        assert signature.schema is not None
        again = json.loads(fits.text_of(signature.schema))
        assert signature.fingerprint == fits.fingerprint(fits.text_of(again))


def test_models_of_which_a_door_knows_nothing_have_different_fingerprints() -> None:
    def model(**fields: Any) -> Any:
        return pydantic.create_model("Model", **fields)

    one, two = signature_of(model(a=(int, 1))), signature_of(model(a=(str, "")))
    assert one.fingerprint != two.fingerprint
    assert door(one, {"value": {"a": "x"}}) is None


def test_what_cannot_be_told_is_not_told() -> None:
    twice: Any = tuple.__class_getitem__(tuple(make_dataclass("Item", [(name, int)]) for name in ("a", "b")))
    huge = Literal[tuple(f"choice {number}" for number in range(2_000))]  # type: ignore[valid-type]
    deep: Any = int
    for _ in range(70):
        deep = list[deep]
    for kind in (twice, huge, deep, Flags, Lenient, Email):
        signature = signature_of(kind)
        assert signature.schema is None
        assert signature.fingerprint == signature_of(kind).fingerprint


def test_a_model_without_a_schema_is_known_by_its_name() -> None:
    class Odd(pydantic.BaseModel, arbitrary_types_allowed=True):
        call: Callable[[], int]

    signature = signature_of(Odd)
    assert signature.schema is not None
    assert door(signature, {"value": 5}) is None
    assert door(signature, {"valu": 5}) == "'valu' is unknown; 'value' may be meant"


def test_a_signature_that_cannot_be_kept_is_refused_where_it_was_before() -> None:
    signature = signature_of(dict[tuple[int, int], int] | dict[str, int])
    assert signature.schema is None
    with pytest.raises(BadInput):
        signature.check()


# Documents that somebody else has written

LOOP = {"$ref": "#/$defs/a"}
BOMB = {"$defs": {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 9} for n in range(40)}, "anyOf": [{"$ref": "#/$defs/d0"}] * 9}
HOSTILE: list[Any] = [
    {"$defs": {"a": LOOP}, **LOOP},
    {"$defs": {"a": {"anyOf": [LOOP, LOOP]}}, **LOOP},
    {"$defs": {"a": {"additionalProperties": LOOP, "items": LOOP}}, **LOOP},
    {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": LOOP}, "anyOf": [LOOP]},
    {"$defs": [], "$ref": "#/$defs/0"}, {"$ref": 5}, {"$ref": "https://example.com/x"}, {"$defs": {"a": True}, **LOOP},
    {"$defs": {"a": 5}, **LOOP}, {"type": 5}, {"type": ["object", 5]}, {"type": [[]]}, {"type": {}}, {"type": "spaceship"}, {"type": []},
    {"properties": []}, {"properties": {"a": []}}, {"required": "a"}, {"required": [[], {}, 5, None]}, {"additionalProperties": []},
    {"enum": {}}, {"enum": 5}, {"enum": []}, {"items": 5}, {"prefixItems": {}}, {"anyOf": {}}, {"anyOf": []}, {"anyOf": [5, None]},
    {"properties": {"a": {"minimum": "x", "maximum": [], "exclusiveMinimum": True, "exclusiveMaximum": None}}},
    {"properties": {"a": {"minLength": "x", "maxLength": [], "minItems": {}, "maxItems": True}}}, {"format": []}, {"nothing": "known"},
    {"patternProperties": {"(a+)+$": {}}, "additionalProperties": False}, {"properties": {"a": {"pattern": "(a+)+$"}}}, BOMB,
]  # fmt: skip
PAYLOADS: list[Any] = [{"a": 1}, {"a": "a" * 1_000}, {"a": [1]}, {"a": {"a": {"a": None}}}, [1, [2]], "x", None, 5, 1.5, True, {}]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", range(len(HOSTILE)), ids=lambda number: f"{HOSTILE[number]}"[:60])
def test_what_a_document_says_that_is_not_understood_accepts(number: int) -> None:
    for payload in PAYLOADS:
        assert fits.misfit(HOSTILE[number], payload) is None
    assert fits.takes(HOSTILE[number])


parts = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["object", "array", "string", "integer", "a", "#/$defs/a", "decimal"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from([
            "type", "properties", "required", "additionalProperties", "items", "prefixItems", "anyOf", "enum", "const", "minimum",
            "maximum", "exclusiveMinimum", "minLength", "maxItems", "format", "$ref", "a",
        ]),
        inner,
        max_size=4,
    ),
    max_leaves=20,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["$defs", "type", "properties", "anyOf", "items", "enum", "required"]), parts), anything)
@settings(max_examples=200, deadline=None)
def test_no_document_raises(document: dict[str, Any], payload: Any) -> None:
    wrong = fits.misfit(document, payload)
    assert wrong is None or str(wrong)
    assert fits.takes(document)


@pytest.mark.parametrize("huge", [10**400, -(10**400), 10**5_000], ids=["large", "small", "larger"])
def test_numbers_that_no_machine_has_raise_nothing(huge: int) -> None:
    for schema in (
        {"minimum": huge},
        {"maximum": huge},
        {"minimum": 5, "maximum": 6},
        {"enum": [huge]},
        {"type": "string"},
        {"const": "x"},
    ):
        for value in (huge, 3, "y"):
            str(fits.misfit({"type": "object", "properties": {"a": schema}}, {"a": value}))
    assert str(fits.misfit({"type": "object", "properties": {"a": {"type": "string"}}}, {"a": huge})).endswith("not a very large number")


def test_a_walk_ends_after_so_many_steps() -> None:
    document = {"type": "object", "additionalProperties": {"type": "integer"}}
    payload = {str(number): number for number in range(1_000)} | {"last": "x"}
    assert str(fits.misfit(document, payload)) == "'last' must be an integer, not 'x'"
    steps = fits.Steps(500)
    assert fits.misfit(document, payload, steps) is None
    assert fits.misfit(document, {"a": "x"}, steps) is None  # of all payloads of a call
    assert len(_stored(payload)) < Limits().payload


def test_a_sentence_is_short_whatever_the_names_are() -> None:
    long = "a" * 5_000
    document = {"type": "object", "properties": {long: {}, **{f"{n}{long}": {} for n in range(3)}}, "additionalProperties": False}
    assert len(str(fits.misfit(document, {"b" * 5_000: 1}))) < 400
    assert len(str(fits.misfit(document, {"a" * 4_000: 1}))) < 400
    assert len(fits.takes(document)) < 700
