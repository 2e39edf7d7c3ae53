"""Commissioning: what `hives/<hive>/build` does once it has found a Python.

Owns `$XDG_DATA_HOME/hum/hum_workers/<hive>`: an environment of its own with the package of this
checkout, not tied to the checkout, and pip's log. Writes the launcher `~/.local/bin/<hive>`, last,
so that it never starts half an environment. Gives an egg to a user who has none. A file that it
did not write itself is never overwritten. Standard library only.

    python -m scripts.commission HIVE
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scripts import commission_llama
from scripts.environment import ROOT, SetupError, bring, program, requirement, wanted

MARK = "# Written by hum_workers' build, which may write it anew."
ENGINES = {"vllm-worker": ("cuda", "cpu"), "llama-rpc-worker": ("cuda", "cpu")}
"""What each hive's engine is with NVIDIA devices, and without: an extra of ours, or a llama.cpp."""
LLAMA = "llama-rpc-worker"
EXTRA = "HUM_WORKERS_EXTRA"


@dataclass(frozen=True)
class Places:
    """Where the parts of one hive go."""

    data: Path
    launcher: Path
    egg: Path

    @property
    def venv(self) -> Path:
        """The environment."""
        return self.data / "venv"


def places(hive: str, env: Mapping[str, str]) -> Places:
    """Returns this user's places; a relative XDG variable is ignored, as XDG asks.

    Raises:
        SetupError: HOME is not set.
    """
    if not os.path.isabs(env.get("HOME", "")):
        raise SetupError("HOME is not set: it says where the launcher goes; set it")
    home = Path(env["HOME"])
    data = base(env, "XDG_DATA_HOME") or home / ".local" / "share"
    config = base(env, "XDG_CONFIG_HOME") or home / ".config"
    return Places(
        data=data / "hum" / "hum_workers" / hive,
        launcher=home / ".local" / "bin" / hive,
        egg=config / "hum" / f"{hive}.toml",
    )


def base(env: Mapping[str, str], name: str) -> Path | None:
    """Returns an XDG base folder if the variable names one."""
    named = env.get(name, "")
    return Path(named) if os.path.isabs(named) else None


def extras(hive: str, env: Mapping[str, str], root: Path) -> tuple[str, ...]:
    """Returns the extras to install: what HUM_WORKERS_EXTRA says, else what fits this host.

    Raises:
        SetupError: pyproject.toml has no extra of that name.
    """
    named = env.get(EXTRA, "")
    if named == "none":
        return ()
    if not named:
        with_cards, without = ENGINES[hive]
        return (with_cards if nvidia(root, env) else without,)
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    there = project["optional-dependencies"]
    chosen = tuple(part.strip() for part in named.split(","))
    for extra in chosen:
        if extra not in there:
            known = ", ".join([*there, "none"])
            raise SetupError(f"{EXTRA}={named}: there is no extra {extra!r}; name of {known}")
    return chosen


def nvidia(root: Path, env: Mapping[str, str]) -> bool:
    """Tells whether this host has NVIDIA devices, as the worker itself will see them."""
    sys.path.append(str(root / "src"))
    try:
        from hum_workers.devices import nvidia_devices
    finally:
        sys.path.pop()
    return bool(nvidia_devices(env))


def digest(root: Path) -> str:
    """Returns a hash of the package's sources: another one means that there is an upgrade."""
    total = hashlib.sha256((root / "pyproject.toml").read_bytes())
    for path in sorted((root / "src").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            total.update(f"{path.relative_to(root)}\0".encode())
            total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def refuse_foreign(launcher: Path) -> None:
    """Makes sure that what stands in the launcher's place may be written anew.

    Raises:
        SetupError: it is not from a build.
    """
    if not launcher.is_symlink() and not launcher.exists():
        return
    try:
        ours = not launcher.is_symlink() and MARK in launcher.read_text("utf-8", "replace")
    except OSError:
        ours = False
    if not ours:
        raise SetupError(f"{launcher} is not from this build: move it away, then build again")


def script(program: Path, env: Mapping[str, str]) -> str:
    """Returns the launcher's text.

    A service manager has not the variables of the shell that ran the build: the launcher keeps the
    folder that the egg was put into.
    """
    lines = ["#!/bin/sh", MARK]
    if config := base(env, "XDG_CONFIG_HOME"):
        named = shlex.quote(str(config))
        lines.append(f'[ -n "${{XDG_CONFIG_HOME:-}}" ] || export XDG_CONFIG_HOME={named}')
    lines.append(f'exec {shlex.quote(str(program))} "$@"')
    return "\n".join(lines) + "\n"


def launch_by(launcher: Path, text: str) -> None:
    """Puts the launcher in place, whole or not at all."""
    launcher.parent.mkdir(parents=True, exist_ok=True)
    part = launcher.with_name(f".{launcher.name}.part")
    part.write_text(text, "utf-8")
    part.chmod(0o755)
    part.rename(launcher)


def give_egg(egg: Path, example: Path) -> bool:
    """Copies the example to `egg`, and tells so; an egg that is there stays as it is."""
    egg.parent.mkdir(parents=True, exist_ok=True)
    part = egg.with_name(f".{egg.name}.part")
    part.write_text(example.read_text("utf-8"), "utf-8")
    try:
        # A link, not a rename: it fails when there is an egg, also one made this moment.
        os.link(part, egg)
    except FileExistsError:
        return False
    finally:
        part.unlink(missing_ok=True)
    return True


def commission(hive: str, env: Mapping[str, str], root: Path = ROOT) -> None:
    """Does it all, and says what and where.

    Raises:
        SetupError: something is in the way.
        PipFailed: pip ended with an error.
    """
    to = places(hive, env)
    refuse_foreign(to.launcher)
    chosen = extras(hive, env, root)
    say(f"{hive} with {' and '.join(chosen) or 'no engine'} goes to {to.venv}")
    # The door of a slice needs an extra of ours, whatever the engine.
    engine, chosen = (chosen, ("llama",)) if hive == LLAMA else ((), chosen)
    want = wanted(root, chosen) | {"source": digest(root), "place": str(to.venv)}
    done = bring(to.venv, to.data, want, [requirement(root, chosen)])
    say("environment: made or brought up to date" if done else "environment: is up to date")
    if engine:
        commission_llama.bring(to.data, to.venv, cuda="cuda" in engine, env=env)
    launch_by(to.launcher, script(to.venv / "bin" / hive, env))
    say(f"launcher: {to.launcher}")
    given = give_egg(to.egg, root / "hives" / hive / "example.toml")
    say(f"egg: {to.egg}, {'an example to edit' if given else 'yours, left as it is'}")
    if not engine and (hive == LLAMA or not chosen):
        key = "bin" if hive == LLAMA else "python"
        say(f"no engine was installed: the egg has to name one in [engine] {key}")
    if str(to.launcher.parent) not in env.get("PATH", "").split(os.pathsep):
        say(f"{to.launcher.parent} is not in PATH: hum does not need it there, your shell does")
    if done:
        say("a bee that runs already keeps its old code until it is started again")


def say(text: str) -> None:
    """Prints one line."""
    print(f"build: {text}", flush=True)


def main() -> int:
    """Commissions the hive of the command line and returns the exit code of `program`."""
    parser = argparse.ArgumentParser(prog="build", description=__doc__.partition("\n")[0])
    parser.add_argument("hive", choices=ENGINES)
    hive: str = parser.parse_args().hive
    return program("build", lambda: commission(hive, os.environ))


if __name__ == "__main__":
    sys.exit(main())
