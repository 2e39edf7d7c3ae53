"""What an earlier bee left alive: found by pid and start time, said, ended; all else is let be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hum_workers.cells.ledger import Ledger, end_leftovers
from hum_workers.process import proc
from tests.leftovers import all_end, assert_nothing_left, processes
from tests.rig import WAIT, egg, fake, running_bee, served
from tests.test_ephemeral import until

TREE = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"])
time.sleep(600)
"""


@contextmanager
def tree() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a child, in a session of its own, that stays."""
    process = subprocess.Popen(
        [sys.executable, "-c", TREE], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def members(process: subprocess.Popen[bytes]) -> list[proc.Stat]:
    stats = [proc.read_stat(pid) for pid in (process.pid, *proc.walk(process.pid))]
    return [stat for stat in stats if stat is not None]


def alive(stats: list[proc.Stat]) -> bool:
    now = [proc.read_stat(stat.pid) for stat in stats]
    return all(stat is not None and stat.alive for stat in now)


async def test_members_and_what_lives_below_them_are_ended(tmp_path: Path) -> None:
    with tree() as process:
        found = members(process)
        assert len(found) == 2
        book = Ledger(tmp_path / "cells.json")
        book.note("echo-1", process.pid, None)
        private = tmp_path / "cells" / "tag-echo"
        (private / "tmp").mkdir(parents=True)
        other = tmp_path / "cells" / "other-echo"
        other.mkdir()
        assert await end_leftovers(book.path, tmp_path / "cells", "tag") == []
        await all_end(found)
        assert not book.path.exists()
        assert (private.exists(), other.exists()) == (False, True)


def host(page: dict[str, Any]) -> None:
    page["host"] = "another boot"


def start(page: dict[str, Any]) -> None:
    page["cells"] = {c: [[p, s - 1] for p, s in m] for c, m in page["cells"].items()}


@pytest.mark.parametrize("change", [host, start])
async def test_another_boot_or_another_start_time_is_another_process(
    tmp_path: Path, change: Any
) -> None:
    with tree() as process:
        book = Ledger(tmp_path / "cells.json")
        book.note("echo-1", process.pid, None)
        page = json.loads(book.path.read_bytes())
        change(page)
        book.path.write_text(json.dumps(page))
        assert await end_leftovers(book.path, tmp_path, "tag") == []
        assert alive(members(process))


DEEP = '{"x":' + "[" * 1500 + "]" * 1500 + "}"


@pytest.mark.parametrize(
    "text", ["", "{", '{"host": 1}', "[]", '{"host":"x","cells":{"a":[[1]]}}', DEEP]
)
async def test_a_file_that_is_none_stops_nothing(tmp_path: Path, text: str) -> None:
    file = tmp_path / "cells.json"
    file.write_text(text)
    assert await end_leftovers(file, tmp_path, "tag") == []
    os.mkfifo(file)
    assert await end_leftovers(file, tmp_path, "tag") == []


async def test_it_is_written_when_the_tree_has_changed_and_gone_when_all_are_dead(
    tmp_path: Path,
) -> None:
    with tree() as process:
        book = Ledger(tmp_path / "deep" / "cells.json")
        book.note("echo-1", process.pid, 2)
        book.path.unlink()
        book.note("echo-1", process.pid, 2)
        assert not book.path.exists()
        book.note("echo-2", process.pid, None)
        assert set(json.loads(book.path.read_bytes())["cells"]) == {"echo-1", "echo-2"}
        book.forget("echo-2")
        book.close()
        assert book.path.exists(), "one is left"
        book.forget("echo-1")
        book.close()
        assert not book.path.exists()
    blocked = Ledger(Path("/proc/nowhere/cells.json"))
    blocked.note("echo-1", os.getpid(), None)


async def test_engines_whose_bee_tender_and_guard_were_killed_are_ended_by_the_next_bee(
    short_dir: Path,
) -> None:
    extra = '[limits]\nconfine = "guard"\ncgroup = "off"'
    path = egg(short_dir, extra=extra, fake={"children": 2, "double_fork": True})
    async with served(short_dir, path) as (humd, bee, asker):
        assert (await asker.ask(fake(tokens=2), "echo")).complete
        (book,) = (short_dir / "state" / "hum" / "workers").rglob("cells.*.json")
        tender = int(bee.events("worker.cell.spawned")[0]["pid"])
        tree = [stat for stat in processes(short_dir / "run" / "hum_workers") if stat.pid != tender]
        await until(lambda: str(tree[-1].pid) in book.read_text())
        guard = next(pid for pid in proc.children(tender))
        # All three at once: the one death that a guard can't cover.
        for pid in (guard, tender, bee.pid):
            os.kill(pid, signal.SIGSTOP)
        for pid in (guard, tender, bee.pid):
            os.kill(pid, signal.SIGKILL)
        await bee.process.wait()
        orphans = [s for s in tree if (now := proc.read_stat(s.pid)) is not None and now.alive]
        assert orphans
        async with running_bee(short_dir, path) as second:
            await humd.until(lambda: humd.serves("echo"), WAIT)
            (found,) = second.events("worker.leftover.found")
            assert found["cell"] == "echo-1"
            order = [e["event"] for e in second.log() if "event" in e]
            spawned = order.index("worker.cell.spawned")
            assert order.index("worker.leftover.found") < spawned
            await all_end(orphans)
            assert (await asker.ask(fake(tokens=2), "echo", timeout=WAIT)).complete
    assert_nothing_left(short_dir)
