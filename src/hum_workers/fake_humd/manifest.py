"""What humd keeps of a hello: the manifest of one bee, in the order in which humd writes it.

Pure. Fields that are empty or not of the expected form are left out, as in humd's `bees.json`.
"""

from __future__ import annotations

import re
from typing import Any

Manifest = dict[str, Any]

_HID = re.compile(r"(?:([a-z]+)_)?([0-9a-f]{64})")


def manifest(hello: dict[str, Any], client: str) -> Manifest | None:
    """Returns the manifest of a hello, or None when it names neither `hive` nor `from`."""
    name = _string(hello.get("hive")) or _string(hello.get("from"))
    if name is None:
        return None
    propensity = hello.get("propensity")
    kept: Manifest = {
        "name": name,
        "version": _string(hello.get("version")) or "0.0.0",
        "proto_version": _string(hello.get("protoVersion")) or "0.7.0",
        "propensity": propensity if isinstance(propensity, dict) else {},
        "chis": _strings(hello.get("chis")),
        "source": _string(hello.get("source")),
        "bind": _bind(hello.get("bind")),
        "nestlerId": _string(hello.get("nestlerId")) or client,
        "bee": _roles(hello.get("bee")),
        "hid": canonical_hid(hello.get("hid")),
        "models": _strings(hello.get("models")),
        "provides": _strings(hello.get("provides")),
        "tools": _tools(hello.get("tools")),
    }
    return {key: value for key, value in kept.items() if value not in (None, [])}


def canonical_hid(hid: object) -> str | None:
    """Returns the hid as humd keeps it: 64 lower-case hex after a role, `humd_` when bare."""
    found = _HID.fullmatch(hid) if isinstance(hid, str) else None
    return f"{found[1] or 'humd'}_{found[2]}" if found else None


def _string(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _strings(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _roles(value: object) -> list[str]:
    return [value] if isinstance(value, str) else _strings(value)


def _bind(value: object) -> dict[str, Any] | None:
    if not isinstance(value, dict) or not isinstance(value.get("host"), str):
        return None
    return value


def _tools(value: object) -> list[dict[str, Any]]:
    entries = value if isinstance(value, list) else []
    return [
        {
            "name": entry["name"],
            "description": _string(entry.get("description")) or "",
            "inputSchema": entry.get("inputSchema"),
        }
        for entry in entries
        if isinstance(entry, dict) and isinstance(entry.get("name"), str)
    ]
