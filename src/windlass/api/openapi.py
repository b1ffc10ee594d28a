"""The OpenAPI document of a table of verbs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Any

import msgspec

from windlass.api.problems import MEDIA_TYPE, Problem
from windlass.api.rows import Param, Verb

_REF = "#/components/schemas/{name}"
_METHODS = ("get", "post", "put", "patch", "delete")

Table = Iterable[tuple[str, Verb]]
"""Verbs, each with its path prefix."""


def document(table: Table, version: str) -> dict[str, Any]:
    """The document, from the rows alone: paths, parameters, bodies, answers, and the scope of each verb."""
    rows = [(prefix + verb.template, verb) for prefix, verb in table if verb.described]
    kinds = [kind for _, verb in rows for kind in _kinds(verb)]
    schemas, components = msgspec.json.schema_components([*kinds, Problem], ref_template=_REF)
    schema_of = {_key(kind): schema for kind, schema in zip([*kinds, Problem], schemas, strict=True)}
    paths: dict[str, Any] = {}
    for path, verb in rows:
        paths.setdefault(path, {})[verb.method.lower()] = _operation(verb, schema_of)
    bearer = {"type": "http", "scheme": "bearer", "description": "A token made by `windlass tokens create`."}
    return {
        "openapi": "3.1.0",
        "info": {"title": "windlass", "version": version},
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"bearer": bearer}},
    }


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every path and method of a document."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method in _METHODS:
                yield path, method, operation


def _kinds(verb: Verb) -> list[Any]:
    """The types used by the document."""
    kinds = [*verb.names.values(), *(param.kind for param in verb.query), verb.takes, verb.gives.form]
    return [kind for kind in kinds if kind is not None]


def _key(kind: Any) -> str:
    return repr(kind)


def _operation(verb: Verb, schema_of: dict[str, Any]) -> dict[str, Any]:
    parameters = [{"name": name, "in": "path", "required": True, "schema": schema_of[_key(kind)]} for name, kind in verb.names.items()] + [
        _parameter(param, schema_of) for param in verb.query
    ]
    content = {"schema": {} if verb.gives.form is None else schema_of[_key(verb.gives.form)]}
    operation: dict[str, Any] = {
        "operationId": verb.name,
        "summary": verb.summary,
        "x-scope": verb.scope,
        "responses": {
            str(verb.status): {"description": HTTPStatus(verb.status).description, "content": {verb.gives.media_type: content}},
            "default": {
                "description": "What went wrong, and what to do next",
                "content": {MEDIA_TYPE: {"schema": schema_of[_key(Problem)]}},
            },
        },
    }
    if parameters:
        operation["parameters"] = parameters
    if verb.takes is not None:
        schema = schema_of[_key(verb.takes)]
        operation["requestBody"] = {"required": not verb.optional, "content": {"application/json": {"schema": schema}}}
    if verb.scope is None:
        operation["security"] = []
    return operation


def _parameter(param: Param, schema_of: dict[str, Any]) -> dict[str, Any]:
    schema = dict(schema_of[_key(param.kind)])
    if param.default is not None:
        schema["default"] = param.default
    described = {"description": param.description} if param.description else {}
    return {"name": param.name, "in": "header" if param.header else "query", "required": False, "schema": schema, **described}
