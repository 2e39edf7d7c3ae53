"""How a turn's tool calls get to humd: as tones that are made when it is their turn (pure).

The models of the bee may change while a call waits, and a call must not go out on another
connection than the one on which its turn began: it would claim the sid for the bee alone (thrum,
section 6). An asker's call goes behind a return route: humd hands a result only to who called a
forager, so for one moment the bee is a forager whose tool is called (section 7).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hum_workers.thrum.tones import encode
from hum_workers.tools.call_id import Owner
from hum_workers.tools.step import Call
from hum_workers.tools.tool import RETURN_ROUTE

_FORAGER = {
    "bee": ["worker", "forager"],
    "tools": [
        {
            "name": RETURN_ROUTE,
            "description": "Not to be called: it brings an asker's tool result back to its worker.",
            "inputSchema": {"type": "object"},
        }
    ],
}


@dataclass(frozen=True)
class ToolLine:
    """The connection on which a turn began."""

    alive: Callable[[], bool]
    """Whether it stands still."""
    hello: Callable[[], Mapping[str, Any]]
    """Returns the bee's ordinary hello as of now, and counts it as said."""

    def line(self, call: Call, sid: str) -> tuple[Callable[[], bytes | None], int, int]:
        """Returns what makes the bytes of a call, how many its own tone has, and its tones.

        It makes None when the connection has gone. Of an asker's call all four tones count, though
        only the last one goes to the asker: humd answers the others into the bee's own queue,
        where they must not take the room of prompts and results.
        """
        tone = encode(call.tone(sid))
        if call.owner is Owner.FORAGER:
            return lambda: tone if self.alive() else None, len(tone), 1
        return lambda: self._routed(call, sid, tone) if self.alive() else None, len(tone), 4

    def _routed(self, call: Call, sid: str, tone: bytes) -> bytes:
        hello = self.hello()
        route = {
            "chi": "tool-call",
            "sid": sid,
            "callId": call.call_id,
            "toolName": RETURN_ROUTE,
            "name": RETURN_ROUTE,
            "args": {},
        }
        return b"".join((encode({**hello, **_FORAGER}), encode(route), encode(hello), tone))
