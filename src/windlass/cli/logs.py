"""Logging of commands that keep running: on standard error, as text or as one JSON object a line."""

from __future__ import annotations

import json
import logging
import math
from datetime import UTC, datetime
from typing import Any

from windlass.cli.output import clean, line
from windlass.config.settings import Settings

# What every record has; all else is from a handler's run, or from `extra`.
_STANDARD = {*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName"}


class TextFormat(logging.Formatter):
    """One line for each record, whatever is in it; a traceback below it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = line(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        return clean(super().formatException(ei))


class JsonFormat(logging.Formatter):
    """One JSON object a line, with the extra fields of a record, and its traceback as one text."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        extra = {name: _plain(value) for name, value in record.__dict__.items() if name not in _STANDARD}
        fields = {"time": when, "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        return json.dumps(extra | fields | self._below(record))  # in ASCII: no character of any message ends the line

    def _below(self, record: logging.LogRecord) -> dict[str, str]:
        traceback = self.formatException(record.exc_info) if record.exc_info else record.exc_text
        below = {"traceback": traceback, "stack": record.stack_info}
        return {name: text for name, text in below.items() if text}


def _plain(value: Any) -> Any:
    """A value that JSON can express; any other becomes a text."""
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)


def start_logging(settings: Settings) -> None:
    """Log worker, hub and handlers on standard error, unless the app configures logging itself later."""
    filled = settings.filled()
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormat() if filled.log_format == "json" else TextFormat())
    logging.basicConfig(level=str(filled.log_level).upper(), handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)  # else it logs every request
