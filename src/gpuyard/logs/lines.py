"""Formats log records as text or JSON: a message is always one line, even when others have put line ends into it."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import IO, Any

from gpuyard.logs.request_context import current
from gpuyard.model.text import printable

LONGEST = 8000
"""Most characters of a message, and of an exception."""
FIELDS = "fields"
"""Attribute of a record with further data, as a mapping of plain values. JSON has them beside the message."""


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """What is at least so grave is written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"


class TextLines(logging.Formatter):
    """Formats as ``TIME LEVEL logger [loop id] message``, with lines of a traceback indented below."""

    def format(self, record: logging.LogRecord) -> str:
        errand = current()
        where = " ".join(part for part in (errand.loop, errand.request_id) if part)
        words = [_time(record), record.levelname, record.name, f"[{where}]" if where else "", _message(record)]
        trace_lines = self.formatException(record.exc_info)[-LONGEST:].splitlines() if record.exc_info else []
        return "\n".join(
            [printable(" ".join(word for word in words if word)), *(f"    {printable(x)}" for x in trace_lines)]
        )


class JsonLines(logging.Formatter):
    """Formats as an object: ``time`` (UTC), ``level``, ``logger``, ``message``, and where there are such
    ``request_id``, ``loop``, ``exception`` and the record's `FIELDS`."""

    def format(self, record: logging.LogRecord) -> str:
        errand = current()
        level = record.levelname.lower()
        line: dict[str, Any] = {
            "time": _time(record),
            "level": level,
            "logger": record.name,
            "message": _message(record),
        }
        more = {
            "request_id": errand.request_id,
            "loop": errand.loop,
            "exception": self.formatException(record.exc_info)[-LONGEST:] if record.exc_info else "",
        }
        fields: Mapping[str, Any] = getattr(record, FIELDS, {})
        return json.dumps({**fields, **line, **{key: value for key, value in more.items() if value}})


def set_up(form: LogFormat, level: LogLevel, stream: IO[str] | None = None) -> None:
    """Have the process write its log to `stream`, stderr by default. Libraries log from warnings on only: their lines
    below that may have tokens in them."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if form is LogFormat.JSON else TextLines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("gpuyard").setLevel(level.upper())


def _message(record: logging.LogRecord) -> str:
    return record.getMessage()[:LONGEST]


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
