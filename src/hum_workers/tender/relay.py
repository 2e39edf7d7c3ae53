"""Relay: the turns that one engine works on, and the proof that a cancel reached it.

Lives in the tender. Owns a stream to the engine for each turn that was fed and has not ended.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hum_workers.errors import ErrorCode
from hum_workers.frames import Frame, Mmm
from hum_workers.link import FrameLink
from hum_workers.spec import CellSpec
from hum_workers.tender.prometheus_text import gauges
from hum_workers.tender.upstream import Stream, Upstream

MAY_BE_DEATH = (ErrorCode.STREAM_BROKEN, ErrorCode.ENGINE_ERROR)
LAST = (Mmm.FINISH, Mmm.ERROR)
GAUGE_POLL = 0.1
"""Seconds between two looks at the engine's gauges while a cancel is unconfirmed."""
GAUGE_TIMEOUT = 5.0
DEATH_NOTICE = 1.0
"""Seconds that a broken stream is held back: if the engine has died, the cell's death says more."""


class Relay:
    """Feeds turns to the engine and sends what comes back down the link."""

    def __init__(self, spec: CellSpec, upstream: Upstream, link: FrameLink) -> None:
        self._spec = spec
        self._upstream = upstream
        self._link = link
        self._streams: dict[int, Stream] = {}
        self._generated = 0
        self.beat = 0
        """Events of the engine so far."""
        self.on_unreachable: Callable[[str], None] = lambda why: None
        """Told when a turn finds no socket, or nobody behind it."""
        self.on_kept: Callable[[str], None] = lambda why: None
        """Told when the engine keeps a turn that was cancelled."""
        self.reload = 0.0
        """Seconds that this engine took to be ready, and another one would."""
        self._heard: set[int] = set()
        """The turns of which an event came."""
        self._unconfirmed: dict[int, float] = {}
        self._steps: dict[int, float] = {}
        """The engine's steps when the cancel of a turn was first looked after."""
        self._step: float | None = None
        self._stepped = 0.0
        """The engine's steps as last heard, and since when they are so many."""
        self._confirming: asyncio.Task[None] | None = None
        self._paused = False
        self._late: dict[int, asyncio.TimerHandle] = {}
        self._loop = asyncio.get_running_loop()

    @property
    def in_flight(self) -> int:
        """How many turns the engine may be working on."""
        return len(self._streams)

    @property
    def output_tokens(self) -> int:
        """Tokens the engine has generated so far for all turns, by its own count."""
        return self._generated + sum(map(_generated, self._streams.values()))

    @property
    def waits_for_engine(self) -> bool:
        """Whether turns are in flight, and read from: then an engine that works shows it."""
        return bool(self._streams) and not self._paused

    def feed(self, turn: int, body: bytes) -> None:
        """Starts one turn; its events follow as `mmm`, the last one a FINISH or an ERROR."""
        if turn in self._streams:
            return
        sink = self._sink(turn)
        stream = self._streams[turn] = self._upstream.stream(self._spec.chat_path, body, sink)
        if self._paused:
            stream.pause()

    def cancel(self, turn: int) -> None:
        """Closes the turn's stream, which stops it in the engine.

        A FINISH `cancelled` with the usage so far goes out at once, the frame `cancelled` once the
        engine's own gauges prove it.
        """
        stream = self._retire(turn)
        late = self._late.pop(turn, None)
        if late is not None:
            late.cancel()
        if stream is None:
            return
        usage = stream.usage
        stream.close()
        self._link.event(turn, int(Mmm.FINISH), {"reason": "cancelled", "usage": usage})
        self._unconfirmed[turn] = self._loop.time()
        if self._confirming is None or self._confirming.done():
            self._confirming = self._loop.create_task(self._confirm(), name="confirm-cancels")

    def pressure(self, high: bool) -> None:
        """Stops or resumes reading from the engine while the bee does not take what is sent."""
        self._paused = high
        for stream in self._streams.values():
            if high:
                stream.pause()
            else:
                stream.resume()

    def fail(self, code: ErrorCode, message: str) -> None:
        """Ends every turn in flight with an ERROR."""
        for turn, stream in self._streams.items():
            data = {"code": code.value, "message": message, "usage": stream.usage}
            self._link.event(turn, int(Mmm.ERROR), data)
        self.close()

    def close(self) -> None:
        """Closes all streams without a word; a dying engine's streams are never waited for."""
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()
        for late in self._late.values():
            late.cancel()
        self._late.clear()
        if self._confirming is not None:
            self._confirming.cancel()

    def _sink(self, turn: int) -> Callable[[Mmm, Any], None]:
        event = self._link.event

        def sink(kind: Mmm, data: Any) -> None:
            self.beat += 1
            if kind in LAST:
                if kind is Mmm.ERROR and data["code"] in MAY_BE_DEATH:
                    if (stream := self._streams.get(turn)) and stream.unreachable:
                        self.on_unreachable(data["message"])
                    hold = self._loop.call_later(DEATH_NOTICE, self._say_last, turn, kind, data)
                    self._late[turn] = hold
                    return
                self._retire(turn)
            else:
                self._heard.add(turn)
            event(turn, int(kind), data)

        return sink

    def _say_last(self, turn: int, kind: Mmm, data: Mapping[str, Any]) -> None:
        self._late.pop(turn, None)
        if self._retire(turn) is not None:
            self._link.event(turn, int(kind), data)

    def _retire(self, turn: int) -> Stream | None:
        stream = self._streams.pop(turn, None)
        self._heard.discard(turn)
        if stream is not None:
            self._generated += _generated(stream)
        return stream

    async def _confirm(self) -> None:
        """Watches the engine's gauges until its work is no more than our turns in flight."""
        while self._unconfirmed:
            working, steps = await self._working()
            now = self._loop.time()
            if steps is not None and steps != self._step:
                self._step, self._stepped = steps, now
            for turn, since in list(self._unconfirmed.items()):
                if steps is not None:
                    self._steps.setdefault(turn, 0.0 if steps == math.inf else steps)
                waited = now - since
                proven = self._proven(turn, working, steps)
                late = waited > self._spec.cancel_confirm
                if proven or (late and self._overdue(turn, steps, waited)):
                    del self._unconfirmed[turn]
                    self._steps.pop(turn, None)
                    self._link.send(Frame.CANCELLED, turn, proven, waited)
                    if not proven and self._spec.cancel_recycles:
                        self.on_kept(f"it kept a cancelled turn for {waited:.0f} s")
            if self._unconfirmed:
                await asyncio.sleep(GAUGE_POLL)

    def _proven(self, turn: int, working: float | None, steps: float | None) -> bool:
        """Whether the engine's work is no more than our turns in flight.

        An engine that is within a long step has not counted yet what was fed since: there one of
        our turns could stand for the cancelled one, so where steps are known only those count that
        were heard of, until so many steps have passed that all are counted.
        """
        if working is None or steps is None:
            return False
        passed = steps - self._steps.get(turn, steps) >= self._spec.cancel_steps
        return working <= len(self._streams if passed else self._heard & self._streams.keys())

    def _overdue(self, turn: int, steps: float | None, waited: float) -> bool:
        """Whether the engine has made so many steps since the cancel that it must have seen it, or
        none for so long that another engine would have been up by now."""
        spec = self._spec
        if steps is not None and steps - self._steps.get(turn, steps) >= spec.cancel_steps:
            return True
        # Nobody can tell how long a step goes on. Who waits as long as a reload takes, and reloads
        # only then, loses at most twice what the better of the two would have cost.
        patience = max(spec.cancel_confirm, self.reload)
        if spec.stall_timeout:
            patience = min(patience, spec.stall_timeout)
        still = min(waited, self._loop.time() - self._stepped)
        return still > patience

    async def _working(self) -> tuple[float | None, float | None]:
        """Returns the engine's own count of running plus waiting requests, and of its steps, which
        are without an end where they do not matter. None: it is silent."""
        spec = self._spec
        names = {spec.running_gauge, spec.waiting_gauge}
        counted = spec.progress_counters[:1] if spec.cancel_steps else []
        found = await self.counters([*names, *counted])
        if found is None:
            return None, None if counted else math.inf
        steps = [found.pop(name, math.inf) for name in counted]
        working = sum(found.values()) if len(found) == len(names) else None
        return working, steps[0] if steps else math.inf

    async def counters(self, names: Sequence[str]) -> dict[str, float] | None:
        """Returns some of the engine's own figures; None if it is silent."""
        try:
            answer = await self._upstream.request(
                "GET", self._spec.metrics_path, timeout=GAUGE_TIMEOUT
            )
        except (OSError, TimeoutError):
            return None
        return gauges(answer.body, names)


def _generated(stream: Stream) -> int:
    usage = stream.usage
    return usage["output"] if usage is not None else 0


def died(message: str) -> dict[str, Any]:
    """Returns the data of the ERROR event with which a cell's death ends a turn."""
    return {"code": ErrorCode.CELL_DIED.value, "message": message, "usage": None}
