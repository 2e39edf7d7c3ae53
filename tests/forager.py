"""A forager as a client of humd: it lends tools and answers their calls as a test tells it to."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from hum_workers.fake_humd.asker import Asker
from hum_workers.fake_humd.wire import Tone
from tests.rig import WAIT

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}


class Forager(Asker):
    """`async with await Forager.lend(socket, "read", "write") as forager`.

    `answers` says what a call is answered with; what returns None stays without an answer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: deque[Tone] = deque()
        """Calls in the order in which they came."""
        self.answers: Callable[[Tone], Tone | None] = output
        self._news = asyncio.Event()

    @classmethod
    async def lend(cls, socket: Path, *names: str) -> Self:
        """Returns a forager that humd knows."""
        forager = await cls.connect(socket)
        tools = [{"name": name, "description": name, "inputSchema": SCHEMA} for name in names]
        forager.send(
            {
                "chi": "hello",
                "rid": "hello",
                "bee": ["forager"],
                "hid": f"fbee_{'0' * 64}",
                "from": f"fbee_{'0' * 64}",
                "hive": "humfs",
                "tools": tools,
                "provides": ["fs"],
            }
        )
        await forager.echoed("hello")
        return forager

    def answer(self, call: Tone, **fields: Any) -> None:
        """Sends the result of a call."""
        result = {"chi": "tool-result", "sid": call["sid"], "callId": call["callId"]}
        self.send({**result, "toolName": call["toolName"], "title": "", "metadata": {}, **fields})

    async def called(self, count: int) -> list[Tone]:
        """Returns the first calls, once there are so many."""
        async with asyncio.timeout(WAIT):
            while len(self.calls) < count:
                self._news.clear()
                await self._news.wait()
        return list(self.calls)

    def _hear(self, now: float, tone: Tone) -> None:
        if tone["chi"] != "tool-call":
            super()._hear(now, tone)
            return
        self.calls.append(tone)
        self._news.set()
        reply = self.answers(tone)
        if reply is not None:
            self.send(reply)


def output(call: Tone) -> Tone:
    """Answers with the name and the arguments of the call."""
    return {
        "chi": "tool-result",
        "sid": call["sid"],
        "callId": call["callId"],
        "toolName": call["toolName"],
        "output": f"{call['toolName']}:{call['args'].get('path', '')}",
        "isError": False,
    }


def failure(call: Tone) -> Tone:
    """Answers with an `error`."""
    return {"chi": "error", "sid": call["sid"], "callId": call["callId"], "message": "no such file"}


def nothing(call: Tone) -> None:
    """Never answers."""
