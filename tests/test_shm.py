"""Shared memory of dead engines: only what was theirs, is still the same and is unused goes."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from secrets import token_hex

import pytest

from hum_workers.frames import Frame
from hum_workers.process import shm
from tests.tenders import spec, tender

HOLD = """
import mmap, os, sys, time
for name in sys.argv[1:]:
    fd = os.open(f"/dev/shm/{name}", os.O_RDWR)
    globals()[name] = mmap.mmap(fd, 4096)
    os.close(fd)
sys.stdout.write("held\\n"); sys.stdout.flush()
time.sleep(60)
"""

SEMAPHORE = """
import _multiprocessing, sys, time
held = _multiprocessing.SemLock(0, 1, 1, "/" + sys.argv[1].removeprefix("sem."), False)
time.sleep(60)
"""
"""What a `multiprocessing` lock does, without a tracker that might unlink it first."""


@pytest.fixture
def semaphore() -> Iterator[str]:
    """A name in /dev/shm for a semaphore of `multiprocessing`."""
    name = f"sem.mp-hum{token_hex(6)}"
    yield name
    Path(shm.FOLDER, name).unlink(missing_ok=True)


@pytest.fixture
def segments() -> Iterator[list[str]]:
    """Names of three segments in /dev/shm."""
    names = [f"psm_hum{token_hex(6)}" for _ in range(3)]
    for name in names:
        Path(shm.FOLDER, name).write_bytes(bytes(4096))
    yield names
    for name in names:
        Path(shm.FOLDER, name).unlink(missing_ok=True)


def held(name: str) -> mmap.mmap:
    fd = os.open(f"{shm.FOLDER}/{name}", os.O_RDWR)
    try:
        return mmap.mmap(fd, 4096)
    finally:
        os.close(fd)


def exist(names: list[str]) -> list[bool]:
    return [Path(shm.FOLDER, name).exists() for name in names]


def test_what_is_mapped_is_found_and_swept_once_nobody_maps_it(segments: list[str]) -> None:
    mine, other, _ = segments
    with held(mine):
        found = shm.mapped([os.getpid()])
        assert mine in found
        assert other not in found
        ours = {mine: found[mine]}
        assert shm.sweep(ours) == []
    assert shm.sweep(ours) == [mine]
    assert exist(segments) == [False, True, True]
    assert shm.sweep(ours) == []


def test_a_new_segment_of_an_old_name_is_somebody_elses(segments: list[str]) -> None:
    name = segments[0]
    with held(name):
        found = {name: shm.mapped([os.getpid()])[name]}
    path = Path(shm.FOLDER, name)
    path.rename(path.with_name(segments[1]))
    path.write_bytes(b"new")
    assert shm.sweep(found) == []
    assert path.read_bytes() == b"new"


def test_a_record_that_is_torn_or_strange_sweeps_nothing(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep")
    stat = precious.stat()
    for text in ("", "{", "[]", '{"../../precious": [1, 2]}'):
        (tmp_path / shm.RECORD).write_text(text)
        assert shm.sweep_recorded(tmp_path) == []
    shm.record(tmp_path, {f"../..{precious}": [stat.st_dev, stat.st_ino]})
    assert shm.sweep_recorded(tmp_path) == []
    assert precious.exists()


async def test_an_engine_that_is_killed_leaves_no_shared_memory(
    short_dir: Path, segments: list[str]
) -> None:
    mine, another, foreign = segments
    argv = [sys.executable, "-c", HOLD, mine, another]
    async with tender(short_dir, spec(short_dir, argv=argv, start_timeout=60)) as it:
        record = short_dir / "cell" / shm.RECORD
        await it.until(lambda: record.exists() and mine in record.read_text())
        with held(another):
            it.send(Frame.SILENCE, 0, "enough")
            gone = await it.gone()
        assert gone["swept"] == [mine]
    assert exist([mine, another, foreign]) == [False, True, True]


async def test_what_a_killed_tender_could_not_sweep_the_next_start_does(
    short_dir: Path, segments: list[str]
) -> None:
    argv = [sys.executable, "-c", HOLD, segments[0]]
    async with tender(short_dir, spec(short_dir, argv=argv, start_timeout=60)) as it:
        record = short_dir / "cell" / shm.RECORD
        await it.until(lambda: record.exists() and segments[0] in record.read_text())
        it.process.kill()
        await it.process.wait()
    assert exist(segments) == [True, True, True]
    async with tender(short_dir, spec(short_dir)) as it:
        await it.first(Frame.READY)
        assert exist(segments) == [False, True, True]


async def test_a_semaphore_is_swept_though_its_maker_maps_a_deleted_name(
    short_dir: Path, semaphore: str
) -> None:
    argv = [sys.executable, "-c", SEMAPHORE, semaphore]
    async with tender(short_dir, spec(short_dir, argv=argv, start_timeout=60)) as it:
        record = short_dir / "cell" / shm.RECORD
        await it.until(lambda: record.exists() and semaphore in record.read_text())
        it.send(Frame.SILENCE, 0, "enough")
        gone = await it.gone()
    assert gone["swept"] == [semaphore]
    assert exist([semaphore]) == [False]


def test_a_semaphore_that_somebody_else_still_has_stays(semaphore: str) -> None:
    semlock = import_module("_multiprocessing").SemLock
    held = semlock(0, 1, 1, f"/{semaphore.removeprefix('sem.')}", False)
    ours = {semaphore: shm.mapped([os.getpid()])[semaphore]}
    assert shm.sweep(ours) == []
    del held
    assert shm.sweep(ours) == [semaphore]
