"""Types of an egg's values, and the base of its tables. The disk is only asked what is there.

A value comes out as the code needs it: sizes in bytes, durations in seconds, paths absolute. Each
check raises `ValueError` with the rest of a sentence that begins with the key.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
)

from hum_workers.egg import units
from hum_workers.egg.mistakes import LATER

SOCKET_PATH_MAX = 107
"""Bytes of a Unix socket's path on Linux, without its final zero."""


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be empty")
    if any(ord(c) < 32 or ord(c) == 127 for c in value):
        raise ValueError("must not hold control characters")
    return value


def _word(value: str) -> str:
    if "\0" in value:
        raise ValueError("must not hold a NUL character")
    return value


def expand_path(value: object, info: ValidationInfo) -> Path:
    """Returns a path of an egg, absolute: relative ones are relative to the egg's folder."""
    if not isinstance(value, str):
        raise ValueError("must be a path in quotes")
    path = os.path.expanduser(_text(value))
    if path.startswith("~"):
        raise ValueError(f'"{value}" names a home folder that is not there')
    folder = (info.context or {}).get("folder", os.curdir)
    return Path(os.path.normpath(os.path.join(os.path.abspath(folder), path)))


def _socket_path(path: Path) -> Path:
    size = len(os.fsencode(path))
    if size > SOCKET_PATH_MAX:
        raise ValueError(f"is {size} bytes long; a socket's path has {SOCKET_PATH_MAX} at most")
    return path


def _interpreter(value: str, info: ValidationInfo) -> str:
    """Returns an absolute interpreter, or a name to be found in PATH as it is."""
    if "/" not in value and not value.startswith("~"):
        return value
    path = expand_path(value, info)
    if not (os.path.isfile(path) and os.access(path, os.X_OK)):
        raise ValueError(f"{path} is no program")
    return str(path)


def _url(value: str) -> str:
    if not re.match(r"^https?://[^\s/]+", value):
        raise ValueError('must be a URL, like "https://example.org/models"')
    return value


def _name(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,63}", value):
        raise ValueError("must be 1 to 64 of a-z, 0-9, dot, dash and underscore")
    return value


def _domain(value: str) -> str:
    host = value.lower()
    bare = host.removeprefix("*.")
    if not re.fullmatch(r"(?!-)[a-z0-9-]+(\.[a-z0-9-]+)*", bare) or len(bare) > 253:
        raise ValueError(
            'must be a host like "example.org", or "*.example.org" for all below it; no scheme, '
            "port or path"
        )
    return host


def _tool_names(value: object) -> object:
    names = value if isinstance(value, list) else [] if isinstance(value, bool) else None
    if names is None or not all(isinstance(name, str) and name for name in names):
        raise ValueError("must be true, false or an array of the names of tools")
    return value


def later_value(*values: str) -> BeforeValidator:
    """Refuses, by name, values of a capability that comes later."""

    def check(value: object) -> object:
        if isinstance(value, str) and value in values:
            raise ValueError(f'"{value}" {LATER}')
        return value

    return BeforeValidator(check)


Text = Annotated[str, AfterValidator(_text), WithJsonSchema({"type": "string", "minLength": 1})]
Word = Annotated[str, AfterValidator(_word)]
Name = Annotated[Text, AfterValidator(_name)]
Url = Annotated[Text, AfterValidator(_url)]
Domain = Annotated[Text, AfterValidator(_domain)]
Program = Annotated[Text, AfterValidator(_interpreter)]
EggPath = Annotated[
    Path, BeforeValidator(expand_path), WithJsonSchema({"type": "string", "minLength": 1})
]
SocketPath = Annotated[EggPath, AfterValidator(_socket_path)]
Size = Annotated[
    int,
    BeforeValidator(units.parse_size),
    WithJsonSchema({"type": "string", "pattern": units.SIZE_PATTERN}),
    Field(gt=0),
]
Grace = Annotated[
    float,
    BeforeValidator(units.parse_duration),
    WithJsonSchema({"type": "string", "pattern": units.DURATION_PATTERN}),
]
Duration = Annotated[Grace, Field(gt=0)]
Cpus = Annotated[
    str,
    BeforeValidator(units.parse_cpus),
    WithJsonSchema({"type": "string", "pattern": units.CPUS_PATTERN}),
]
Listen = Annotated[
    str,
    BeforeValidator(units.parse_listen),
    WithJsonSchema(
        {
            "type": ["string", "integer"],
            "pattern": units.LISTEN_PATTERN,
            "minimum": 0,
            "maximum": 65535,
        }
    ),
]
Count = Annotated[int, Field(ge=1)]
ToolNames = Annotated[bool | list[str], BeforeValidator(_tool_names)]


def seconds(default: str, description: str) -> Any:
    """A field of type `Duration` or `Grace` whose default is written as in an egg."""
    return Field(default=default, validate_default=True, description=description)


class Table(BaseModel):
    """One table of an egg: no unknown keys, no silent conversion, no change after reading."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        defer_build=True,
        allow_inf_nan=False,
        validate_by_name=False,
        validate_by_alias=True,
    )
