"""The SSH library, imported without the compiler.

Import this module before the first `asyncssh` of a program.
"""

from __future__ import annotations

import ctypes.util
import sys


def _absent(name: str) -> None:
    """Stands for `find_library`: there is no such library."""


def _import() -> None:
    # asyncssh/crypto/umac.py looks for nettle and crypto/pq.py for liboqs, each under several
    # names, for algorithms that `ssh.narrowed` does not name. `find_library` runs ldconfig, gcc and
    # ld for each name that is not there: half a second of processes on a slow machine, and a
    # compiler at work in what serves prompts.
    if "asyncssh" in sys.modules:
        return
    find_library = ctypes.util.find_library
    ctypes.util.find_library = _absent
    try:
        import asyncssh  # noqa: F401
    finally:
        ctypes.util.find_library = find_library


_import()
