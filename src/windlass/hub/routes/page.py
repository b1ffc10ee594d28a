"""The page: files of our own, and nothing else."""

from __future__ import annotations

import mimetypes
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from typing import Any

from litestar import Response, get
from litestar.params import FromPath

from windlass.errors import NotFound
from windlass.hub.requests import HubRequest


@cache
def _pages() -> dict[str, tuple[bytes, str, str]]:
    """Every file of the page by its name: content, media type, tag. What is not here cannot be asked for."""
    found = {}
    for entry in files("windlass.page").iterdir():
        kind = mimetypes.guess_type(entry.name)[0]
        if entry.is_file() and kind is not None and not entry.name.endswith(".py"):
            content = entry.read_bytes()
            found[entry.name] = (content, kind, f'"{blake2b(content, digest_size=12).hexdigest()}"')
    return found


def _file(request: HubRequest, name: str) -> Response[bytes]:
    if name not in _pages():
        raise NotFound(f"There is no file {name!r:.80}.", hint="The page begins at /.")
    content, kind, tag = _pages()[name]
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(b"", status_code=304, headers=headers, media_type=kind)
    return Response(content, headers=headers, media_type=kind)


@get("/", opt={"scope": None}, include_in_schema=False)
async def index(request: HubRequest) -> Response[bytes]:
    return _file(request, "index.html")


@get("/page/{name:str}", opt={"scope": None}, include_in_schema=False)
async def page_file(request: HubRequest, name: FromPath[str]) -> Response[bytes]:
    return _file(request, name)


HANDLERS: list[Any] = [index, page_file]
