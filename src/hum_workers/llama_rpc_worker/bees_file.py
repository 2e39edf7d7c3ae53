"""The slices that a humd knows, by its `bees.json`: a hint where to knock, never a proof.

After a crash of humd the file lists bees that are gone (thrum, section 4).
"""

from __future__ import annotations

from pathlib import Path

import msgspec

HIVE, SCHEME = "llama-rpc-worker", "hum-slice"
MOST_BYTES = 4 * 1024 * 1024
"""Of a file that is read; a humd with a thousand bees has a tenth of it."""
MOST_SLICES = 64
"""That are knocked at."""
LONGEST_HOST = 253
_UNREADABLE = OSError, msgspec.MsgspecError, ValueError, RecursionError
"""What reading and the decoder raise: for what is deeply nested, no error of its own."""


class _Bind(msgspec.Struct):
    host: str
    port: int
    scheme: str = ""


class _Bee(msgspec.Struct):
    name: str = ""
    hid: str = ""
    bind: _Bind | None = None


def slices(path: Path) -> list[tuple[str, int, str]]:
    """Returns host, port and hid of each slice's door, by hid; none without a readable file."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        bees = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except _UNREADABLE:
        return []
    found = {}
    for raw in bees.values():
        try:
            bee = msgspec.json.decode(raw, type=_Bee)
        except _UNREADABLE:
            continue
        bind = bee.bind
        if bind is not None and bee.name == HIVE and bee.hid and _is_a_door(bind):
            found[bee.hid] = (bind.host, bind.port, bee.hid)
    return [found[hid] for hid in sorted(found)][:MOST_SLICES]


def _is_a_door(bind: _Bind) -> bool:
    host = bind.host
    named = 0 < len(host) <= LONGEST_HOST and host.isprintable() and " " not in host
    return named and bind.scheme == SCHEME and 0 < bind.port < 65536
