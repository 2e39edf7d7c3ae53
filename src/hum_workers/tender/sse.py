"""Server-sent events: bytes in, payloads of whole events out.

Pure. Holds the bytes of an event that has not ended, at most `limit`; an event that the end of the
stream cuts is dropped with the object (WHATWG HTML, section 9.2.6).
"""

from __future__ import annotations

from hum_workers.errors import ErrorCode, TurnError

MAX_EVENT = 16 * 1024 * 1024
"""Bytes of one event at most."""

_PREFIX = b"data: "


class EventStream:
    """Splits one stream. Lines end with LF, CRLF or CR; comments and other fields are ignored."""

    __slots__ = ("_after_cr", "_limit", "_tail")

    def __init__(self, limit: int = MAX_EVENT) -> None:
        self._limit = limit
        self._tail = bytearray()
        self._after_cr = False

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the data of the events that `data` completes, in order.

        Raises:
            TurnError: one event is over the limit.
        """
        if self._after_cr or b"\r" in data:
            data = self._plain_newlines(data)
        tail = self._tail
        if not tail and data.startswith(_PREFIX) and data.endswith(b"\n\n"):
            # One event a read: what a model sends while it generates.
            if data.count(b"\n") == 2 and len(data) <= self._limit:
                return [data[6:-2]]
        if tail:
            # One byte back: the blank line may lie across two reads.
            seen = len(tail) - 1
            tail += data
            end = tail.rfind(b"\n\n", seen)
            if end < 0:
                self._check(len(tail))
                return []
            head = bytes(tail[:end])
            del tail[: end + 2]
        elif data.endswith(b"\n\n"):
            head = data[:-2]
        else:
            end = data.rfind(b"\n\n")
            tail += data[end + 2 :] if end >= 0 else data
            self._check(len(tail))
            if end < 0:
                return []
            head = data[:end]
        return self._payloads(head)

    def _payloads(self, head: bytes) -> list[bytes]:
        if head.startswith(_PREFIX):
            payloads = head[6:].split(b"\n\ndata: ")
            # No newline beside those between events: nothing but one `data` line in each.
            if head.count(b"\n") == 2 * (len(payloads) - 1):
                if len(head) > self._limit:
                    self._check(max(map(len, payloads)))
                return payloads
        blocks = head.split(b"\n\n")
        if len(head) > self._limit:
            self._check(max(map(len, blocks)))
        found = (_data(block) for block in blocks)
        return [payload for payload in found if payload is not None]

    def _plain_newlines(self, data: bytes) -> bytes:
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]
        elif not data:
            return data
        self._after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise TurnError(
                ErrorCode.ENGINE_ERROR,
                f"the engine sent one event of more than {self._limit} bytes",
            )


def _data(block: bytes) -> bytes | None:
    """Returns the joined `data` lines of one event; None if it has none."""
    lines: list[bytes] = []
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"data":
            lines.append(value[1:] if value.startswith(b" ") else value)
    return b"\n".join(lines) if lines else None
