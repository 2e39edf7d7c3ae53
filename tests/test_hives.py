"""Commissioning: the hive's `build` into an empty home, and the bee that its Orchfile starts.

The engine is the scripted one; pip takes from its cache. One home for all tests of this file.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from hum_workers.fake_humd.asker import Asker
from hum_workers.fake_humd.server import FakeHumd
from scripts import commission
from tests.rig import ROOT, SITE, WAIT, worker

HIVE = ROOT / "hives" / "vllm-worker"
pytestmark = [pytest.mark.xdist_group("hives"), pytest.mark.timeout(180)]
BUILD = 120.0
"""Seconds for one build before a test gives up: without pip's cache it downloads 15 MB."""


@dataclass(frozen=True)
class Home:
    """A user's home folder, with XDG folders that are not the usual ones."""

    folder: Path
    cache: str

    @property
    def launcher(self) -> Path:
        return self.folder / ".local" / "bin" / "vllm-worker"

    @property
    def egg(self) -> Path:
        return self.folder / "conf" / "hum" / "vllm-worker.toml"

    @property
    def data(self) -> Path:
        return self.folder / "data" / "hum" / "hum_workers" / "vllm-worker"

    def environment(self, **more: str) -> dict[str, str]:
        """Returns what a service manager gives: no XDG_CONFIG_HOME."""
        foreign = ("HUM_", "XDG_", "PYTHON", "VIRTUAL_ENV")
        return {
            **{k: v for k, v in os.environ.items() if not k.startswith(foreign)},
            "HOME": str(self.folder),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "XDG_RUNTIME_DIR": str(self.folder / "run"),
            **more,
        }

    def shell(self, **more: str) -> dict[str, str]:
        """Returns what the user's shell gives a build."""
        return self.environment(
            XDG_DATA_HOME=str(self.folder / "data"),
            XDG_CONFIG_HOME=str(self.folder / "conf"),
            PIP_CACHE_DIR=self.cache,
            PYTHON=sys.executable,
            HUM_WORKERS_EXTRA="none",
            **more,
        )

    def files(self) -> dict[str, tuple[int, bytes]]:
        """Returns all files but those that a build owns, with time and content."""
        return {
            str(path.relative_to(self.folder)): (path.stat().st_mtime_ns, path.read_bytes())
            for path in self.folder.rglob("*")
            if path.is_file() and self.data not in path.parents and path != self.launcher
        }


def build(env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "build"],
        cwd=HIVE,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BUILD,
    )


def interrupted(env: dict[str, str]) -> tuple[int, str]:
    """Builds until pip is at work, then stops it; returns exit code and error output."""
    process = subprocess.Popen(
        ["bash", "build"],
        cwd=HIVE,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if "resolving" in line:
                break
        process.terminate()
        _, said = process.communicate(timeout=WAIT)
    finally:
        process.kill()
        process.wait()
    return process.returncode, said


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    """An empty home in which a first build was interrupted, and a second one was not."""
    cache = subprocess.run(
        [sys.executable, "-m", "pip", "cache", "dir"], capture_output=True, text=True, check=True
    )
    home = Home(Path(tempfile.mkdtemp(prefix="hive-", dir="/tmp")), cache.stdout.strip())
    (home.folder / "run").mkdir(mode=0o700)
    try:
        code, said = interrupted(home.shell())
        assert code == 143, said
        assert not home.launcher.exists()
        assert not home.egg.exists()
        done = build(home.shell())
        assert done.returncode == 0, done.stderr
        for place in (home.data / "venv", home.launcher, home.egg):
            assert str(place) in done.stdout
        yield home
    finally:
        shutil.rmtree(home.folder, ignore_errors=True)


def orchfile() -> dict[str, list[str]]:
    """Returns the Orchfile's lines by their first word."""
    lines: dict[str, list[str]] = {}
    for line in (HIVE / "Orchfile").read_text().splitlines():
        word, _, rest = line.partition(" ")
        lines.setdefault(word, []).append(rest)
    return lines


def scripted_egg(home: Home) -> None:
    """Does what a user does after a build: makes the egg their own."""
    (home.egg.parent / "model").mkdir(exist_ok=True)
    home.egg.write_text(
        f"""[model]
path = "./model"
served_name = "mine"
[engine.env]
PYTHONPATH = "{SITE}"
"""
    )


def test_a_second_build_upgrades_and_leaves_all_that_is_the_users(home: Home) -> None:
    scripted_egg(home)
    (home.launcher.parent / "mine").write_text("#!/bin/sh\n")
    before = home.files()
    # Another stamp is what a newer checkout looks like.
    stamp = home.data / "venv" / "hum-setup.json"
    stamp.write_text(stamp.read_text().replace('"source": "', '"source": "older'))
    upgraded = build(home.shell())
    assert upgraded.returncode == 0, upgraded.stderr
    assert "renewing" in upgraded.stdout
    assert home.files() == before
    unchanged = build(home.shell())
    assert "environment: is up to date" in unchanged.stdout
    assert "yours, left as it is" in unchanged.stdout
    assert home.files() == before


async def test_what_the_orchfile_runs_answers_and_leaves_nothing_behind(home: Home) -> None:
    scripted_egg(home)
    socket = home.folder / "run" / "thrum.sock"
    orch = orchfile()
    env = home.environment(HUM_THRUM_SOCK=str(socket), **dict(e.split("=", 1) for e in orch["ENV"]))
    log = home.folder / "bee.log"
    async with await FakeHumd.start(socket, home.folder / "state") as humd:
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                *("/bin/bash", "-c", orch["RUN"][0]),
                env=env,
                cwd="/",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        try:
            await humd.until(lambda: humd.serves("mine"), timeout=WAIT)
            async with await Asker.connect(socket) as asker:
                answer = await asker.ask("hello", "mine", timeout=WAIT)
            assert answer.complete
            bee = psutil.Process(process.pid)
            assert "python" in bee.exe()
            members = [bee, *bee.children(recursive=True)]
            assert len(members) > 2
            os.killpg(process.pid, signal.SIGTERM)
            async with asyncio.timeout(WAIT):
                assert await process.wait() == 0
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
    _, left = psutil.wait_procs(members, timeout=WAIT)
    assert left == []
    assert list((home.folder / "run").glob("hum_workers*")) == []
    assert f'"file": "{home.egg}"' in log.read_text()


def test_the_orchfile_says_only_what_hum_reads() -> None:
    orch = orchfile()
    assert sorted(orch) == ["ENV", "RESTART", "RUN", "SERVICE"]
    assert orch["SERVICE"] == ["vllm-worker"]
    assert orch["RUN"] == ["exec ${HOME}/.local/bin/vllm-worker"]
    assert orch["RESTART"] == ["always"]


def test_a_launcher_of_somebody_else_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    home = Home(tmp_path, "")
    home.launcher.parent.mkdir(parents=True)
    home.launcher.symlink_to("/bin/true")
    done = build(home.shell())
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "move it away" in done.stderr
    assert not home.data.exists()
    assert home.launcher.readlink() == Path("/bin/true")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("PYTHON", "/bin/false", "build: PYTHON=/bin/false is no Python 3.11 or newer"),
        ("HUM_WORKERS_EXTRA", "tpu", "there is no extra 'tpu'"),
        ("HOME", "", "HOME is not set"),
    ],
)
def test_a_build_that_cannot_begin_says_so_in_one_line(
    tmp_path: Path, name: str, value: str, said: str
) -> None:
    done = build({**Home(tmp_path, "").shell(), name: value})
    assert done.returncode == 1
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_host_without_python_is_told_so(tmp_path: Path) -> None:
    for tool in ("dirname", "env"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or tool)
    env = {**Home(tmp_path, "").shell(), "PATH": str(tmp_path), "PYTHON": ""}
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run([bash, "build"], cwd=HIVE, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "no Python 3.11 or newer" in done.stderr


def test_the_extra_follows_the_devices(tmp_path: Path) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho '0, GPU-1, 81920, Card'\n")
    smi.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert commission.extras("vllm-worker", env, ROOT) == ("cuda",)
    assert commission.extras("vllm-worker", env | {"HUM_WORKERS_EXTRA": "cpu"}, ROOT) == ("cpu",)
    assert commission.extras("vllm-worker", env | {"HUM_WORKERS_EXTRA": "none"}, ROOT) == ()
    smi.write_text("#!/bin/sh\nexit 9\n")
    if not Path("/proc/driver/nvidia/gpus").exists():
        assert commission.extras("vllm-worker", env, ROOT) == ("cpu",)


def test_the_launcher_keeps_the_folder_of_the_egg_and_odd_paths() -> None:
    text = commission.script(Path("/a b/it's/bin/x"), {"XDG_CONFIG_HOME": "/c d"})
    line = text.splitlines()[-1]
    assert shlex.split(line) == ["exec", "/a b/it's/bin/x", "$@"]
    assert "export XDG_CONFIG_HOME='/c d'" in text
    assert "XDG" not in commission.script(Path("/x"), {"XDG_CONFIG_HOME": "relative"})


async def test_the_example_egg_has_no_mistake(short_dir: Path) -> None:
    code, out, said = await worker(short_dir, "--show-command", "--egg", HIVE / "example.toml")
    assert code in (0, 3), said
    assert "smollm2" in out or "no vLLM" in said
