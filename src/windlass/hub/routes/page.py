"""The files of the page."""

from __future__ import annotations

import mimetypes
from functools import cache
from hashlib import blake2b
from importlib.resources import files

from starlette.responses import Response

from windlass.errors import NotFound
from windlass.hub.requests import HubRequest


@cache
def _pages() -> dict[str, tuple[bytes, str, str]]:
    """Every file of the page by its name: content, media type, tag. No other file is served."""
    pages = {}
    for entry in files("windlass.page").iterdir():
        kind = mimetypes.guess_type(entry.name)[0]
        if entry.is_file() and kind is not None and not entry.name.endswith(".py"):
            content = entry.read_bytes()
            pages[entry.name] = (content, kind, f'"{blake2b(content, digest_size=12).hexdigest()}"')
    return pages


def _file(request: HubRequest, name: str) -> Response:
    if name not in _pages():
        raise NotFound(f"There is no file {name!r:.80}.", hint="The page begins at /.")
    content, kind, tag = _pages()[name]
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=kind)


async def index(request: HubRequest) -> Response:
    return _file(request, "index.html")


async def page_file(request: HubRequest, name: str) -> Response:
    return _file(request, name)


HANDLERS = {"index": index, "page_file": page_file}
