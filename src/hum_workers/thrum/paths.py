"""Where humd's socket and this user's state lie (thrum, section 2); opens no socket."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

_RENDEZVOUS = 64 * 1024
"""Bytes of humd's rendezvous file at most."""


class _Rendezvous(msgspec.Struct):
    socket: str = ""
    pid: int = 0


def state_home(env: Mapping[str, str]) -> Path:
    """Returns `$XDG_STATE_HOME`, or `~/.local/state`; a relative one is ignored, as XDG asks."""
    named = env.get("XDG_STATE_HOME", "")
    if os.path.isabs(named):
        return Path(named)
    home = env.get("HOME", "")
    return (Path(home) if home else Path.home()) / ".local" / "state"


def find_socket(
    env: Mapping[str, str],
    uid: int,
    exists: Callable[[Path], bool] = Path.exists,
    alive: Callable[[int], bool] | None = None,
) -> Path:
    """Returns where to connect to humd.

    A variable that names the socket wins even if it is not there yet. Of the other places the first
    that exists; if none does, where humd is most likely to put it.
    """
    for name in ("HUM_THRUM_SOCK", "HUM_SOCKET"):
        if env.get(name):
            return Path(env[name])
    announced = _announced(state_home(env) / "hum" / "runtime.json", alive or _alive)
    if announced is not None and exists(announced):
        return announced
    places = list(_places(env, uid))
    return next((place for place in places if exists(place)), places[0])


def _places(env: Mapping[str, str], uid: int) -> Iterator[Path]:
    if os.path.isabs(env.get("XDG_RUNTIME_DIR", "")):
        yield Path(env["XDG_RUNTIME_DIR"], "hum", "thrum.sock")
    yield Path(f"/run/user/{uid}/hum/thrum.sock")
    yield state_home(env) / "hum" / "thrum.sock"
    yield Path(f"/tmp/hum-{uid}/hum/thrum.sock")
    yield Path("/tmp/hum/thrum.sock")


def _announced(rendezvous: Path, alive: Callable[[int], bool]) -> Path | None:
    """Returns the socket that a living humd wrote down, or None."""
    try:
        found = msgspec.json.decode(_small_file(rendezvous), type=_Rendezvous)
    except (OSError, ValueError, RecursionError):
        return None
    return Path(found.socket) if found.socket and alive(found.pid) else None


def _small_file(path: Path) -> bytes:
    """Returns what a regular file begins with: a pipe or a device would be waited for."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        return file.read(_RENDEZVOUS) if stat.S_ISREG(os.fstat(fd).st_mode) else b""


def _alive(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True
