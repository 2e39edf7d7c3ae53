"""A program that is asked one thing: run to its end, or to a deadline, and then gone with all of
its children.

`subprocess.run` kills the program alone when its time is over and then waits for the pipe, which a
child of it may hold for ever.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hum_workers.process.child import own

MOST_OUTPUT = 16 * 1024 * 1024
"""Bytes kept of each stream; what is beyond them is read and forgotten."""
_REST = 0.2
"""Seconds in which what an ended program printed is read, whoever else holds the pipe."""
_KILLED = 2.0
"""Seconds for a killed program to be gone."""
_TICK = 0.02
"""Seconds between two looks at a program that is silent."""


@dataclass(frozen=True)
class Answered:
    """How it ended and what it printed."""

    code: int
    out: bytes
    err: bytes


def ask(argv: Sequence[str], *, env: Mapping[str, str], cwd: str, timeout: float) -> Answered:
    """Runs a program in a session of its own; nothing of its group outlives the call.

    Raises:
        OSError: it can't be started.
        TimeoutError: it did not end within `timeout` seconds, or the kernel still holds it.
    """
    with own(lambda: _start(argv, env, cwd)) as process:
        return _answer(process, timeout)


def _start(argv: Sequence[str], env: Mapping[str, str], cwd: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv,
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def _answer(process: subprocess.Popen[bytes], timeout: float) -> Answered:
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = bytearray(), bytearray()
    try:
        with process.stdout, process.stderr:
            heard = {process.stdout.fileno(): out, process.stderr.fileno(): err}
            _listen(process.pid, heard, time.monotonic() + timeout)
    finally:
        # Before it is reaped: only until then is the number surely ours.
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        code = _reaped(process)
    return Answered(code, bytes(out), bytes(err))


def _reaped(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(_KILLED)
    except subprocess.TimeoutExpired:
        # A driver that hangs holds it; whoever waited for it would hang, too.
        raise TimeoutError from None


def _listen(pid: int, heard: Mapping[int, bytearray], deadline: float) -> None:
    """Reads until the program has ended and, as far as `_REST` goes, its pipes, too."""
    poll = select.poll()
    for fd in heard:
        poll.register(fd, select.POLLIN)
    still, ended = set(heard), False
    while still or not ended:
        left = deadline - time.monotonic()
        if left <= 0:
            if ended:
                return
            raise TimeoutError
        for fd, _ in poll.poll(min(left, _TICK) * 1000):
            data = os.read(fd, 65536)
            if not data:
                still.discard(fd)
                poll.unregister(fd)
            heard[fd].extend(data[: max(0, MOST_OUTPUT - len(heard[fd]))])
        if not ended and _has_ended(pid):
            ended, deadline = True, time.monotonic() + _REST


def _has_ended(pid: int) -> bool:
    """Looks without reaping, so that the group keeps its number."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True
