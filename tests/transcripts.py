"""Plays the scenes of `fixtures/humd_transcript.ndjson`, what a real humd answered.

A scene is played against whatever listens on a socket. Each client must hear the same tones in the
same order; after each line a client sends, a probe with a rid is sent and its echo awaited, so
that silence is proven without waiting for time to pass.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

Tone = dict[str, Any]

FIXTURE = Path(__file__).parent / "fixtures" / "humd_transcript.ndjson"
DEADLINE = 5.0
LINE_LIMIT = 64 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Step:
    """One line of the transcript; `line` is what a `send` writes."""

    client: str
    event: str
    tone: Tone | None = None
    line: bytes = b""
    manifests: tuple[Tone, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One case of the transcript."""

    case: str
    steps: tuple[Step, ...]

    def heard_by(self, client: str) -> list[Tone]:
        """The tones that humd sent to this client, in order."""
        return [
            step.tone
            for step in self.steps
            if step.client == client and step.event == "recv" and step.tone is not None
        ]


def load(path: Path = FIXTURE) -> list[Scene]:
    """Returns the scenes in the order of the file."""
    cases: dict[str, list[Step]] = {}
    for text in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(text)
        cases.setdefault(record["case"], []).append(_step(record))
    return [Scene(case=case, steps=tuple(steps)) for case, steps in cases.items()]


def _step(record: dict[str, Any]) -> Step:
    if "raw_b64" in record:
        line = base64.b64decode(record["raw_b64"])
    elif "raw" in record:
        line = record["raw"].encode()
    else:
        line = json.dumps(record.get("tone"), ensure_ascii=False).encode() + b"\n"
    return Step(
        client=record["client"],
        event=record["event"],
        tone=record.get("tone"),
        line=line,
        manifests=tuple(record.get("manifests", ())),
    )


class Wire:
    """A bare client of a thrum socket: lines out, tones in; invents nothing."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._inbox: deque[Tone] = deque()
        self._probes = 0

    @classmethod
    async def open(cls, socket: Path | str) -> Self:
        """Connects."""
        return cls(*await asyncio.open_unix_connection(str(socket), limit=LINE_LIMIT))

    async def send(self, *tones: Tone) -> None:
        """Sends tones in one write."""
        lines = (json.dumps(tone, ensure_ascii=False).encode() + b"\n" for tone in tones)
        await self.send_raw(b"".join(lines))

    async def send_raw(self, data: bytes) -> None:
        """Sends bytes as they are."""
        self._writer.write(data)
        async with asyncio.timeout(DEADLINE):
            await self._writer.drain()

    async def next(self) -> Tone:
        """Returns the next tone.

        Raises:
            EOFError: the peer has closed the connection.
        """
        return self._inbox.popleft() if self._inbox else await self._read()

    async def settle(self) -> None:
        """Returns when the peer has read and routed all that this client has sent so far."""
        self._probes += 1
        rid = f"probe-{self._probes}"
        await self.send({"chi": "perf-mark", "rid": rid})
        while (tone := await self._read()) != {"chi": "echo", "ok": True, "rid": rid}:
            self._inbox.append(tone)

    async def unread(self) -> list[Tone]:
        """Returns what has come and was not taken, and proves that nothing more is under way."""
        await self.settle()
        return list(self._inbox)

    async def ended(self) -> None:
        """Waits for the peer to close the connection."""
        async with asyncio.timeout(DEADLINE):
            try:
                while await self._reader.read(65536):
                    pass
            except ConnectionError:
                pass

    async def close(self) -> None:
        """Closes the connection."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            pass

    async def _read(self) -> Tone:
        async with asyncio.timeout(DEADLINE):
            line = await self._reader.readline()
        if not line.endswith(b"\n"):
            raise EOFError("the connection was closed")
        tone: Tone = json.loads(line)
        assert list(tone) == sorted(tone), f"keys are not sorted: {list(tone)}"
        return tone


class Player:
    """Plays the clients of one scene, except those that somebody else plays.

    `home` stands for `$HOME` of the transcript, `bees` returns humd's manifests by name.
    """

    def __init__(
        self,
        socket: Path | str,
        *,
        home: str,
        bees: Callable[[], list[Tone]] | None = None,
        absent: Iterable[str] = (),
    ) -> None:
        self._socket = socket
        self._home = home
        self._bees = bees
        self._absent = frozenset(absent)
        self._wires: dict[str, Wire] = {}

    async def play(self, scene: Scene) -> None:
        """Plays the scene to its end and fails at the first difference."""
        try:
            for at, step in enumerate(scene.steps):
                if step.event == "bees":
                    await self._check_bees(step)
                elif step.client not in self._absent:
                    ends = self._ends(scene.steps[at + 1 :], step.client)
                    await self._do(step, settles=step.line.endswith(b"\n") and not ends)
        finally:
            for wire in self._wires.values():
                await wire.close()

    async def _do(self, step: Step, *, settles: bool) -> None:
        if step.event == "open":
            self._wires[step.client] = await Wire.open(self._socket)
            return
        wire = self._wires[step.client]
        if step.event == "send":
            await wire.send_raw(step.line)
            if settles:
                await wire.settle()
        elif step.event == "recv":
            assert _exact(await wire.next()) == self._expected(step.tone)
        elif step.event == "close":
            assert await wire.unread() == []
            await self._wires.pop(step.client).close()
        elif step.event == "closed":
            await wire.ended()
            await self._wires.pop(step.client).close()

    async def _check_bees(self, step: Step) -> None:
        if self._bees is None:
            return
        # humd learns of a client's end in its own time; by the next client's probe it has.
        wire = await Wire.open(self._socket)
        try:
            await wire.settle()
        finally:
            await wire.close()
        assert [_exact(bee) for bee in self._bees()] == [_exact(bee) for bee in step.manifests]

    def _expected(self, tone: Tone | None) -> str:
        return _exact(tone).replace('"$HOME"', json.dumps(self._home))

    @staticmethod
    def _ends(steps: tuple[Step, ...], client: str) -> bool:
        mine = next((step for step in steps if step.client == client), None)
        return mine is not None and mine.event == "closed"


def _exact(value: Any) -> str:
    """JSON text with sorted keys: 1, 1.0 and true differ in it, as they do on the wire."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
