"""No egg named, and what is wrong with one, under a supervisor that always restarts."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hum_workers.program.held import hold
from hum_workers.program.places import default_egg
from tests.rig import WAIT, egg, environment, served, worker


@asynccontextmanager
async def held(folder: Path, **more: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Yields a `vllm-worker` without an egg that said that it waits."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "hum_workers.vllm_worker"),
        env={**environment(folder), "HUM_WORKERS_HOLD": "600", "HOME": str(folder), **more},
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(WAIT):
            while b"HUM_WORKERS_HOLD" not in (line := await process.stderr.readline()):
                assert line
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_a_held_bee_leaves_with_2_as_soon_as_its_egg_changes(short_dir: Path) -> None:
    async with held(short_dir) as process:
        home = short_dir / ".config" / "hum"
        home.mkdir(parents=True)
        (home / "vllm-worker.toml").write_text("")
        assert await process.wait() == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_a_held_bee_at_once(short_dir: Path, number: signal.Signals) -> None:
    async with held(short_dir) as process:
        process.send_signal(number)
        assert await process.wait() in (2, -number)


async def test_only_a_bee_that_would_serve_is_held(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(short_dir))
    for mode in (["--check"], ["--show-command"], ["--prompt", "hi"], []):
        code, _, said = await worker(short_dir, *mode)
        assert (code, said.count("\n")) == (2, 1)
        assert "--egg FILE" in said
        assert str(short_dir / ".config" / "hum" / "vllm-worker.toml") in said


async def test_the_users_egg_is_raised_when_none_is_named_and_the_log_says_so(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(short_dir))
    home = short_dir / ".config" / "hum"
    home.mkdir(parents=True)
    path = egg(home, name="vllm-worker", bee='raise = "on-prompt"')
    async with served(short_dir, model="vllm-worker") as (_, bee, _):
        assert bee.events("worker.egg.found")[0]["file"] == str(path)


@pytest.mark.parametrize(
    ("env", "place"),
    [
        ({"HOME": "/h", "XDG_CONFIG_HOME": "/c"}, "/c/hum/w.toml"),
        ({"HOME": "/h", "XDG_CONFIG_HOME": "c"}, "/h/.config/hum/w.toml"),
        ({"HOME": "/h"}, "/h/.config/hum/w.toml"),
    ],
)
def test_the_users_egg_lies_in_hums_config_folder(env: dict[str, str], place: str) -> None:
    assert default_egg(env, "w") == Path(place)


@pytest.mark.parametrize("value", ["", "0", "-1", "soon", "inf", "nan"])
def test_without_a_time_nothing_is_held(
    tmp_path: Path, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hold([tmp_path], {"HUM_WORKERS_HOLD": value})
    assert capsys.readouterr().err == ""


def test_the_time_ends_the_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hold([tmp_path / "none.toml"], {"HUM_WORKERS_HOLD": "0.01"})
    assert "leaving in 0.01 s" in capsys.readouterr().err
