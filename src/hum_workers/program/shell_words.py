"""An engine's start as lines for a shell, for `--show-command`; secrets are hidden (pure).

By name (environment variables), and by value wherever it turns up.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from hum_workers.egg.redact import HIDDEN, is_secret
from hum_workers.spec import CellSpec

_USER_INFO = re.compile(r"(?<=://)[^/@\s]+@")


def describe(
    spec: CellSpec, *, secrets: Iterable[str] = (), files: Mapping[str, str] | None = None
) -> str:
    """Returns the start that `spec` stands for.

    Args:
        secrets: further values to hide; those of the spec's headers are known.
        files: how to show the spec's files, where it is not as they are.
    """
    known = {value for name, value in spec.env.items() if is_secret(name) and value}
    known |= {value.removeprefix("Bearer ") for value in spec.headers.values()}
    known |= set(secrets)
    lines = [f"cd {shlex.quote(spec.cwd)}"]
    lines.append(f"env -i \\\n  {_pairs(spec.env)} \\\n  {_quoted(spec.argv)}")
    for name, text in (spec.files if files is None else files).items():
        lines.append(f"# {spec.private}/{name}:")
        lines += [f"#   {line}" for line in text.splitlines()]
    shown = "\n".join(lines)
    for value in sorted(known, key=len, reverse=True):
        shown = shown.replace(shlex.quote(value), HIDDEN).replace(value, HIDDEN)
    return _USER_INFO.sub(f"{HIDDEN}@", shown)


def _pairs(env: Mapping[str, str]) -> str:
    return " \\\n  ".join(
        f"{name}={HIDDEN if is_secret(name) and value else shlex.quote(value)}"
        for name, value in sorted(env.items())
    )


def _quoted(argv: Sequence[str]) -> str:
    """Returns the command, one flag with its values a line."""
    text = ""
    for arg in argv:
        text += (" \\\n    " if arg.startswith("--") else " " if text else "") + shlex.quote(arg)
    return text
