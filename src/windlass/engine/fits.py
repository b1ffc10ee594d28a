"""Whether code can read a payload, by the JSON Schema of its arguments. A payload fits if that cannot be decided.

Any principal that may define a job can send a document, so nothing in it is assumed valid, and a walk ends after a number of steps.
A payload is refused only for what no code that publishes such a document accepts; patterns, formats and the like are left to the code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from windlass.errors import LONGEST, nearest

STEPS = 50_000  # of all walks of one call together
DEEPEST = 100  # nested schemas; a payload has at most 64 levels
MEMBERS, HINT = 24, 300  # members named, and characters shown, of a job's arguments
COMPARED = 200  # candidate names compared for a suggestion
_DEFINITIONS = "#/$defs/"

_canonical = msgspec.json.Encoder(order="deterministic").encode

_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "null": ("null", lambda value: value is None),
    "boolean": ("true or false", lambda value: value is True or value is False),
    "integer": ("an integer", lambda value: type(value) is int or (type(value) is float and value.is_integer())),
    "number": ("a number", lambda value: type(value) in (int, float)),
    "string": ("a text", lambda value: type(value) is str),
    "array": ("a list", lambda value: type(value) in (list, tuple)),
    "object": ("an object", lambda value: type(value) is dict),
}
_PLAIN = {str: {"type": "string"}, int: {"type": "integer"}, bool: {"type": "boolean"}}
_BOUNDS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "minimum": ("at least", lambda value, bound: value >= bound),
    "maximum": ("at most", lambda value, bound: value <= bound),
    "exclusiveMinimum": ("more than", lambda value, bound: value > bound),
    "exclusiveMaximum": ("less than", lambda value, bound: value < bound),
}


def text_of(document: Any) -> str:
    """The canonical text of a document, the same for equal ones."""
    return _canonical(document).decode()


def fingerprint(text: str | bytes) -> str:
    """The hash that identifies a document; no other document can be found for it."""
    return blake2b(text.encode() if isinstance(text, str) else text, digest_size=16).hexdigest()


class Misfit(NamedTuple):
    """What is wrong, and the path to it from the outside in."""

    way: tuple[str | int, ...] = ()
    wants: str | None = None  # None: it is missing
    value: Any = None
    known: Mapping[str, Any] | None = None  # the known members, where this one is unknown; `value` is the object that has it

    def under(self, name: str | int) -> Misfit:
        return self._replace(way=(name, *self.way))

    def __str__(self) -> str:
        way = "".join(f"[{part}]" if isinstance(part, int) else f".{part[:LONGEST]}" for part in self.way)
        place = repr(way.removeprefix(".")[:HINT])
        if self.known is not None:
            near = nearest(str(self.way[-1]), list(islice((name for name in self.known if name not in self.value), COMPARED)))
            return f"{place} is unknown" + (f"; {near[:LONGEST]!r} may be meant" if near is not None else "")
        if self.wants is None:
            return f"{place} is missing"
        return f"{place if self.way else 'it'} must be {self.wants}, not {_shown(self.value)}"


class _Unsure(Exception):
    """The step budget is spent: the payload counts as fitting."""


class Steps:
    """The step budget for all payloads of one call."""

    def __init__(self, left: int = STEPS) -> None:
        self.left = left

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise _Unsure


def misfit(document: Mapping[str, Any], payload: Any, steps: Steps | None = None) -> Misfit | None:
    """What is wrong with a payload; None where it may fit."""
    try:
        return _Walk(document, steps or Steps()).look(document, payload, 0)
    except _Unsure:
        return None


class _Walk:
    def __init__(self, document: Mapping[str, Any], steps: Steps) -> None:
        self._steps, self._definitions = steps, _dict(document.get("$defs"))

    def look(self, schema: Any, value: Any, depth: int) -> Misfit | None:
        if type(value) in _PLAIN and schema == _PLAIN[type(value)]:  # true of most members
            self._steps.left -= 1
            return None
        schema = self.resolved(schema)
        if depth > DEEPEST:
            raise _Unsure
        if not schema or schema.get("format") == "decimal":  # its value may be a number
            return None
        if branches := _list(schema.get("anyOf")):
            return self._any(branches, value, depth)
        if kinds := kind if isinstance(kind := schema.get("type"), list) else [] if kind is None else [kind]:
            if not all(isinstance(kind, str) and kind in _KINDS for kind in kinds):
                return None
            if not any(_KINDS[kind][1](value) for kind in kinds):
                return Misfit((), " or ".join(_KINDS[kind][0] for kind in kinds), value)
        choices = [schema["const"]] if "const" in schema else _list(schema.get("enum"))
        if choices:
            self._steps.spend(len(choices))
            if not any(type(choice) in (dict, list) for choice in choices) and value not in choices:
                return Misfit((), _choice(choices), value)
        if type(value) is dict:
            return self._object(schema, value, depth + 1)
        if type(value) in (list, tuple):
            return self._array(schema, value, depth + 1)
        return _text(schema, value) if type(value) is str else _number(schema, value) if type(value) in (int, float) else None

    def resolved(self, schema: Any) -> dict[str, Any]:
        """The schema, with references into the document resolved."""
        self._steps.spend(1)
        while isinstance(schema, dict) and isinstance(ref := schema.get("$ref"), str):
            self._steps.spend(1)
            schema = self._definitions.get(ref.removeprefix(_DEFINITIONS)) if ref.startswith(_DEFINITIONS) else None
        return _dict(schema)

    def words(self, name: str, schema: Any) -> str:
        """A member and its type, in words."""
        schema = self.resolved(schema)
        kinds = [self.resolved(branch).get("type") for branch in _list(schema.get("anyOf"))] or [schema.get("type")]
        words = " or ".join(_KINDS[kind][0] for kind in kinds if isinstance(kind, str) and kind in _KINDS)
        return f"{name[:LONGEST]} ({words})" if words else name[:LONGEST]

    def _any(self, branches: list[Any], value: Any, depth: int) -> Misfit | None:
        misfits: list[Misfit] = []
        for branch in branches:
            if (wrong := self.look(branch, value, depth + 1)) is None:
                return None
            misfits.append(wrong)
        if deep := max(misfits, key=lambda wrong: len(wrong.way)).way:  # the branch that fits best
            return next(wrong for wrong in misfits if wrong.way == deep)
        return Misfit((), " or ".join(dict.fromkeys(str(wrong.wants) for wrong in misfits))[:HINT], value)

    def _object(self, schema: dict[str, Any], value: dict[str, Any], depth: int) -> Misfit | None:
        members, further = _dict(schema.get("properties")), schema.get("additionalProperties")
        closed = further is False and "patternProperties" not in schema
        for name, item in value.items():
            if name not in members and closed:
                return Misfit((name,), value=value, known=members)
            if wrong := self.look(members.get(name, further), item, depth):
                return wrong.under(name)
        for name in _list(schema.get("required")):
            self._steps.spend(1)
            if isinstance(name, str) and name not in value and not _is_tag(members.get(name)):
                return Misfit((name,))
        return None

    def _array(self, schema: dict[str, Any], value: list[Any], depth: int) -> Misfit | None:
        first = _list(schema.get("prefixItems"))
        for index, item in enumerate(value):
            if wrong := self.look(first[index] if index < len(first) else schema.get("items"), item, depth):
                return wrong.under(index)
        return _size(schema, "Items", len(value), "a list of {} items", value)


def _text(schema: dict[str, Any], value: str) -> Misfit | None:
    return _size(schema, "Length", len(value), "a text of {} characters", value)


def _size(schema: dict[str, Any], what: str, size: int, words: str, value: Any) -> Misfit | None:
    low, high = schema.get(f"min{what}"), schema.get(f"max{what}")
    if type(low) is int and size < low:
        return Misfit((), words.format(f"at least {low}"), value)
    if type(high) is int and size > high:
        return Misfit((), words.format(f"at most {high}"), value)
    return None


def _number(schema: dict[str, Any], value: float) -> Misfit | None:
    for keyword, (words, holds) in _BOUNDS.items():
        bound: Any = schema.get(keyword)
        with suppress(OverflowError):  # an integer that is no float: the code that reads it may round it
            if type(bound) in (int, float) and not holds(value, bound) and not holds(float(value), float(bound)):
                return Misfit((), f"{words} {_shown(bound)}", value)
    return None


def _is_tag(schema: Any) -> bool:
    """Whether it is the tag that distinguishes the types of a union: it may be left out where there is only one type."""
    return isinstance(schema, dict) and schema.keys() == {"enum"} and len(_list(schema["enum"])) == 1


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _shown(value: Any) -> str:
    """A value, cut to fit into a sentence."""
    if type(value) in (dict, list, tuple):
        return "an object" if type(value) is dict else f"a list of {len(value)}"
    if type(value) is int and value.bit_length() > 63:
        return "a very large number"
    return repr(value[:LONGEST]) if type(value) is str else _canonical(value).decode()


def _choice(choices: list[Any]) -> str:
    return " or ".join(_shown(choice) for choice in choices[:8]) + (" or others" if len(choices) > 8 else "")


def takes(document: Mapping[str, Any]) -> str:
    """The arguments that a job takes, in a sentence."""
    walk, required = _Walk(document, Steps()), list[Any]()
    try:
        schema = walk.resolved(document)
        members, required = _dict(schema.get("properties")), _list(schema.get("required"))
        words = {name: walk.words(name, members[name]) for name in list(members)[:MEMBERS]}
    except _Unsure:
        words = {}
    needed, others = (", ".join(word for name, word in words.items() if (name in required) is so)[:HINT] for so in (True, False))
    sentences = (f"It takes {needed}." if needed else "", f"It may take {others}." if others else "")
    return " ".join(filter(None, sentences)) or "`windlass jobs show NAME` says what it takes."
