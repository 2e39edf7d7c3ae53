"""Logs: lines for people on a terminal, JSON objects otherwise; to standard error, or a file."""

from __future__ import annotations

import logging
import os
import stat
import sys
import time
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import IO, Any

import msgspec
import structlog

from hum_workers.errors import UsageError
from hum_workers.program.log_stream import PatientStream
from hum_workers.program.seldom import Seldom

LEVELS = ("debug", "info", "warning", "error")
ASKED_FOR = frozenset(
    "worker.tone.dropped worker.tone.failed worker.tool.result_unexpected worker.line.dropped "
    "worker.tool.parked_dropped worker.tool.parked_expired worker.prompt.handle.failed "
    "worker.turn.repeated worker.turn.failed worker.metrics.turned_away "
    "worker.metrics.failed worker.slice.foreign worker.slice.no_stream "
    "worker.gathering.changed_failed worker.gathering.door_failed".split()
)
"""Events that a peer can cause as often as it likes: a few lines a minute of each reason."""
MOST_LINES = 600
"""Lines of any other event in a minute."""
_patient: list[PatientStream] = []
"""The stream of standard error, where it is one."""


def configure(level: str = "info", file: Path | None = None) -> None:
    """Sets up the log of this process.

    Raises:
        UsageError: the file can't be opened.
    """
    _patient.clear()
    people = file is None and sys.stderr is not None and sys.stderr.isatty()
    stream = _standard_error(people) if file is None else _SafeStream(_opened(file))
    # What asyncio says of a task nobody asked about must not wait for a reader either.
    logging.lastResort = logging.StreamHandler(stream)
    logging.lastResort.setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            Limited(time.monotonic),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S" if people else "iso", utc=not people),
            *_renderers(people),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(stream),  # type: ignore[arg-type]
        cache_logger_on_first_use=True,
    )


def for_people() -> bool:
    """Says whether the log is for a terminal, where no field but text is easy to read."""
    processors = structlog.get_config()["processors"]
    return any(isinstance(one, structlog.dev.ConsoleRenderer) for one in processors)


class Limited:
    """Drops what is said too often; the next line that passes says how many were left out."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._asked_for = Seldom(now)
        self._others = Seldom(now, MOST_LINES)

    def __call__(
        self, logger: Any, method: str, entry: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        event = str(entry.get("event"))
        if event in ASKED_FOR:
            why = str(entry.get("reason") or entry.get("code", ""))
            missed = self._asked_for.left_out(f"{event} {why[:80]}")
        else:
            missed = self._others.left_out(event[:80])
        if missed is None:
            raise structlog.DropEvent
        if missed:
            entry["left_out"] = missed
        return entry


def say_last(text: str) -> None:
    """Writes a line to standard error, behind the log lines that wait for it.

    Waits no longer than half a second for a reader.
    """
    if not _patient:
        print(text, file=sys.stderr)  # noqa: T201
    for stream in _patient:
        stream.write(text + "\n")
        stream.finish()


def _renderers(people: bool) -> list[Any]:
    if people:
        colors = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        # In the order in which they were given: what it is about, then what is said of it.
        return [structlog.dev.ConsoleRenderer(pad_event_to=28, colors=colors, sort_keys=False)]
    return [
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(ensure_ascii=False, default=str),
    ]


def _opened(file: Path) -> IO[str]:
    # Without O_NONBLOCK a pipe without a reader would be waited for, here and now.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        if file.exists() and not file.is_file():
            raise UsageError(f"{file}: the log can't be written: it is no regular file")
        return open(os.open(file, flags, 0o644), "a", encoding="utf-8", buffering=1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{file}: the log can't be written: {why}") from error


def _standard_error(people: bool) -> _SafeStream | PatientStream:
    """Returns what never waits for the reader of standard error."""
    if sys.stderr is None or stat.S_ISREG(os.fstat(2).st_mode):
        return _SafeStream(sys.stderr)
    stream = PatientStream(2, _dropped_for_people if people else _dropped)
    _patient[:] = [stream]
    return stream


def _dropped_for_people(count: int) -> str:
    return f"{time.strftime('%H:%M:%S')} [warning  ] worker.log.dropped           lines={count}\n"


def _dropped(count: int) -> str:
    line = {
        "lines": count,
        "event": "worker.log.dropped",
        "level": "warning",
        "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    return msgspec.json.encode(line).decode() + "\n"


class _SafeStream:
    """A regular file, which may be full: a lost log line must not end a bee."""

    def __init__(self, stream: IO[str] | None) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(text)
        except (OSError, ValueError, UnicodeError):
            return

    def flush(self) -> None:
        if self._stream is None:
            return
        try:
            self._stream.flush()
        except (OSError, ValueError):
            return
