"""Converts records to views and back: a table for each record defines which fields are hidden, renamed, converted, or added."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import attrgetter
from types import NoneType
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import NODEFAULT

from windlass.api.values import from_rfc3339, to_raw, to_rfc3339, to_text

T = TypeVar("T")

Show = Callable[[Any], Any]
_NOTHING: Mapping[str, Any] = {}


class Form(NamedTuple):
    """A conversion of a value: its type in the view, and the functions there and back. None stays None."""

    kind: Any
    show: Show
    read: Show


class Added(NamedTuple):
    """A field computed from the whole record, and ignored when the view is read. One with a default may be missing there."""

    kind: Any
    show: Show
    default: Any = NODEFAULT


JSON = Form(Any, to_raw, to_text)


def instant(name: str) -> Form:
    """The form of an instant."""
    return Form(str, to_rfc3339, partial(from_rfc3339, what=name))


class _Field(NamedTuple):
    """A field of a record: the path to it, its name and type in the view, and its conversion, if any."""

    path: str
    name: str
    kind: Any
    default: Any
    form: Form | None


class View(Generic[T]):
    """How one kind of record is shown. `form` is the type of the view.

    Fields called `at` or `..._at` are instants. `flat` are fields whose own fields are shown in their place. `optional` fields may be
    missing, and then have the record's default. `finish` completes a record that was read back where the table cannot.
    """

    def __init__(
        self,
        record: type[T],
        name: str,
        promise: str,
        *,
        hidden: Mapping[str, Any] = _NOTHING,
        renamed: Mapping[str, str] = _NOTHING,
        forms: Mapping[str, Form] = _NOTHING,
        flat: tuple[str, ...] = (),
        added: Mapping[str, Added] = _NOTHING,
        optional: tuple[str, ...] = (),
        omit_defaults: bool = False,
        finish: Callable[[T, Any], T] | None = None,
    ) -> None:
        self.record, self._hidden, self._added, self._finish = record, hidden, tuple(added.values()), finish
        self._flat = {part: get_type_hints(record)[part] for part in flat}
        fields = [
            field._replace(name=renamed.get(field.name, field.name), form=forms.get(field.name, field.form))
            for field in _fields(record, hidden, flat)
        ]
        self._fields = sorted(fields, key=lambda field: field.name in optional)
        members = [(field.name, _kind_of(field), field.default if field.name in optional else NODEFAULT) for field in self._fields]
        members += [(name, one.kind, one.default) for name, one in added.items()]
        self.form: Any = _struct(name, promise, members, omit_defaults)
        self._values = attrgetter(*(field.path for field in self._fields))
        self._shows = [(index, field.form.show) for index, field in enumerate(self._fields) if field.form is not None]
        self._reads = [(field.path, field.name, None if field.form is None else field.form.read) for field in self._fields]

    def show(self, record: T) -> Any:
        """The view of a record."""
        values = list(self._values(record))
        for index, show in self._shows:
            if values[index] is not None:
                values[index] = show(values[index])
        values += [added.show(record) for added in self._added]
        return self.form(*values)

    def read(self, view: Any) -> T:
        """The record of a view. Hidden fields get the values of the table."""
        words: dict[str, Any] = dict(self._hidden)
        inner: dict[str, dict[str, Any]] = {part: {} for part in self._flat}
        for path, name, read in self._reads:
            value = getattr(view, name)
            part, _, field = path.rpartition(".")
            (inner[part] if part else words)[field] = value if read is None or value is None else read(value)
        words |= {part: kind(**inner[part]) for part, kind in self._flat.items()}
        record = self.record(**words)
        return record if self._finish is None else self._finish(record, view)

    def as_form(self) -> Form:
        """The form of a field that holds such a record."""
        return Form(self.form, self.show, self.read)

    def as_list(self) -> Form:
        """The form of a field that holds a list of such records."""
        form: Any = list.__class_getitem__(self.form)
        return Form(form, lambda records: [*map(self.show, records)], lambda views: [*map(self.read, views)])


def _fields(record: type, hidden: Mapping[str, Any], flat: tuple[str, ...], prefix: str = "") -> Iterator[_Field]:
    for name, kind, default in _declared(record):
        if name in flat:
            yield from _fields(kind, _NOTHING, (), f"{name}.")
        elif name not in hidden:
            is_instant = name == "at" or name.endswith("_at")
            yield _Field(prefix + name, name, kind, default, instant(name) if is_instant else None)


def _declared(record: Any) -> Iterator[tuple[str, Any, Any]]:
    """The names, types and defaults of a record's fields."""
    if issubclass(record, msgspec.Struct):
        for field in msgspec.structs.fields(record):
            yield field.name, field.type, field.default if field.default_factory is NODEFAULT else field.default_factory()
    else:
        hints, defaults = get_type_hints(record), record._field_defaults
        yield from ((name, hints[name], defaults.get(name, NODEFAULT)) for name in record._fields)


def _kind_of(field: _Field) -> Any:
    if field.form is None:
        return field.kind
    optional = NoneType in get_args(field.kind) and field.form.kind is not Any
    return field.form.kind | None if optional else field.form.kind


def _struct(name: str, promise: str, fields: list[tuple[str, Any, Any]], omit_defaults: bool) -> Any:
    declared = [(name, kind) if default is NODEFAULT else (name, kind, default) for name, kind, default in fields]
    return msgspec.defstruct(name, declared, frozen=True, omit_defaults=omit_defaults, namespace={"__doc__": promise})
