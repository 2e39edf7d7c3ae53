"""How a cell is kept in: PID namespace or guard alone, control groups, memory limit.

`survey` finds out what this host allows by trying it, `plan` chooses, a `Confinement` belongs to
one cell. Whatever is chosen, the death of the tender ends the cell: in a namespace the kernel sees
to it, else the guard does.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hum_workers.errors import EngineError
from hum_workers.process import cgroup as cgroups
from hum_workers.process import proc
from hum_workers.process.cgroup import CellGroup

TRY_TIMEOUT = 5.0
_AS_INIT = "import os; assert os.getpid() == 1 and os.readlink('/proc/self') == '1'"
_AS_VICTIM = "import signal; signal.pause()"


@dataclass(frozen=True, kw_only=True)
class HostAllows:
    """What this process may use here; paths are folders in which it may make cgroups.

    `namespace` is the command that puts the guard into a PID namespace, empty when that is refused
    (`refusal` says why). `unified` is in cgroup v2 and has `cgroup.kill`; `unified_memory` tells
    whether it can limit memory, too. `memory` is in the v1 memory controller.
    """

    namespace: tuple[str, ...] = ()
    as_user: bool = False
    refusal: str = ""
    unified: Path | None = None
    unified_memory: bool = False
    memory: Path | None = None
    proc_readable: bool = True


@dataclass(frozen=True, kw_only=True)
class Confinement:
    """The way one cell is kept in."""

    namespace: tuple[str, ...]
    how: str
    group: CellGroup | None
    memory_watched: bool
    """The kernel sets no memory limit here, so the tender has to watch it."""
    counts_ooms: bool = False
    """The kernel counts this cell's own out-of-memory kills, so the host's count says nothing."""

    def describe(self) -> str:
        """Returns one sentence for an operator."""
        return self.how

    def create(self) -> None:
        """Makes the cgroups, if there are any.

        Raises:
            EngineError: the host no longer allows what the survey found.
        """
        if self.group is None:
            return
        try:
            self.group.create()
        except OSError as error:
            raise EngineError(
                f"can't make the cgroup {error.filename}: {error.strerror}; "
                'set limits.cgroup = "off" to go without'
            ) from error

    def folders(self) -> list[str]:
        """Returns the cgroups that the guard has to enter before it starts the engine."""
        return [str(folder) for folder in self.group.folders] if self.group else []

    def wrap(self, argv: Sequence[str]) -> list[str]:
        """Returns the command that runs the guard `argv` inside this confinement."""
        return [*self.namespace, *argv]

    def pids(self) -> set[int]:
        """Returns the processes in the cgroups."""
        return set(self.group.pids()) if self.group else set()

    def kill(self) -> None:
        """Kills everything in the cgroup, guard included, where there is one."""
        if self.group:
            self.group.kill()

    def oom_kills(self) -> int:
        """Returns how many processes the kernel ended for want of memory; 0 without a cgroup."""
        return self.group.oom_kills() if self.group else 0

    def remove(self) -> bool:
        """Removes the cgroups of a dead cell. Returns False when one is still in use."""
        return self.group.remove() if self.group else True


def plan(
    allows: HostAllows,
    *,
    confine: str = "auto",
    cgroup: str = "auto",
    memory: int | None = None,
    name: str = "cell",
) -> Confinement:
    """Chooses the strongest confinement among what the host and the egg allow.

    `confine` is "auto", "namespace" or "guard", `cgroup` "auto" or "off", `memory` in bytes.

    Raises:
        EngineError: the egg insists on a namespace and the host refuses it.
    """
    if confine == "namespace" and not allows.namespace:
        raise EngineError(
            f'limits.confine = "namespace" can\'t be had here ({allows.refusal}): '
            'allow it on the host or set limits.confine = "auto"'
        )
    namespace = () if confine == "guard" else allows.namespace
    parents: list[Path] = []
    if cgroup == "auto":
        if allows.unified:
            parents.append(allows.unified)
        # Also without a limit: it counts this cell's victims of the OOM killer.
        if allows.memory and not allows.unified_memory:
            parents.append(allows.memory)
    limited = bool(parents) and (allows.unified_memory or allows.memory is not None)
    return Confinement(
        namespace=namespace,
        how=_sentence(allows, namespace, parents, memory, limited),
        group=CellGroup(name, parents, memory) if parents else None,
        memory_watched=memory is not None and not limited,
        counts_ooms=limited,
    )


def _sentence(
    allows: HostAllows,
    namespace: tuple[str, ...],
    parents: list[Path],
    memory: int | None,
    limited: bool,
) -> str:
    if namespace:
        how = "PID namespace (in a user namespace)" if allows.as_user else "PID namespace (as root)"
    else:
        why = "" if allows.namespace else f", as a PID namespace is refused here: {allows.refusal}"
        how = f"guard process{why}; it can't cover its own SIGKILL together with the tender's"
        if not allows.proc_readable:
            how += ", nor find members that leave the engine's group, as /proc is not readable"
    if allows.unified in parents:
        how += f"; stop by cgroup.kill at {allows.unified}"
    if memory is not None:
        how += "; memory limit by " + (
            f"cgroup at {parents[-1]}" if limited else "the tender's own watch"
        )
    elif not parents:
        how += "; no cgroup"
    return how


@functools.cache
def survey() -> HostAllows:
    """Tries once what this host allows; takes about 0.1 s and blocks meanwhile."""
    namespace, as_user, refusal = _try_namespaces()
    own_unified, own_memory = cgroups.folders()
    unified = next(
        (folder for folder in _candidates(own_unified) if _try_cgroup(folder) == "memory"), None
    )
    has_memory = unified is not None
    if unified is None and own_unified is not None and _try_cgroup(own_unified):
        unified = own_unified
    return HostAllows(
        namespace=namespace,
        as_user=as_user,
        refusal=refusal,
        unified=unified,
        unified_memory=has_memory,
        memory=own_memory if own_memory and _try_cgroup(own_memory) == "memory" else None,
        proc_readable=proc.read_stat(1) is not None or proc.has_children_lists(),
    )


def _candidates(own: Path | None) -> list[Path]:
    """Our own v2 folder, then its parent: a folder that holds processes can't pass on controllers,
    but one that was delegated to us may have a parent that does."""
    if own is None:
        return []
    inside_mount = (own.parent / "cgroup.procs").exists()
    return [own, own.parent] if inside_mount else [own]


def _try_namespaces() -> tuple[tuple[str, ...], bool, str]:
    setpriv, unshare = shutil.which("setpriv"), shutil.which("unshare")
    if setpriv is None or unshare is None:
        return (), False, "setpriv and unshare of util-linux are not on the PATH"
    refusal = ""
    for as_user in (False, True) if os.geteuid() == 0 else (True,):
        command = (
            # The signal at both hops: without the first, the tree outlives the tender.
            *(setpriv, "--pdeathsig", "KILL", unshare),
            *(("--user", "--map-current-user") if as_user else ()),
            *("--pid", "--fork", "--kill-child", "--mount-proc"),
        )
        refusal = _run([*command, sys.executable, "-I", "-S", "-c", _AS_INIT])
        if not refusal:
            return command, as_user, ""
    return (), False, refusal


def _run(argv: list[str]) -> str:
    """Returns why a command failed, empty when it did not."""
    try:
        done = subprocess.run(argv, capture_output=True, timeout=TRY_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    return (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason given"])[-1]


def _try_cgroup(parent: Path) -> Literal["memory", "kill", ""]:
    """Makes a cgroup under `parent`, puts a process into it and kills that.

    Returns what the folder is good for: "memory" (v1 or v2), "kill" (v2 without memory) or nothing.
    """
    folder = parent / cgroups.folder_name("survey")
    try:
        folder.mkdir(exist_ok=True)
    except OSError:
        return ""
    try:
        _pass_on_memory(parent, folder)
        memory, kill = cgroups.has_memory(folder), (folder / "cgroup.kill").exists()
        unified = (folder / "cgroup.controllers").exists()
        if not _can_hold(folder, kill):
            return ""
        if memory and (kill or not unified):
            cgroups.limit_memory(folder, 1 << 40)
            return "memory"
        return "kill" if kill else ""
    except OSError:
        return ""
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _pass_on_memory(parent: Path, folder: Path) -> None:
    """Asks v2 to give the folders in `parent` a memory controller, if it has one itself."""
    offered = proc.read_bytes(str(parent / "cgroup.controllers")) or b""
    if b"memory" in offered.split() and not cgroups.has_memory(folder):
        with contextlib.suppress(OSError):
            cgroups.write(parent / "cgroup.subtree_control", "+memory")


def _can_hold(folder: Path, kill: bool) -> bool:
    """Puts a process into `folder` and ends it, by cgroup.kill when `kill`."""
    victim = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _AS_VICTIM], stdin=subprocess.DEVNULL
    )
    try:
        cgroups.write(folder / "cgroup.procs", str(victim.pid))
        if kill:
            cgroups.write(folder / "cgroup.kill", "1")
            return victim.wait(TRY_TIMEOUT) < 0
        return True
    except (OSError, subprocess.TimeoutExpired):
        return False
    finally:
        victim.kill()
        victim.wait()
