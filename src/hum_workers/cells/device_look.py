"""What of each NVIDIA device is in use now, asked of `nvidia-smi`: one call of two questions.

It is a program and no library call, because a driver that hangs holds whoever asks it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from hum_workers.cells.device_book import Use, User
from hum_workers.process.asked_process import ask

TIMEOUT = 10.0
"""Seconds for an answer; without a persistent driver it takes one or two."""
_MEMORY = ["--query-gpu=uuid,memory.used", "--format=csv,noheader,nounits"]
_USERS = ["--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader,nounits"]
MIB = 1024**2


def look(env: Mapping[str, str], timeout: float = TIMEOUT) -> dict[str, Use] | None:
    """Returns the use of each device by UUID, None without an answer; pids are as it says them.

    Blocks. Never raises.
    """
    memory, users = _asked(_MEMORY, env, timeout), _asked(_USERS, env, timeout)
    return None if memory is None or users is None else parse(memory, users)


def parse(memory: str, users: str) -> dict[str, Use]:
    """Reads the two tables; lines of another form are left out."""
    found: dict[str, list[User]] = {}
    for line in users.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 3 and cells[1].isdecimal():
            found.setdefault(cells[0], []).append(User(int(cells[1]), _bytes(cells[2])))
    uses = {}
    for line in memory.splitlines():
        uuid, _, size = line.partition(",")
        if (used := _bytes(size.strip())) is not None:
            uses[uuid.strip()] = Use(used, tuple(found.get(uuid.strip(), ())))
    return uses


def _bytes(mib: str) -> int | None:
    return int(mib) * MIB if mib.isdecimal() else None


def _asked(question: list[str], env: Mapping[str, str], timeout: float) -> str | None:
    plain = {"PATH": env.get("PATH", os.defpath), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    try:
        done = ask(["nvidia-smi", *question], env=plain, cwd=os.sep, timeout=timeout)
    except (OSError, TimeoutError):
        return None
    return done.out.decode("utf-8", "replace") if done.code == 0 else None
