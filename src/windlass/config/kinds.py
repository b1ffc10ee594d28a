"""Kinds of settings: how a value is read from a file, a variable and a flag, and how it is shown."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from windlass.config.addresses import from_folder, shown
from windlass.durations import SHORTEST_KEEP, duration, keep, spelled
from windlass.model import FOREVER

_NAME = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,128}")
_SIZE = re.compile(r"([0-9]{1,12}) ?(M|MiB|G|GiB)")


def _same(value: Any) -> Any:
    return value


class ValueKind(NamedTuple):
    """How the values of a setting are read and shown."""

    read: Callable[[Any], Any]
    """The value for one of TOML; raises ValueError with what it must be."""
    from_text: Callable[[str], Any] = _same
    """The TOML value for the text of a variable."""
    flag: Mapping[str, Any] = {}
    """How argparse reads the flag."""
    mask: Callable[[Any], Any] = _same
    """The value without secrets."""
    words: Callable[[Any], str] = str
    """The value as people write it."""
    resolve: Callable[[Any, str], Any] | None = None
    """The value from a file in this folder, from which relative paths are resolved."""


# Reading what TOML has


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("a text")
    return value


def _name(value: Any) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError("a text of 1 to 128 printable characters")
    return value


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise ValueError('a list of names, such as ["mail", "reports"], or, in a variable, mail,reports')
    return tuple(_name(item) for item in value)


def _keep(value: Any) -> int:
    ms = keep(value)
    if ms == "forever":
        return FOREVER
    if ms < SHORTEST_KEEP:
        raise ValueError(f'a duration of {spelled(SHORTEST_KEEP)} at least, or "forever"')
    return ms


def _mebibytes(value: Any) -> int:
    size = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    mib = int(size[1]) * (1024 if size[2].startswith("G") else 1) if size else value
    if type(mib) is not int or not 0 <= mib <= 2**40:
        raise ValueError('a number of MiB, or a text such as "512MiB" or "2GiB"')
    return mib


def _yes_or_no(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


# From a text to what TOML would have


def _whole(text: str) -> Any:
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text.strip()) else text


def _tables(value: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict) or not all(isinstance(table, dict) for table in value.values()):
        raise ValueError('tables, such as [dialects.forge], or, in a variable, {"forge": {}}')
    return value


def _bool(text: str) -> Any:
    return {"true": True, "1": True, "false": False, "0": False}.get(text.strip().lower(), text)


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def split(text: str) -> list[str]:
    """The parts of a text between commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


# The kinds

TEXT = ValueKind(_text)
NAME = ValueKind(_name)
SECRET = ValueKind(_text, mask=lambda _: "***", words=lambda _: "***")
ADDRESS = ValueKind(_text, mask=lambda value: shown(value) if isinstance(value, str) else value, words=shown)
STORE = ADDRESS._replace(resolve=from_folder)
PATH = ValueKind(_text, flag={"metavar": "FOLDER"}, resolve=lambda path, folder: os.path.join(folder, path))
LIST = ValueKind(_names, split, {"type": split, "metavar": "A,B"}, words=", ".join)
REPEATED = LIST._replace(flag={"action": "append"})
"""A list whose flag is given once for each of its names."""
SIZE = ValueKind(_mebibytes, _whole, {"type": _whole, "metavar": "SIZE"})
YES_OR_NO = ValueKind(_yes_or_no, _bool, {"action": "store_true", "default": None}, words=lambda value: str(value).lower())
TABLES = ValueKind(_tables, _json, mask=lambda value: dict.fromkeys(value, "***") if isinstance(value, dict) else "***", words=", ".join)
"""Tables whose members other modules read; they may hold secrets."""
KEEP = ValueKind(_keep, flag={"metavar": "TIME"}, words=spelled)


def count(low: int, high: int) -> ValueKind:
    """A whole number within these bounds."""

    def read(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"a whole number from {low:,} to {high:,}")
        return value

    return ValueKind(read, _whole, {"type": int, "metavar": "N"})


def span(low: int, high: int) -> ValueKind:
    """A duration within these bounds, in milliseconds."""

    def read(value: Any) -> int:
        ms = duration(value)
        if not low <= ms <= high:
            raise ValueError(f"a duration from {spelled(low)} to {spelled(high)}")
        return ms

    return ValueKind(read, flag={"metavar": "TIME"}, words=spelled)


def choice(*options: str) -> ValueKind:
    """One of these texts."""

    def read(value: Any) -> str:
        if value not in options:
            raise ValueError(f"one of {', '.join(options)}")
        return str(value)

    return ValueKind(read, flag={"choices": options})
