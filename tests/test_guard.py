"""The guard as a program of its own, on the socket that its tender holds."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hum_workers.process import guard, guard_link
from tests.liveness import WAIT, Liveness
from tests.trees import WILD

FACTS = """
import json, os, resource, signal
with open("/proc/self/status") as status:
    ignored = next(int(l.split()[1], 16) for l in status if l.startswith("SigIgn"))
print(json.dumps({
    "core": resource.getrlimit(resource.RLIMIT_CORE),
    "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    "cpus": sorted(os.sched_getaffinity(0)),
    "stdin": os.readlink("/proc/self/fd/0"),
    "leads": os.getsid(0) == os.getpid(),
    "ignored": [n for n in (1, 2, 13, 15, 17) if ignored >> n - 1 & 1],
    "fds": sorted(os.listdir("/proc/self/fd")),
}))
"""


class Guarded:
    """A guard that was started, and our end of its socket."""

    def __init__(self, argv: Sequence[str], prefix: Sequence[str] = (), **options: Any) -> None:
        self.control, theirs = socket.socketpair()
        self.control.settimeout(WAIT)
        command = guard_link.command(theirs.fileno(), argv, **options)
        self.process = subprocess.Popen(
            [*prefix, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
        theirs.close()

    def words(self) -> list[str]:
        """Waits for the guard's end of the socket to close and returns its lines."""
        said = b""
        while data := self.control.recv(4096):
            said += data
        return said.decode().splitlines()

    def output(self) -> bytes:
        """Waits for the end of the output and of the guard."""
        return self.process.communicate(timeout=WAIT)[0]


@contextmanager
def guarded(argv: Sequence[str], **options: Any) -> Iterator[Guarded]:
    """Starts a guard; nothing of it outlives the block."""
    it = Guarded(argv, **options)
    try:
        yield it
    finally:
        it.control.close()
        it.output()


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code]


def without_proc() -> list[str]:
    """Returns how to run a program that finds nothing in /proc, or skips."""
    hidden = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
    if subprocess.run([*hidden, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespaces here to hide /proc in")
    return hidden


def test_it_says_the_engines_exit_code_and_ends_with_it() -> None:
    with guarded(python("raise SystemExit(7)")) as it:
        started, ended = it.words()
        it.output()
    assert started.startswith("spawned ")
    assert ended == "exit 7"
    assert it.process.returncode == 7


def test_it_says_by_which_signal_the_engine_ended() -> None:
    with guarded(python("import os; os.kill(os.getpid(), 9)")) as it:
        assert it.words()[1:] == ["exit -9"]
        it.output()
    assert it.process.returncode == 128 + 9


def test_an_engine_that_can_t_be_run_is_a_sentence_and_never_counts_as_started() -> None:
    with guarded(["/nowhere/engine", "serve"]) as it:
        assert it.words() == [
            "failed can't run /nowhere/engine: No such file or directory",
            f"exit {guard.CAN_T_RUN}",
        ]


def test_the_engine_gets_its_own_session_no_stdin_no_core_and_no_foreign_files() -> None:
    cpu = min(os.sched_getaffinity(0))
    with guarded(python(FACTS), open_files=77, cpus=f"{cpu}-{cpu}") as it:
        facts = json.loads(it.output())
    assert facts == {
        "core": [0, 0],
        "files": 77,
        "cpus": [cpu],
        "stdin": "/dev/null",
        "leads": True,
        "ignored": [signal.SIGPIPE],
        "fds": ["0", "1", "2", "3"],
    }


def test_an_open_file_limit_that_can_t_be_had_is_noted_and_the_engine_runs_with_less() -> None:
    with guarded(python("pass"), open_files=1 << 40) as it:
        words = it.words()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert f"note open files: {hard} instead of {1 << 40}, the hard limit" in words
    assert words[-1] == "exit 0"


def test_a_cgroup_that_can_t_be_entered_is_noted_and_the_engine_runs(tmp_path: Path) -> None:
    with guarded(python("pass"), cgroups=[str(tmp_path / "none")]) as it:
        words = it.words()
    assert words[0] == f"note can't enter the cgroup {tmp_path}/none: No such file or directory"
    assert words[-1] == "exit 0"


@pytest.mark.parametrize("order", [b"K", b""], ids=["order to kill", "end of the socket"])
async def test_everything_below_dies_wherever_it_went(order: bytes, alive: Liveness) -> None:
    with guarded([sys.executable, WILD, str(alive.path), "--deaf", "yes"]) as it:
        await alive.appear(4)
        if order:
            it.control.send(order)
        else:
            it.control.close()
        await alive.all_dead(5)


async def test_what_is_left_dies_when_the_main_process_ends(alive: Liveness) -> None:
    argv = [sys.executable, WILD, str(alive.path), "--deaf", "yes", "--exit", "3"]
    with guarded(argv) as it:
        await alive.appear(4)
        await alive.tell("main")
        await alive.all_dead(5)
        assert it.words()[-1] == "exit 3"


async def test_a_stop_reaches_the_main_process_only(alive: Liveness) -> None:
    argv = [sys.executable, WILD, str(alive.path), "--children", "2", "--escaped", "0"]
    with guarded(argv) as it:
        await alive.appear(3)
        os.kill(alive.role("child").pid, signal.SIGSTOP)  # a stopped one can't be seen to get it
        it.control.send(b"T")
        assert it.words()[-1] == "exit -15"


async def test_signals_to_the_guard_itself_change_nothing(alive: Liveness) -> None:
    with guarded([sys.executable, WILD, str(alive.path)]) as it:
        await alive.appear(4)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            it.process.send_signal(number)
        it.control.send(b"I")
        # The engine's own SIGINT, not the guard's: Python ends with a KeyboardInterrupt.
        assert it.words()[-1] in ("exit -2", "exit 1")


async def test_an_interrupt_and_a_stop_before_the_engine_runs_are_not_lost() -> None:
    with guarded(python("import signal; signal.pause()")) as it:
        it.control.send(b"T")
        words = await asyncio.to_thread(it.words)
    assert words[-1] == "exit -15"


def test_cpus_that_this_machine_has_not_are_a_sentence() -> None:
    with guarded(["true"], cpus="8000-8001") as it:
        assert it.words()[0] == "failed can't run true: no CPU of 8000-8001 can be used here"


async def test_without_proc_it_says_so_and_still_kills_the_engines_group(alive: Liveness) -> None:
    argv = [sys.executable, WILD, str(alive.path), "--deaf", "yes", "--escaped", "0"]
    with guarded(argv, prefix=without_proc()) as it:
        await alive.appear(2)
        it.control.send(b"K")
        await alive.all_dead(5)
        note, *_ = it.words()
        assert note == "note no /proc: members that left the engine's group can't be found"


def test_a_list_of_cpus_may_hold_ranges() -> None:
    assert guard.cpu_set("0-2,8,10-11") == {0, 1, 2, 8, 10, 11}


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(SystemExit, match="unknown option --colour"):
        guard.Options(["--colour", "red", "--", "true"])
