"""Under systemd and as pid 1: readiness, watchdog, stops, reaping; the files in contrib."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hum_workers.fake_humd.asker import Asker
from hum_workers.fake_humd.server import FakeHumd
from hum_workers.process import confine, proc
from hum_workers.program.notify import Notifier
from tests.leftovers import processes
from tests.rig import ROOT, WAIT, egg, environment, fake, running_bee

UNIT = ROOT / "contrib" / "hum-vllm-worker.service"
CONTAINERFILE = ROOT / "contrib" / "Containerfile"


class Manager:
    """systemd's end of the notification socket."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "notify"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))
        self._socket.setblocking(False)
        self.heard: list[str] = []

    async def until(self, line: str) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(WAIT):
            while line not in self.heard:
                self.heard += (await loop.sock_recv(self._socket, 4096)).decode().splitlines()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(short_dir: Path) -> Iterator[Manager]:
    """A service manager that listens."""
    listening = Manager(short_dir)
    yield listening
    listening.close()


async def test_the_manager_hears_ready_watchdog_status_and_stopping(
    short_dir: Path, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(manager.path))
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    path = egg(short_dir, fake={"children": 1})
    async with running_bee(short_dir, path) as bee:
        await manager.until("STATUS=no model is ready; humd is away")
        assert "READY=1" not in manager.heard
        async with await FakeHumd.start(short_dir / "thrum.sock", short_dir / "state"):
            await manager.until("READY=1")
            await manager.until("STATUS=serving echo")
            manager.heard.clear()
            for _ in range(3):
                manager.heard = [line for line in manager.heard if line != "WATCHDOG=1"]
                await manager.until("WATCHDOG=1")
            for stat in processes(short_dir):
                env = proc.read_bytes(f"/proc/{stat.pid}/environ") or b""
                assert stat.pid == bee.pid or b"NOTIFY_SOCKET" not in env
            bee.process.send_signal(signal.SIGTERM)
            await manager.until("STOPPING=1")
            async with asyncio.timeout(WAIT):
                assert await bee.process.wait() == 0


def test_a_watchdog_of_another_process_is_not_ours(short_dir: Path) -> None:
    assert (
        Notifier({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "9", "WATCHDOG_PID": "1"}).watchdog
        is None
    )
    ours = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "9000000", "WATCHDOG_PID": str(os.getpid())}
    assert Notifier(ours).watchdog == 9
    assert ours == {}
    assert not Notifier({})


def test_a_manager_that_can_not_be_reached_is_no_trouble(short_dir: Path) -> None:
    for address in (str(short_dir / "nobody"), "@nobody-hum-workers"):
        Notifier({"NOTIFY_SOCKET": address}).say(READY=1)


def test_an_abstract_address_is_reached() -> None:
    name = f"hum-workers-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}")
        Notifier({"NOTIFY_SOCKET": f"@{name}"}).say(READY=1, STATUS="ok")
        assert manager.recv(100) == b"READY=1\nSTATUS=ok"


needs_namespace = pytest.mark.skipif(
    not confine.survey().namespace, reason="no PID namespaces here"
)


async def inside(short_dir: Path, *eggs: Path) -> tuple[asyncio.subprocess.Process, proc.Stat]:
    """Starts a bee as pid 1 of a namespace; returns what waits for it, and the bee."""
    flags = [part for path in eggs for part in ("--egg", str(path))]
    namespace = confine.survey().namespace
    with (short_dir / "bee.log").open("wb") as log:
        outer = await asyncio.create_subprocess_exec(
            *(*namespace, sys.executable, "-m", "hum_workers.vllm_worker", *flags),
            env=environment(short_dir),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    async with asyncio.timeout(WAIT):
        while True:
            found = [proc.read_stat(pid) for pid in proc.children(outer.pid)]
            inner = [stat for stat in found if stat and proc.innermost_pid(stat.pid) == 1]
            if inner:
                return outer, inner[0]
            await asyncio.sleep(0.01)


@needs_namespace
async def test_as_pid_1_it_serves_reaps_strangers_and_stops_at_one_sigterm(
    short_dir: Path,
) -> None:
    async with await FakeHumd.start(short_dir / "thrum.sock", short_dir / "state") as humd:
        outer, bee = await inside(short_dir, egg(short_dir, fake={"children": 2}))
        await humd.until(lambda: humd.serves("echo"), timeout=WAIT)
        async with await Asker.connect(short_dir / "thrum.sock") as asker:
            assert (await asker.ask(fake(tokens=3), "echo")).text == "w0 w1 w2"
        orphan = "import os; os.setsid(); os.fork() and os._exit(0); os.execlp('true', 'true')"
        enter = ["nsenter", "-t", str(bee.pid), "-p", sys.executable, "-c", orphan]
        await asyncio.to_thread(subprocess.run, enter, check=True, timeout=WAIT)
        async with asyncio.timeout(WAIT):
            while any(not s.alive and s.parent == bee.pid for s in proc.scan().values()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        proc.send(bee, signal.SIGTERM)
        async with asyncio.timeout(WAIT):
            assert await outer.wait() == 0
    assert processes(short_dir) == []


@needs_namespace
async def test_as_pid_1_a_stop_while_it_starts_is_not_lost(short_dir: Path) -> None:
    outer, bee = await inside(short_dir, egg(short_dir, fake={"hang_at": "load"}))
    async with asyncio.timeout(WAIT):
        while not outer.returncode and proc.read_stat(bee.pid) is not None:
            proc.send(bee, signal.SIGTERM)
            await asyncio.sleep(0.2)
        assert await outer.wait() in (0, 143)
    assert processes(short_dir) == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_the_unit_is_right_by_systemds_own_word(short_dir: Path) -> None:
    unit = short_dir / UNIT.name
    text = re.sub(r"^ExecStart=.*$", "ExecStart=/bin/true", UNIT.read_text(), flags=re.MULTILINE)
    unit.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_does_not_loop_on_a_wrong_egg_and_leaves_time_for_a_drain() -> None:
    keys = dict(
        line.split("=", 1)
        for line in UNIT.read_text().splitlines()
        if "=" in line and not line.startswith("#")
    )
    assert keys["RestartPreventExitStatus"] == "2"
    assert (keys["Type"], keys["TimeoutStopSec"]) == ("notify", "90")
    assert not {"PrivateDevices", "DevicePolicy", "MemoryDenyWriteExecute"} & keys.keys()


def test_the_container_runs_the_bee_itself_as_a_user_without_rights() -> None:
    lines = CONTAINERFILE.read_text().splitlines()
    assert 'ENTRYPOINT ["/opt/hum/bin/vllm-worker"]' in lines
    last_user = [line for line in lines if line.startswith("USER ")][-1]
    assert last_user == "USER hum"
    assert not any(line.startswith("CMD") for line in lines)
