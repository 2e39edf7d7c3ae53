"""A rehearsal: a fake humd and a bee, each a process of its own, in one temporary folder.

Owns the folder, the two processes and all that they start. Leaving the context means that they are
dead, whatever happened inside; `left` then tells what should not be there any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

SOCKET_PATH = 107 - len("/run/hum_workers/00000000-012345678901234567890123/engine.sock")
"""Bytes that the folder's path may have, so that the sockets in it can be bound."""
STOP = 60.0
"""Seconds that a bee has for an orderly stop: its drain and the engine's grace."""
GONE = 5.0
"""Seconds in which killed processes must have left."""
LINES = 200


class RehearsalError(Exception):
    """The rehearsal can't go on; the message is one line."""


class Part:
    """One process in a session of its own; its output is read always, the last lines are kept."""

    def __init__(self, name: str, command: list[str], env: Mapping[str, str]) -> None:
        self.name = name
        self.lines: deque[str] = deque(maxlen=LINES)
        self.on_line: Callable[[str], None] | None = None
        # Popen and not asyncio's: no await stands between the start and the owner knowing of it.
        self.process = subprocess.Popen(
            command,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.pid = self.process.pid
        self._changed = asyncio.Event()
        self._held = b""
        self._loop = asyncio.get_running_loop()
        assert self.process.stdout is not None
        self._out = self.process.stdout.fileno()
        os.set_blocking(self._out, False)
        self._loop.add_reader(self._out, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._out, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(self._out)
            self._changed.set()
            return
        *whole, self._held = (self._held + data).split(b"\n")
        for line in whole:
            text = line.decode(errors="replace")
            self.lines.append(text)
            if self.on_line is not None:
                self.on_line(text)
        self._changed.set()

    async def until(self, true: Callable[[], bool], timeout: float) -> None:
        """Waits until a line made `true` come true.

        Raises:
            RehearsalError: the process ended, or the time is up.
        """
        try:
            async with asyncio.timeout(timeout):
                while not true():
                    if self.process.poll() is not None:
                        raise RehearsalError(f"{self.name} ended: {self.last_words()}")
                    self._changed.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(1):  # the end may come without a line
                            await self._changed.wait()
        except TimeoutError:
            raise RehearsalError(
                f"{self.name} was not ready after {timeout:g} s: {self.last_words()}"
            ) from None

    def last_words(self) -> str:
        """Returns the exit code, if there is one, and the last line."""
        code = self.process.poll()
        line = next((line for line in reversed(self.lines) if line.strip()), "no output")
        return line if code is None else f"exit code {code}, {line}"

    async def stop(self, grace: float) -> None:
        """SIGTERM, a bounded wait, SIGKILL."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            waiter = asyncio.create_task(_ended(self.pid))
            try:
                await asyncio.wait({waiter}, timeout=grace)
            finally:
                waiter.cancel()
                await asyncio.wait({waiter})
        self.kill()

    def kill(self) -> None:
        """Ends the process, if it lives, and reaps it. Synchronous."""
        self.process.kill()
        self.process.wait()
        self._loop.remove_reader(self._out)
        assert self.process.stdout is not None
        self.process.stdout.close()


async def _ended(pid: int) -> None:
    fd = os.pidfd_open(pid)
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    loop.add_reader(fd, over.cancel)
    try:
        await asyncio.wait({over})
    finally:
        loop.remove_reader(fd)
        os.close(fd)


class Rehearsal:
    """`async with Rehearsal() as it: await it.start_humd(); await it.start_bee(egg)`."""

    def __init__(self, within: Sequence[str] = ()) -> None:
        """`within` is put in front of each bee's command and replaced by it, as nsenter is."""
        base = tempfile.gettempdir()
        if len(os.fsencode(base)) + len("/humr-00000000") > SOCKET_PATH:
            base = "/tmp"
        self.folder = Path(tempfile.mkdtemp(prefix="humr-", dir=base))
        self.socket = self.folder / "thrum.sock"
        self.env = self._environment()
        self.humd: Part | None = None
        self.bee: Part | None = None
        """The last one that was started."""
        self.bees: list[Part] = []
        self.models: list[str] = []
        self.failed: str | None = None
        self._died: str | None = None
        """Why the last cell died."""
        self.on_event: Callable[[dict[str, Any]], None] | None = None
        self.left: list[str] = []
        self.hurry = asyncio.Event()
        """Set to skip the grace periods of the stop."""
        self._within = within
        self._seen: dict[int, psutil.Process] = {}

    def _environment(self) -> dict[str, str]:
        for name in ("run", "state"):
            (self.folder / name).mkdir(mode=0o700)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HUM_", "XDG_"))}
        return kept | {
            "HUM_THRUM_SOCK": str(self.socket),
            "XDG_RUNTIME_DIR": str(self.folder / "run"),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "PYTHONUNBUFFERED": "1",
        }

    async def start_humd(self) -> None:
        """Starts the fake humd and returns when it listens."""
        command = [sys.executable, "-m", "hum_workers.fake_humd"]
        self.humd = humd = Part("the fake humd", command, self.env)
        await humd.until(lambda: any("listens" in line for line in humd.lines), 30)

    async def start_bee(self, *eggs: Path, module: str = "hum_workers.vllm_worker") -> None:
        """Starts a worker; `on_event` hears each line of its log."""
        flags = [part for egg in eggs for part in ("--egg", str(egg))]
        command = [*self._within, sys.executable, "-m", module, *flags]
        self.bee = Part("the bee", command, self.env)
        self.bees.append(self.bee)

        def hear(line: str) -> None:
            try:
                event = json.loads(line)
            except ValueError:
                return
            if not isinstance(event, dict):
                return
            match event.get("event"):
                case "worker.hello.sent":
                    self.models = event["models"]
                case "worker.cell.emerged":
                    self._died = event.get("reason")
                case "worker.cell.start_failed" | "worker.model.withdrawn":
                    self.failed = str(event.get("reason") or self._died)
            if self.on_event is not None:
                self.on_event(event)

        self.bee.on_line = hear

    async def serves(self, model: str, timeout: float) -> None:
        """Returns when humd knows that the bee serves `model`.

        Raises:
            RehearsalError: its engine can't be started, or the time is up.
        """
        assert self.bee is not None
        await self.bee.until(lambda: model in self.models or bool(self.failed), timeout)
        if self.failed:
            raise RehearsalError(f"the engine can't be started: {self.failed}")
        # The hello was sent; that humd has read it shows in its list of bees.
        async with asyncio.timeout(GONE):
            while not self._listed(model):  # noqa: ASYNC110 - another process writes the file
                await asyncio.sleep(0.02)

    def _listed(self, model: str) -> bool:
        try:
            bees = json.loads((self.folder / "state" / "hum" / "bees.json").read_text())
        except (OSError, ValueError):
            return False
        return any(model in bee.get("models", ()) for bee in bees.values())

    def processes(self) -> list[psutil.Process]:
        """Returns the bee and all below it, and remembers them for the check at the end."""
        found: list[psutil.Process] = []
        for part in self.bees:
            with contextlib.suppress(psutil.NoSuchProcess):
                if part.process.poll() is None:
                    bee = psutil.Process(part.pid)
                    found += [bee, *bee.children(recursive=True)]
        self._seen |= {process.pid: process for process in found}
        return found

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.processes()
            for part in reversed(self.bees):
                await self._unless_hurried(part.stop(STOP))
            if self.humd is not None:
                await self._unless_hurried(self.humd.stop(GONE))
        finally:
            for each in (*self.bees, self.humd):
                if each is not None:
                    each.kill()
            self.left = self._leftovers()
            shutil.rmtree(self.folder, ignore_errors=True)
            if self.folder.exists():
                self.left.append(f"folder {self.folder}")

    async def _unless_hurried(self, stopping: Any) -> None:
        work = asyncio.ensure_future(stopping)
        hurried = asyncio.ensure_future(self.hurry.wait())
        try:
            await asyncio.wait({work, hurried}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            work.cancel()
            hurried.cancel()
            await asyncio.wait({work, hurried})

    def _leftovers(self) -> list[str]:
        """What is still there of ours: processes by descent and by folder, sockets."""
        suspects = {*self._seen.values(), *self._named()}
        _, alive = psutil.wait_procs(suspects, timeout=GONE)
        left = [
            f"process {process.pid} ({_name(process)})"
            for process in alive
            if _status(process) != psutil.STATUS_ZOMBIE
        ]
        # humd's own socket file stays behind when it ends, as the real one's does.
        sockets = [path for path in self.folder.rglob("*") if path.is_socket()]
        return left + [f"socket {path}" for path in sockets if path != self.socket]

    def _named(self) -> set[psutil.Process]:
        """Processes that have our folder in their environment, whoever their parent is."""
        mark, found = str(self.folder), set()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if any(value.startswith(mark) for value in process.environ().values()):
                    found.add(process)
        return found


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return str(process.name())
    return "gone"


def _status(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return str(process.status())
    return str(psutil.STATUS_ZOMBIE)
