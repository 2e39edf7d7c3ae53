"""Three ways to the same engine, with the same clock: direct, past humd, and through humd.

A client writes a prompt and notes when its text comes; it is part of what is measured, so it does
as little as it can.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol, Self, cast

import msgspec

from hum_workers.fake_humd.wire import Lines
from hum_workers.frames import Mmm
from hum_workers.tender.upstream import Upstream
from hum_workers.turns.prompt import parse_prompt
from hum_workers.turns.request import chat_request, to_json

LONGEST = 1_000_000
ANSWER = 300.0
"""Seconds for one answer: a bench must end."""


@dataclass(slots=True)
class Take:
    """One answer as its client saw it; times by the same clock."""

    began: float = 0.0
    first: float = 0.0
    """When the first text came."""
    ended: float = 0.0
    chars: int = 0
    sent: int | None = None
    """Characters that the worker says it sent."""
    tokens: int = 0
    """By the engine's own count."""
    read: int = 0
    """Tokens of the prompt that no cache held, by the same count."""
    error: str = ""
    traced: bool = False
    arrivals: list[float] = field(default_factory=list)
    """When each word of the scripted engine came, where asked for."""

    @property
    def wait(self) -> float:
        """Milliseconds to the first text."""
        return (self.first - self.began) * 1000

    @property
    def lost(self) -> bool:
        return bool(self.error) or (self.sent is not None and self.sent != self.chars)

    def text(self, text: str) -> None:
        """Notes a piece."""
        now = perf_counter()
        if not self.chars:
            self.first = now
        self.chars += len(text)
        if self.traced:
            self.arrivals += [now] * text.count("w")


class Client(Protocol):
    """Asks one prompt."""

    async def ask(self, prompt: Mapping[str, Any], *, traced: bool = False) -> Take:
        """Returns the answer, when it has ended."""
        ...


def scripted(tokens: int, *, pad: int = 0, **wishes: Any) -> dict[str, Any]:
    """Returns a prompt for so many words of the scripted engine, with `pad` bytes of ballast."""
    text = msgspec.json.encode({"fake": {"tokens": tokens, **wishes}, "pad": "x" * pad}).decode()
    return {"text": text, "sampling": {"maxTokens": LONGEST}}


class Direct:
    """Straight to the engine, by the tender's own HTTP client."""

    def __init__(self, uds: Path, headers: Mapping[str, str], model: str) -> None:
        self._upstream = Upstream(uds, headers)
        self._model = model

    async def ask(self, prompt: Mapping[str, Any], *, traced: bool = False) -> Take:
        tone = {"chi": "prompt", "sid": "direct", "modelId": self._model, **prompt}
        body = to_json(chat_request(parse_prompt(tone), model=self._model))
        take = Take(traced=traced)
        over = asyncio.Event()

        def sink(kind: Mmm, data: Any) -> None:
            if kind in (Mmm.TEXT, Mmm.REASONING):
                take.text(data)
            elif kind >= Mmm.FINISH:
                take.ended = perf_counter()
                usage = data["usage"] or {}
                take.tokens = usage.get("output", 0)
                take.read = usage.get("input", 0)
                take.error = data["message"] if kind is Mmm.ERROR else ""
                over.set()

        take.began = perf_counter()
        self._upstream.stream("/v1/chat/completions", body, sink)
        async with asyncio.timeout(ANSWER):
            await over.wait()
        return take

    async def close(self) -> None:
        """Ends its connections."""
        await self._upstream.close()


class _Heard(msgspec.Struct):
    """What a client reads of a tone."""

    chi: str
    sid: str | None = None
    rid: str | None = None
    delta: str | None = None
    models: list[str] = []
    usage: dict[str, int] = {}
    ext: dict[str, Any] = {}
    message: str = ""


class Tones(asyncio.Protocol):
    """One thrum connection: to humd as an asker, or, with `as_humd`, from the bee itself."""

    def __init__(self, model: str, *, as_humd: bool = False) -> None:
        self._model = model
        self._as_humd = as_humd
        self._lines = Lines()
        self._decode = msgspec.json.Decoder(_Heard).decode
        self._takes: dict[str, tuple[Take, asyncio.Event]] = {}
        self._transport: asyncio.Transport | None = None
        self._numbers = count()
        self.hello = asyncio.Event()
        """Set when the bee has said hello; with `as_humd` only."""
        self.serves = asyncio.Event()
        """Set when that hello named the model."""

    @classmethod
    async def connect(cls, socket: Path, model: str) -> Self:
        """Returns a client of the humd that listens at `socket`."""
        made = cls(model)
        await asyncio.get_running_loop().create_unix_connection(lambda: made, str(socket))
        return made

    @classmethod
    async def listen(cls, socket: Path, model: str) -> tuple[Self, asyncio.Server]:
        """Returns a client that waits for a bee at `socket`, and the listener to close."""
        made = cls(model, as_humd=True)
        loop = asyncio.get_running_loop()
        return made, await loop.create_unix_server(lambda: made, str(socket))

    async def ask(self, prompt: Mapping[str, Any], *, traced: bool = False) -> Take:
        sid = f"bench-{id(self):x}-{next(self._numbers)}"
        tone = {"chi": "prompt", "sid": sid, "modelId": self._model, **prompt}
        line = msgspec.json.encode(tone) + b"\n"
        take, over = Take(traced=traced), asyncio.Event()
        self._takes[sid] = take, over
        assert self._transport is not None
        take.began = perf_counter()
        self._transport.write(line)
        try:
            async with asyncio.timeout(ANSWER):
                await over.wait()
        finally:
            del self._takes[sid]
        return take

    async def close(self) -> None:
        """Ends the connection."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            heard = self._decode(line)
            if heard.delta:
                found = self._takes.get(heard.sid or "")
                if found is not None:
                    found[0].text(heard.delta)
            elif heard.chi in ("finish", "error"):
                self._end(heard)
            elif heard.chi == "hello":
                self.hello.set()
                if self._model in heard.models:
                    self.serves.set()
            if self._as_humd and heard.rid is not None and self._transport is not None:
                echo = {"chi": "echo", "rid": heard.rid, "ok": True}
                self._transport.write(msgspec.json.encode(echo) + b"\n")

    def _end(self, heard: _Heard) -> None:
        found = self._takes.get(heard.sid or "")
        if found is None:
            return
        take, over = found
        take.ended = perf_counter()
        take.tokens = heard.usage.get("output_tokens", 0)
        take.read = heard.usage.get("input_tokens", 0)
        take.error = heard.message if heard.chi == "error" else ""
        for ours in heard.ext.values():
            take.sent = ours.get("chars")
        over.set()
