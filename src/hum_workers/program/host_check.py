"""What `--check` says of the host, whatever the worker: humd's socket, identity, confinement.

Starts nothing and keeps nothing: the connection to humd is closed at once, the key is not created.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hum_workers.program.findings import Finding, safely

if TYPE_CHECKING:
    from hum_workers.egg import Egg

CONNECT_TIMEOUT = 2.0


def check_host(hive: str, eggs: Sequence[Egg], env: Mapping[str, str]) -> Iterator[Finding]:
    """Yields what holds for the bee of these eggs; never raises."""
    yield from safely("socket", lambda: _socket(eggs, env))
    yield from safely("identity", lambda: _identity(hive, eggs, env))
    for egg in eggs:
        yield from safely(f"{egg.name} confinement", partial(_confinement, egg))


def _socket(eggs: Sequence[Egg], env: Mapping[str, str]) -> Iterator[Finding]:
    from hum_workers.egg import bee_settings
    from hum_workers.thrum.paths import find_socket

    named = bee_settings(eggs).thrum_socket
    yield probe_socket(named or find_socket(env, os.getuid()))


def probe_socket(path: Path) -> Finding:
    """Returns whether somebody listens on a socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(CONNECT_TIMEOUT)
        try:
            client.connect(str(path))
        except FileNotFoundError:
            what = "there is no such socket; the bee will wait for humd to make it"
        except ConnectionRefusedError:
            if not path.is_socket():
                return Finding("error", "socket", f"{path}: is no socket; name humd's own")
            what = "nobody listens there; humd is not running"
        except OSError as error:
            return Finding("error", "socket", f"{path}: {error.strerror or error}")
        else:
            return Finding("ok", "socket", f"humd listens on {path}")
    return Finding("warning", "socket", f"{path}: {what}")


def _identity(hive: str, eggs: Sequence[Egg], env: Mapping[str, str]) -> Iterator[Finding]:
    from hum_workers.egg import bee_settings
    from hum_workers.thrum.identity import Identity
    from hum_workers.thrum.paths import state_home

    peeked = Identity.peek(hive, bee_settings(eggs).name, state_home(env))
    if peeked.hid is None:
        yield Finding("ok", "identity", f"a key will be made at {peeked.path}")
    elif peeked.held:
        yield Finding(
            "warning",
            "identity",
            f"a bee runs with {peeked.path}; stop it or set another [bee] name",
        )
    else:
        yield Finding("ok", "identity", f"{peeked.hid} ({peeked.path})")


def _confinement(egg: Egg) -> Iterator[Finding]:
    from hum_workers.process import confine

    limits = egg.limits
    chosen = confine.plan(
        confine.survey(), confine=limits.confine, cgroup=limits.cgroup, memory=limits.memory
    )
    yield Finding("ok", f"{egg.name} confinement", chosen.describe())


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> tuple[int, int]:
    """Returns bytes of memory that are free to use, and in all; (0, 0) when unknown."""
    amounts: dict[str, int] = {}
    try:
        for line in meminfo.read_text().splitlines():
            name, _, rest = line.partition(":")
            amounts[name] = int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return amounts.get("MemAvailable", 0), amounts.get("MemTotal", 0)
