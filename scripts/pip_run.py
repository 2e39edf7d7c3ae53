"""One run of pip: its output condensed to a line a package, the whole of it kept in a log.

Owns the pip child: leaving `pip_install` in any way means that it is gone. Standard library only.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from scripts.progress import Progress

GOT = re.compile(r"\s*(Downloading|Using cached|Processing) (?:\S*/)?(\S+)(?: (\([\d.]+ \w+\)))?")
WHEEL = re.compile(r"([A-Za-z0-9_.]+)-([^-]+)(?:-\S*\.whl|\.tar\.gz|\.zip)$")
STEPS = re.compile(r"\s*\[\s*(?:(\d+)%|(\d+)/(\d+))\] ")
"""How far make or ninja is."""
GRACE = 5.0
"""Seconds that pip has to go after SIGTERM: it removes its temporary files."""
STEP = 0.25
"""Seconds of one wait for pip's output."""


class PipFailed(Exception):
    """Pip ended with an error; the message is one line."""


def condense(line: str) -> str | None:
    """Returns what one line of pip's output has to say to a person, None for nothing."""
    if line.startswith("WARNING: Retrying"):
        return line[:100]
    got = GOT.match(line)
    if got is None or ".metadata" in line:
        return None
    wheel = WHEEL.match(got[2])
    if wheel is None:
        return None
    how = {"Using cached": "from the cache", "Processing": "from a local folder"}.get(
        got[1], "downloading"
    )
    return " ".join(part for part in (wheel[1], f"{wheel[2]},", how, got[3]) if part)


def built(line: str) -> int | None:
    """Returns the percent of a build that a line tells of, None if it tells nothing."""
    steps = STEPS.match(line)
    if steps is None:
        return None
    return int(steps[1]) if steps[1] else int(steps[2]) * 100 // max(1, int(steps[3]))


def installed(venv: Path) -> int:
    """Returns the number of packages that stand in the environment."""
    return sum(1 for _ in venv.glob("lib/python*/site-packages/*.dist-info"))


def pip_install(command: list[str], venv: Path, progress: Progress, log: IO[str]) -> None:
    """Runs pip and tells of it.

    Raises:
        PipFailed: it ended with an error.
    """
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "PIP_NO_INPUT": "1", "NO_COLOR": "1"}
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,  # a Ctrl-C is ours to pass on, once
        close_fds=False,  # the lock's descriptor goes along
    )
    errors: list[str] = []
    try:
        assert child.stdout is not None
        with child.stdout:
            for line in lines(child.stdout.fileno()):
                log.write(line)
                log.flush()
                tell(line.rstrip(), venv, progress)
                if line.startswith("ERROR:"):
                    errors.append(line.removeprefix("ERROR:").strip())
        code = child.wait()
    finally:
        end(child)
    if code:
        raise PipFailed(f"{advice(errors) or f'pip ended with {code}'} (all of it: {log.name})")


def lines(stream: int) -> Iterator[str]:
    """Yields the lines of a descriptor until its end.

    The wait goes in steps: Python sees a signal that comes just before a blocking call only after
    it, and pip can be silent for minutes.
    """
    rest = b""
    while True:
        while not select.select([stream], [], [], STEP)[0]:
            pass
        data = os.read(stream, 65536)
        *whole, rest = (rest + data).split(b"\n")
        if not data and rest:
            whole.append(rest)
        for line in whole:
            yield line.decode(errors="replace") + "\n"
        if not data:
            return


def tell(line: str, venv: Path, progress: Progress) -> None:
    """Passes one line of pip on to the person who waits."""
    if line.startswith("Collecting "):
        progress.now(f"resolving {line.split()[1]}")
    elif line.startswith("Installing collected packages:"):
        before, total = installed(venv), line.count(",") + 1
        progress.stage(f"installing {total} packages")
        progress.detail = lambda: f"installing {installed(venv) - before} of {total} packages"
    elif (percent := built(line)) is not None:
        progress.detail = lambda: f"compiling, {percent} %"
    elif said := condense(line):
        progress.say(said)


def advice(errors: list[str]) -> str:
    """Returns pip's first error and, where it is known, what to do about it."""
    if not errors:
        return ""
    if any("torch==" in error for error in errors):
        return (
            f"{errors[0]}; the CPU build of torch is not in the package index in use: "
            "name PyTorch's own CPU wheel index in PIP_EXTRA_INDEX_URL"
        )
    return errors[0]


def end(child: subprocess.Popen[bytes]) -> None:
    """Ends pip and what it started: SIGTERM, a bounded wait, SIGKILL."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGTERM)
        try:
            child.wait(GRACE)
        except subprocess.TimeoutExpired:
            pass
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.wait()
