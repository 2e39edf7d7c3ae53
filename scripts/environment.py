"""An environment: made once, mended after an interruption, left alone when it is right.

`run` brings the checkout's own, `.venv`, with `.cache/setup*` beside it; `bring` any other, as
`scripts.commission` does. A stamp in the environment, written last, says what was installed:
Python, place, extras and a hash of the dependencies in pyproject.toml. Same stamp, nothing to do.
A mark stands there while pip works; one that is found at the start means that a run was interrupted
in the middle, and the environment is made anew (pip's cache makes that cheap). Nothing else is
touched but pip's own cache.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from scripts.pip_run import PipFailed, pip_install
from scripts.progress import Progress

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ("cpu", "dev", "model")
STAMP = "hum-setup.json"
BUSY = "hum-setup.busy"
UNMATCHED = ("torchvision", "torchaudio", "torchcodec")


class SetupError(Exception):
    """The environment can't be made; the message is one line."""


class Interrupted(BaseException):
    """A signal asked this run to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.code = 128 + number


def wanted(root: Path, extras: tuple[str, ...]) -> dict[str, Any]:
    """Returns the stamp that the environment of this checkout and interpreter has when it is right.

    Only what pip resolves goes into the hash: other edits of pyproject.toml change nothing.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text())
    parts = [project["build-system"], project["project"]["dependencies"]]
    parts += [project["project"]["optional-dependencies"][extra] for extra in extras]
    parts += [project["project"].get("scripts", {})]
    return {
        "dependencies": hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest(),
        "extras": list(extras),
        "python": platform.python_version(),
        "interpreter": str(Path(sys.base_prefix).resolve()),
        "place": str(root),
    }


def stamped(venv: Path) -> dict[str, Any] | None:
    """Returns the stamp of an environment, None without a readable one."""
    try:
        found = json.loads((venv / STAMP).read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def usable(venv: Path, want: dict[str, Any]) -> bool:
    """Tells whether pip can go on in `venv`: same Python, same place, never left half-way."""
    if (venv / BUSY).exists() or not (venv / "bin" / "python").exists():
        return False
    have = stamped(venv)
    if have is not None and any(have.get(key) != want[key] for key in ("python", "place")):
        return False
    told = "import pip, platform, sys; print(platform.python_version(), sys.prefix, sep='\\n')"
    command = [str(venv / "bin" / "python"), "-I", "-c", told]
    ran = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return ran.returncode == 0 and ran.stdout.splitlines() == [want["python"], str(venv)]


def make_venv(venv: Path, log: IO[str]) -> None:
    """Makes an empty environment, removing what stands in its place.

    Raises:
        SetupError: this Python has no venv or ensurepip, or making it failed.
    """
    for module in ("venv", "ensurepip"):
        try:
            __import__(module)
        except ImportError as error:
            package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
            raise SetupError(
                f"{sys.executable} has no module {module}: install {package} (or what it is called "
                "here), or name another interpreter in PYTHON"
            ) from error
    if venv.exists():
        shutil.rmtree(venv)
    venv.mkdir()
    (venv / BUSY).touch()
    command = [sys.executable, "-m", "venv", str(venv)]
    if subprocess.run(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL).returncode:
        raise SetupError(f"`{' '.join(command)}` failed: see {log.name}")


def unmatched(venv: Path) -> list[str]:
    """Returns the torch companions that were not built for the CPU torch in `venv`.

    The index's builds of these want the CUDA torch, and transformers fails on import beside them
    ("operator torchvision::nms does not exist"); without them all text work runs.
    """
    versions = {}
    for name in ("torch", *UNMATCHED):
        for info in venv.glob(f"lib/python*/site-packages/{name}-*.dist-info"):
            versions[name] = info.name.removesuffix(".dist-info").partition("-")[2]
    if not versions.get("torch", "").endswith("+cpu"):
        return []
    return [name for name in UNMATCHED if name in versions and "+cpu" not in versions[name]]


def requirement(root: Path, extras: tuple[str, ...]) -> str:
    """Returns the package of this checkout with its extras, as pip names it."""
    return f"{root}[{','.join(extras)}]" if extras else str(root)


def install(
    what: list[str], venv: Path, want: dict[str, Any], progress: Progress, log: IO[str]
) -> None:
    """Brings `venv` to the stamp `want`, by what pip is told to install."""
    if usable(venv, want):
        progress.stage(f"mending {venv}" if stamped(venv) is None else f"renewing {venv}")
    else:
        progress.stage(f"making {venv} with Python {want['python']}")
        make_venv(venv, log)
    (venv / BUSY).touch()
    (venv / STAMP).unlink(missing_ok=True)
    progress.stage("resolving dependencies")
    pip = [str(venv / "bin" / "python"), "-m", "pip"]
    pip_install([*pip, "install", "--progress-bar", "off", *what], venv, progress, log)
    if names := unmatched(venv):
        progress.stage(f"removing {', '.join(names)}: not built for the CPU torch")
        pip_install([*pip, "uninstall", "--yes", *names], venv, progress, log)
    part = venv / f".{STAMP}.part"
    part.write_text(json.dumps(want, indent=1) + "\n")
    part.rename(venv / STAMP)
    (venv / BUSY).unlink()


@contextmanager
def alone(cache: Path, progress: Progress) -> Iterator[None]:
    """Holds the setup lock in `cache` and a private TMPDIR for pip.

    The lock's descriptor is handed to pip too: when a run is killed outright, the next one waits
    until its pip is gone.
    """
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "setup.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.stage("waiting for another setup")
            fcntl.flock(lock, fcntl.LOCK_EX)
        os.set_inheritable(lock.fileno(), True)
        temporary = cache / "setup.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        os.environ["TMPDIR"] = str(temporary)
        try:
            yield
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def stop(number: int, _frame: object) -> None:
    """Turns a signal into an exception, once: a second one must not break the clean-up."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, lambda *_: None)
    raise Interrupted(number)


def bring(venv: Path, work: Path, want: dict[str, Any], what: list[str]) -> bool:
    """Does the work that the stamp says is left, and tells whether there was any.

    `work` gets the lock, pip's log and its temporary files.

    Raises:
        SetupError: the environment can't be made.
        PipFailed: pip ended with an error.
    """
    if ready(venv, want):
        return False
    with Progress() as progress, alone(work, progress):
        if ready(venv, want):
            return False
        with (work / "setup.log").open("w") as log:
            install(what, venv, want, progress, log)
        progress.say(f"{venv} is ready")
    return True


def ready(venv: Path, want: dict[str, Any]) -> bool:
    """Tells whether `venv` is what `want` says."""
    whole = not (venv / BUSY).exists() and (venv / "bin/python").exists()
    return whole and stamped(venv) == want


def run(root: Path, extras: tuple[str, ...]) -> None:
    """Brings the checkout's own environment."""
    what = ["-e", requirement(root, extras)]
    bring(root / ".venv", root / ".cache", wanted(root, extras), what)


def program(name: str, work: Callable[[], None]) -> int:
    """Returns 0 when `work` is done, 1 with one line on stderr, 128 + n on a signal."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, stop)
    try:
        work()
    except (SetupError, PipFailed, OSError, KeyError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    except Interrupted as signalled:
        print(f"{name}: interrupted; the next run goes on from a clean state", file=sys.stderr)
        return signalled.code
    return 0


def main() -> int:
    """Makes the environment and returns the exit code of `program`."""
    parser = argparse.ArgumentParser(prog="setup", description="makes the environment in .venv")
    parser.add_argument("--extras", default=",".join(EXTRAS), help="default: %(default)s")
    options = parser.parse_args()
    return program("setup", lambda: run(ROOT, tuple(options.extras.split(","))))
