"""The result of a verb: the form of its answer, and the conversions from the engine's records and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct

from windlass.api.codec import View, instant

JSON = "application/json"

Arguments = Mapping[str, Any]


def _same(value: Any, arguments: Arguments) -> Any:
    return value


class Gives(Struct, frozen=True):
    """The form of an answer. `show` builds it from the engine's result for these arguments, `read` is the inverse."""

    form: Any
    show: Callable[[Any, Arguments], Any] = _same
    read: Callable[[Any, Arguments], Any] = _same
    media_type: str = JSON


def one(view: View[Any]) -> Gives:
    """A record."""
    return Gives(view.form, lambda record, _: view.show(record), lambda answer, _: view.read(answer))


def field(name: str, promise: str, **kind: Any) -> Gives:
    """A value under a name in the answer."""
    ((word, form),) = kind.items()
    struct: Any = msgspec.defstruct(name, [(word, form)], frozen=True, namespace={"__doc__": promise})
    return Gives(struct, lambda value, _: struct(value), lambda answer, _: getattr(answer, word))


def listed(name: str, promise: str, **kind: Any) -> Gives:
    """All records of a kind, under a name."""
    ((word, view),) = kind.items()
    form, show, read = _each(view)
    struct: Any = msgspec.defstruct(name, [(word, _list_of(form))], frozen=True, namespace={"__doc__": promise})
    return Gives(struct, lambda records, _: struct([*map(show, records)]), lambda answer, _: [*map(read, getattr(answer, word))])


def paged(name: str, promise: str, cursor: Callable[[Any], Any], kind: Any = str, **records: Any) -> Gives:
    """A page of records by one of their keys. The next page starts after the last record of a full page."""
    ((word, view),) = records.items()
    form, show, read = _each(view)
    struct: Any = _page(name, promise, word, form, kind)

    def show_page(records: list[Any], arguments: Arguments) -> Any:
        return struct([*map(show, records)], cursor(records[-1]) if len(records) == arguments["count"] else None)

    return Gives(struct, show_page, lambda answer, _: [*map(read, getattr(answer, word))])


def page_of(page: Any, name: str, promise: str, **records: Any) -> Gives:
    """A page from the engine, with its own cursor. Its other fields are instants that it need not have."""
    ((word, view),) = records.items()
    form, show, read = _each(view)
    at = tuple(field for field in page.__struct_fields__ if field not in (word, "cursor"))
    struct: Any = _page(name, promise, word, form, str, at)
    forms = {field: instant(field) for field in at}

    def shown(record: Any, _: Any) -> Any:
        instants = [_converted(one.show, getattr(record, field)) for field, one in forms.items()]
        return struct([*map(show, getattr(record, word))], record.cursor, *instants)

    def read_back(answer: Any, _: Any) -> Any:
        instants = [_converted(one.read, getattr(answer, field)) for field, one in forms.items()]
        return page([*map(read, getattr(answer, word))], answer.cursor, *instants)

    return Gives(struct, shown, read_back)


def _converted(convert: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else convert(value)


@cache
def _page(name: str, promise: str, word: str, form: Any, cursor: Any, at: tuple[str, ...] = ()) -> Any:
    fields: list[Any] = [(word, _list_of(form)), ("cursor", cursor | None), *((field, str | None, None) for field in at)]
    return msgspec.defstruct(name, fields, frozen=True, namespace={"__doc__": promise})


def _list_of(form: Any) -> Any:
    return list[form]


def _each(view: Any) -> tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]:
    """How one element is shown and read: by its view, or unchanged."""
    if isinstance(view, View):
        return view.form, view.show, view.read
    return view, lambda value: value, lambda value: value


class Done(Struct, frozen=True):
    """An empty answer."""

    done: bool = True


DONE = Gives(Done, lambda *_: Done(), lambda *_: None)
