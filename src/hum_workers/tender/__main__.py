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
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hum_workers import lifecycle
from hum_workers.cells.folder import clean, prepare
from hum_workers.errors import FrameError, HumError, StartFailed
from hum_workers.frames import Cause, Frame, Mmm
from hum_workers.link import FrameLink
from hum_workers.process import confine, shm
from hum_workers.spec import CellSpec
from hum_workers.tender.hatch import Hatching
from hum_workers.tender.relay import Relay, died
from hum_workers.tender.upstream import Upstream
from hum_workers.tender.watch import Verdict, Watch

if TYPE_CHECKING:
    from hum_workers.tender.rpc_hatch import RpcHatching

FIRST_FRAME = 30.0
"""Seconds in which the bee must say what to raise."""
LAST_WORDS = 10.0
"""Seconds for the bee to take the last frames; it may be busy, or stopped for good."""
EXIT_NOTICE = 1.0
"""Seconds that a failed start waits for the engine to end: its own last line says more."""
FALL_NOTICE = 3.0
"""The same when a process that the engine needs has ended while it started."""
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
        self._hatching: Hatching | RpcHatching | None = None
        self._watch: Watch | None = None
        self._stacks = ""
        self._notices: list[list[str]] = []

    async def run(self, read_fd: int, write_fd: int) -> None:
        """Raises the engine the bee asks for and returns when its whole tree is dead."""
        await self._link.open(read_fd, write_fd)
        try:
            spec = await asyncio.wait_for(self._spec, FIRST_FRAME)
            await self._live(spec)
        except (FrameError, TimeoutError) as error:
            told = f"the tender was told nothing to raise: {error}"
            self._say_gone(Verdict(Cause.TENDER, told))
        finally:
            if self._tree is not None:
                self._tree.kill()
            self._link.close()
        # The last frame may be larger than a pipe: the loop must not end under it.
        await self._link.finished(LAST_WORDS)

    async def _live(self, spec: CellSpec) -> None:
        end = Verdict(Cause.NONE, "")
        asked = False
        try:
            prepare(spec)
        except HumError as error:
            self._say_gone(Verdict(Cause.START, str(error)))
            return
        try:
            self._tree = await self._spawn(spec)
            upstream = Upstream(Path(spec.uds), spec.headers, reworded=spec.reworded)
            self._relay = Relay(spec, upstream, self._link)
            self._watch = Watch(spec, self._tree, self._relay, self._link)
            watching = self._loop.create_task(self._watch.run(), name="watch")
            try:
                end, asked = await self._serve(spec, upstream)
                if end.cause in (Cause.STALLED, Cause.START_TIMEOUT):
                    self._stacks = await self._watch.dump_stacks()
            finally:
                watching.cancel()
                self._relay.close()
                await upstream.close()
        except HumError as error:
            end = Verdict(Cause.START, str(error))
        except Exception as error:
            traceback.print_exc()
            end = Verdict(Cause.TENDER, f"the tender failed: {error!r}")
        await self._end(spec, end, asked)

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
        self._notices = spec.notices
        self._link.send(Frame.STAGE, "spawned", plan.describe())
        return tree

    async def _serve(self, spec: CellSpec, upstream: Upstream) -> tuple[Verdict, bool]:
        """Returns why the cell ends, and whether the bee asked for it."""
        assert self._tree is not None
        assert self._watch is not None
        assert self._relay is not None
        ends: set[asyncio.Future[Any]] = {*(self._tree.exited, self._silenced, self._watch.verdict)}
        ready, failure = await self._hatch(spec, upstream, ends)
        if ready:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if self._silenced.done():
            grace, why = self._silenced.result()
            self._relay.close()
            if grace > 0 and ready and not self._tree.exited.done():
                self._tree.terminate()
                await asyncio.wait({self._tree.exited}, timeout=grace)
            return Verdict(Cause.NONE, why), True
        told = self._watch.verdict.result() if self._watch.verdict.done() else None
        if told is not None and (told.cause is not Cause.MEMBER or not self._tree.exited.done()):
            return told, False
        return failure or Verdict(Cause.NONE, ""), False

    async def _hatch(
        self, spec: CellSpec, upstream: Upstream, ends: set[asyncio.Future[Any]]
    ) -> tuple[bool, Verdict | None]:
        """Waits for the engine to become ready; returns whether it is, or what was wrong."""
        assert self._tree is not None
        assert self._watch is not None
        self._hatching = hatching_of(spec, upstream, self._stage)
        hatching = asyncio.ensure_future(self._hatching.run())
        try:
            await asyncio.wait({hatching, *ends}, return_when=asyncio.FIRST_COMPLETED)
            if self._watch.fallen is not None:
                # The engine's own last words say why; but it may take its time.
                own: set[asyncio.Future[Any]] = {self._tree.exited, self._silenced}
                await asyncio.wait(own, timeout=FALL_NOTICE, return_when=asyncio.FIRST_COMPLETED)
            failed = hatching.done() and hatching.exception() is not None
            if failed:
                await asyncio.wait(ends, timeout=EXIT_NOTICE, return_when=asyncio.FIRST_COMPLETED)
            if any(end.done() for end in ends):
                return hatching.done() and not failed, None
            facts = hatching.result()
        except StartFailed as error:
            return False, Verdict(Cause(error.kind or Cause.START), str(error))
        finally:
            hatching.cancel()
            await asyncio.wait({hatching})
            self._hatching = None
        facts |= {"pid": self._tree.engine_pid, "seconds": self._loop.time() - self._began}
        self._link.send(Frame.READY, facts)
        self._watch.ready()
        return True, None

    async def _end(self, spec: CellSpec, end: Verdict, asked: bool) -> None:
        """Kills what is left of the tree, waits until it is dead, and says so."""
        left: list[dict[str, Any]] = []
        swept: list[str] = []
        if self._tree is not None:
            tree = self._tree
            if self._watch is not None:
                self._watch.look_at_memory()
            tree.kill()
            left = [
                {"pid": m.pid, "name": m.name, "state": m.state}
                for m in await tree.gone(DEATH_WAIT)
            ]
            tree.close()
        if self._watch is not None:
            self._watch.close()
            swept = shm.sweep(self._watch.segments)
        if not left:
            clean(spec)
        self._say_gone(end, asked=asked, left=left, swept=swept)

    def _say_gone(
        self,
        end: Verdict,
        *,
        asked: bool = False,
        left: list[dict[str, Any]] | None = None,
        swept: list[str] | None = None,
    ) -> None:
        tree, watch = self._tree, self._watch
        exit_ = tree.exited.result() if tree is not None and tree.exited.done() else None
        fallen = watch.fallen if watch is not None else None
        # Where the kernel counts the cell's own kills, the host's count is about somebody else.
        guess = watch is not None and not (tree is not None and tree.counts_ooms)
        self._link.send(
            Frame.GONE,
            {
                "code": exit_.code if exit_ else None,
                "signal": exit_.signal if exit_ else None,
                "cause": end.cause.value,
                "reason": end.reason,
                "asked": asked,
                "fallen": None if fallen is None else [str(fallen), fallen.status],
                "left": left or [],
                "swept": swept or [],
                "stacks": self._stacks,
                "lines": tree.output.lines() if tree is not None else [],
                "oom_kills": tree.oom_kills() if tree is not None else 0,
                "host_ooms": watch.host_ooms() if watch is not None and guess else 0,
                "peak_rss_bytes": watch.peak_rss_bytes if watch is not None else 0,
                "seconds": self._loop.time() - self._began,
            },
        )

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
        for text, notice in self._notices:
            if text in line:
                self._link.send(Frame.NOTICE, notice or line)
        if self._hatching is not None:
            self._hatching.line(line)

    def _stage(self, stage: str, detail: str) -> None:
        self._link.send(Frame.STAGE, stage, detail[:300])


def hatching_of(
    spec: CellSpec, upstream: Upstream, on_stage: Callable[[str, str], None]
) -> Hatching | RpcHatching:
    """Returns what waits for an engine that speaks as `spec` says."""
    if spec.protocol == "rpc":
        from hum_workers.tender.rpc_hatch import RpcHatching

        return RpcHatching(spec, on_stage)
    return Hatching(spec, upstream, on_stage)


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
    lifecycle.wake_with_parent()
    lifecycle.become_subreaper()
    read_fd, write_fd = _claim_pipes()

    async def run() -> None:
        await Tender().run(read_fd, write_fd)

    import uvloop

    uvloop.run(run())


if __name__ == "__main__":
    main()
