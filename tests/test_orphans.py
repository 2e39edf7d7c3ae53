"""Deaths of those who watch: tender, guard, both. Their trees end all the same.

The tender is a program of its own here, killed from outside.
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
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hum_workers import lifecycle
from hum_workers.process.asked_process import ask
from hum_workers.process.cgroup import PREFIX, folders, sweep_here
from hum_workers.process.confine import Confinement
from tests.liveness import WAIT, Liveness, process_end
from tests.trees import FAKES, WAYS, WILD, confinement, python, wild

SRC = Path(lifecycle.__file__).parent.parent
NOBODY = 65534
NO_SESSION = 1 << 30
"""Beyond any pid. Never 0: that is what processes of an outer PID namespace seem to have."""


def as_nobody() -> list[str]:
    """Returns how to run Python as an unprivileged user, or skips where that can't be had."""
    if os.geteuid() != 0:
        return [sys.executable]
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("no setpriv here to drop privileges with")
    # Through env: setpriv itself still has the right to run what its child may not.
    prefix = [setpriv, "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", "env"]
    code = f"import sys; assert sys.version_info >= (3, 11); open({WILD!r}).close()"
    for candidate in (sys.executable, "/usr/bin/python3"):
        tried = [*prefix, candidate, "-I", "-S", "-c", code]
        if subprocess.run(tried, capture_output=True, check=False).returncode == 0:
            return [*prefix, candidate]
    pytest.skip("no Python >= 3.11 here that another user may run")


@asynccontextmanager
async def program(argv: Sequence[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """Runs a program that says JSON lines; kills it at the end."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(SRC)},
        cwd="/",
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def said(process: asyncio.subprocess.Process) -> dict[str, Any]:
    """Returns the program's next line."""
    assert process.stdout is not None
    async with asyncio.timeout(WAIT):
        line = await process.stdout.readline()
    fields: dict[str, Any] = json.loads(line)
    return fields


def cgroups_of(pid: int) -> list[Path]:
    """Returns the cgroups that a tender made and that are still there."""
    parents = {folder for folder in folders() if folder is not None}
    return [path for parent in parents for path in parent.glob(f"{PREFIX}*-{pid}-*")]


async def test_a_program_that_another_thread_asks_is_no_orphan() -> None:
    lifecycle.become_subreaper()
    code = "import sys, time; time.sleep(0.2); print('an answer')"
    asked = [
        asyncio.create_task(
            asyncio.to_thread(
                ask, [sys.executable, "-I", "-S", "-c", code], env={}, cwd="/", timeout=WAIT
            )
        )
        for _ in range(4)
    ]
    while not all(task.done() for task in asked):
        assert await lifecycle.end_orphans(NO_SESSION) == []
        await asyncio.sleep(0)
    assert [task.result().out for task in asked] == [b"an answer\n"] * 4


@pytest.mark.parametrize("session", [0, 1])
async def test_nobody_is_looked_for_in_the_session_of_those_outside(session: int) -> None:
    with pytest.raises(ValueError, match="never a child's"):
        await lifecycle.end_orphans(session)


async def kill_the_tender(interpreter: list[str], how: str, cgroup: str, alive: Liveness) -> str:
    """Kills a tender and returns how its tree, all dead now, was confined."""
    engine = [interpreter[-1], WILD, str(alive.path), "--deaf", "yes"]
    argv = [*interpreter, str(FAKES / "mini_tender.py"), how, cgroup, "--", *engine]
    async with program(argv) as tender:
        told = await said(tender)
        lives = await alive.appear(4)
        assert told["engine"] in [life.pid for life in lives]
        tender.kill()
        await alive.all_dead(5)
        for pid in (*told["frame"], tender.pid):
            with contextlib.suppress(ProcessLookupError):
                await process_end(pid)
        sweep_here()
        assert not cgroups_of(tender.pid)
        return str(told["how"])


@pytest.mark.parametrize(("how", "cgroup"), WAYS)
async def test_sigkill_of_the_tender_ends_everything(
    how: str, cgroup: str, alive: Liveness
) -> None:
    confinement(how, cgroup)
    await kill_the_tender([sys.executable], how, cgroup, alive)


async def test_sigkill_of_an_unprivileged_tender_ends_everything_through_its_guard(
    alive: Liveness,
) -> None:
    assert "guard process" in await kill_the_tender(as_nobody(), "guard", "off", alive)


async def test_sigkill_of_an_unprivileged_tender_ends_everything_through_a_user_namespace(
    alive: Liveness,
) -> None:
    nobody = as_nobody()
    code = "from hum_workers import confine; print(confine.survey().refusal)"
    async with program([*nobody, "-c", code]) as survey:
        assert survey.stdout is not None
        refusal = (await survey.stdout.read()).decode().strip()
    if refusal:
        pytest.skip(f"no user namespaces here: {refusal}")
    how = await kill_the_tender(nobody, "namespace", "off", alive)
    assert "in a user namespace" in how


@pytest.mark.parametrize("victim", [0, -1], ids=["outermost", "guard"])
@pytest.mark.parametrize(("how", "cgroup"), WAYS)
async def test_sigkill_of_the_guard_ends_everything(
    how: str, cgroup: str, victim: int, alive: Liveness
) -> None:
    confinement(how, cgroup)
    argv = [sys.executable, str(FAKES / "mini_tender.py"), how, cgroup, "--"]
    async with program([*argv, *wild(alive, "--deaf", "yes")]) as tender:
        told = await said(tender)
        await alive.appear(4)
        os.kill(told["frame"][victim], signal.SIGKILL)
        assert await said(tender) == {"code": None, "signal": 9, "left": []}
        await alive.all_dead(5)
        assert await tender.wait() == 0


@pytest.mark.parametrize(
    ("engine", "end"), [("sys.exit(0)", 0), ("sys.exit(3)", 3), ("os.kill(0, 9)", -9)]
)
async def test_how_the_engine_ended_is_told_by_the_guards_status_where_its_last_word_was_lost(
    engine: str, end: int
) -> None:
    mute = Confinement(
        namespace=(sys.executable, str(FAKES / "mute_guard.py")),
        how="guard",
        group=None,
        memory_watched=False,
    )
    tree = await lifecycle.EngineTree.start(
        python(f"import os, sys; {engine}"), env=dict(os.environ), cwd="/", confinement=mute
    )
    try:
        async with asyncio.timeout(WAIT):
            assert await tree.exited == lifecycle.Exit.of(end)
    finally:
        tree.kill()
        assert await tree.gone(WAIT) == []
        tree.close()


@pytest.mark.parametrize(("how", "cgroup"), WAYS)
async def test_tender_and_guard_killed_together_are_cleaned_up_by_the_bee(
    how: str, cgroup: str, alive: Liveness
) -> None:
    confinement(how, cgroup)
    argv = [sys.executable, str(FAKES / "mini_bee.py"), how, cgroup, "--"]
    async with program([*argv, *wild(alive, "--deaf", "yes")]) as bee:
        told = await said(bee)
        await alive.appear(4)
        for pid in (*told["frame"], told["tender"]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert await said(bee) == {"left": []}
        await alive.all_dead(5)
        assert await bee.wait() == 0
    assert not cgroups_of(told["tender"])
