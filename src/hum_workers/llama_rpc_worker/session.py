"""The session of questions on one connection to a slice's door: who waits for which answer."""

from __future__ import annotations

import asyncio

import asyncssh

from hum_workers.errors import FrameError
from hum_workers.llama_rpc_worker.questions import Answer, Lines, answer_in

MOST_OPEN = 16
"""Questions without an answer."""


class Session(asyncssh.SSHClientSession[bytes]):
    """See the module."""

    def __init__(self) -> None:
        self._lines = Lines()
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._channel: asyncssh.SSHClientChannel[bytes] | None = None

    async def ask(self, number: int, line: bytes) -> Answer:
        """Sends a line and returns the answer of that number.

        Raises:
            ConnectionError: the session is over.
            FrameError: what came can't be read, and ended it.
        """
        if self._channel is None or self._channel.is_closing() or len(self._waiting) >= MOST_OPEN:
            raise ConnectionError("the session is over")
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            self._channel.write(line)
            return await future
        finally:
            del self._waiting[number]

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self._channel = chan

    def connection_lost(self, exc: Exception | None) -> None:
        self._channel = None
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionError("the session is over"))

    def data_received(self, data: bytes, datatype: int | None) -> None:
        try:
            for line in self._lines.feed(data):
                answer = answer_in(line)
                future = self._waiting.get(answer.id)
                if future is not None and not future.done():
                    future.set_result(answer)
        except FrameError as error:
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(error)
            if self._channel is not None:  # the session and all else: the next one is a new one
                self._channel.get_connection().abort()
