"""One child process, without asyncio's child watchers.

`spawn` starts it in a session of its own; its end arrives through a pidfd, so that no signal
handler, thread or pipe of asyncio's takes part and nobody else reaps it. Works under uvloop too.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from hum_workers.process import proc

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
REAP_TIMEOUT = 1.0  # a process killed by SIGKILL ends within milliseconds

_living: set[int] = set()
"""Pids of children that whoever started them will reap: nobody else may."""
_starting = threading.Lock()
"""Held from the start of a child in another thread until its pid is in `_living`."""


def become_subreaper() -> None:
    """Makes this process the new parent of every orphan below it.

    Raises:
        OSError: the kernel refuses.
    """
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def wake_with_parent() -> None:
    """Asks for a SIGCONT when the parent dies: a stopped process would not see its pipes end.

    Raises:
        OSError: the kernel refuses.
    """
    _prctl(PR_SET_PDEATHSIG, signal.SIGCONT)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def living() -> frozenset[int]:
    """Returns the pids of children that were started here and have not been reaped."""
    with _starting:
        return frozenset(_living)


@contextlib.contextmanager
def own(start: Callable[[], subprocess.Popen[bytes]]) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a process that the block reaps, in any thread: nobody takes it for an orphan.

    Raises:
        OSError: it can't be started.
    """
    with _starting:
        process = start()
        _living.add(process.pid)
    try:
        yield process
    finally:
        if process.returncode is not None:
            _living.discard(process.pid)


class Child:
    """A process started by `spawn`. `exited` is its code, negative for a signal, set once."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._loop = asyncio.get_running_loop()
        self.pid = process.pid
        self.exited: asyncio.Future[int] = self._loop.create_future()
        _living.add(self.pid)
        self._pidfd = os.pidfd_open(self.pid)
        self._loop.add_reader(self._pidfd, self._ended)

    def kill(self) -> None:
        """SIGKILL to the child's group and session, at once; usable in `finally`."""
        if self._process.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
            return
        # The leader is reaped: its number names our group only as long as no process has it.
        table = proc.scan()
        if self.pid not in table:
            for stat in table.values():
                if stat.session == self.pid:
                    proc.send(stat, signal.SIGKILL)

    def wait(self, timeout: float) -> None:
        """Blocks until the child has ended, `timeout` seconds at most; only for last resorts."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
        self._ended()

    def close(self) -> None:
        """Kills what is left and reaps the child; one that the kernel holds is reaped later."""
        self.kill()
        self.wait(REAP_TIMEOUT)

    def _ended(self) -> None:
        code = self._process.poll()
        if code is None or self._pidfd < 0:
            return
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        _living.discard(self.pid)
        if not self.exited.done():
            self.exited.set_result(code)


def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None,
    cwd: str | None,
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    pass_fds: Iterable[int] = (),
) -> Child:
    """Starts `argv` in a session of its own. Must be called in the loop's thread.

    `stdin` and `stdout` None mean /dev/null, `stderr` None means ours. The child gets SIGPIPE as
    this process has it (Python: ignored) and no file descriptor but these and `pass_fds`.

    Raises:
        OSError: it can't be run, or `cwd` is no folder.
    """
    process = subprocess.Popen(
        argv,
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL if stdin is None else stdin,
        stdout=subprocess.DEVNULL if stdout is None else stdout,
        stderr=stderr,
        pass_fds=tuple(pass_fds),
        close_fds=True,
        restore_signals=False,
        start_new_session=True,
    )
    return Child(process)


async def any_end(pids: Iterable[int], timeout: float) -> None:
    """Returns when one of the processes has ended, zombies included, or after `timeout` seconds."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    fds: list[int] = []

    def end() -> None:
        if not ended.done():
            ended.set_result(None)

    try:
        for pid in pids:
            fds.append(os.pidfd_open(pid))
            loop.add_reader(fds[-1], end)
        await asyncio.wait({ended}, timeout=timeout)
    except ProcessLookupError:
        return
    finally:
        for fd in fds:
            loop.remove_reader(fd)
            os.close(fd)
