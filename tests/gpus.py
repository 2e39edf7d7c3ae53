"""A host with NVIDIA devices, as far as anything of ours can see: an `nvidia-smi` that says what a
test wrote down for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

SCRIPT = """#!/bin/sh
cd "$(dirname "$0")" || exit 1
[ -e silent ] && exit 9
case "$1" in
  --query-gpu=index*) cat devices.csv ;;
  --query-gpu=uuid*) cat memory.csv ;;
  --query-compute-apps=*) cat users.csv ;;
  *) exit 2 ;;
esac
"""
TOTAL = 81920


class Gpus:
    """The devices by UUID. A change is seen by the next question as a whole table."""

    def __init__(self, folder: Path, *uuids: str) -> None:
        self._folder = folder
        folder.mkdir()
        (folder / "nvidia-smi").write_text(SCRIPT)
        (folder / "nvidia-smi").chmod(0o755)
        lines = [f"{i}, {uuid}, {TOTAL}, NVIDIA H200\n" for i, uuid in enumerate(uuids)]
        self._put("devices.csv", "".join(lines))
        self.use(dict.fromkeys(uuids, 4))

    def use(self, memory: Mapping[str, int], *users: tuple[str, int, int | str]) -> None:
        """Says how many MiB are in use of each device, and by whom: UUID, pid, MiB."""
        self._put("users.csv", "".join(f"{uuid}, {pid}, {mib}\n" for uuid, pid, mib in users))
        self._put("memory.csv", "".join(f"{uuid}, {mib}\n" for uuid, mib in memory.items()))

    def silence(self, silent: bool) -> None:
        """Whether it gives no answer from now on."""
        mark = self._folder / "silent"
        mark.touch() if silent else mark.unlink()

    def _put(self, name: str, text: str) -> None:
        draft = self._folder / f".{name}"
        draft.write_text(text)
        draft.replace(self._folder / name)


def host(monkeypatch: pytest.MonkeyPatch, folder: Path, *uuids: str) -> Gpus:
    """Returns devices that all programs find, ours included."""
    gpus = Gpus(folder / "smi", *uuids)
    monkeypatch.setenv("PATH", f"{folder / 'smi'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return gpus
