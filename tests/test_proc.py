"""Facts from /proc: parsers on text, the reads on this very process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace

from hum_workers.process import proc
from hum_workers.process.proc import Stat


def stat(pid: int, parent: int, state: str = "S", name: str = "x") -> Stat:
    return Stat(pid, name, state, parent, pid, pid, cpu=0, start=pid, rss=0)


def test_a_name_with_spaces_and_brackets_does_not_shift_the_fields() -> None:
    tail = " ".join(str(n) for n in range(1, 50))
    parsed = proc.parse_stat(f"42 (VLLM::(a) b) R {tail}".encode())
    assert parsed == Stat(42, "VLLM::(a) b", "R", 1, 2, 3, 11 + 12, 19, 21, threads=17)


def test_text_that_is_no_stat_line_is_none() -> None:
    for text in (b"", b"42 (x) R 1 2", b"42 (x) R a b c", b"nonsense"):
        assert proc.parse_stat(text) is None


def test_a_zombie_is_dead_and_one_with_threads_left_is_not() -> None:
    assert not stat(1, 0, "Z").alive
    assert replace(stat(1, 0, "Z"), threads=2).alive
    assert stat(1, 0, "D").alive


def test_descendants_come_nearest_first_and_without_the_subtrees_left_out() -> None:
    table = {s.pid: s for s in (stat(2, 1), stat(3, 2), stat(4, 3), stat(5, 1), stat(6, 5))}
    assert proc.descendants(table, [1]) == [2, 5, 3, 6, 4]
    assert proc.descendants(table, [1], without=[2]) == [5, 6]
    assert proc.descendants(table, [4]) == []


def test_parents_that_name_each_other_do_not_go_round_for_ever() -> None:
    table = {2: stat(2, 3), 3: stat(3, 2)}
    assert sorted(proc.descendants(table, [2])) == [2, 3]


def test_the_innermost_pid_is_the_last_one() -> None:
    assert proc.parse_innermost_pid(b"Name:\tx\nNSpid:\t4711\t17\t2\n") == 2
    assert proc.parse_innermost_pid(b"Name:\tx\n") is None


def test_this_process_is_found_by_every_way() -> None:
    me = proc.read_stat(os.getpid())
    assert me is not None
    assert me.alive
    assert me.parent == os.getppid()
    assert proc.scan()[os.getpid()].start == me.start
    assert proc.fd_count(os.getpid()) >= 3
    assert proc.innermost_pid(os.getpid()) == os.getpid()


def test_children_are_found_by_the_kernels_lists() -> None:
    code = "import subprocess, sys; subprocess.run(['cat'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as child:
        assert child.pid in proc.children(os.getpid())
        assert child.pid in proc.walk(os.getpid())


def test_a_process_that_has_gone_reads_as_none() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert proc.read_stat(child.pid) is None
    assert proc.fd_count(child.pid) == 0
    assert proc.innermost_pid(child.pid) is None
    assert proc.children(child.pid) == []


def test_a_signal_reaches_only_the_process_that_was_meant() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        now = proc.read_stat(child.pid)
        assert now is not None
        assert not proc.send(replace(now, start=now.start - 1), signal.SIGKILL)
        assert proc.send(now, 0)
        assert proc.send(now, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    assert not proc.send(now, signal.SIGKILL)
