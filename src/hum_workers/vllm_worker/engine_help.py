"""What an installed vLLM takes on its command line, asked of its own help and remembered.

While it makes its help its parser is read, too: that tells how many values a flag takes and of
which type. Where that fails, the flags of the text alone are known. The help takes 12 to 30 s, as
it imports torch; so the answer is kept in `$XDG_CACHE_HOME/hum_workers`, under the interpreter's
path, vLLM's version and the time of its install. A cache that can't be read or written costs those
seconds and nothing else.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from hum_workers.process.asked_process import ask
from hum_workers.vllm_worker import environment
from hum_workers.vllm_worker.command import alias_files
from hum_workers.vllm_worker.flag_values import SAMPLES, Flag, Help
from hum_workers.vllm_worker.probe import Engine

HELP_TIMEOUT = 120.0
LEAST_FLAGS = 20
"""Fewer are no vLLM's help."""
MARK = "hum_workers reads: "
"""Opens the line that follows the help."""
_SCRIPT = f"""
import argparse, json
flags, methods = [], {{}}
plain = argparse.ArgumentParser.format_help
def takes(kind, text):
    try:
        kind(text)
    except Exception:
        return False
    return True
def row(action):
    kind = action.type
    return {{
        "names": list(action.option_strings),
        "nargs": action.nargs,
        "choices": [str(one) for one in action.choices or ()],
        "metavar": action.metavar if isinstance(action.metavar, (str, list)) else "",
        "takes": [text for text in {list(SAMPLES)!r} if kind is not None and takes(kind, text)],
    }}
def format_help(self):
    rows = [row(action) for action in self._actions if action.option_strings]
    if len(rows) > len(flags):
        flags[:] = rows
    return plain(self)
argparse.ArgumentParser.format_help = format_help
from vllm.entrypoints.cli.main import main
try:
    main()
except SystemExit:
    pass
try:
    from vllm.reasoning import ReasoningParserManager
    methods["reasoning_parser"] = list(ReasoningParserManager.list_registered())
except Exception:
    pass
try:
    from vllm.plugins import load_general_plugins
    load_general_plugins()
except Exception:
    pass
try:
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
    methods["quantization"] = list(QUANTIZATION_METHODS)
except Exception:
    pass
print()
print({MARK!r} + json.dumps({{"flags": flags, "methods": methods}}, default=str))
"""

_LINE = re.compile(r"^ {1,6}(-{1,2}[A-Za-z].*)$", re.MULTILINE)
_FLAG = re.compile(r"(?:^|, )(--?[A-Za-z][\w-]*)")
_COUNTS: dict[Any, tuple[int, int | None]] = {None: (1, 1), "?": (0, 1), "+": (1, None)}
"""What argparse means by `nargs`."""


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
    """Returns the flags that were learned of this install before; None when none were."""
    known = _cached(engine, folder)
    return None if known is None else known.names()


def known_help(
    engine: Engine, env: Mapping[str, str], folder: Path, *, timeout: float = HELP_TIMEOUT
) -> Help | None:
    """Returns what this vLLM takes; None when its help can't be had.

    Args:
        env: the engine's environment, as for `probe`.
        folder: the cache.
    """
    known = _cached(engine, folder)
    if known is None:
        known = read_answer(_help(engine, env, timeout))
        if len(known.names()) < LEAST_FLAGS:
            return None
        _remember(_file(engine, folder), known)
    return known


def read_answer(text: str) -> Help:
    """Returns what the script printed behind the help; what the help alone tells without that."""
    plain = Help(tuple(Flag((name,)) for name in sorted(parse_help(text))))
    last = next((line for line in reversed(text.splitlines()) if line.startswith(MARK)), None)
    if last is None:
        return plain
    try:
        answer = msgspec.json.decode(last.removeprefix(MARK))
        flags = tuple(_flag(row) for row in answer["flags"])
        methods = {key: tuple(sorted(map(str, names))) for key, names in answer["methods"].items()}
        return Help(flags, methods)
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError, AttributeError):
        return plain


def _flag(row: dict[str, Any]) -> Flag:
    least, most = _COUNTS.get(row["nargs"], (0, None))
    if isinstance(row["nargs"], int):
        least = most = row["nargs"]
    metavar = row["metavar"]
    listed = metavar if isinstance(metavar, list) else _listed(metavar)
    return Flag(
        names=tuple(row["names"]),
        least=least,
        most=most,
        choices=tuple(map(str, row["choices"] or listed)),
        is_open=not row["choices"] and bool(listed),
        takes=tuple(row["takes"]),
    )


def _listed(metavar: str) -> list[str]:
    """Returns the choices in `{a,b} or another` and `['a', 'b']`."""
    if match := re.match(r"\{([^{}]+)\}", metavar):
        return match[1].split(",")
    return re.findall(r"'([^']*)'", metavar) if metavar.startswith("[") else []


def _cached(engine: Engine, folder: Path) -> Help | None:
    try:
        known = msgspec.json.decode(_file(engine, folder).read_bytes(), type=Help)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return known if len(known.names()) >= LEAST_FLAGS else None


def _file(engine: Engine, folder: Path) -> Path:
    key = f"{engine.python}\0{engine.distribution}\0{engine.version}\0{engine.mtime_ns}"
    return folder / f"vllm-help-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


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
                [engine.python, "-c", _SCRIPT, "serve", "--help=all"],
                # a narrow terminal would break a flag's names over two lines
                env={**env, "COLUMNS": "1000", "TMPDIR": private, "CUDA_VISIBLE_DEVICES": ""},
                cwd=private,
                timeout=timeout,
            )
        except OSError:
            return ""
    return done.out.decode("utf-8", "replace")


def _remember(path: Path, known: Help) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(msgspec.json.encode(known))
        os.replace(file.name, path)
    except OSError:
        return
