"""LlamaRaiser: from an egg to the spec of its next cell, with what this host has looked up."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hum_workers.cells.blame import Diagnosis
from hum_workers.devices import NONE_AWAY, usable_cores
from hum_workers.errors import EngineError, NotYet
from hum_workers.llama_rpc_worker import command, failure
from hum_workers.llama_rpc_worker.binaries import Binaries, find
from hum_workers.llama_rpc_worker.egg import LlamaEgg
from hum_workers.llama_rpc_worker.facts import Build
from hum_workers.llama_rpc_worker.gguf import Headers
from hum_workers.llama_rpc_worker.gpus import given
from hum_workers.llama_rpc_worker.model_match import mismatches
from hum_workers.program import places
from hum_workers.spec import CellSpec

CACHE_LIMIT = 64 * 1024**3
"""Bytes of tensors that slices keep in files; rpc-server itself never removes one."""


class LlamaRaiser:
    """Raises llama-server or rpc-server for one egg. `spec` looks everything up anew each time."""

    def __init__(
        self, egg: LlamaEgg, *, private: Path, log_file: Path | None, inherited: Mapping[str, str]
    ) -> None:
        self.egg = egg
        self.route_flags: Sequence[str] = command.LOCAL_ROUTE
        """Where each layer goes; set before `spec` where slices are used."""
        self.batch: int | None = None
        """Tokens of a prompt in one step; None: as this host's own devices make it best."""
        self.explain: Callable[[str], str] = lambda line: line
        """Puts names to the endpoints in a line of llama-server's."""
        self.build: Build | None = None
        """Which llama.cpp the last spec was made for: what its folder holds now may be another."""
        self.headers = Headers()
        self._private = private
        self._log_file = log_file
        self._inherited = inherited

    def binaries(self) -> Binaries:
        """Returns the egg's llama.cpp.

        Raises:
            EngineError: there is none, or it can't be run.
        """
        home = Path("/nonexistent")  # nothing that is asked writes
        env = command.environment(self.egg, self._inherited, home=home, cache=home)
        return find(self.egg.engine.bin, env)

    def spec(self, cell_id: str, away: Mapping[str, str] = NONE_AWAY) -> CellSpec:
        """Returns the spec of the next cell, which gets none of the devices in `away`.

        Raises:
            NoDevice: those that it could have are away.
            HumError: no engine, or one without RPC where slices are used.
        """
        binaries = self.binaries()
        spec = given(self._spec(cell_id, binaries), binaries.devices, self.egg.rpc.devices, away)
        self.build = binaries.build
        return spec

    def _spec(self, cell_id: str, binaries: Binaries) -> CellSpec:
        egg = self.egg
        private = places.fresh(self._private)
        cores = usable_cores(egg.limits.cpus)
        if egg.cell.role == "slice":
            cache = cache_folder(self._inherited)
            if egg.rpc.cache:
                cache.mkdir(parents=True, exist_ok=True, mode=0o700)
                prune(cache, CACHE_LIMIT)
            host = egg.rpc.listen[0] if egg.rpc.private_network else command.LOOPBACK
            return command.build_slice(
                egg,
                binaries,
                free_port(host),
                cell_id=cell_id,
                private=private,
                cache=cache,
                log_file=self._log_file,
                inherited=self._inherited,
                cores=cores,
                host=host,
            )
        if "--rpc" in self.route_flags:
            binaries.needs_rpc()
        self._check_model()
        return command.build_coordinator(
            egg,
            binaries,
            self.route_flags,
            cell_id=cell_id,
            private=private,
            log_file=self._log_file,
            inherited=self._inherited,
            cores=cores,
            batch=self.batch or command.batch_for(binaries),
        )

    def _check_model(self) -> None:
        assert self.egg.model.path is not None
        for mismatch in mismatches(self.egg, self.headers.facts(self.egg.model.path)):
            raise EngineError(mismatch)

    def diagnose(self, lines: Sequence[str]) -> Diagnosis:
        """Returns the one useful line of llama.cpp's last output, and its class."""
        found = failure.diagnosis(lines)
        return Diagnosis(self.explain(found.line), found.death, found.vague)


def free_port(host: str) -> int:
    """Returns a port that was free just now: rpc-server can't choose one.

    Raises:
        NotYet: this machine has no such address now.
        EngineError: nobody here can listen there.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.bind((host, 0))
            port: int = probe.getsockname()[1]
    except OSError as error:
        text = f"[rpc] listen: rpc-server can't listen at {host}: {error.strerror}"
        if error.errno == errno.EADDRNOTAVAIL:  # at boot it may come a moment later
            raise NotYet(f"{text}; it waits for that address") from error
        raise EngineError(f"{text}; name another") from error
    return port


def cache_folder(env: Mapping[str, str]) -> Path:
    """Returns where slices keep tensors: below XDG_CACHE_HOME, shared by all of this user."""
    named = env.get("XDG_CACHE_HOME", "")
    base = Path(named) if os.path.isabs(named) else Path(env.get("HOME") or Path.home()) / ".cache"
    return base / "hum" / "llama.cpp"


def prune(folder: Path, most: int) -> None:
    """Removes the files that were used least recently until `most` bytes are left."""
    files = []
    with contextlib.suppress(OSError):
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                stat = path.stat()
                files.append((max(stat.st_atime, stat.st_mtime), stat.st_size, path))
    held = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if held <= most:
            return
        with contextlib.suppress(OSError):
            path.unlink()
            held -= size
