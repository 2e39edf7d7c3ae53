"""What may stand in front of an engine in `engine.command`, and what would leave our tree. Pure."""

from __future__ import annotations

import os
from collections.abc import Sequence

_CONTAINER = "starts the engine below its daemon, so it would outlive the worker"
_AWAY = "starts the engine outside the worker's process tree, so it would outlive the worker"
_USER = "starts the engine as another user, whom the worker can't signal"
LEAVERS = {
    "docker": _CONTAINER,
    "podman": _CONTAINER,
    "nerdctl": _CONTAINER,
    "kubectl": _CONTAINER,
    "srun": "starts the engine below slurmstepd, so it would outlive the worker",
    "ssh": "starts the engine on another machine",
    "sudo": _USER,
    "su": _USER,
    "doas": _USER,
    "systemd-run": _AWAY,
    "screen": _AWAY,
    "tmux": _AWAY,
    "daemonize": _AWAY,
}
"""Wrapper to why it is refused in `engine.command`."""


def leaver(command: Sequence[str]) -> tuple[int, str] | None:
    """Returns index and reason of the first word of a wrapper whose child would leave the tree."""
    for index, word in enumerate(command):
        name = os.path.basename(word)
        if name in LEAVERS:
            return index, f"{name} is refused: it {LEAVERS[name]}"
    return None
