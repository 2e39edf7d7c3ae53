"""An engine that is hard to kill: `python wild_tree.py SOCKET [--exit CODE] [--children N] ...`.

Four members: the main process, a child, and two that forked twice and left the session, one of them
under another name. Each connects to SOCKET and keeps the connection for as long as it lives, so
that the end of file there is the proof of its death. `--deaf` members ignore every signal they can.
With `--exit` the main process leaves as soon as a line comes on its connection, the others stay.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable


def member(path: str, role: str, deaf: bool) -> socket.socket:
    """Shows on the socket that this process lives."""
    if deaf:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    link = socket.socket(socket.AF_UNIX)
    link.connect(path)
    link.sendall(role.encode() + b"\n")
    return link


def fork(run: Callable[[], None]) -> None:
    """Runs `run` in a child, for ever."""
    if os.fork() == 0:
        run()
        os._exit(0)


def wait_for_ever(link: socket.socket) -> None:
    """Holds the connection until it is told to go."""
    link.recv(1)


def escape(path: str, name: str) -> None:
    """Forks twice, leaves session and group and takes another name."""

    def grandchild() -> None:
        os.setsid()
        if name:
            with open("/proc/self/comm", "w") as comm:
                comm.write(name)
        wait_for_ever(member(path, "escaped", True))

    def child() -> None:
        fork(grandchild)

    fork(child)


def main() -> None:
    """Raises the tree and waits."""
    path, *options = sys.argv[1:]
    value = dict(zip(options[::2], options[1::2], strict=True))
    deaf = value.get("--deaf") == "yes"
    for _ in range(int(value.get("--children", 1))):
        fork(lambda: wait_for_ever(member(path, "child", deaf)))
    for name in ("", "innocent (x) y")[: int(value.get("--escaped", 2))]:
        escape(path, name)
    link = member(path, "main", deaf)
    sys.stdout.write("up\n")
    sys.stdout.flush()
    wait_for_ever(link)
    os._exit(int(value.get("--exit", 0)))


main()
