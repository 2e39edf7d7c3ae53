"""Each process of a tree by pidfd: whose end is told, and how it ended."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.chaos_run import below
from hum_workers.frames import Frame, Mmm
from hum_workers.process import proc
from hum_workers.process.roll import Fallen, Roll
from tests.leftovers import all_end, processes
from tests.tenders import chat, spec, tender

WAIT = 20.0
TITLED = "import sys; open('/proc/self/comm', 'w').write(sys.argv[1]); sys.stdin.read(); "


class Told(list[Fallen]):
    """What a roll says."""

    def __init__(self) -> None:
        super().__init__()
        self.news = asyncio.Event()

    def __call__(self, fallen: Fallen) -> None:
        self.append(fallen)
        self.news.set()


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    found: list[subprocess.Popen[bytes]] = []
    yield found
    for process in found:
        process.kill()
        process.communicate()


def member(title: str, end: str = "") -> subprocess.Popen[bytes]:
    """A process that leaves when its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", TITLED + end, title], stdin=subprocess.PIPE
    )
    while title[:15] not in Path(f"/proc/{process.pid}/comm").read_text():
        time.sleep(0.01)
    return process


def stat(process: subprocess.Popen[bytes]) -> proc.Stat:
    found = proc.read_stat(process.pid)
    assert found is not None
    return found


async def named(title: str, folder: Path) -> proc.Stat:
    """Returns the first process of the folder's tree with this name, once there is one."""
    async with asyncio.timeout(WAIT):
        while True:
            for stat in processes(folder):
                if stat.name == title:
                    return stat
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("reaped", [True, False])
async def test_the_end_of_a_needed_member_is_told_with_its_signal(
    reaped: bool, started: list[subprocess.Popen[bytes]]
) -> None:
    told = Told()
    roll = Roll(["VLLM::Core"], told)
    started += [member("VLLM::Core_DP0"), member("tracker")]
    roll.call(map(stat, started))
    roll.call(map(stat, started))
    assert roll.needed == [started[0].pid]
    for process in started:
        process.kill()
        if reaped:
            process.wait()
    async with asyncio.timeout(WAIT):
        await told.news.wait()
    if told[0].status is None and reaped:
        pytest.skip("this kernel keeps no status behind a pidfd")
    assert told == [Fallen(started[0].pid, "VLLM::Core_DP0", -signal.SIGKILL)]
    assert str(told[0]) == f"VLLM::Core_DP0 (pid {started[0].pid}) was killed by SIGKILL"
    roll.close()


async def test_the_code_of_one_that_leaves_by_itself_is_told(
    started: list[subprocess.Popen[bytes]],
) -> None:
    told = Told()
    roll = Roll(["VLLM::Core"], told)
    started.append(member("VLLM::Core", "sys.exit(7)"))
    roll.call(map(stat, started))
    assert started[0].stdin is not None
    started[0].stdin.close()
    async with asyncio.timeout(WAIT):
        await told.news.wait()
    assert told[0].status == 7
    roll.close()


async def test_a_title_that_comes_late_is_found_at_a_later_call(
    started: list[subprocess.Popen[bytes]],
) -> None:
    roll = Roll(["VLLM::Core"], Told())
    late = "open('/proc/self/comm', 'w').write('VLLM::C' + 'ore'); import time; time.sleep(60)"
    started.append(member("plain", late))
    roll.call(map(stat, started))
    assert roll.needed == []
    assert started[0].stdin is not None
    started[0].stdin.close()
    while "VLLM" not in Path(f"/proc/{started[0].pid}/comm").read_text():
        time.sleep(0.01)  # noqa: ASYNC251 - nothing else runs here
    roll.call(map(stat, started))
    assert roll.needed == [started[0].pid]
    roll.close()


async def test_closing_gives_every_descriptor_back(
    started: list[subprocess.Popen[bytes]],
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    roll = Roll(["x"], Told())
    started += [member("x1"), member("other")]
    roll.call(map(stat, started))
    roll.close()
    assert len(os.listdir("/proc/self/fd")) == before + 2  # the pipes to both


@pytest.mark.parametrize("title", ["VLLM::EngineCor", "VLLM::Worker"])
@pytest.mark.parametrize("how", ["namespace", "guard"])
async def test_the_death_of_a_needed_process_is_the_cells_at_once(
    how: str, title: str, short_dir: Path
) -> None:
    wishes = {"children": 3, "health_after_death": 60}
    async with tender(short_dir, spec(short_dir, wishes, confine=how)) as it:
        await it.first(Frame.READY)
        it.send(Frame.FEED, 1, chat(tokens=10_000, rate=50))
        await it.until(lambda: bool(it.text(1)))
        victim = await named(title, short_dir)
        await it.until(lambda: bool(it.of(Frame.VITALS)) and it.vitals()["processes"] == 4)
        count = len(it.of(Frame.VITALS))
        await it.until(lambda: len(it.of(Frame.VITALS)) > count + 25)  # a roll call in between
        os.kill(victim.pid, signal.SIGKILL)
        gone = await it.gone()
    assert (gone["cause"], gone["asked"], gone["left"]) == ("member", False, [])
    assert gone["fallen"] == [f"{title} (pid {victim.pid}) was killed by SIGKILL", -9]
    assert [kind for kind, _ in it.events(1) if kind >= Mmm.FINISH] == []


async def test_a_helper_that_is_not_needed_may_go(short_dir: Path) -> None:
    async with tender(short_dir, spec(short_dir, {"double_fork": True})) as it:
        await it.first(Frame.READY)
        helper = await named("elsewhere", short_dir)
        os.kill(helper.pid, signal.SIGKILL)
        it.send(Frame.FEED, 1, chat(tokens=3))
        assert (await it.ended(1))[0] == Mmm.FINISH


async def test_an_orderly_stop_is_no_death(short_dir: Path) -> None:
    async with tender(short_dir, spec(short_dir, {"children": 3})) as it:
        await it.first(Frame.READY)
        it.send(Frame.SILENCE, 20.0, "enough")
        gone = await it.gone()
    assert (gone["asked"], gone["code"], gone["reason"]) == (True, 0, "enough"), gone


@pytest.mark.parametrize("how", ["namespace", "guard"])
async def test_the_code_of_an_orderly_stop_waits_for_a_tender_that_sleeps(
    how: str, short_dir: Path
) -> None:
    async with tender(short_dir, spec(short_dir, {"children": 3}, confine=how)) as it:
        _, facts = await it.first(Frame.READY)
        tree = below(it.process.pid)[1:]
        status = Path(f"/proc/{facts['pid']}/status")
        os.kill(facts["pid"], signal.SIGSTOP)
        await until(lambda: "State:\tT" in status.read_text())
        it.send(Frame.SILENCE, WAIT, "enough")
        await until(lambda: f"ShdPnd:\t{1 << signal.SIGTERM - 1:016x}" in status.read_text())
        os.kill(it.process.pid, signal.SIGSTOP)
        os.kill(facts["pid"], signal.SIGCONT)
        await all_end(tree)
        os.kill(it.process.pid, signal.SIGCONT)
        gone = await it.gone()
    assert (gone["asked"], gone["code"], gone["signal"], gone["left"]) == (True, 0, None, [])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT):
        while not condition():  # noqa: ASYNC110 - the kernel tells of no signal that waits
            await asyncio.sleep(0.01)


async def test_the_end_of_the_main_process_is_not_blamed_on_those_it_takes_along(
    short_dir: Path,
) -> None:
    async with tender(short_dir, spec(short_dir, {"children": 3})) as it:
        _, facts = await it.first(Frame.READY)
        os.kill(facts["pid"], signal.SIGKILL)
        gone = await it.gone()
    assert (gone["cause"], gone["fallen"], gone["signal"]) == ("", None, signal.SIGKILL)


async def test_one_that_falls_while_the_engine_starts_is_named_and_the_start_ended(
    short_dir: Path,
) -> None:
    raised = spec(short_dir, {"children": 2, "hang_at": "load"})
    async with tender(short_dir, raised) as it:
        await it.stage("engine")
        await it.until(lambda: bool(it.of(Frame.VITALS)) and it.vitals()["processes"] >= 3)
        count = len(it.of(Frame.VITALS))
        await it.until(lambda: len(it.of(Frame.VITALS)) > count + 24)  # a roll call in between
        core = await named("VLLM::EngineCor", short_dir)
        os.kill(core.pid, signal.SIGKILL)
        gone = await it.gone()
    assert gone["cause"] == "member"
    assert gone["fallen"][0].startswith("VLLM::EngineCor")
