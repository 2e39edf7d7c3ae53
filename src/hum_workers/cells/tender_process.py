"""The process of a tender: started with two pipes, of which the bee keeps one end each."""

from __future__ import annotations

import os
import sys

from hum_workers import lifecycle

COMMAND = ["-P", "-m", "hum_workers.tender"]


def start() -> tuple[lifecycle.Child, int, int]:
    """Returns a tender that runs, and the descriptors to read it and to write to it.

    Raises:
        OSError: it can't be started; no descriptor is left.
    """
    to_tender, to_bee = os.pipe(), os.pipe()
    try:
        child = lifecycle.spawn(
            [sys.executable, *COMMAND],
            env=dict(os.environ),
            cwd="/",
            stdin=to_tender[0],
            stdout=to_bee[1],
        )
    except OSError:
        for fd in (to_tender[1], to_bee[0]):
            os.close(fd)
        raise
    finally:
        os.close(to_tender[0])
        os.close(to_bee[1])
    return child, to_bee[0], to_tender[1]
