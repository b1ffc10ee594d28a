"""The commands about windlass itself: config, faults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from windlass import config, webhooks
from windlass.cli.codes import OK
from windlass.cli.controls import source_text
from windlass.cli.output import cell, line, table
from windlass.cli.shell import Shell
from windlass.config import DEFAULTS, FIELDS, Said
from windlass.engine.retention import Kept
from windlass.errors import WindlassError
from windlass.model import FOREVER
from windlass.store.base import run_sync
from windlass.store.records import fault_points

DURATIONS = ("lease", "grace", "keep_succeeded", "keep_others")
POINTS_ELSEWHERE = ("migrate.between_steps", "checkpoint.before", "checkpoint.after", *webhooks.POINTS)


def show_config(shell: Shell) -> int:
    """Show every setting, and where its value comes from."""
    found = {name: shell.said.get(name) or Said(getattr(DEFAULTS, name), "default") for name in FIELDS}
    found |= _stored(shell, found)
    if shell.output.json:
        documents = {name: {"value": _safe(name, said.value), "source": said.source} for name, said in found.items()}
        shell.output.document({"settings": documents})
        return OK
    made = table("setting", "value", "from", cut=("value",), folded=("from",))
    for name, said in found.items():
        value, source = ("-", "") if said.value is None else (_words(name, said.value), line(said.source))
        made.add_row(name, cell(value), Text(source, style="dim"))
    shell.output.console.print(made)
    return OK


def _stored(shell: Shell, found: Mapping[str, Said]) -> dict[str, Said]:
    """What the store keeps for every process, which comes before what is said anywhere else."""
    try:
        with shell.engine() as engine:
            retention = run_sync(engine.retention())
    except WindlassError as error:
        shell.output.note(f"What the store says of retention is not known: {line(error.message)}")
        return {}
    kept = {"keep_succeeded": retention.keep_succeeded, "keep_others": retention.keep_others}
    return {name: _said_by_store(name, one, found[name]) for name, one in kept.items() if one.source == "store"}


def _said_by_store(name: str, kept: Kept, said: Said) -> Said:
    value, source = FOREVER if kept.keep == "forever" else kept.keep, source_text(kept)
    ignored = said.source != "default" and said.value != value
    return Said(value, f"{source}; not {_words(name, said.value)}, as {said.source} says" if ignored else source)


def _safe(name: str, value: Any) -> Any:
    if name in config.SECRETS and value is not None:
        return "***"
    return config.shown(value) if name in config.ADDRESSES and value is not None else value


def _words(name: str, value: Any) -> str:
    if name in DURATIONS:
        return config.spelled(value)
    return ", ".join(value) if isinstance(value, tuple) else str(_safe(name, value))


def list_faults(shell: Shell) -> int:
    """List the places where a test can make a process fail."""
    points = sorted({*fault_points("sqlite"), *fault_points("postgres"), *POINTS_ELSEWHERE})
    if shell.output.json:
        shell.output.document({"points": points})
    for point in () if shell.output.json else points:
        shell.output.raw(point)
    return OK
