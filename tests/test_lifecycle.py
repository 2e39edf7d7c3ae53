"""A whole process tree: started, watched, killed in every way, and proven dead each time."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from hum_workers import lifecycle
from hum_workers.errors import EngineError
from hum_workers.process import confine, proc
from hum_workers.process.cgroup import CellGroup
from tests.liveness import WAIT, Liveness, process_end
from tests.trees import WAYS, confinement, python, wild


@asynccontextmanager
async def engine_tree(
    argv: Sequence[str], way: confine.Confinement, **options: Any
) -> AsyncIterator[lifecycle.EngineTree]:
    """Starts a tree; whatever happens in the block, nothing of it is left behind it."""
    tree = await lifecycle.EngineTree.start(
        argv, env=dict(os.environ), cwd="/", confinement=way, **options
    )
    try:
        yield tree
    finally:
        tree.kill()
        assert await tree.gone(WAIT) == []
        tree.close()
        assert not any(map(os.path.exists, way.folders()))


@pytest.mark.parametrize(("how", "cgroup"), WAYS)
async def test_kill_ends_all_members_wherever_they_went(
    how: str, cgroup: str, alive: Liveness
) -> None:
    async with engine_tree(wild(alive, "--deaf", "yes"), confinement(how, cgroup)) as tree:
        lives = await alive.appear(4)
        assert sorted(tree.pids) == sorted(life.pid for life in lives)
        assert tree.engine_pid == alive.role("main").pid
        assert {member.name for member in tree.members()} >= {"innocent (x) y"}
        tree.kill()
        assert await tree.gone(5) == []
        await alive.all_dead(5)
        await asyncio.wait_for(asyncio.shield(tree.exited), 5)


@pytest.mark.parametrize(("how", "cgroup"), WAYS)
async def test_the_trees_end_by_itself_ends_all_members_and_says_the_code(
    how: str, cgroup: str, alive: Liveness
) -> None:
    argv = wild(alive, "--deaf", "yes", "--exit", "3")
    async with engine_tree(argv, confinement(how, cgroup)) as tree:
        await alive.appear(4)
        await alive.tell("main")
        assert await tree.exited == lifecycle.Exit(code=3)
        assert await tree.gone(5) == []
        await alive.all_dead(5)


@pytest.mark.parametrize("how", ["namespace", "guard"])
async def test_a_stop_reaches_the_engine_and_gone_says_who_stays(how: str, alive: Liveness) -> None:
    async with engine_tree(wild(alive, "--deaf", "yes"), confinement(how, "off")) as tree:
        await alive.appear(4)
        tree.terminate()
        left = await tree.gone(0.0)
        assert f" (pid {tree.engine_pid}, state" in " ".join(map(str, left))
        assert not tree.exited.done()
    async with engine_tree(python("import signal; signal.pause()"), confinement(how, "off")) as it:
        it.terminate()
        assert await it.exited == lifecycle.Exit(signal=signal.SIGTERM)


async def settled(tree: lifecycle.EngineTree, count: int) -> None:
    """Waits until the tree has so many processes: who forked twice may still be on its way out."""
    async with asyncio.timeout(5):
        while tree.sample().processes != count:  # noqa: ASYNC110 - the kernel tells nobody
            await asyncio.sleep(0.01)


async def test_all_of_it_works_under_uvloop(alive: Liveness) -> None:
    way = confinement("guard", "off")

    async def run() -> None:
        async with engine_tree(wild(alive, "--deaf", "yes"), way) as tree:
            await alive.appear(4)
            await settled(tree, 4)
            tree.kill()
            assert await tree.gone(5) == []
            await alive.all_dead(5)
            assert tree.output.lines() == ["up"]

    def in_thread_of_its_own() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())

    await asyncio.to_thread(in_thread_of_its_own)


async def test_close_alone_leaves_nothing_alive(alive: Liveness) -> None:
    for how in ("namespace", "guard"):
        tree = await lifecycle.EngineTree.start(
            wild(alive, "--deaf", "yes"),
            env=dict(os.environ),
            cwd="/",
            confinement=confinement(how, "off"),
        )
        try:
            await alive.appear(4)
        finally:
            tree.close()
        await alive.all_dead(5)
        tree.close()


@pytest.mark.parametrize("how", ["namespace", "guard"])
async def test_an_engine_that_can_t_be_run_is_an_error_that_names_it(how: str) -> None:
    way = confinement(how, "off")
    with pytest.raises(EngineError, match="can't run /nowhere/engine: No such file or directory"):
        async with engine_tree(["/nowhere/engine"], way):
            pass


async def test_a_guard_that_does_not_come_up_is_an_error_with_its_last_words() -> None:
    way = confine.Confinement(
        namespace=("/bin/sh", "-c", "echo no room here; exit 4"),
        how="",
        group=None,
        memory_watched=False,
    )
    with pytest.raises(EngineError, match="no room here"):
        async with engine_tree(["true"], way):
            pass
    missing = confine.Confinement(
        namespace=("/nowhere/unshare",), how="", group=None, memory_watched=False
    )
    with pytest.raises(EngineError, match="can't start the guard"):
        async with engine_tree(["true"], missing):
            pass


async def test_a_start_that_is_cancelled_leaves_nothing(short_dir: Path) -> None:
    way = confine.Confinement(
        namespace=("/bin/sh", "-c", f"echo $$ > {short_dir}/pid; kill -STOP $$"),
        how="",
        group=None,
        memory_watched=False,
    )
    os.mkfifo(short_dir / "pid")
    start = asyncio.create_task(
        lifecycle.EngineTree.start(["true"], env=dict(os.environ), cwd="/", confinement=way)
    )
    pid = int(await asyncio.to_thread((short_dir / "pid").read_text))
    start.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await start
    assert start.cancelled()
    assert proc.read_stat(pid) is None


async def test_vitals_count_the_tree_and_cpu_time_never_falls(alive: Liveness) -> None:
    async with engine_tree(wild(alive, "--children", "5"), confinement("guard", "auto")) as tree:
        await alive.appear(8)
        await settled(tree, 8)
        first = tree.sample()
        assert first.pid == tree.engine_pid
        assert first.rss_bytes > 8 << 20
        assert first.fd_count >= 8 * 4
        os.kill(alive.role("child").pid, signal.SIGKILL)
        await process_end(alive.role("child").pid)
        second = tree.sample()
        assert second.processes == 7
        assert second.cpu_ms >= first.cpu_ms
        assert second.peak_rss_bytes >= first.rss_bytes > second.rss_bytes
        assert second.age_ms >= first.age_ms
    assert tree.sample().processes == 0
    assert tree.sample().cpu_ms >= second.cpu_ms


async def test_lines_reach_the_log_file_the_ring_and_the_callback(tmp_path: Path) -> None:
    heard: list[str] = []
    code = "import os; os.write(1, b'\\x1b[32mgreen\\x1b[0m\\n'); os.write(2, b'last words')"
    log = tmp_path / "engine.log"
    async with engine_tree(
        python(code), confinement("guard", "off"), log_file=log, on_line=heard.append
    ) as tree:
        assert await tree.exited == lifecycle.Exit(code=0)
        assert tree.output.lines() == ["green", "last words"]
    assert heard == ["green", "last words"]
    assert log.read_text() == "green\nlast words\n"
    assert log.stat().st_mode & 0o777 == 0o600


async def test_the_kernels_victims_are_counted() -> None:
    if not (confine.survey().memory or confine.survey().unified_memory):
        pytest.skip("no memory controller may be used here")
    hog = "import os\nif os.fork() == 0: bytearray(300 << 20)\nelse: os.wait()"
    way = confinement("guard", "auto", memory=100 << 20)
    assert not way.memory_watched
    async with engine_tree(python(hog), way) as tree:
        await tree.exited
        assert await tree.gone(5) == []
        assert tree.oom_kills() >= 1
    assert tree.oom_kills() >= 1


async def test_what_the_guard_could_not_do_is_noted_and_the_memory_watched(tmp_path: Path) -> None:
    no_cgroup = CellGroup("x", [tmp_path], None)
    way = dataclasses.replace(confinement("guard", "off"), group=no_cgroup)
    async with engine_tree(python("import signal; signal.pause()"), way) as tree:
        (folder,) = no_cgroup.folders
        assert tree.notes == [f"can't enter the cgroup {folder}: No such file or directory"]
        assert tree.memory_watched
