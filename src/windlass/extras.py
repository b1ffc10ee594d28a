"""The command that installs an extra, from the source that this windlass was installed from."""

from __future__ import annotations

import os
import shlex
from json import loads
from typing import Any
from urllib.parse import unquote, urlsplit


def install(extra: str) -> str:
    """The command that adds an extra to this installation, from the same folder, archive, repository or index."""
    return f"Install what is missing: {_command(extra)}"


def _command(extra: str) -> str:
    source = _source()
    if source is None:  # it runs from its sources and is not installed
        return f"pip install {shlex.quote(f'.[{extra}]')}, in the folder of the windlass that you use."
    if not source:
        return f"pip install {shlex.quote(f'windlass[{extra}]')}"
    return f"pip install {_named(source, extra)}"


def _source() -> dict[str, Any] | None:
    """What pip has recorded about the source of windlass (PEP 610); empty: an index; None: it is not installed."""
    from importlib.metadata import PackageNotFoundError, distribution  # here, because it costs every command a tenth of its start

    try:
        text = distribution("windlass").read_text("direct_url.json")
    except PackageNotFoundError:
        return None
    return loads(text) if text else {}


def _named(source: dict[str, Any], extra: str) -> str:
    url, path = source["url"], unquote(urlsplit(source["url"]).path)
    if "vcs_info" in source:
        return shlex.quote(f"windlass[{extra}] @ {source['vcs_info']['vcs']}+{url}@{source['vcs_info']['commit_id']}")
    if not url.startswith("file:"):
        return shlex.quote(f"windlass[{extra}] @ {url}")
    if not os.path.exists(path):
        return f"the same file again, as {shlex.quote(f'{os.path.basename(path)}[{extra}]')}: {os.path.dirname(path)} no longer has it."
    editable = "-e " if source.get("dir_info", {}).get("editable") else ""
    return editable + shlex.quote(f"{path}[{extra}]")
