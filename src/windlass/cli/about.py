"""The commands about windlass itself: config, faults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from windlass import webhooks
from windlass.answers import RetentionSetting
from windlass.api.verbs import Verbs
from windlass.cli.codes import OK
from windlass.cli.context import CommandContext
from windlass.cli.controls import source_text
from windlass.cli.output import cell, line, table
from windlass.cli.rows import OPERATE, Commands, option
from windlass.config import Value
from windlass.config.settings import SETTINGS
from windlass.errors import WindlassError
from windlass.model import FOREVER
from windlass.store.records import fault_points

POINTS_ELSEWHERE = ("migrate.between_steps", "checkpoint.before", "checkpoint.after", *webhooks.POINTS)


COMMANDS = Commands()


@COMMANDS.add("config", topic=OPERATE, meant_by=("settings", "env"), examples="windlass config\nwindlass config --json")
def show_config(context: CommandContext) -> int:
    """Show every setting, and where its value comes from."""
    values = {name: context.values.get(name) or Value(setting.default, "default") for name, setting in SETTINGS.items()}
    values |= _stored(context, values)
    if context.output.json:
        documents = {name: {"value": _masked(name, value), "source": source} for name, (value, source) in values.items()}
        context.output.document({"settings": documents})
        return OK
    grid = table("setting", "value", "from", cut=("value",), folded=("from",))
    for name, (value, source) in values.items():
        texts = ("-", "") if value is None else (SETTINGS[name].kind.words(value), line(source))
        grid.add_row(name, cell(texts[0]), Text(texts[1], style="dim"))
    context.output.console.print(grid)
    return OK


def _stored(context: CommandContext, values: Mapping[str, Value]) -> dict[str, Value]:
    """Values in the store, which apply to every process and override all others."""
    try:
        retention = context.call(Verbs.retention)
    except WindlassError as error:
        context.output.note(f"The retention in the store is not known: {line(error.message)}")
        return {}
    kept = {"keep_succeeded": retention.keep_succeeded, "keep_others": retention.keep_others}
    return {name: _from_store(name, one, values[name]) for name, one in kept.items() if one.source == "store"}


def _from_store(name: str, setting: RetentionSetting, other: Value) -> Value:
    value, source = FOREVER if setting.keep == "forever" else setting.keep, source_text(setting)
    ignored = other.source != "default" and other.value != value
    return Value(value, f"{source}; not {SETTINGS[name].kind.words(other.value)}, which is in {other.source}" if ignored else source)


def _masked(name: str, value: Any) -> Any:
    return None if value is None else SETTINGS[name].kind.mask(value)


@COMMANDS.add(
    "faults", option("what", choices=("list",), help="list the names for WINDLASS_FAULTS"), topic=OPERATE, examples="windlass faults list"
)
def list_faults(context: CommandContext) -> int:
    """List the fault points, at which a test can make a process fail."""
    from windlass.dialects.kumofire.points import POINTS  # here, because few commands need a dialect

    points = sorted({*fault_points("sqlite"), *fault_points("postgres"), *POINTS_ELSEWHERE, *POINTS})
    if context.output.json:
        context.output.document({"points": points})
    for point in () if context.output.json else points:
        context.output.raw(point)
    return OK
