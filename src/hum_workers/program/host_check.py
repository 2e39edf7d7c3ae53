"""What `--check` says of the host, whatever the worker: humd's socket, identity, log, address of
the figures, cells, CPUs, confinement.

Starts nothing: the connection to humd is closed at once, no address stays taken. The bee's key is
made only for a kind of worker whose hid others need before it runs.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hum_workers import devices
from hum_workers.egg.units import ranges
from hum_workers.process import memory_limits
from hum_workers.program import address_check, places
from hum_workers.program.findings import Finding, safely

if TYPE_CHECKING:
    from hum_workers.egg import Egg

CONNECT_TIMEOUT = 2.0
PATIENCE = 1.0
"""Seconds of silence after which a person is told what takes so long."""


@dataclass(frozen=True)
class Listens:
    """An address besides that of the figures at which the bee will listen."""

    subject: str
    key: str
    """As sentences name it: `[rpc] listen`."""
    at: tuple[str, int]


def check_host(
    hive: str,
    eggs: Sequence[Egg],
    env: Mapping[str, str],
    *,
    listens: Sequence[Listens] = (),
    makes_key: bool = False,
) -> Iterator[Finding]:
    """Yields what holds for the bee of these eggs; never raises.

    `makes_key`: a bee without a key gets one, so that its hid can be told.
    """
    yield from safely("socket", lambda: _socket(eggs, env))
    identity = list(safely("identity", lambda: _identity(hive, eggs, env, makes_key=makes_key)))
    yield from identity
    bee_runs = any(one.level == "warning" for one in identity)
    yield from _process(eggs, env, bee_runs=bee_runs)
    for one in listens:
        yield from safely(one.subject, partial(_listens, one, bee_runs=bee_runs))
    yield from safely("cells", lambda: _cells(eggs))
    for egg in eggs:
        yield from safely(f"{egg.name} cpus", partial(_cpus, egg))
        yield from safely(f"{egg.name} confinement", partial(_confinement, egg))


@contextmanager
def patience(text: str, after: float = PATIENCE) -> Iterator[None]:
    """Says on standard error what takes longer than `after` seconds; a person waits for it."""
    timer = threading.Timer(after, _say, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _say(text: str) -> None:
    try:
        print(text, file=sys.stderr, flush=True)  # noqa: T201
    except (OSError, ValueError, AttributeError):
        return  # nobody reads it


def cells_at_once(eggs: Sequence[Egg]) -> int:
    """Returns how many cells of a bee may live at the same time."""
    from hum_workers.egg import bee_settings

    bee = bee_settings(eggs)
    most = bee.max_procs or len(eggs)
    return most if bee.propensity == "ephemeral" else min(most, len(eggs))


def _folder(env: Mapping[str, str]) -> Iterator[Finding]:
    """Yields why the folder of cells can't be had; it is not made here."""
    folder = places.cells_path(env, os.getuid())
    try:
        places.ours_alone(folder, os.getuid())
    except FileNotFoundError:
        above = next(one for one in folder.parents if os.path.lexists(one))
        why = address_check.why_unwritable(above)
    except OSError as error:
        why = error.strerror or str(error)
    else:
        return
    if why:
        yield Finding("error", "folder", f"{folder} can't be made: {why}, by XDG_RUNTIME_DIR")


def _process(eggs: Sequence[Egg], env: Mapping[str, str], *, bee_runs: bool) -> Iterator[Finding]:
    from hum_workers.egg import log_settings, metrics_settings

    yield from safely("folder", lambda: _folder(env))
    file, listen = log_settings(eggs).file, metrics_settings(eggs).listen
    yield from safely("log", lambda: address_check.check_log(file, "log"))
    look = partial(address_check.check_listen, listen, "metrics", bee_runs=bee_runs)
    yield from safely("metrics", look)


def _listens(one: Listens, *, bee_runs: bool) -> Iterator[Finding]:
    yield address_check.check_address(one.key, one.at, one.subject, bee_runs=bee_runs)


def _cells(eggs: Sequence[Egg]) -> Iterator[Finding]:
    """Yields what [bee] max_procs does; too few of them were refused with the eggs."""
    from hum_workers.egg import bee_settings

    bee, count = bee_settings(eggs), len(eggs)
    most = bee.max_procs
    if most is None:
        return
    if bee.propensity == "ephemeral":
        yield Finding("ok", "cells", f"{most} at once, one turn each; turns beyond them wait")
    elif most < count:
        text = f"{count} eggs share {most}: the one without a turn that was used least recently"
        yield Finding("ok", "cells", f"{text} makes room for the one that is asked for")
    elif most > count:
        text = f"[bee] max_procs is {most}, and an egg has more than one cell only with"
        text += f' propensity = "ephemeral"; there will be {count}'
        yield Finding("warning", "cells", text)


def _cpus(egg: Egg) -> Iterator[Finding]:
    """Yields the CPUs of [limits] cpus that are not there, or not ours to use."""
    if egg.limits.cpus is None:
        return
    named, ours = devices.cores_of(egg.limits.cpus), os.sched_getaffinity(0)
    missing = [cpu for cpu in named if cpu not in ours]
    if not missing:
        return
    text = f"[limits] cpus: {ranges(missing)} can't be used here; there are {ranges(sorted(ours))}"
    if len(missing) == len(named):
        yield Finding("error", f"{egg.name} cpus", f"{text}; name some of those")
    else:
        rest = ranges([cpu for cpu in named if cpu in ours])
        yield Finding("warning", f"{egg.name} cpus", f"{text}; the engine gets {rest} alone")


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


def _identity(
    hive: str, eggs: Sequence[Egg], env: Mapping[str, str], *, makes_key: bool
) -> Iterator[Finding]:
    from hum_workers.egg import bee_settings
    from hum_workers.thrum.identity import Identity, seed_of
    from hum_workers.thrum.paths import state_home

    name, state = bee_settings(eggs).name, state_home(env)
    peeked = Identity.peek(hive, name, state)
    if peeked.hid is None and makes_key:
        hid, _ = seed_of(hive, name, state)
        yield Finding("ok", "identity", f"{hid} ({peeked.path}, made just now)")
        return
    if peeked.hid is None:
        yield Finding("ok", "identity", f"a key will be made at {peeked.path}")
    elif peeked.held:
        yield Finding(
            "warning",
            "identity",
            f"a bee runs as {peeked.hid} with {peeked.path}: to start this one now would end with "
            "exit code 2; stop that one or set another [bee] name",
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


def available_memory(
    meminfo: Path = Path("/proc/meminfo"), groups: Sequence[Path] | None = None
) -> tuple[int, int]:
    """Returns bytes of memory that are free to use, and in all; (0, 0) when unknown.

    In a container they are those that its limit leaves. `groups` are the folders of our control
    groups, from the innermost on; None looks them up.
    """
    amounts: dict[str, int] = {}
    try:
        for line in meminfo.read_text().splitlines():
            name, _, rest = line.partition(":")
            amounts[name] = int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    free, total = amounts.get("MemAvailable", 0), amounts.get("MemTotal", 0)
    for folder in memory_limits.groups() if groups is None else groups:
        if limit := memory_limits.limit(folder):
            most, used = limit
            free, total = min(free, max(0, most - used)), min(total, most)
    return free, total


def largest_node(nodes: Path = Path("/sys/devices/system/node")) -> int:
    """Returns the bytes of memory of the NUMA node that has most; 0 when unknown."""
    sizes = [0]
    for file in nodes.glob("node[0-9]*/meminfo"):
        try:
            found = re.search(r"MemTotal:\s+(\d+) kB", file.read_text())
        except OSError:
            continue
        sizes += [int(found[1]) * 1024] if found else []
    return max(sizes)
