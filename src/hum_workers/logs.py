"""Logs: lines for people on a terminal, JSON objects otherwise; to standard error, or a file."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import IO, Any

import structlog

from hum_workers.errors import UsageError

LEVELS = ("debug", "info", "warning", "error")


def configure(level: str = "info", file: Path | None = None) -> None:
    """Sets up the log of this process.

    Raises:
        UsageError: the file can't be opened.
    """
    stream: IO[str] = sys.stderr
    if file is not None:
        try:
            stream = file.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            raise UsageError(f"{file}: the log can't be written: {error.strerror}") from error
    people = file is None and stream.isatty()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S" if people else "iso", utc=not people),
            *_renderers(people),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(_SafeStream(stream)),  # type: ignore[arg-type]
        cache_logger_on_first_use=True,
    )


def _renderers(people: bool) -> list[Any]:
    if people:
        return [structlog.dev.ConsoleRenderer(pad_event_to=28)]
    return [
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(ensure_ascii=False, default=str),
    ]


class _SafeStream:
    """A stream whose reader may leave: a lost log line must not end a bee."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        try:
            self._stream.write(text)
        except (OSError, ValueError, UnicodeError):
            return

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            return
