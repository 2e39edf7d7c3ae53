"""The three descriptors that every program takes for granted, as whoever started it left them."""

from __future__ import annotations

import os
import sys


def fill() -> None:
    """Opens /dev/null wherever descriptor 0, 1 or 2 is closed.

    The next file that is opened would take the free number, and libuv aborts the process for a
    socket or pipe of the loop that it finds there.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            null = os.open(os.devnull, os.O_RDONLY if fd == 0 else os.O_WRONLY)
            if null != fd:
                os.dup2(null, fd)
                os.close(null)
            os.set_inheritable(fd, True)
    # Python has seen them closed, and left None in their place; standard input may stay so.
    sys.stdout = sys.stdout or open(1, "w", closefd=False)
    sys.stderr = sys.stderr or open(2, "w", closefd=False)
