"""llama.cpp's programs: where they are, what they say of themselves, and what a build they are.

Asked of the programs themselves, which costs about 20 ms; nothing is loaded. What a folder said is
remembered as long as its files do not change.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from hum_workers.errors import EngineError
from hum_workers.llama_rpc_worker.facts import Build, Device
from hum_workers.process.asked_process import Answered, ask

ASK_TIMEOUT = 30.0
"""Seconds; a GPU's driver may take some to wake."""
SERVER = "llama-server"
SLICES = ("ggml-rpc-server", "rpc-server")
"""The name now, and the one before."""
BUILT = Path(__file__).parents[3] / ".cache" / "llama.cpp" / "current" / "bin"
"""What `make llama` built in the checkout that this package lies in."""
BESIDE = Path(sys.executable).parent
"""The folder of our own interpreter, where a build of the hive links them."""
_NOT_FOUND = 127
_UNKNOWN_PROTOCOL = (0, 0, 0)
_VERSION = re.compile(
    r"^version: (?:(?P<number>\d+) \((?P<commit>[^)]+)\)"
    r"|(?P<release>\S+) \(build (?P<build>\d+), commit (?P<hash>[^)]+)\))",
    re.MULTILINE,
)
_LIBRARY = re.compile(r"error while loading shared libraries: (?P<name>[^:]+):")
_DEVICE = re.compile(
    r"^ +(?P<name>\w+): (?:.*\((?P<total>\d+) MiB, (?P<free>\d+) MiB free\))?", re.MULTILINE
)
_MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Binaries:
    """One installed llama.cpp."""

    server: Path
    """llama-server."""
    slice: Path | None
    """ggml-rpc-server; None where there is none."""
    build: Build
    """Its protocol is not known before a slice runs: (0, 0, 0)."""
    version: str
    """As the program says it, for people."""
    devices: tuple[str, ...]
    """GPUs that it can use here: `CUDA0`; none means the CPU alone."""
    rpc: bool
    """Whether llama-server can use slices."""
    memory: tuple[Device, ...] = ()
    """The same devices with their memory, as it was when they were asked for; 0: not said."""
    help: str = field(default="", repr=False)
    """What llama-server says of its flags."""

    def described(self) -> str:
        """Returns version and digest, which tells builds apart that say the same of themselves."""
        return f"{self.version}, files {self.build.digest}"

    def slice_program(self) -> Path:
        """Returns ggml-rpc-server.

        Raises:
            EngineError: this llama.cpp has none.
        """
        if self.slice is None:
            raise EngineError(
                f"[engine] bin: {self.server.parent} has no {SLICES[0]}: that llama.cpp was built "
                "without RPC; build it with -DGGML_RPC=ON, or run `make llama`"
            )
        return self.slice

    def needs_rpc(self) -> None:
        """Raises:
        EngineError: this llama-server can't use slices.
        """
        if not self.rpc:
            raise EngineError(
                f"[engine] bin: {self.server} was built without RPC and can use no slices; build "
                "it with -DGGML_RPC=ON, or run `make llama`"
            )


def find(folder: Path | None, env: Mapping[str, str]) -> Binaries:
    """Returns the llama.cpp of an egg, asked what it is.

    Args:
        folder: `engine.bin`; None: what `make llama` or the hive's build made, then PATH.
        env: the complete environment that the programs will get.

    Raises:
        EngineError: there is none, or it can't be run.
    """
    server = _server(folder, env)
    beside = [server.parent / name for name in SLICES]
    found = next((path for path in beside if os.access(path, os.X_OK)), None)
    return _asked(server, found, _marks(server.parent), tuple(sorted(env.items())))


def _server(folder: Path | None, env: Mapping[str, str]) -> Path:
    if folder is not None:
        if not os.access(folder / SERVER, os.X_OK):
            raise EngineError(
                f"[engine] bin: {folder} has no program {SERVER}; name the folder of llama.cpp's "
                "programs"
            )
        return folder / SERVER
    if os.access(BUILT / SERVER, os.X_OK):
        return BUILT / SERVER
    folders = os.pathsep.join((str(BESIDE), env.get("PATH", os.defpath)))
    on_path = shutil.which(SERVER, path=folders)
    if on_path is None:
        raise EngineError(
            f"no llama.cpp here: {SERVER} is neither on PATH nor built by `make llama`; set "
            "[engine] bin to the folder of its programs"
        )
    # A link: the other program and the libraries lie beside what it names.
    return Path(os.path.realpath(on_path))


def _marks(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Returns what changes with each install: name, size and time of the files that make a build.

    A program linked against shared libraries is a few kB that say nothing of the build.
    """
    marks = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name in (SERVER, *SLICES) or entry.name.startswith(("libggml", "libllama")):
                if not entry.is_symlink():
                    stat = entry.stat()
                    marks.append((entry.name, stat.st_size, stat.st_mtime_ns))
    return tuple(sorted(marks))


@lru_cache(maxsize=8)
def _asked(
    server: Path,
    slice_: Path | None,
    marks: tuple[tuple[str, int, int], ...],
    env: tuple[tuple[str, str], ...],
) -> Binaries:
    said = _said(server, "--version", dict(env))
    match = _VERSION.search(said)
    if match is None:
        start = " ".join(said.split())[:100]
        raise EngineError(f"[engine] bin: {server} gives no version of llama.cpp, but: {start}")
    digest = _digest(server.parent, marks)
    number, commit = match["number"] or match["build"], match["commit"] or match["hash"]
    if commit == "unknown":
        # Built outside of git: the same files are the same build, and nothing else proves it.
        commit = f"unknown-{digest}"
    devices = tuple(
        Device(
            name=one["name"], free=int(one["free"] or 0) * _MIB, total=int(one["total"] or 0) * _MIB
        )
        for one in _DEVICE.finditer(_said(server, "--list-devices", dict(env)))
    )
    help_ = _said(server, "--help", dict(env))
    return Binaries(
        server=server,
        slice=slice_,
        build=Build(commit=f"{number}-{commit}", digest=digest, protocol=_UNKNOWN_PROTOCOL),
        version=match[0].removeprefix("version: "),
        devices=tuple(device.name for device in devices),
        rpc="--rpc " in help_,
        memory=devices,
        help=help_,
    )


def _digest(folder: Path, marks: tuple[tuple[str, int, int], ...]) -> str:
    whole = hashlib.sha256()
    for name, *_ in marks:
        with (folder / name).open("rb") as file:
            whole.update(f"{name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()[:16]


def _said(program: Path, flag: str, env: Mapping[str, str]) -> str:
    """Returns all that a program prints."""
    try:
        done = ask([str(program), flag], env=env, cwd=os.sep, timeout=ASK_TIMEOUT)
    except TimeoutError:
        raise EngineError(
            f"[engine] bin: {program} {flag} gave no answer within {ASK_TIMEOUT:g} s"
        ) from None
    except OSError as error:
        raise EngineError(f"[engine] bin: {program} can't be run: {error.strerror}") from error
    text = (done.out + done.err).decode("utf-8", "replace")
    if done.code:
        raise EngineError(f"[engine] bin: {program} {flag} {_ended(program, done, text)}")
    return text


def _ended(program: Path, done: Answered, text: str) -> str:
    if match := _LIBRARY.search(text):
        stem = match["name"].partition(".so")[0]
        if done.code == _NOT_FOUND and list(program.parent.glob(f"{stem}.so*")):
            return (
                f"does not find {match['name']}, though the library is there: its links are "
                f"missing; make them by `ldconfig -n {program.parent}`"
            )
        return f"does not find {match['name']}; install llama.cpp as a whole"
    last = (text.strip().splitlines() or ["nothing was said"])[-1]
    return f"ended with {done.code}: {last[:200]}"
