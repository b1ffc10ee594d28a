"""The settings of the dialect: the table [dialects.so1]."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from windlass.engine import checks

_is_origin = re.compile(r"https?://[A-Za-z0-9._\[\]:-]+").fullmatch
_is_function = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*").fullmatch


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """How the protocol is served."""

    queue: str = "so1"
    verify: str | None = None  # module:function, which identifies the caller by its token
    mock: bool = False  # tokens clerk_USER_ORG, which need no secret, identify a caller; on loopback only
    origins: tuple[str, ...] = ()  # of pages that may read the answers
    keep: Mapping[str, tuple[str, ...]] = {}  # the members of inputs that are stored, by action; an action without an entry keeps all

    def __post_init__(self) -> None:
        checks.name(self.queue, "A queue's name")
        for origin in self.origins:
            if not _is_origin(origin):
                raise ValueError(f"{origin!r:.80} is not an origin, such as https://console.example")
        if self.verify is not None and not _is_function(self.verify):
            raise ValueError(f"{self.verify!r:.80} is not a function, such as sessions:verify")

    def kept(self, action: str, inputs: Mapping[str, object]) -> dict[str, object]:
        """The inputs of an action that are stored."""
        names = self.keep.get(action)
        return {name: value for name, value in inputs.items() if names is None or name in names}
