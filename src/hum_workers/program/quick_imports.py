"""Two libraries, imported without what they bring along and a bee never uses (pure).

Import this module before the first `structlog` or `pydantic` of a program: together it saves some
80 ms between start and hello where an engine's packages lie in the same environment.
"""

from __future__ import annotations

import os
import sys

UNUSED = ("rich", "better_exceptions")
"""structlog loads them for coloured tracebacks where they are installed: 60 ms."""


def _structlog() -> None:
    absent = [name for name in UNUSED if name not in sys.modules]
    for name in absent:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        import structlog  # noqa: F401
    finally:
        for name in absent:
            del sys.modules[name]


# pydantic reads the metadata of every installed package in search of plug-ins.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
_structlog()
