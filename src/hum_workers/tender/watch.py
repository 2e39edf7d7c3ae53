"""Watch: what the tender looks at while an engine runs, and the moment at which it must end.

Looks at memory and CPU of the tree, at the processes it needs, at its progress, and at the shared
memory it holds. `verdict` resolves once, with the reason for which the engine is to be ended.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from hum_workers.errors import ErrorCode
from hum_workers.frames import Cause, Frame
from hum_workers.lifecycle import EngineTree
from hum_workers.link import FrameLink
from hum_workers.process import proc, shm, stacks
from hum_workers.process.roll import Fallen, Roll
from hum_workers.spec import CellSpec
from hum_workers.tender.progress import Progress
from hum_workers.tender.relay import Relay

WORK_INTERVAL = 1.0
"""Seconds between two words on how much was generated, two roll calls and two looks at a limit."""
HEARTBEAT = 10.0
"""Seconds between two vitals at most: a bee that hears nothing takes its tender for dead."""
ROLL_STARTING = 0.25
"""Seconds between two roll calls while processes come up and take their titles."""
SHM_STARTING, SHM_INTERVAL = 2.0, 30.0
"""Seconds between two looks at an engine's shared memory, which cost a few ms: until it is ready,
and afterwards."""
AFTER_SOCKET = 0.5
"""Seconds in which an engine may end after it took no connection; less than a broken stream is held
back."""
AFTER_MAIN = 0.05
"""Seconds in which the end of the main process must be heard if that of another is its doing."""


@dataclass(frozen=True)
class Verdict:
    """Why an engine is ended that nobody asked to end."""

    cause: Cause
    reason: str


class Watch:
    """Looks at one engine from its spawn on. `run` is its task; `close` gives everything back."""

    def __init__(self, spec: CellSpec, tree: EngineTree, relay: Relay, link: FrameLink) -> None:
        self._spec = spec
        self._tree = tree
        self._relay = relay
        self._link = link
        self._loop = asyncio.get_running_loop()
        self.verdict: asyncio.Future[Verdict] = self._loop.create_future()
        self.fallen: Fallen | None = None
        """The first needed process that ended."""
        self.segments: shm.Segments = {}
        self._roll_calls = 0
        self._roll = Roll(spec.needed, self._fell)
        self._memory_held = spec.memory is not None and tree.memory_watched
        self._host_ooms = self._ooms_before = host_oom_kills()
        self._shm_due = 0.0
        self._is_ready = False
        self._began = self._loop.time()

    @property
    def peak_rss_bytes(self) -> int:
        """Most memory of the tree at a roll call; 0 when it did not live to the second one."""
        return self._tree.peak_rss_bytes if self._roll_calls > 1 else 0

    def condemn(self, cause: Cause, reason: str) -> None:
        """Says that the engine must end; the first word counts."""
        if not self.verdict.done():
            self.verdict.set_result(Verdict(cause, reason))

    def host_ooms(self) -> int:
        """Returns how many processes of the whole host the kernel ended for memory just now."""
        return max(0, host_oom_kills() - self._ooms_before)

    def ready(self) -> None:
        """Looks anew once the engine is ready: now all its processes are there."""
        self._is_ready = True
        self._relay.reload = self._loop.time() - self._began
        self._relay.on_unreachable = self._unreachable
        self._relay.on_kept = self._kept
        self._call()
        self.look_at_memory()
        self.look()

    def look(self, *, say: bool = True) -> None:
        """Sends vitals; ends an engine that is over a memory limit no cgroup holds."""
        vitals = self._tree.sample()
        if say:
            self._link.send(Frame.VITALS, vitals.to_wire())
        if self._memory_held and vitals.rss_bytes > (self._spec.memory or 0):
            self.condemn(
                Cause.MEMORY,
                f"the engine's tree held {vitals.rss_bytes} bytes, over the {self._spec.memory} "
                "of [limits] memory",
            )
            self._tree.kill()

    def look_at_memory(self) -> None:
        """Notes the shared memory that is to be swept after a kill."""
        self._shm_due = self._loop.time() + (SHM_INTERVAL if self._is_ready else SHM_STARTING)
        found = shm.mapped([member.pid for member in self._tree.live()])
        if not found.items() <= self.segments.items():
            self.segments |= found
            shm.record(Path(self._spec.private), self.segments)

    async def run(self) -> None:
        """Sends vitals and how much was generated, and looks at everything, for ever."""
        others = [
            self._loop.create_task(self._progress(), name="progress"),
            self._loop.create_task(self._call_roll(), name="roll"),
        ]
        try:
            await self._sample()
        finally:
            for other in others:
                other.cancel()

    async def _sample(self) -> None:
        interval = min(self._spec.sample_interval, HEARTBEAT)
        pause = min(interval, WORK_INTERVAL)
        due = self._loop.time()
        tokens, rate, at = 0, 0.0, due - pause
        while True:
            total, now = self._relay.output_tokens, self._loop.time()
            # A bee that takes nothing is told nothing: what it has not taken would pile up here.
            taken = not self._link.unsent()
            if taken:
                if total != tokens or rate:
                    rate = (total - tokens) / (now - at)
                    self._link.send(Frame.WORK, total, rate)
                tokens, at = total, now
            if self._memory_held or now >= due:
                due = now + interval - pause / 2
                self.look(say=taken)
            if now >= self._shm_due:
                self.look_at_memory()
            self._ooms_before, self._host_ooms = self._host_ooms, host_oom_kills()
            await asyncio.sleep(pause)

    def _call(self) -> None:
        self._roll.call(self._tree.live())
        self._roll_calls += 1

    async def _call_roll(self) -> None:
        while True:
            self._call()
            await asyncio.sleep(ROLL_STARTING if not self._is_ready else WORK_INTERVAL)

    async def _progress(self) -> None:
        """Ends an engine that does not get on with the turns it has."""
        timeout = self._spec.stall_timeout
        if not timeout:
            return
        progress = Progress(timeout, self._loop.time())
        pause = min(progress.quiet / 2, WORK_INTERVAL)
        while True:
            await asyncio.sleep(pause)
            now, relay = self._loop.time(), self._relay
            progress.beat(now, relay.beat, busy=relay.waits_for_engine)
            if progress.due(now):
                names = self._spec.progress_counters
                counters = await relay.counters(names) if names else None
                progress.counters(self._loop.time(), counters)
                progress.beat(self._loop.time(), relay.beat, busy=relay.waits_for_engine)
            if progress.stalled(self._loop.time()):
                await self._stalled(timeout)
                return

    async def _stalled(self, timeout: float) -> None:
        count = self._relay.in_flight
        reason = (
            f"no token and no step of the engine for {timeout:g} s with {count} "
            f"turn{'s' * (count != 1)} in flight ([lifecycle] stall_timeout)"
        )
        self._relay.fail(ErrorCode.STALLED, f"the engine stalled: {reason}")
        self.condemn(Cause.STALLED, reason)

    async def dump_stacks(self) -> str:
        """Writes the stacks of an engine that hangs to its log; returns how they were had."""
        pids = [pid for pid in (self._tree.engine_pid, *self._roll.needed) if pid]
        text, how = await stacks.dump(pids, self._spec.argv, self._spec.env)
        self._tree.output.log(text)
        return how

    def close(self) -> None:
        """Watches nothing any more."""
        self._roll.close()

    def _fell(self, fallen: Fallen) -> None:
        # When the main process or the guard has ended, the others are killed: that is no news, but
        # it may come first.
        self._loop.call_later(AFTER_MAIN, self._judge, fallen)

    def _unreachable(self, why: str) -> None:
        # An engine that ends closes its socket first: then its end says more.
        self._loop.call_later(AFTER_SOCKET, self._judge_socket, why)

    def _kept(self, why: str) -> None:
        self._relay.fail(ErrorCode.CELL_DIED, f"the engine was ended: {why}")
        self.condemn(Cause.CANCEL, why)

    def _judge_socket(self, why: str) -> None:
        if not self._tree.exited.done():
            self.condemn(Cause.SOCKET, f"its socket is lost: {why}")

    def _judge(self, fallen: Fallen) -> None:
        if self.fallen is None and not self._tree.exited.done():
            self.fallen = fallen
            self.condemn(Cause.MEMBER, str(fallen))


def host_oom_kills() -> int:
    """Returns how many processes this host's kernel ended for want of memory since the boot."""
    for line in (proc.read_bytes("/proc/vmstat") or b"").splitlines():
        if line.startswith(b"oom_kill "):
            return int(line.split()[1])
    return 0
