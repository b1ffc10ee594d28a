"""One rule for valid JSON, the same on every store: an accepted value comes back equal, tuples as lists."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import isfinite
from threading import RLock
from typing import Any, NoReturn, TypeVar, overload

import msgspec

from windlass.errors import BadInput, TooLarge

T = TypeVar("T")

DEPTH = 64
LARGEST = 2**63 - 1

_dump = msgspec.json.Encoder().encode
_load = msgspec.json.Decoder().decode

PREPARING = RLock()
"""Held while msgspec prepares a type for reading, at its first use: it crashes the process when two threads prepare the same type."""
_readers: dict[Any, Callable[[bytes | str], Any]] = {}


@overload
def reader(kind: type[T]) -> Callable[[bytes | str], T]: ...


@overload
def reader(kind: Any) -> Callable[[bytes | str], Any]: ...


def reader(kind: Any) -> Callable[[bytes | str], Any]:
    """The function that reads JSON as a type; every type is read through it, or prepared by it."""
    read = _readers.get(kind)
    if read is None:
        with PREPARING:
            read = _readers[kind] = msgspec.json.Decoder(kind).decode
    return read


def convert(value: Any, kind: type[T], *, strict: bool = True) -> T:
    """Plain values as a type; ValidationError if they do not fit."""
    reader(kind)
    return msgspec.convert(value, kind, strict=strict)


SHOWN, NAME_SHOWN = 300, 80
"""Characters of a path, and of one name in it, that an error shows."""


class _Wrong(Exception):
    """An invalid value. The path to it is built from the inside out, so it costs nothing if the value is valid."""

    def __init__(self, what: str, hint: str) -> None:
        self.what, self.hint = what, hint
        self.way: list[str | int] = []

    def place(self) -> str:
        parts = (f"[{part}]" if isinstance(part, int) else f".{part:.{NAME_SHOWN}}" for part in reversed(self.way))
        return "".join(parts)[:SHOWN]


def _check_text(text: str) -> None:
    if "\0" in text:
        raise _Wrong("contains the character NUL", "Remove it; databases cannot keep it in text.")
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise _Wrong("contains half of a surrogate pair", "Send text that can be encoded as UTF-8.")


def _check_number(number: int | float) -> None:
    if isinstance(number, float):
        if not isfinite(number):
            raise _Wrong(f"is {number}, which JSON does not have", "Send null or a text instead.")
    elif not -LARGEST - 1 <= number <= LARGEST:
        raise _Wrong("is an integer of more than 64 bits", "Send it as a text.")


class _Budget:
    """A limit on how much of a value is examined: a value can contain the same list twice, which contains another twice, and so on."""

    def __init__(self, nodes: int, what: str) -> None:
        self.nodes, self.what = nodes, what

    def spend(self, nodes: int) -> None:
        self.nodes -= nodes
        if self.nodes < 0:
            raise TooLarge(f"{self.what} has too many members.", hint="Keep large data elsewhere and send a reference to it.")


def check(value: Any, what: str = "The payload", *, limit: int = 2**20) -> None:
    """Raise BadInput with the path, unless every store can store the value and return it equal."""
    if _plain(value):
        return
    try:
        _check(value, DEPTH, _Budget(limit, what))
    except _Wrong as wrong:
        raise BadInput(f"{what}{wrong.place()} {wrong.what}.", hint=wrong.hint) from None


def _plain(value: Any) -> bool:
    """Whether it is a small flat object that needs no further checks, like most payloads."""
    if type(value) is not dict or len(value) > 100:
        return False
    for name, item in value.items():
        kind = type(item)
        if kind is str:
            if not item.isascii() or "\0" in item:
                return False
        elif item is not None and kind is not bool and not (kind is int and -LARGEST <= item <= LARGEST):
            return False
        if type(name) is not str or not name.isascii() or "\0" in name:
            return False
    return True


def _check(value: Any, depth: int, budget: _Budget) -> None:
    kind = type(value)
    if kind is str:
        _check_text(value)
    elif kind is int or kind is float:
        _check_number(value)
    elif value is None or kind is bool:
        pass
    elif depth == 0:
        raise _Wrong(f"is nested more than {DEPTH} deep", "Flatten it, or keep it elsewhere and send a reference.")
    elif kind is dict:
        budget.spend(len(value))
        for name in value:
            if type(name) is not str:
                raise _Wrong(f"has the key {name!r:.80}, which is not a text", "JSON objects have only texts as keys.")
            _check_text(name)
        _check_all(value.items(), depth - 1, budget)
    elif kind is list or kind is tuple:
        budget.spend(len(value))
        _check_all(enumerate(value), depth - 1, budget)
    else:
        raise _Wrong(f"is a {kind.__name__}, which is not JSON", "Use dict, list, str, int, float, bool and None.")


def _check_all(members: Iterable[tuple[str | int, Any]], depth: int, budget: _Budget) -> None:
    for name, item in members:
        try:
            _check(item, depth, budget)
        except _Wrong as wrong:
            wrong.way.append(name)
            raise


def dump(value: Any, *, limit: int, what: str = "The payload") -> str:
    """The JSON text of a value that has been checked, refused when it is larger than `limit` bytes."""
    text = _dump(value)
    if len(text) > limit:
        raise TooLarge(
            f"{what} has {len(text):,} bytes; the limit is {limit:,}.", hint="Keep large data elsewhere and send a reference to it."
        )
    return text.decode()


def encode(value: Any, *, limit: int, what: str = "The payload") -> str:
    """The JSON text of a value, refused when it is not JSON or larger than `limit` bytes."""
    if not _plain(value):
        check(value, what, limit=limit)
    return dump(value, limit=limit, what=what)


def decode(text: str) -> Any:
    """The value of a text that `encode` made."""
    return _load(text)


def slices(items: Sequence[T], sizes: Sequence[int], limit: int) -> Iterator[Sequence[T]]:
    """The items, of these sizes in bytes, in slices of at most this total; a larger item is alone in its slice."""
    if sum(sizes) <= limit:  # the usual case
        yield items
        return
    begin = total = 0
    for index, size in enumerate(sizes):
        total += size
        if total > limit and index > begin:
            yield items[begin:index]
            begin, total = index, size
    yield items[begin:]


def _no_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise BadInput("The text has an object with the same key twice.", hint="Keep one of them; which one counts would be a guess.")
    return members


def _no_constant(name: str) -> NoReturn:
    raise BadInput(f"The text contains {name}, which JSON does not have.", hint="Send null or a text instead.")


_strict = json.JSONDecoder(object_pairs_hook=_no_twice, parse_constant=_no_constant).decode


def parse(text: str | bytes, *, limit: int, what: str = "The payload") -> Any:
    """The value of a JSON text from outside, by the same rule as `encode`; stricter than the standard library."""
    try:
        raw = text.encode() if isinstance(text, str) else text
        if len(raw) > limit:
            raise TooLarge(f"{what} has more than {limit:,} bytes.", hint="Keep large data elsewhere and send a reference to it.")
        value = _strict(raw.decode())
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{what} is not JSON: {error}.", hint="Send one JSON value, encoded as UTF-8.") from error
    check(value, what, limit=limit)
    return value
