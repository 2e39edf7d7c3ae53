"""A client that asks: prompts go out, the tones of each conversation are gathered by sid.

Works against humd and the fake humd alike. Owns one connection; `close` ends it and every answer
that still waits. Holds what it hears until it is collected: a tool for tests, benches and a person
at a terminal, not for a daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any, Self, cast

import msgspec

from hum_workers.fake_humd.wire import Lines, Tone, encode

ENDINGS = frozenset({"finish", "error"})

_decode = msgspec.json.Decoder().decode


@dataclass(kw_only=True)
class Answer:
    """One turn as its asker saw it. Times are seconds since the prompt was sent."""

    sid: str
    text: str = ""
    reasoning: str = ""
    ending: Tone | None = None
    """The `finish` or `error` tone, None when the connection went first."""
    tones: list[Tone] = field(default_factory=list)
    first: float | None = None
    """When the first text or reasoning came."""
    took: float | None = None
    """When the ending came."""

    @property
    def complete(self) -> bool:
        """Whether the turn finished and every character sent has arrived, as far as it tells."""
        if self.ending is None or self.ending["chi"] != "finish":
            return False
        sent = self.chars
        return sent is None or sent == len(self.text)

    @property
    def chars(self) -> int | None:
        """Code points the worker says it sent (`ext.<hive>.chars`), None when it does not say."""
        ext = (self.ending or {}).get("ext")
        for value in ext.values() if isinstance(ext, dict) else ():
            if isinstance(value, dict) and isinstance(value.get("chars"), int):
                return int(value["chars"])
        return None


class _Turn:
    """Tones of one sid that nobody has taken yet."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.tones: deque[tuple[float, Tone]] = deque()
        self.more = asyncio.Event()


class Asker(asyncio.Protocol):
    """`async with await Asker.connect(socket) as asker: answer = await asker.ask("hi", "m1")`."""

    def __init__(self) -> None:
        self._lines = Lines()
        self._turns: dict[str, _Turn] = {}
        self._transport: asyncio.Transport | None = None
        self._pauser: asyncio.Task[None] | None = None
        self._echoed = asyncio.Event()
        self.breathed = asyncio.Event()
        """Set at the first tone: humd has accepted the connection."""
        self.closed = asyncio.Event()
        """Set when the connection has ended."""
        self.echoes: dict[str, list[Tone]] = {}
        """Echoes by rid."""
        self.received = 0
        """Tones heard in all."""

    @classmethod
    async def connect(cls, socket: Path | str, timeout: float = 5.0) -> Self:
        """Returns an asker that humd has breathed at.

        Raises:
            OSError: nobody accepts connections there.
            TimeoutError: it was accepted, but nothing came.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout):
            _, asker = await loop.create_unix_connection(cls, str(socket))
            try:
                await asker.breathed.wait()
            except BaseException:
                asker.abort()
                raise
        return asker

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connection."""
        if self._pauser is not None:
            self._pauser.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._pauser
            self._pauser = None
        self.abort()
        await self.closed.wait()

    def abort(self) -> None:
        """Ends the connection without waiting for the loop to notice."""
        if self._transport is not None:
            self._transport.abort()

    def send(self, tone: Tone) -> None:
        """Sends a tone as it is."""
        self.send_raw(encode(tone))

    def send_raw(self, data: bytes) -> None:
        """Sends bytes as they are."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("humd has closed the connection")
        self._transport.write(data)

    def prompt(self, *, sid: str | None = None, **fields: Any) -> str:
        """Sends a prompt with these fields (`text`, `modelId`, …) and returns its sid."""
        sid = sid or f"ask-{token_hex(8)}"
        self._turn(sid).started = time.perf_counter()
        self.send({"chi": "prompt", "sid": sid, **fields})
        return sid

    def cancel(self, sid: str) -> None:
        """Asks whoever runs this conversation to stop."""
        self.send({"chi": "cancel", "sid": sid})

    def cleanup(self, sid: str) -> None:
        """Asks whoever runs this conversation to stop and forget it."""
        self.send({"chi": "cleanup", "sid": sid})

    async def ask(self, text: str, model: str, *, timeout: float = 60.0, **fields: Any) -> Answer:
        """Prompts and collects the answer."""
        return await self.collect(self.prompt(text=text, modelId=model, **fields), timeout)

    async def stream(self, sid: str) -> AsyncIterator[Tone]:
        """Yields the tones of a conversation up to its next ending or the end of the connection."""
        async for _, tone in self._timed(sid):
            yield tone

    async def collect(self, sid: str, timeout: float = 60.0) -> Answer:
        """Returns the answer up to the next ending, or what came before the connection went.

        Raises:
            TimeoutError: no ending in time; what has come is lost.
        """
        turn = self._turn(sid)
        answer = Answer(sid=sid)
        text: list[str] = []
        reasoning: list[str] = []
        async with asyncio.timeout(timeout):
            async for at, tone in self._timed(sid):
                answer.tones.append(tone)
                kind, delta = spoken(tone)
                if delta:
                    (reasoning if kind == "reasoning" else text).append(delta)
                    answer.first = at - turn.started if answer.first is None else answer.first
                if tone["chi"] in ENDINGS:
                    answer.ending, answer.took = tone, at - turn.started
        answer.text, answer.reasoning = "".join(text), "".join(reasoning)
        return answer

    async def echoed(self, rid: str, timeout: float = 5.0) -> Tone:
        """Waits for the echo of a tone that was sent with this rid."""
        async with asyncio.timeout(timeout):
            while rid not in self.echoes:
                if self.closed.is_set():
                    raise ConnectionResetError("humd has closed the connection")
                self._echoed.clear()
                await self._echoed.wait()
        return self.echoes[rid][0]

    def pauses(self, pause: float = 0.3, every: float = 1.0) -> None:
        """Reads nothing for `pause` seconds, once every `every` seconds, from now on."""
        self._pauser = asyncio.create_task(self._pause_now_and_then(pause, every))

    def pause_reading(self) -> None:
        """Reads nothing until `resume_reading`."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Reads again."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    async def _pause_now_and_then(self, pause: float, every: float) -> None:
        while not self.closed.is_set():
            self.pause_reading()
            await asyncio.sleep(pause)
            self.resume_reading()
            await asyncio.sleep(every - pause)

    async def _timed(self, sid: str) -> AsyncIterator[tuple[float, Tone]]:
        turn = self._turn(sid)
        while True:
            while turn.tones:
                at, tone = turn.tones.popleft()
                yield at, tone
                if tone["chi"] in ENDINGS:
                    return
            if self.closed.is_set():
                return
            turn.more.clear()
            await turn.more.wait()

    def _turn(self, sid: str) -> _Turn:
        if (turn := self._turns.get(sid)) is None:
            turn = self._turns[sid] = _Turn()
        return turn

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        for line in self._lines.feed(data):
            try:
                tone = _decode(line)
            except ValueError:
                continue
            self.received += 1
            self._hear(now, tone)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        self._echoed.set()
        for turn in self._turns.values():
            turn.more.set()

    def _hear(self, now: float, tone: Tone) -> None:
        if tone["chi"] == "echo":
            self.echoes.setdefault(str(tone.get("rid")), []).append(tone)
            self._echoed.set()
        elif tone["chi"] == "breath":
            self.breathed.set()
        elif type(sid := tone.get("sid")) is str:
            turn = self._turn(sid)
            turn.tones.append((now, tone))
            turn.more.set()


def spoken(tone: Tone) -> tuple[str, str]:
    """Returns (`text` or `reasoning`, the piece of it) of a chunk, ("", "") of any other tone."""
    if tone["chi"] != "chunk":
        return "", ""
    kind = tone.get("chunkType")
    part = tone.get("part")
    delta = tone.get("delta")
    if type(delta) is not str and isinstance(part, dict) and type(part.get("text")) is str:
        delta = part["text"]
    if type(delta) is not str:
        return "", ""
    return ("reasoning" if kind == "reasoning_delta" else "text"), delta
