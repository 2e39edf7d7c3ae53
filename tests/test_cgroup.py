"""Control groups: where they are on each kind of host, and one made, used and removed for real."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hum_workers.process import cgroup, confine, proc
from hum_workers.process.cgroup import CellGroup, Mount

HYBRID = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
36 31 0:33 / /sys/fs/cgroup/cpu rw,relatime shared:7 - cgroup cgroup rw,cpu,cpuacct
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
UNIFIED = (
    "29 23 0:26 /docker/abc /sys/fs/c\\040group ro,nosuid shared:4 - cgroup2 cgroup rw\nshort\n"
)


@pytest.fixture
def unified() -> Path:
    folder = confine.survey().unified
    if folder is None:
        pytest.skip("no cgroup v2 folder may be made here")
    return folder


def test_a_hybrid_host_has_v2_beside_the_memory_controller_of_v1() -> None:
    assert cgroup.parse_mounts(HYBRID) == (
        Mount(Path("/sys/fs/cgroup/unified"), "/"),
        Mount(Path("/sys/fs/cgroup/memory"), "/"),
    )


def test_a_unified_host_has_one_mount_whose_path_may_hold_a_blank() -> None:
    assert cgroup.parse_mounts(UNIFIED) == (Mount(Path("/sys/fs/c group"), "/docker/abc"), None)
    assert cgroup.parse_mounts("") == (None, None)


def test_our_own_paths_are_read_for_both_versions() -> None:
    assert cgroup.parse_own("4:memory:/a/b\n1:cpu:/c\n0::/d:e\n") == ("/d:e", "/a/b")
    assert cgroup.parse_own("") == ("/", "/")


def test_our_folder_is_found_below_the_part_that_the_mount_shows(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    mount = Mount(tmp_path, "/docker/abc")
    assert cgroup.place(mount, "/docker/abc/inner") == tmp_path / "inner"
    assert cgroup.place(mount, "/docker/abc") == tmp_path
    assert cgroup.place(mount, "/elsewhere") == tmp_path
    assert cgroup.place(mount, "/docker/abc/missing") == tmp_path


def space() -> str:
    return os.readlink("/proc/self/ns/pid").strip("pid:[]")


def test_empty_folders_whose_owner_is_dead_are_swept_at_once(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    living = tmp_path / cgroup.folder_name("me")
    assert living.name.split("-")[3] == space()
    left = tmp_path / f"{cgroup.PREFIX}x-{space()}-{dead.pid}-1"
    reused = tmp_path / f"{cgroup.PREFIX}x-{space()}-{os.getpid()}-1"
    full = tmp_path / f"{cgroup.PREFIX}full-{space()}-{dead.pid}-1"
    others = [tmp_path / "system.slice", tmp_path / f"{cgroup.PREFIX}odd"]
    for folder in (living, left, reused, full, *others):
        folder.mkdir()
    (full / "process").touch()
    assert sorted(cgroup.sweep(tmp_path)) == sorted([left, reused])
    assert all(folder.exists() for folder in (living, full, *others))


def test_an_owner_that_nobody_has_reaped_yet_is_dead(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as zombie:
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        stat = proc.read_stat(zombie.pid)
        assert stat is not None
        left = tmp_path / f"{cgroup.PREFIX}x-{space()}-{zombie.pid}-{stat.start}"
        left.mkdir()
        assert cgroup.sweep(tmp_path) == [left]


def test_a_folder_of_another_pid_namespace_goes_by_its_age(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    foreign = tmp_path / f"{cgroup.PREFIX}x-1234-{dead.pid}-1"
    older = tmp_path / f"{cgroup.PREFIX}x-{dead.pid}-1"
    for folder in (foreign, older):
        folder.mkdir()
    assert cgroup.sweep(tmp_path) == []
    assert sorted(cgroup.sweep(tmp_path, age=-1.0)) == sorted([foreign, older])


def test_the_kernels_victims_are_read_from_either_version(tmp_path: Path) -> None:
    assert cgroup.oom_kills(tmp_path) == 0
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert cgroup.oom_kills(tmp_path) == 2
    (tmp_path / "memory.events").write_text("low 0\noom 4\noom_kill 3\noom_group_kill 9\n")
    assert cgroup.oom_kills(tmp_path) == 3


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["memory.max", "memory.swap.max"], ["1024", "0"]),
        (["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"], ["1024", "1024"]),
        (["memory.max"], ["1024"]),
    ],
)
def test_a_memory_limit_covers_swap_too(
    files: list[str], expected: list[str], tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / name).touch()
    cgroup.limit_memory(tmp_path, 1024)
    assert [(tmp_path / name).read_text() for name in files] == expected


def test_a_group_is_killed_by_one_write_and_leaves_no_folder(unified: Path) -> None:
    group = CellGroup("a cell:1", [unified], None)
    group.create()
    try:
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as member:
            cgroup.write(group.folders[0] / "cgroup.procs", str(member.pid))
            assert list(group.pids()) == [member.pid]
            assert not group.remove()
            group.kill()
            assert member.wait(5) == -9
    finally:
        assert group.remove()
    assert group.oom_kills() == 0
    assert list(group.pids()) == []


def test_killing_and_removing_a_group_that_has_gone_is_fine(tmp_path: Path) -> None:
    group = CellGroup("x", [tmp_path / "none"], None)
    group.kill()
    assert group.remove()
