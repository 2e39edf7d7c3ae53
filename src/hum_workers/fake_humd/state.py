"""The files a running humd keeps: `bees.json` and the rendezvous `runtime.json`, and its socket.

All of them stay behind when it ends, as humd's do. None is taken from a humd that lives.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from hum_workers.errors import UsageError
from hum_workers.fake_humd.router import THRUM_VERSION
from hum_workers.thrum.paths import state_home

HUMD_VERSION = "0.31.18"
"""The release whose answers are copied."""

BACKLOG = 1024


def default_socket(env: Mapping[str, str]) -> Path:
    """Returns where a humd started with this environment listens."""
    for name in ("HUM_THRUM_SOCK", "HUM_SOCKET"):
        if value := env.get(name):
            return Path(value)
    if runtime := env.get("XDG_RUNTIME_DIR"):
        return Path(runtime, "hum", "thrum.sock")
    if (runtime_dir := Path(f"/run/user/{os.getuid()}")).is_dir():
        return runtime_dir / "hum" / "thrum.sock"
    return state_home(env) / "hum" / "thrum.sock"


def listen(path: Path) -> socket.socket:
    """Returns a listening socket at `path`; a file left by a humd that died is replaced.

    Raises:
        UsageError: somebody listens there, or the path can't be used.
    """
    if answers(path):
        raise UsageError(f"{path}: a humd listens here already; set HUM_THRUM_SOCK to another path")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        sock.bind(str(path))
        path.chmod(0o600)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise UsageError(f"{path}: can't listen here ({error}); name another path") from error
    return sock


def answers(path: Path) -> bool:
    """Whether somebody accepts connections at this socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def advertised(home: Path, socket_path: Path) -> list[str] | None:
    """Returns the models that the workers of this humd advertise, as it wrote down; sorted.

    None: this state is not that of the humd at `socket_path`, or can't be read.
    """
    folder = home / "hum"
    try:
        runtime = msgspec.json.decode((folder / "runtime.json").read_bytes())
        if Path(runtime["socket"]) != socket_path:
            return None
        written = folder / "bees.json"  # not before the first bee
        bees = msgspec.json.decode(written.read_bytes()) if written.exists() else {}
        workers = [bee for bee in bees.values() if "worker" in bee.get("bee", ())]
        return sorted({str(model) for bee in workers for model in bee.get("models", ())})
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


class State:
    """The folder `hum` below the state home."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "hum"

    def claim(self, socket_path: Path) -> None:
        """Creates the folder and names this process in `runtime.json`.

        Raises:
            UsageError: the folder belongs to another humd that lives, or can't be written.
        """
        if (other := self._other_humd(socket_path)) is not None:
            raise UsageError(
                f"{self.folder}: belongs to the humd at {other}; set XDG_STATE_HOME elsewhere"
            )
        runtime = {
            "socket": str(socket_path),
            "pid": os.getpid(),
            "version": HUMD_VERSION,
            "thrum_version": THRUM_VERSION,
            "bound_at_ms": int(time.time() * 1000),
            "ensemble_addrs": [],
        }
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write("runtime.json", runtime)
        except OSError as error:
            raise UsageError(
                f"{self.folder}: can't keep state here ({error}); set XDG_STATE_HOME"
            ) from error

    def keep_bees(self, manifests: Mapping[str, Any]) -> None:
        """Writes `bees.json`: manifests by connection. A folder that is gone is no fault."""
        with contextlib.suppress(FileNotFoundError):
            self._write("bees.json", manifests)

    def _other_humd(self, socket_path: Path) -> Path | None:
        try:
            runtime = msgspec.json.decode((self.folder / "runtime.json").read_bytes())
            there = Path(runtime["socket"])
        except (OSError, ValueError, LookupError, TypeError):
            return None
        return there if there != socket_path and answers(there) else None

    def _write(self, name: str, value: Any) -> None:
        path = self.folder / name
        draft = path.with_suffix(".json.tmp")
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2))
        draft.replace(path)
