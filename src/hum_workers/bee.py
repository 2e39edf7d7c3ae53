"""Bee: what a worker is on the thrum. It says hello, hands prompts to turns, and stops in order.

Owns the connection to humd, the nests and the conversations. The receive path never waits: a
prompt becomes a turn with a task of its own, everything else is done at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import structlog

from hum_workers import __version__
from hum_workers.cells.colony import Colony
from hum_workers.cells.nest import Nest
from hum_workers.errors import ErrorCode, TurnError
from hum_workers.figures.counts import BeeView, DeviceView
from hum_workers.program import stop_times
from hum_workers.program.debts import Debts
from hum_workers.program.journal import Journal
from hum_workers.thrum.connection import Thrum
from hum_workers.thrum.pacer import Pacer
from hum_workers.thrum.tones import THRUM_VERSION, encode
from hum_workers.tools.call_id import CallIds
from hum_workers.tools.desk import ToolDesk
from hum_workers.tools.line import ToolLine
from hum_workers.turns.conversations import Conversations
from hum_workers.turns.ending import Finish
from hum_workers.turns.prompt import is_bare, parse_prompt
from hum_workers.turns.reply import Reply
from hum_workers.turns.talk import Talk
from hum_workers.turns.turn import Asked, Turn

log = structlog.get_logger()

CHIS = (
    "hello prompt cancel cleanup curate tool-result "
    "chunk finish error tool-call session-ready pulse"
).split()
NINETY = "a whole stop has to stay under the 90 s that systemd gives"
RESULTS = ("tool-result", "error")
"""Tones that answer a tool call: an `error` comes here only with a callId."""
MOST_OPEN = 65_536
"""Turns without a written ending; beyond them a prompt is dropped, and the log says so."""
KEYS_LOGGED = 256
"""Unknown sampling keys remembered, so that each is logged once and a flood costs little."""


class Bee:
    """One worker bee with the nests of its eggs."""

    def __init__(
        self,
        *,
        hive: str,
        hid: str,
        source: str | None,
        statefulness: str = "stateless_per_call",
        nests: Sequence[Nest],
        pacer: Pacer,
        journal: Journal,
        call_ids: CallIds,
        socket: Callable[[], Path],
        more: Callable[[], Mapping[str, Any]] = dict,
        devices: Callable[[], Sequence[DeviceView]] = list,
    ) -> None:
        """`more`: what the hello says besides the fields of every worker."""
        self._hive = hive
        self._hid = hid
        self._source = source
        self._statefulness = statefulness
        self._colony = Colony(nests)
        self._pacer = pacer
        self._journal = journal
        self._nestler = uuid4().hex
        self._more = more
        self._devices = devices
        self._advertised: list[str] = []
        self._said: Mapping[str, Any] = {}
        self._conversations = Conversations()
        self._stopping = False
        self._loop = asyncio.get_running_loop()
        self._unknown_keys: set[str] = set()
        self._unheard = 0
        self._handlers: dict[str, Callable[[str, Mapping[str, Any]], None]] = {
            "prompt": self._prompt,
            "cancel": self._cancel,
            "cleanup": self._cancel,
        }
        self._thrum = Thrum(
            socket=socket,
            hello=self._hello,
            on_tone=self._tone,
            pacer=pacer,
            on_state=self._state,
        )
        self._desk = ToolDesk(
            nests=self._colony.nests,
            ids=call_ids,
            line=self._line,
            begin=self._begin,
            busy=self._conversations.has,
        )
        self._debts = Debts(journal, pacer, self.models_changed)

    async def serve(self, stop: asyncio.Future[str]) -> None:
        """Serves until `stop` resolves with a reason, then drains and ends every cell."""
        thrum = self._loop.create_task(self._thrum.run(), name="thrum")
        self._colony.start()
        try:
            ends: set[asyncio.Future[Any]] = {stop, thrum}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if thrum.done():
                thrum.result()
            await self._drain(stop.result())
        finally:
            self.kill()
            self._desk.close()
            self._debts.close()
            await self._conversations.close()
            thrum.cancel()
            await asyncio.wait({thrum})
            await self._colony.buried()

    @property
    def nests(self) -> Sequence[Nest]:
        """The nests of its eggs, in their order."""
        return self._colony.nests

    def change(self, nests: Sequence[Nest]) -> None:
        """Serves the models of these nests from now on; those that are missing leave."""
        if not self._stopping:
            self._colony.change(nests)
            self.models_changed()

    def models_changed(self) -> None:
        """Says hello again when what may be advertised is no longer what was said."""
        if self._models() != self._advertised or self._more() != self._said:
            self._thrum.rehello()

    def pulse(self, sid: str, kind: str, cell_id: str, pid: int) -> None:
        """Tells a conversation that has no turn now of an event in the life of its cell."""
        if self._thrum.connected:
            tone = {"chi": "pulse", "sid": sid, "kind": kind, "cellId": cell_id, "pid": pid}
            self._pacer.urgent(encode(tone))

    def view(self) -> BeeView:
        """Returns what the bee is now, for who wants to show it."""
        return BeeView(
            hive=self._hive,
            hid=self._hid,
            connected=self._thrum.connected,
            connections=self._thrum.epoch,
            tones=self._pacer.sent,
            merged=self._pacer.merged,
            held_bytes=self._pacer.held,
            parked_calls=self._desk.parked,
            tasks=len(asyncio.all_tasks()),
            devices=self._devices(),
            eggs=[nest.view() for nest in self._colony.nests],
        )

    def kill(self) -> None:
        """Kills every cell at once; synchronous."""
        self._colony.kill()

    async def _drain(self, reason: str) -> None:
        """Withdraws the models, lets turns finish, ends the rest, stops the cells in parallel."""
        self._stopping = True
        nests, began = self._colony.all, self._loop.time()
        wanted = max(n.limits.drain_timeout for n in nests), max(n.limits.stop_grace for n in nests)
        drain, grace = stop_times.shares(*wanted)
        log.info("worker.stopping", reason=reason, turns=len(self._conversations))
        if (drain, grace) != wanted:
            log.warning("worker.stop.cut", drain_timeout=drain, stop_grace=grace, why=NINETY)
        for nest in nests:
            nest.drain()
        self.models_changed()
        if not await self._conversations.ended(drain):
            log.warning("worker.drain.timeout", turns=len(self._conversations))
        self._conversations.stop_all(
            TurnError(ErrorCode.SHUTTING_DOWN, f"the bee stops ({reason}); ask again later")
        )
        await self._conversations.ended(stop_times.WORDS)
        await self._conversations.close()
        stops = (nest.stop(min(grace, nest.limits.stop_grace), reason) for nest in nests)
        try:
            async with asyncio.timeout_at(began + stop_times.TOTAL - stop_times.KILL):
                await asyncio.gather(self._thrum.drained(stop_times.WORDS), *stops)
        except TimeoutError:
            log.error("worker.stop.late", reason="cells did not end in time; they are killed")
        log.info("worker.stopped", reason=reason)

    def _models(self) -> list[str]:
        if self._stopping or self._debts.open:
            return []
        return self._colony.advertised()

    def _hello(self) -> dict[str, Any]:
        manifest = self._manifest()
        log.info(
            "worker.hello.sent", models=self._advertised, hid=self._hid, epoch=self._thrum.epoch
        )
        return manifest

    def _manifest(self) -> dict[str, Any]:
        """Returns the hello as of now; it counts as said."""
        self._advertised, self._said = self._models(), self._more()
        return {
            "chi": "hello",
            "bee": ["worker"],
            "hive": self._hive,
            "hid": self._hid,
            "from": self._hid,
            "models": self._advertised,
            "propensity": {
                "statefulness": self._statefulness,
                "richness": "medium",
                "wire": self._hive,
            },
            "version": __version__,
            "protoVersion": THRUM_VERSION,
            "chis": CHIS,
            "nestlerId": self._nestler,
            **({"source": self._source} if self._source else {}),
            **self._said,
        }

    def _state(self, connected: bool) -> None:
        if connected:
            self._debts.connected()
        else:
            self._desk.lost()

    def _line(self) -> ToolLine:
        """Returns the connection as it is now, for the calls of a turn that begins."""
        thrum, epoch = self._thrum, self._thrum.epoch
        return ToolLine(lambda: thrum.connected and thrum.epoch == epoch, self._manifest)

    def _tone(self, tone: dict[str, Any]) -> None:
        if tone["chi"] in RESULTS:
            self._desk.result(tone)
            return
        handler = self._handlers.get(tone["chi"])
        if handler is None:
            return
        sid = tone.get("sid")
        if not isinstance(sid, str) or not sid:
            log.warning("worker.tone.dropped", chi=tone["chi"], reason="it has no sid")
            return
        handler(sid, tone)

    def _cancel(self, sid: str, tone: Mapping[str, Any]) -> None:
        self._desk.forget(sid)
        self._conversations.stop(sid, Finish("cancelled"))

    def _prompt(self, sid: str, tone: Mapping[str, Any]) -> None:
        if self._pacer.open >= MOST_OPEN:
            # Endings are paced; a flood of prompts that are refused at once would pile them up.
            self._unheard += 1
            if self._unheard & (self._unheard - 1) == 0:  # 1, 2, 4, …: a flood costs few lines
                log.error(
                    "worker.prompt.dropped", sid=sid[:80], open=MOST_OPEN, so_far=self._unheard
                )
            return
        # A refused prompt is a turn, too: its error goes out behind the answers before it.
        asked: Talk | TurnError
        bare, nest = False, self._colony.nests[0]
        try:
            bare = is_bare(tone)
            if bare and self._desk.hears_bare(sid):
                return
            prompt = parse_prompt(tone)
            nest = self._colony.serving(prompt.model)
            prompt = replace(prompt, media=nest.media.admit(prompt.media))
            if self._desk.hears_words(sid, prompt.messages, prompt.media):
                return
            tools = nest.tools.admit(prompt.tools, prompt.sampling.choice)
            asked = Talk(prompt=replace(prompt, tools=tools) if prompt.tools else prompt)
            self._note_unknown(prompt.unknown)
        except TurnError as error:
            # A traceback holds this frame, and with it the prompt, until the collector comes by.
            asked = error.with_traceback(None)
        except Exception:
            log.exception("worker.prompt.handle.failed", sid=sid)
            asked = TurnError(ErrorCode.WORKER_ERROR, "the bee failed on this prompt; see its log")
        if not bare:
            self._desk.forget(sid)
        self._begin(sid, asked, nest)

    def _begin(self, sid: str, asked: Talk | asyncio.Future[Asked] | TurnError, nest: Nest) -> None:
        """Begins a turn, or refuses it in the place of one."""
        refusal = asked if isinstance(asked, TurnError) else None
        if self._stopping and refusal is None:
            refusal = TurnError(ErrorCode.SHUTTING_DOWN, "the bee stops; ask again later")
        over = partial(self._over, self._journal.begin(sid), nest)
        outbox = self._pacer.outbox(sid, lambda: turn.overflow(), over)
        turn = Turn(
            sid,
            None if isinstance(asked, TurnError) else asked,
            nest,
            Reply(sid, outbox),
            now=self._loop.time(),
            tooling=self._desk.tooling(asked),
        )
        if refusal := refusal or nest.full():
            turn.refuse(refusal)
            return
        weight = asked.prompt.weight if isinstance(asked, Talk) else 0
        self._conversations.add(turn, max_waiting=nest.limits.max_waiting_per_sid, weight=weight)

    def _over(self, number: int, nest: Nest) -> None:
        """humd has read the ending of a turn."""
        self._journal.end(number)
        nest.quiet()

    def _note_unknown(self, keys: Sequence[str]) -> None:
        for key in keys:
            if key not in self._unknown_keys and len(self._unknown_keys) < KEYS_LOGGED:
                self._unknown_keys.add(key)
                log.warning("worker.sampling.ignored", key=key[:80])
