"""Engines that have other limits, or another clock, than they were made with."""

from __future__ import annotations

from typing import Any

from windlass.engine import Engine


def set_ground(engine: Engine, **values: Any) -> None:
    """Let an engine stand on these from now on; what it knows of lanes and jobs stays."""
    ground = engine.parts.ground
    for name, value in values.items():
        setattr(ground, name, value)
    engine.__dict__.clear()
    engine._begin(ground)
