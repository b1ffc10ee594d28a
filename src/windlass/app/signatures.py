"""Converts between a function's arguments and a JSON payload: bound and checked when enqueued, read by their types when run."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from windlass.engine import checks, fits
from windlass.errors import BadInput
from windlass.model import Limits
from windlass.payload import PREPARING
from windlass.worker import Context, Fail, Skip, Snooze
from windlass.worker.handlers import BadPayload

_WORDS = {"title", "description", "examples", "default", "deprecated"}  # keywords of a schema that do not affect validation
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_ALONE = (inspect.Parameter.POSITIONAL_ONLY,)
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def plain(value: Any) -> Any:
    """A value as dict, list, str, int, float, bool and None."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_encode)


def _encode(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)  # a pydantic model
    if dump is not None:
        return dump(mode="json", by_alias=True, round_trip=True)
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")


def typed(value: Any, kind: Any) -> Any:
    """A plain value as a type; ValidationError if it does not fit."""
    _decoder(kind)
    return msgspec.convert(value, kind, str_keys=True, dec_hook=_decode)


def check_type(kind: Any) -> None:
    """TypeError where JSON cannot be read as this; NameError while it names a type that is not defined yet."""
    _decoder(kind)


def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    with PREPARING:
        return msgspec.json.Decoder(kind, dec_hook=_decode)


def _decode(kind: type, value: Any) -> Any:
    validate = getattr(kind, "model_validate", None)
    if validate is not None:
        return validate(value)
    raise TypeError(f"{kind.__name__} cannot be read from JSON")


def _schema_of(kind: type) -> dict[str, Any]:
    """A schema without constraints that are not safe to enforce: a model accepts more than its schema, such as "5" as a number."""
    schema, name = getattr(kind, "model_json_schema", None), f"{kind.__module__}.{kind.__qualname__}"
    try:
        return {"title": kind.__name__, "x-model": schema() if schema is not None else name}
    except Exception:  # a model can have members without a schema
        return {"title": kind.__name__, "x-model": name}


def _is_exact(kind: type) -> bool:
    """Whether the schema of a type refuses nothing that is read as it: not for enums or types with custom conversion."""
    seen, parts = set[int](), [msgspec.inspect.type_info(kind)]
    while parts:
        part: Any = parts.pop()
        if isinstance(part, msgspec.inspect.EnumType) and part.cls._missing_.__func__ is not Enum._missing_.__func__:  # type: ignore[attr-defined]
            return False
        if isinstance(part, msgspec.inspect.Metadata) and (part.extra_json_schema or {}).keys() - _WORDS:
            return False
        if isinstance(part, msgspec.inspect.Type | msgspec.inspect.Field) and id(part) not in seen:
            seen.add(id(part))
            parts += [getattr(part, name) for name in part.__struct_fields__]
        elif isinstance(part, tuple):
            parts += part
    return True


class Signature:
    """The parameters of a job's function, without the context."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._function, self._name = function, name
        self._signature = inspect.signature(function)
        for parameter in self._signature.parameters.values():
            if parameter.kind in _VARIADIC:
                raise BadInput(
                    f"The job {name!r} takes {parameter}, which has no names to keep arguments under.",
                    hint="Name every parameter; take a list or a dict where their number varies.",
                )

    @cached_property
    def _hints(self) -> dict[str, Any]:
        try:
            return typing.get_type_hints(self._function, include_extras=True)
        except NameError as error:
            raise BadInput(
                f"The job {self._name!r} has an annotation that cannot be found: {error}.",
                hint="Import the type where the function is defined, not only for type checking.",
            ) from error

    @cached_property
    def takes_context(self) -> bool:
        """Whether the first parameter is the context."""
        first = next(iter(self._signature.parameters), None)
        return first is not None and self._hints.get(first) is Context

    @cached_property
    def _parameters(self) -> list[inspect.Parameter]:
        return list(self._signature.parameters.values())[int(self.takes_context) :]

    @cached_property
    def _bare(self) -> inspect.Signature:
        parameters = [parameter.replace(annotation=self._hints.get(parameter.name, parameter.empty)) for parameter in self._parameters]
        result = self._hints.get("return", inspect.Signature.empty)
        return inspect.Signature(parameters, return_annotation=None if result is type(None) else result)

    @cached_property
    def _positional(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self._parameters if parameter.kind in _BY_POSITION)

    @cached_property
    def _named(self) -> frozenset[str]:
        return frozenset(parameter.name for parameter in self._parameters if parameter.kind not in _ALONE)

    @cached_property
    def _required(self) -> frozenset[str]:
        return frozenset(parameter.name for parameter in self._parameters if parameter.default is parameter.empty)

    @cached_property
    def _in_order(self) -> bool:
        """Whether a call has just all arguments, by position."""
        return len(self._positional) == len(self._required) == len(self._parameters)

    @cached_property
    def _exact(self) -> dict[str, Any]:
        """The parameters whose values need no conversion."""
        return {parameter.name: kind for parameter in self._parameters if (kind := self._hints.get(parameter.name)) in (str, int, bool)}

    @cached_property
    def _record(self) -> type[msgspec.Struct]:
        """The arguments as one type. Arguments that were not given get the function's default when it runs."""
        fields: list[Any] = []
        for parameter in self._parameters:
            kind = self._hints.get(parameter.name, Any)
            fields.append((parameter.name, kind) if parameter.default is parameter.empty else (parameter.name, kind | UnsetType, UNSET))
        try:
            record = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
            _decoder(record)
        except TypeError as error:
            raise BadInput(
                f"The arguments of the job {self._name!r} cannot be kept as JSON: {error}",
                hint="Use dataclasses, msgspec structs, TypedDicts, pydantic models and the built-in types.",
            ) from error
        return record

    @cached_property
    def _read(self) -> Callable[[str], Any]:
        return _decoder(self._record).decode

    @cached_property
    def _document(self) -> Any:
        """The JSON Schema of the arguments; None if a type has none."""
        try:
            return msgspec.json.decode(fits.text_of(msgspec.json.schema(self._record, schema_hook=_schema_of)))
        except (TypeError, ValueError, KeyError, RecursionError):
            return None

    @cached_property
    def schema(self) -> dict[str, Any] | None:
        """The schema for callers without this code: it refuses nothing that `arguments` accepts. None: nothing can be checked."""
        try:
            if self._document is None or not _is_exact(self._record):
                return None
            checks.schema(self._document, Limits())
            return typing.cast("dict[str, Any]", self._document)
        except BadInput:  # it is too large, or `check` reports what is wrong with the signature
            return None

    @cached_property
    def fingerprint(self) -> str:
        """Equal for signatures that accept the same payloads, and rarely for others; derived from the schema if there is one."""
        document = self._document
        if document is None:  # a signature without a schema is identified by its names
            document = str(self._bare.replace(return_annotation=inspect.Signature.empty))
        return fits.fingerprint(fits.text_of(document))

    def check(self) -> None:
        """Raise an error if the signature is invalid, before it is used."""
        _ = self._record
        try:
            _decoder(self.result_type)
        except TypeError as error:
            raise BadInput(
                f"The result of the job {self._name!r} cannot be kept as JSON: {error}",
                hint="Use dataclasses, msgspec structs, TypedDicts, pydantic models and the built-in types.",
            ) from error

    def payload(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> dict[str, Any]:
        """The payload for a call, checked against names and types; TypeError and BadInput say what does not fit."""
        if type(keywords) is not dict and not isinstance(keywords, Mapping):
            raise BadInput(
                f"The payload of {self._name!r} must be an object, not {keywords!r:.80}.", hint=f"It is {self._name}{self._bare}."
            )
        values = keywords if not arguments else dict(zip(self._positional, arguments, strict=False), **keywords)
        # Python's own binding is slow, so it is used only for its error messages.
        bound = len(values) == len(arguments) + len(keywords) and self._named.issuperset(keywords) and self._required.issubset(values)
        if not bound:
            self._bare.bind(*arguments, **keywords)
        exact = self._exact
        for name, value in values.items():
            if type(value) is not exact.get(name):
                break
        else:
            return dict(values)  # texts and numbers of the declared type need no further check
        try:
            payload: dict[str, Any] = plain(values)
            typed(payload, self._record)
        except (msgspec.ValidationError, TypeError, ValueError, RecursionError) as error:
            raise BadInput(
                f"The arguments of {self._name!r} do not fit its signature: {error}.", hint=f"It is {self._name}{self._bare}."
            ) from error
        return payload

    def arguments(self, payload: str) -> tuple[Sequence[Any], dict[str, Any]]:
        """The arguments of a call, by position and by name."""
        try:
            record = self._read(payload)
        except (msgspec.ValidationError, ValueError) as error:
            raise self._refused(f": {error}") from error
        values = msgspec.structs.astuple(record)
        if self._in_order:
            return values, {}
        pairs = [(name, value) for name, value in zip(record.__struct_fields__, values, strict=True) if value is not UNSET]
        alone: list[Any] = []
        positional = True
        for at, (name, value) in enumerate(pairs):
            positional = positional and at < len(self._positional) and self._positional[at] == name
            if not positional:
                return alone, self._by_name(dict(pairs[at:]))
            alone.append(value)
        return alone, {}

    def _by_name(self, keywords: dict[str, Any]) -> dict[str, Any]:
        if self._named.issuperset(keywords):
            return keywords
        raise self._refused()

    def _refused(self, because: str = "") -> BadPayload:
        hint = "Enqueue it again as it should be, or deploy the code that it is for."
        return BadPayload(f"The payload does not fit {self._name}{self._bare}{because}.", hint=hint, schema=self.fingerprint)

    # What comes back

    @cached_property
    def result_type(self) -> Any:
        """The declared return type, without the outcomes that are not results; Any if there is none."""
        kind = self._hints.get("return", Any)
        if typing.get_origin(kind) in (typing.Union, types.UnionType):
            kinds = [part for part in typing.get_args(kind) if part not in (Snooze, Skip, Fail)]
            kind = typing.Union[tuple(kinds)] if kinds else Any  # noqa: UP007 - made from a list
        return None if kind in (type(None), typing.NoReturn, typing.Never) else kind

    def encode(self, value: Any) -> Any:
        """A result as plain values, checked against the declared return type."""
        kind = self.result_type
        if value is None and kind is None:
            return None
        result = plain(value)
        if kind is not Any:
            typed(result, kind)
        return result

    def result(self, output: str | None) -> Any:
        """A stored result as the function's return type."""
        value = None if output is None else msgspec.json.decode(output)
        return typed(value, self.result_type)
