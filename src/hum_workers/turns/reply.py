"""Reply: the tones of one turn, from `session-ready` to its one ending (thrum, section 6).

Pure: it turns engine events into calls on an outbox and keeps the block numbers. Reasoning and
text are separate blocks; a block is started, filled and stopped before the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hum_workers.errors import ErrorCode, TurnError
from hum_workers.frames import Mmm
from hum_workers.thrum.outbox import Outbox
from hum_workers.thrum.tones import Kind

FINISH_REASONS = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_use",
    "content_filter": "content_filter",
    "cancelled": "cancelled",
}
"""The engine's finish reasons, and ours for a cancel, to hum's."""


class Reply:
    """One turn's tones. Nothing is sent after the ending."""

    def __init__(self, sid: str, outbox: Outbox) -> None:
        self.sid = sid
        self.started = False
        """Whether text or reasoning was sent: such a turn can't be repeated silently."""
        self.ended = False
        self.on_end: Callable[[str, Mapping[str, Any] | None], None] = _nothing
        """Called once, with the reason or code of the ending and the engine's usage."""
        self._outbox = outbox
        self._announced = False
        self._block = -1
        self._open: Kind | None = None

    def announce(self, cell_id: str, model: str, tools: Sequence[str] = ()) -> None:
        """Sends `session-ready` with the names of the tools that are offered, once a turn."""
        if not self._announced:
            self._announced = True
            self._outbox.tone(
                {
                    "chi": "session-ready",
                    "sid": self.sid,
                    "nestId": cell_id,
                    "model": model,
                    "tools": [{"name": name} for name in tools],
                }
            )

    def pulse(self, kind: str, cell_id: str, pid: int) -> None:
        """Tells of an event in the life of the turn's cell; nothing after the ending."""
        if not self.ended:
            self._outbox.tone(
                {"chi": "pulse", "sid": self.sid, "kind": kind, "cellId": cell_id, "pid": pid}
            )

    def write(self, kind: Mmm, text: str) -> None:
        """Sends text or reasoning, opening a block for it where needed."""
        name: Kind = "text" if kind == Mmm.TEXT else "reasoning"
        if self._open != name:
            self._close_block()
            self._block += 1
            self._open = name
            self.started = True
            self._chunk(f"{name}_start")
        self._outbox.delta(name, self._block, text)

    @property
    def blocks(self) -> int:
        """Blocks of text and reasoning that were begun so far."""
        return self._block + 1

    def stop_block(self) -> None:
        """Ends the block that is open; what follows begins another."""
        self._close_block()

    def call(
        self, make: Callable[[], bytes | None], size: int, tones: int, lost: TurnError
    ) -> None:
        """Sends a tool call, made when it is its turn; if it can't be, the turn ends as `lost`."""
        self._outbox.late(make, size, tones, _error(lost) | {"sid": self.sid})

    def tool(self, chunk: Mapping[str, Any]) -> None:
        """Sends a chunk about a tool; nothing after the ending."""
        if not self.ended:
            self._outbox.tone(chunk)

    def discard(self) -> None:
        """Drops what was not yet sent; the ending still goes."""
        self._outbox.discard()

    def finish(self, reason: str, usage: Mapping[str, Any] | None) -> None:
        """Ends the turn with `finish`; a reason that hum does not know ends it with `error`."""
        known = FINISH_REASONS.get(reason)
        if known is None:
            self.fail(
                TurnError(
                    ErrorCode.ENGINE_ERROR,
                    f"the engine ended the answer with '{reason}'",
                    usage=usage,
                )
            )
            return
        self._end({"chi": "finish", "finishReason": known, "usage": hum_usage(usage)}, usage)

    def fail(self, error: TurnError) -> None:
        """Ends the turn with `error`."""
        self._end(_error(error), error.usage)

    def _end(self, tone: dict[str, Any], usage: Mapping[str, Any] | None) -> None:
        if self.ended:
            return
        self._close_block()
        self.ended = True
        self._outbox.end(tone | {"sid": self.sid})
        self.on_end(tone.get("finishReason") or tone["code"], usage)

    def _close_block(self) -> None:
        if self._open is not None:
            self._open = None
            self._chunk("content_block_stop")

    def _chunk(self, kind: str) -> None:
        self._outbox.tone(
            {"chi": "chunk", "sid": self.sid, "chunkType": kind, "blockIdx": self._block}
        )


def _error(error: TurnError) -> dict[str, Any]:
    """Returns the `error` tone, without its sid."""
    tone: dict[str, Any] = {
        "chi": "error",
        "code": error.code.value,
        "subtype": error.subtype,
        "message": error.message,
    }
    if error.usage is not None:
        tone["usage"] = hum_usage(error.usage)
    return tone


def _nothing(ending: str, usage: Mapping[str, Any] | None) -> None:
    """Stands for nobody who counts."""


def hum_usage(usage: Mapping[str, Any] | None) -> dict[str, int]:
    """Returns the engine's usage as hum counts it: input is what was not cached."""
    if usage is None:
        return {"input_tokens": 0, "output_tokens": 0}
    tokens = {"input_tokens": usage["input"], "output_tokens": usage["output"]}
    if usage.get("cached"):
        tokens["cache_read_input_tokens"] = usage["cached"]
    return tokens
