"""The flags that an installed vLLM knows, read from its own help and remembered.

Its help takes about 10 s, as it imports torch; so the answer is kept in
`$XDG_CACHE_HOME/hum_workers`, under the interpreter's path, vLLM's version and the time of its
install. A cache that can't be read or written costs those seconds and nothing else.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from hum_workers.process.asked_process import ask
from hum_workers.vllm_worker import environment
from hum_workers.vllm_worker.command import MAIN, alias_files
from hum_workers.vllm_worker.probe import Engine

HELP_TIMEOUT = 120.0
LEAST_FLAGS = 20
"""Fewer are no vLLM's help."""

_LINE = re.compile(r"^ {1,6}(-{1,2}[A-Za-z].*)$", re.MULTILINE)
_FLAG = re.compile(r"(?:^|, )(--?[A-Za-z][\w-]*)")


def parse_help(text: str) -> frozenset[str]:
    """Returns the flags of argparse's help, with their dashes; its lines must not be wrapped."""
    flags: set[str] = set()
    for match in _LINE.finditer(text):
        flags.update(_FLAG.findall(match[1].partition("  ")[0]))
    return frozenset(flags)


def cache_folder(env: Mapping[str, str]) -> Path:
    """Returns where answers are kept."""
    home = env.get("XDG_CACHE_HOME") or os.path.join(env.get("HOME") or "~", ".cache")
    return Path(home).expanduser() / "hum_workers"


def cached_flags(engine: Engine, folder: Path) -> frozenset[str] | None:
    """Returns what was learned of this install before; None when nothing was."""
    try:
        flags = msgspec.json.decode(_file(engine, folder).read_bytes(), type=list[str])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return frozenset(flags) if len(flags) >= LEAST_FLAGS else None


def known_flags(
    engine: Engine, env: Mapping[str, str], folder: Path, *, timeout: float = HELP_TIMEOUT
) -> frozenset[str] | None:
    """Returns the flags that this vLLM knows; None when its help can't be had.

    Args:
        env: the engine's environment, as for `probe`.
        folder: the cache.
    """
    flags = cached_flags(engine, folder)
    if flags is not None:
        return flags
    flags = parse_help(_help(engine, env, timeout))
    if len(flags) < LEAST_FLAGS:
        return None
    _remember(_file(engine, folder), flags)
    return flags


def _file(engine: Engine, folder: Path) -> Path:
    key = f"{engine.python}\0{engine.distribution}\0{engine.version}\0{engine.mtime_ns}"
    return folder / f"vllm-flags-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def _help(engine: Engine, env: Mapping[str, str], timeout: float) -> str:
    with tempfile.TemporaryDirectory(prefix="hum-help-") as private:
        if engine.needs_alias:
            for name, text in alias_files(engine).items():
                path = Path(private, name)
                path.parent.mkdir(parents=True)
                path.write_text(text)
                env = environment.with_path(env, str(path.parent.parent))
        try:
            done = ask(
                [engine.python, "-c", MAIN, "serve", "--help=all"],
                # a narrow terminal would break a flag's names over two lines
                env={**env, "COLUMNS": "1000", "TMPDIR": private, "CUDA_VISIBLE_DEVICES": ""},
                cwd=private,
                timeout=timeout,
            )
        except OSError:
            return ""
    return done.out.decode("utf-8", "replace")


def _remember(path: Path, flags: frozenset[str]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(msgspec.json.encode(sorted(flags)))
        os.replace(file.name, path)
    except OSError:
        return


def unknown_flags(args: Sequence[str], known: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yields each flag in `engine.args` that the engine refuses, and the nearest one it knows.

    Read as vLLM does: underscores for dashes, `--flag=value`, `--flag.field value`, and the short
    beginnings that argparse takes for a whole flag. Values are never yielded.
    """
    for arg in args:
        if not re.match(r"--?[A-Za-z]", arg):
            continue
        flag = re.split(r"[=.]", arg, maxsplit=1)[0].rstrip("+")
        if flag.startswith("--"):
            flag = "--" + flag[2:].replace("_", "-")
        if flag in known or _is_short(flag, known):
            continue
        near = difflib.get_close_matches(flag, known, 1, 0.6)
        yield flag, near[0] if near else ""


def _is_short(flag: str, known: frozenset[str]) -> bool:
    if flag.startswith("--"):
        return any(full.startswith(flag) for full in known)
    return flag[:2] in known  # `-O3`
