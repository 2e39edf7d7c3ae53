"""What `--check` says of the host, for eggs of any worker."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hum_workers.egg import load_eggs
from hum_workers.egg.tables import Egg
from hum_workers.egg.units import ranges
from hum_workers.process import memory_limits
from hum_workers.program.findings import Finding
from hum_workers.program.host_check import (
    available_memory,
    cells_at_once,
    check_host,
    largest_node,
    patience,
)


def look(folder: Path, *texts: str, **env: str) -> list[Finding]:
    runtime = folder / "run"
    runtime.mkdir(mode=0o700, exist_ok=True)
    defaults = {
        "HOME": str(folder),
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_RUNTIME_DIR": str(runtime),
        "HUM_THRUM_SOCK": str(folder / "thrum.sock"),
    }
    return list(check_host("some-worker", eggs(folder, *texts), defaults | env))


def eggs(folder: Path, *texts: str) -> list[Egg]:
    files = []
    for number, text in enumerate(texts):
        files.append(folder / f"egg{number}.toml")
        files[-1].write_text(text)
    return load_eggs(files, Egg)


def about(found: list[Finding], subject: str) -> list[Finding]:
    return [finding for finding in found if finding.subject == subject]


def test_nothing_is_made_by_a_look(short_dir: Path) -> None:
    found = look(short_dir, "[log]\nfile = 'worker.log'\n[metrics]\nlisten = 0")
    assert all(finding.level != "error" for finding in found)
    assert sorted(path.name for path in short_dir.iterdir()) == ["egg0.toml", "run"]
    assert list((short_dir / "run").iterdir()) == []


def test_a_log_and_an_address_that_can_not_be_had_are_errors(short_dir: Path) -> None:
    found = look(short_dir, "[log]\nfile = 'none/x.log'\n[metrics]\nlisten = '192.0.2.1:1'")
    assert [about(found, subject)[0].level for subject in ("log", "metrics")] == ["error"] * 2


def test_a_folder_of_cells_that_can_not_be_had_is_an_error(short_dir: Path) -> None:
    (short_dir / "file").write_text("")
    (found,) = about(look(short_dir, "[bee]", XDG_RUNTIME_DIR=str(short_dir / "file/x")), "folder")
    assert found.level == "error"
    (short_dir / "run" / "hum_workers").mkdir(mode=0o755)
    (found,) = about(look(short_dir, "[bee]"), "folder")
    assert "must be a folder of mode 0700" in found.message


EPHEMERAL = '[bee]\npropensity = "ephemeral"\nmax_procs = {}'


@pytest.mark.parametrize(
    ("text", "count", "cells", "level", "said"),
    [
        ("[limits]", 2, 2, "", ""),
        ("[bee]\nmax_procs = 2", 2, 2, "", ""),
        ("[bee]\nmax_procs = 3", 2, 2, "warning", 'with propensity = "ephemeral"; there will be 2'),
        ('[bee]\nraise = "on-prompt"\nmax_procs = 1', 2, 1, "ok", "2 eggs share 1: "),
        (EPHEMERAL.format(3), 1, 3, "ok", "3 at once, one turn each"),
    ],
)
def test_it_is_told_what_the_number_of_cells_does(
    short_dir: Path, text: str, count: int, cells: int, level: str, said: str
) -> None:
    found = about(look(short_dir, *[text] * count), "cells")
    assert [finding.level for finding in found] == ([level] if level else [])
    assert said in "".join(finding.message for finding in found)
    assert cells_at_once(eggs(short_dir, *[text] * count)) == cells


def test_cpus_that_this_process_may_not_use_are_told(short_dir: Path) -> None:
    ours = sorted(os.sched_getaffinity(0))
    (found,) = about(look(short_dir, "[limits]\ncpus = '8000-8001'"), "egg0 cpus")
    assert found.level == "error"
    assert f"8000-8001 can't be used here; there are {ranges(ours)}" in found.message
    (found,) = about(look(short_dir, f"[limits]\ncpus = '{ours[0]},8000'"), "egg0 cpus")
    assert (found.level, f"gets {ours[0]} alone" in found.message) == ("warning", True)
    assert about(look(short_dir, f"[limits]\ncpus = '{ours[0]}'"), "egg0 cpus") == []


def test_what_takes_long_is_said_and_what_does_not_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with patience("waiting for it", after=60):
        pass
    assert capsys.readouterr().err == ""
    with patience("waiting for it", after=0):
        until, said = time.monotonic() + 10, ""
        while not said and time.monotonic() < until:
            said = capsys.readouterr().err
    assert said == "waiting for it\n"


def group(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(f"{text}\n")
    return folder


def test_memory_is_read_of_the_kernels_file(tmp_path: Path) -> None:
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:  2 kB\nMemAvailable:  1 kB\n")
    assert available_memory(file, []) == (1024, 2048)
    assert available_memory(tmp_path / "none", []) == (0, 0)


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({"memory_max": "1000", "memory_current": "600", "memory_stat": "inactive_file 100"}, 500),
        ({"memory_max": "1000", "memory_current": "600"}, 400),
        (
            {
                "memory_limit_in_bytes": "1000",
                "memory_usage_in_bytes": "900",
                "memory_stat": "inactive_file 7\ntotal_inactive_file 50",
            },
            150,
        ),
    ],
)
def test_a_container_has_what_its_limit_leaves(
    tmp_path: Path, files: dict[str, str], left: int
) -> None:
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:  8 kB\nMemAvailable:  4 kB\n")
    assert available_memory(file, [group(tmp_path / "group", **files)]) == (left, 1000)


def test_a_group_without_a_limit_leaves_all(tmp_path: Path) -> None:
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:  8 kB\nMemAvailable:  4 kB\n")
    groups = [
        group(tmp_path / "a", memory_max="max", memory_current="9"),
        group(tmp_path / "b", memory_limit_in_bytes=str(2**63 - 4096), memory_usage_in_bytes="9"),
        group(tmp_path / "c"),
    ]
    assert available_memory(file, groups) == (4096, 8192)


def test_the_groups_of_this_process_are_found() -> None:
    assert all((folder / "cgroup.procs").exists() for folder in memory_limits.groups())
    free, total = available_memory()
    assert 0 < free <= total


def test_the_largest_numa_node_is_found(tmp_path: Path) -> None:
    assert largest_node(tmp_path) == 0
    for number, size in enumerate((3, 5, 4)):
        text = f"Node {number} MemTotal:       {size} kB\nNode {number} MemFree: 9 kB\n"
        (tmp_path / f"node{number}").mkdir()
        (tmp_path / f"node{number}" / "meminfo").write_text(text)
    assert largest_node(tmp_path) == 5 * 1024
