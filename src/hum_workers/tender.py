"""The tender: the small program between the bee and one engine (`python -m hum_workers.tender`).

It is the engine's parent, the only one that talks HTTP to it, and the one that ends it. Feed, mmm,
silence and emerged travel as frames on its standard input and output. When its input ends, for
whatever reason, it kills everything below it; when it is killed itself, the kernel or the guard
does (`confine.py`). It ignores SIGTERM and SIGINT, since a stop may reach every process of ours at
once: it acts on its input alone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from hum_workers import confine, lifecycle
from hum_workers.errors import FrameError, HumError
from hum_workers.frames import Frame, Mmm
from hum_workers.hatch import Hatching, clean, prepare
from hum_workers.link import FrameLink
from hum_workers.relay import Relay, died
from hum_workers.spec import CellSpec
from hum_workers.upstream import Upstream

FIRST_FRAME = 30.0
"""Seconds in which the bee must say what to raise."""
LAST_WORDS = 10.0
"""Seconds for the bee to take the last frames; it may be busy, or stopped for good."""
EXIT_NOTICE = 1.0
"""Seconds that a failed start waits for the engine to end: its own last line says more."""
WORK_INTERVAL = 1.0
"""Seconds between two words on how much was generated, and two looks at a limit we hold."""
DEATH_WAIT = 30.0
"""Seconds to wait for the kernel to take killed processes away; a driver may hold them."""


class Tender:
    """One engine from `raise` to `gone`. Owns the engine's tree, its streams and its folder."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._link = FrameLink(
            on_frame=self._frame, on_end=self._bee_left, on_pressure=self._pressure
        )
        self._spec: asyncio.Future[CellSpec] = self._loop.create_future()
        self._silenced: asyncio.Future[tuple[float, str]] = self._loop.create_future()
        self._tree: lifecycle.EngineTree | None = None
        self._relay: Relay | None = None
        self._hatching: Hatching | None = None
        self._killed_for: str | None = None

    async def run(self, read_fd: int, write_fd: int) -> None:
        """Raises the engine the bee asks for and returns when its whole tree is dead."""
        await self._link.open(read_fd, write_fd)
        try:
            spec = await asyncio.wait_for(self._spec, FIRST_FRAME)
            await self._live(spec)
        except (FrameError, TimeoutError) as error:
            self._say_gone(reason=f"the tender was told nothing to raise: {error}")
        finally:
            if self._tree is not None:
                self._tree.kill()
            self._link.close()
        # The last frame may be larger than a pipe: the loop must not end under it.
        await self._link.finished(LAST_WORDS)

    async def _live(self, spec: CellSpec) -> None:
        reason, asked = "", False
        try:
            prepare(spec)
        except HumError as error:
            self._say_gone(reason=str(error))
            return
        try:
            self._tree = await self._spawn(spec)
            upstream = Upstream(Path(spec.uds), spec.headers)
            self._relay = Relay(spec, upstream, self._link)
            sampling = self._loop.create_task(self._sample(spec), name="sample")
            try:
                reason, asked = await self._serve(spec, upstream)
            finally:
                sampling.cancel()
                self._relay.close()
                await upstream.close()
        except HumError as error:
            reason = str(error)
        except Exception as error:
            traceback.print_exc()
            reason = f"the tender failed: {error!r}"
        await self._end(spec, reason, asked)

    async def _spawn(self, spec: CellSpec) -> lifecycle.EngineTree:
        plan = confine.plan(
            confine.survey(),
            confine=spec.confine,
            cgroup=spec.cgroup,
            memory=spec.memory,
            name=spec.cell_id,
        )
        tree = await lifecycle.EngineTree.start(
            spec.argv,
            env=spec.env,
            cwd=spec.cwd,
            confinement=plan,
            open_files=spec.open_files,
            cpus=spec.cpus,
            log_file=Path(spec.log_file) if spec.log_file else None,
            log_limit=spec.log_limit,
            on_line=self._line,
        )
        self._link.send(Frame.STAGE, "spawned", plan.describe())
        return tree

    async def _serve(self, spec: CellSpec, upstream: Upstream) -> tuple[str, bool]:
        """Returns why the cell ends, and whether the bee asked for it."""
        assert self._tree is not None
        self._hatching = Hatching(spec, upstream, self._stage)
        hatching = asyncio.ensure_future(self._hatching.run())
        ends: set[asyncio.Future[Any]] = {self._tree.exited, self._silenced}
        try:
            await asyncio.wait({hatching, *ends}, return_when=asyncio.FIRST_COMPLETED)
            if hatching.done() and hatching.exception() is not None:
                await asyncio.wait(ends, timeout=EXIT_NOTICE, return_when=asyncio.FIRST_COMPLETED)
            if not any(end.done() for end in ends):
                facts = hatching.result()
                facts |= {"pid": self._tree.engine_pid, "seconds": self._loop.time() - self._began}
                self._hatching = None
                self._link.send(Frame.READY, facts)
                self._look(spec)
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready = hatching.done()
            hatching.cancel()
            await asyncio.wait({hatching})
        if self._tree.exited.done():
            return self._killed_for or "", False
        grace, why = self._silenced.result()
        assert self._relay is not None
        self._relay.close()
        if grace > 0 and ready:
            self._tree.terminate()
            await asyncio.wait({self._tree.exited}, timeout=grace)
        return why, True

    async def _end(self, spec: CellSpec, reason: str, asked: bool) -> None:
        """Kills what is left of the tree, waits until it is dead, and says so."""
        left: list[dict[str, Any]] = []
        if self._tree is not None:
            tree = self._tree
            tree.kill()
            left = [
                {"pid": m.pid, "name": m.name, "state": m.state}
                for m in await tree.gone(DEATH_WAIT)
            ]
            tree.close()
        if not left:
            clean(spec)
        self._say_gone(reason=reason, asked=asked, left=left)

    def _say_gone(
        self, *, reason: str, asked: bool = False, left: list[dict[str, Any]] | None = None
    ) -> None:
        tree = self._tree
        exit_ = tree.exited.result() if tree is not None and tree.exited.done() else None
        self._link.send(
            Frame.GONE,
            {
                "code": exit_.code if exit_ else None,
                "signal": exit_.signal if exit_ else None,
                "reason": reason,
                "asked": asked,
                "over_memory": self._killed_for is not None,
                "left": left or [],
                "lines": tree.output.lines() if tree is not None else [],
                "oom_kills": tree.oom_kills() if tree is not None else 0,
                "seconds": self._loop.time() - self._began,
            },
        )

    async def _sample(self, spec: CellSpec) -> None:
        """Sends vitals and how much was generated, for ever."""
        assert self._tree is not None
        pause = min(spec.sample_interval, WORK_INTERVAL)
        watched = spec.memory is not None and self._tree.memory_watched
        due = self._loop.time()
        tokens, rate, at = 0, 0.0, due - pause
        while True:
            assert self._relay is not None
            total, now = self._relay.output_tokens, self._loop.time()
            # A bee that takes nothing is told nothing: what it has not taken would pile up here.
            taken = not self._link.unsent()
            if taken:
                if total != tokens or rate:
                    rate = (total - tokens) / (now - at)
                    self._link.send(Frame.WORK, total, rate)
                tokens, at = total, now
            if watched or now >= due:
                due = now + spec.sample_interval - pause / 2
                self._look(spec, say=taken)
            await asyncio.sleep(pause)

    def _look(self, spec: CellSpec, *, say: bool = True) -> None:
        """Sends vitals; ends an engine that is over a memory limit no cgroup holds."""
        assert self._tree is not None
        vitals = self._tree.sample()
        if say:
            self._link.send(Frame.VITALS, vitals.to_wire())
        over = spec.memory is not None and vitals.rss_bytes > spec.memory
        if over and self._tree.memory_watched:
            self._killed_for = (
                f"the engine's tree held {vitals.rss_bytes} bytes, over the {spec.memory} of "
                "[limits] memory"
            )
            self._tree.kill()

    def _frame(self, frame: list[Any]) -> None:
        match frame:
            case [Frame.FEED, int(turn), bytes(body)] if self._relay is not None:
                self._relay.feed(turn, body)
            case [Frame.FEED, int(turn), bytes()]:
                self._link.event(turn, int(Mmm.ERROR), died("no engine was raised yet"))
            case [Frame.CANCEL, int(turn)] if self._relay is not None:
                self._relay.cancel(turn)
            case [Frame.SILENCE, float(grace) | int(grace), str(why)]:
                if not self._silenced.done():
                    self._silenced.set_result((grace, why))
                if not self._spec.done():
                    self._spec.set_exception(FrameError(why))
            case [Frame.RAISE, dict(spec)] if not self._spec.done():
                try:
                    self._spec.set_result(CellSpec.from_wire(spec))
                except FrameError as error:
                    self._spec.set_exception(error)
            case _:
                print(f"tender: frame ignored: {str(frame)[:80]}", file=sys.stderr)  # noqa: T201

    def _bee_left(self, why: str) -> None:
        if self._tree is not None:
            self._tree.kill()
        if not self._silenced.done():
            self._silenced.set_result((0.0, f"the bee has gone: {why}"))
        if not self._spec.done():
            self._spec.set_exception(FrameError(why))

    def _pressure(self, high: bool) -> None:
        if self._relay is not None:
            self._relay.pressure(high)

    def _line(self, line: str) -> None:
        if self._hatching is not None:
            self._hatching.line(line)

    def _stage(self, stage: str, detail: str) -> None:
        self._link.send(Frame.STAGE, stage, detail[:300])


def _claim_pipes() -> tuple[int, int]:
    """Moves the frames off descriptors 0 and 1, so that a stray print can't spoil them."""
    read_fd, write_fd = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return read_fd, write_fd


def main() -> None:
    """Runs one tender on the pipes it was started with."""
    for stop in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(stop, signal.SIG_IGN)
    lifecycle.become_subreaper()
    read_fd, write_fd = _claim_pipes()

    async def run() -> None:
        await Tender().run(read_fd, write_fd)

    import uvloop

    uvloop.run(run())


if __name__ == "__main__":
    main()
