"""Log lines as vLLM prints them: on stdout, process name and pid in front."""

from __future__ import annotations

import os
import sys
import time


def say(
    message: str, where: str = "entry.py:136", process: str = "APIServer", level: str = "INFO"
) -> None:
    """Prints one line."""
    now = time.strftime("%m-%d %H:%M:%S")
    sys.stdout.write(f"({process} pid={os.getpid()}) {level} {now} [{where}] {message}\n")
    sys.stdout.flush()
