"""What is wrong, and what to do about it."""

from __future__ import annotations

from msgspec import Struct

from windlass.engine import Finding


class Diagnosis(Struct, frozen=True):
    """Everything that was found, the worst first."""

    findings: list[Finding]
