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
    except (OSError, msgspec.MsgspecError):
        return []
    found = {}
    for raw in bees.values():
        try:
            bee = msgspec.json.decode(raw, type=_Bee)
        except msgspec.MsgspecError:
            continue
        bind = bee.bind
        known = bind is not None and bind.scheme == SCHEME and 0 < bind.port < 65536
        if bind is not None and known and bee.name == HIVE and bee.hid:
            found[bee.hid] = (bind.host, bind.port, bee.hid)
    return [found[hid] for hid in sorted(found)][:MOST_SLICES]
