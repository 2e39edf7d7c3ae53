"""Runs a guard, and passes on all it says but how the engine ended: `mute_guard.py GUARD...`."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys


def main(argv: list[str]) -> int:
    """Returns the guard's status."""
    place = argv.index("--control") + 1
    tender = socket.socket(fileno=int(argv[place]))
    ours, theirs = socket.socketpair()
    argv[place] = str(theirs.fileno())
    guard = subprocess.Popen(argv, pass_fds=(theirs.fileno(),))
    theirs.close()
    poll = select.poll()
    for link in (tender, ours):
        poll.register(link, select.POLLIN)
    while True:
        ready = [fd for fd, _ in poll.poll()]
        if ours.fileno() in ready:
            said = ours.recv(4096)
            if not said:
                return guard.wait()
            lines = said.splitlines(keepends=True)
            tender.sendall(b"".join(line for line in lines if not line.startswith(b"exit")))
        if tender.fileno() in ready:
            orders = tender.recv(64)
            if not orders:
                poll.unregister(tender)
                ours.shutdown(socket.SHUT_WR)
            else:
                ours.sendall(orders)


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
