"""A byte stream between a socket and a channel of the door: two ends, each the other's reader.

An end that is over after its end of file closes the other when all is written; one that breaks
breaks the other at once, and what was not written yet is dropped.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from hum_workers.llama_rpc_worker.gate import BULK


class Side(Protocol):
    """What an end writes to: a socket's transport, or a channel, which looks the same."""

    def write(self, data: bytes) -> None:
        """Queues the data."""

    def write_eof(self) -> None:
        """Says that no more follows."""

    def pause_reading(self) -> None:
        """Stops `data_received`."""

    def resume_reading(self) -> None:
        """Goes on."""

    def is_closing(self) -> bool:
        """Says whether writing is over."""
        ...

    def close(self) -> None:
        """Closes it when all is written."""

    def abort(self) -> None:
        """Closes it now."""


class End(asyncio.Protocol):
    """One end; what comes in here goes out of the other. Ends live as long as both sides do."""

    takes_turns = True
    """After a large read others have their turn, as after one at a `Gate`; a channel has one."""

    def __init__(self) -> None:
        self.other: End | None = None
        self.received = 0
        """Bytes."""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when this side is closed."""
        self._side: Side | None = None
        self._early: list[bytes] = []
        self._eof = False
        self._full = False
        self._resting = False

    @property
    def carried(self) -> tuple[int, int]:
        """Bytes from this side, and to it."""
        return self.received, self.other.received if self.other is not None else 0

    def join(self, other: End) -> None:
        """Makes two ends one stream; what came early goes on its way."""
        self.other, other.other = other, self
        for end in (self, other):
            end._catch_up()

    def connection_made(self, transport: object) -> None:
        """The side is there: an asyncio transport or an SSH channel."""
        self._side = cast(Side, transport)

    def session_started(self) -> None:
        """Nothing to do: a channel says this, a transport does not."""

    def data_received(self, data: bytes, datatype: int | None = None) -> None:
        """Passes the data on, or keeps the little that comes before there is another end."""
        self.received += len(data)
        if self.other is not None:
            self.other._write(data)
            if self.takes_turns and len(data) >= BULK:
                self._rest()
            return
        self._early.append(data)
        if self._side is not None:
            self._side.pause_reading()

    def eof_received(self) -> bool:
        """Half of the stream is over; the side stays open for the other half."""
        self._eof = True
        if self.other is None:
            return True
        self.other._write_eof()
        return not self.other._eof

    def pause_writing(self) -> None:
        """This side takes no more now: the other end stops reading."""
        if self.other is not None:
            self.other._full = True
            self.other._read_or_not()

    def resume_writing(self) -> None:
        """This side takes more."""
        if self.other is not None:
            self.other._full = False
            self.other._read_or_not()

    def connection_lost(self, exc: BaseException | None) -> None:
        """This side is closed; the other one follows."""
        if not self.over.done():
            self.over.set_result(None)
        side, self._side = self._side, None
        if side is not None and self.other is not None:
            # SSH knows no reset: a channel that breaks is closed without an end of file.
            if exc is None and self._eof:
                self.other.close()
            else:
                self.other.abort()

    def close(self) -> None:
        """Closes this side when all is written."""
        if self._side is not None:
            self._side.close()

    def abort(self) -> None:
        """Closes this side now."""
        if self._side is not None:
            self._side.abort()

    def _catch_up(self) -> None:
        assert self.other is not None
        if self._side is None:
            self.other.close()
            return
        for data in self._early:
            self.other._write(data)
        self._early.clear()
        if self._eof:
            self.other._write_eof()
        self._read_or_not()

    def _rest(self) -> None:
        self._resting = True
        self._read_or_not()
        asyncio.get_running_loop().call_soon(self._rested)

    def _rested(self) -> None:
        self._resting = False
        self._read_or_not()

    def _read_or_not(self) -> None:
        if self._side is None:
            return
        if self._full or self._resting:
            self._side.pause_reading()
        elif not self._side.is_closing():
            self._side.resume_reading()

    def _write(self, data: bytes) -> None:
        if self._side is not None and not self._side.is_closing():
            self._side.write(data)

    def _write_eof(self) -> None:
        if self._side is not None and not self._side.is_closing():
            self._side.write_eof()
