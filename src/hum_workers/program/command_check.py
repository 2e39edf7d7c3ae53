"""Whether the first word of a command line is a program that this user can start.

Looked up as the guard will: in the PATH that the engine gets, a path relative to the engine's
folder. Nothing is started.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

MOST_LINE = 256
"""Bytes of a script's first line that the kernel reads."""


def why_not_startable(words: Sequence[str], env: Mapping[str, str], cwd: Path) -> str:
    """Returns the rest of a sentence that begins with the command, or an empty string.

    Args:
        words: the command line; an empty one is fine.
        env: all that the program will get.
        cwd: the folder that it is started in.
    """
    if not words:
        return ""
    if os.sep in words[0]:
        return _why_not(cwd / words[0])
    path = env.get("PATH", os.defpath)
    reasons = {folder: _why_not(cwd / folder / words[0]) for folder in path.split(os.pathsep)}
    if not all(reasons.values()):
        return ""
    there = [cwd / folder for folder in reasons if (cwd / folder / words[0]).is_file()]
    if there:
        return f"{_why_not(there[0] / words[0])} ({there[0] / words[0]})"
    return "is not found in the PATH that the engine gets; write its whole path"


def _why_not(program: Path) -> str:
    try:
        mode = program.stat().st_mode
    except OSError as error:
        reason = "does not exist" if isinstance(error, FileNotFoundError) else error.strerror
        return f"{reason}; write the path of a program"
    if stat.S_ISDIR(mode):
        return "is a folder; write the path of a program"
    if not (stat.S_ISREG(mode) and os.access(program, os.X_OK)):
        return "is not executable; chmod +x it, or name another program"
    return _unreadable_script(program)


def _unreadable_script(program: Path) -> str:
    try:
        with program.open("rb") as file:
            line = file.readline(MOST_LINE)
    except OSError:
        return ""  # a program need not be readable
    if line.startswith(b"\x7fELF"):
        return ""
    if not line.startswith(b"#!"):
        return "is neither a program nor a script with #! in its first line; add that"
    words = line[2:].split()
    interpreter = os.fsdecode(words[0]) if words else ""
    if not (os.path.isfile(interpreter) and os.access(interpreter, os.X_OK)):
        return (
            f"is a script for {interpreter or 'nothing'}, which is not there; mend its first line"
        )
    return ""
