"""Places: the egg of a user who names none, the folders of cells, the logs of engines."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from hum_workers.errors import UsageError

NAME_LIMIT = 16
"""Letters of an egg's name in a path: the sockets below it must stay under 108 bytes."""


def default_egg(env: Mapping[str, str], hive: str) -> Path:
    """Returns where the egg lies that is raised when none is named; it need not be there.

    `$XDG_CONFIG_HOME/hum/<hive>.toml`; a relative XDG_CONFIG_HOME is ignored, as XDG asks.
    """
    named = env.get("XDG_CONFIG_HOME", "")
    if os.path.isabs(named):
        return Path(named, "hum", f"{hive}.toml")
    home = env.get("HOME", "")
    return (Path(home) if home else Path.home()) / ".config" / "hum" / f"{hive}.toml"


def cells_path(env: Mapping[str, str], uid: int) -> Path:
    """Returns the path of the folder of this user's cells; it need not be there."""
    runtime = env.get("XDG_RUNTIME_DIR", "")
    named = os.path.isabs(runtime)  # a relative one is ignored, as XDG asks
    return Path(runtime, "hum_workers") if named else Path(f"/tmp/hum_workers-{uid}")


def cells_folder(env: Mapping[str, str], uid: int) -> Path:
    """Returns the folder of this user's cells, made with mode 0700 if it is not there.

    Raises:
        UsageError: it can't be made, or it is not ours alone.
    """
    folder = cells_path(env, uid)
    _utf8(folder, "XDG_RUNTIME_DIR")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        ours_alone(folder, uid)
    except OSError as error:
        raise UsageError(f"{folder}: can't be made: {error.strerror}") from error
    return folder


def ours_alone(folder: Path, uid: int) -> None:
    """Looks whether a folder of cells may be used.

    Raises:
        UsageError: it is not ours alone.
        OSError: it can't be looked at; FileNotFoundError: it is not there.
    """
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o077:
        raise UsageError(f"{folder}: must be a folder of mode 0700 that is yours; remove it")


def leave(folder: Path) -> None:
    """Removes the folder of cells if nothing is in it any more."""
    try:
        folder.rmdir()
    except OSError:
        return


def private_folder(cells: Path, tag: str, egg: str, lane: int = 0) -> Path:
    """Returns the path of one cell's folder: `tag` tells bees apart, `egg` the eggs of one bee.

    `lane` tells apart the cells that one egg has at the same time.
    """
    return cells / f"{tag}-{_short(egg)}{_side(lane)}"


def fresh(private: Path) -> Path:
    """Returns the path for one raise: no two cells ever share a folder, whatever they believe."""
    return private.with_name(f"{private.name}~{secrets.token_hex(3)}")


def engine_log(state: Path, hive: str, tag: str, egg: str, lane: int = 0) -> Path:
    """Returns the path of the engine's log file, below the state folder; makes its folder.

    Raises:
        UsageError: the folder can't be made or written.
    """
    folder = state / "hum" / "workers" / hive
    _utf8(folder, "XDG_STATE_HOME")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: can't be made: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{folder}: can't be written; give it to this user")
    return folder / f"{_short(egg)}{_side(lane)}.{tag}.log"


def _utf8(folder: Path, variable: str) -> None:
    try:
        str(folder).encode()
    except UnicodeEncodeError as error:
        shown = ascii(str(folder))
        raise UsageError(f"{shown}: is no UTF-8; set {variable} to another folder") from error


def _side(lane: int) -> str:
    # No egg's own part of a path holds a plus sign.
    return f"+{lane}" if lane else ""


def _short(name: str) -> str:
    safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)
    return safe[:NAME_LIMIT] or "egg"
