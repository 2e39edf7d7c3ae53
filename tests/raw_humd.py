"""Humd's end of the bee's connection, played by hand: any bytes go out, all that comes is checked.

What the bee says is read as humd reads it; a line that humd would drop or hang up on stands in
`refused`. Endings are counted by sid, and tones of a turn that come after its ending are noted.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from hum_workers.fake_humd.wire import BadLine, Lines, NotUtf8, Tone, decode, encode
from tests.rig import WAIT, Bee, running_bee

ENDINGS = ("finish", "error")
BREATH = {"chi": "breath", "from": "daemon", "sessions": [], "protoVersion": "0.7.0"}


class Seat(asyncio.Protocol):
    """One connection of a bee. `keep`: whether tones are kept, and not only counted."""

    def __init__(self, *, echoes: bool = True, keep: bool = True) -> None:
        self.echoes = echoes
        self.keep = keep
        self.hello: Tone = {}
        self.tones: dict[str, list[Tone]] = defaultdict(list)
        """What came, by sid."""
        self.endings: Counter[str] = Counter()
        self.chis: Counter[str] = Counter()
        self.refused: list[str] = []
        self.last: Tone = {}
        """The ending that came last."""
        self.ended = asyncio.Event()
        self._late_echoes: list[Tone] | None = None
        self._lines = Lines()
        self._news = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.say(BREATH)

    def data_received(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            try:
                self._hear(decode(line))
            except (BadLine, NotUtf8) as error:
                self.refused.append(f"{error}: {line[:200]!r}")
        self._news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()
        self._writable.set()
        self._news.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def say(self, *tones: Tone) -> None:
        """Sends tones."""
        self.raw(b"".join(map(encode, tones)))

    def raw(self, data: bytes) -> None:
        """Sends bytes as they are."""
        assert self._transport is not None
        self._transport.write(data)

    async def halves(self, line: bytes) -> None:
        """Sends a line in two writes; no echo comes between them."""
        middle = len(line) // 2
        self._late_echoes = []
        self.raw(line[:middle])
        await self.drained()
        await asyncio.sleep(0)
        self.raw(line[middle:])
        self.say(*self._late_echoes)
        self._late_echoes = None

    async def drained(self) -> None:
        """Returns when the socket takes more."""
        async with asyncio.timeout(WAIT):
            await self._writable.wait()

    async def until(self, condition: Callable[[], bool], timeout: float = WAIT) -> None:
        """Waits until something that came makes the condition true."""
        async with asyncio.timeout(timeout):
            while not condition():
                assert not self.ended.is_set(), "the bee has hung up"
                self._news.clear()
                await self._news.wait()

    async def answer(self, sid: str, model: str = "m1", **fields: Any) -> Tone:
        """Sends a good prompt and returns its last tone, an ending."""
        before = self.endings[sid]
        self.say({"chi": "prompt", "sid": sid, "modelId": model, "content": "hi", **fields})
        await self.until(lambda: self.endings[sid] > before)
        return self.last

    def hang_up(self) -> None:
        """Ends the connection at once."""
        assert self._transport is not None
        self._transport.abort()

    def _hear(self, tone: Tone) -> None:
        chi, sid = tone["chi"], str(tone.get("sid", ""))
        self.chis[chi] += 1
        if chi == "hello":
            self.hello = tone
        elif not sid:
            self.refused.append(f"a {chi} without a sid")
        if self.keep:
            self.tones[sid].append(tone)
        if chi in ENDINGS:
            self.endings[sid] += 1
            self.last = tone
        if self.echoes and "rid" in tone:
            echo = {"chi": "echo", "rid": tone["rid"], "ok": True}
            if self._late_echoes is None:
                self.say(echo)
            else:
                self._late_echoes.append(echo)


def turns(tones: list[Tone]) -> list[list[Tone]]:
    """Returns the turns of one sid, and fails if the tones are not whole turns in order.

    A turn is an ending alone, or `session-ready`, blocks that are started, filled and stopped one
    after the other, and an ending. A `pulse` may stand anywhere and is left out.
    """
    found: list[list[Tone]] = [[]]
    block, is_open = -1, False
    for tone in tones:
        if tone["chi"] == "pulse":
            continue
        turn = found[-1]
        turn.append(tone)
        if tone["chi"] in ENDINGS:
            assert not is_open, f"ended within a block: {turn}"
            found.append([])
            block = -1
        elif tone["chi"] == "session-ready":
            assert len(turn) == 1, f"not first: {turn}"
        else:
            assert tone["chi"] == "chunk", tone
            assert turn[0]["chi"] == "session-ready", turn
            kind = tone["chunkType"]
            if kind.endswith("_start"):
                assert not is_open, turn
                block, is_open = block + 1, True
            else:
                assert is_open, turn
                is_open = kind != "content_block_stop"
            assert tone["blockIdx"] == block, turn
    assert found.pop() == [], "tones after the ending, or a turn without one"
    return found


class RawHumd:
    """Listens at `path`; each connection is a `Seat` made by `seat`."""

    def __init__(self, path: Path, seat: Callable[[], Seat] = Seat) -> None:
        self._path = path
        self._make = seat
        self._seats: asyncio.Queue[Seat] = asyncio.Queue()
        self._open: list[Seat] = []
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> RawHumd:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._meet, str(self._path))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for seat in self._open:
            seat.hang_up()
            await seat.ended.wait()

    async def seat(self, model: str = "m1") -> Seat:
        """Returns the next connection, once its bee advertises the model."""
        async with asyncio.timeout(WAIT):
            seat = await self._seats.get()
        await seat.until(lambda: model in seat.hello.get("models", ()))
        return seat

    def _meet(self) -> Seat:
        seat = self._make()
        self._open.append(seat)
        self._seats.put_nowait(seat)
        return seat


@asynccontextmanager
async def under_raw_humd(
    folder: Path, *eggs: Path, model: str = "m1"
) -> AsyncIterator[tuple[RawHumd, Bee, Seat]]:
    """Yields a raw humd, a bee that advertises `model` there, and its connection."""
    async with RawHumd(folder / "thrum.sock") as humd, running_bee(folder, *eggs) as bee:
        yield humd, bee, await humd.seat(model)
