"""The code of the design guards' document, as it stands there, with the names that its reader has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from windlass.dialects import guards

_TEXT = (Path(__file__).parent / "guards_document.txt").read_text()
_RULES = ("INV-001", "INV-002", "INV-004", "INV-006", "example")
BLOCKS = dict(zip(_RULES, re.findall(r"^```\w+\n(.*?)^```$", _TEXT, re.S | re.M), strict=True))
"""The blocks of code by the rule that they are an example of."""


def namespace(scheduler: guards.Scheduler, block: str) -> dict[str, Any]:
    """What a block defines, where its other names are those of the package, on a scheduler."""
    guards.use(scheduler)
    names = {name: getattr(guards, name) for name in guards.__all__} | {"pytest": pytest}
    exec(compile(block, "guards_document.txt", "exec"), names)
    return names
