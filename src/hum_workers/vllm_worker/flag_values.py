"""The flags of an installed vLLM, as its own parser declares them, and `engine.args` held to them.

Pure. Promise: no complaint repeats a value of `engine.args`, which may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from hum_workers.egg.likeness import nearest

SAMPLES = ("12", "1.5", "1k", "None", "auto", "x", '{"a": 1}')
"""What the type of each flag is tried with."""
SHOWN = 16
"""Choices in one sentence."""
LIKE_FLAG = 0.75
LEVEL = "--optimization-level"

_FLAG = re.compile(r"--?[A-Za-z]")
_AMOUNT = re.compile(r"[0-9]+(\.[0-9]+)?[kmgt]|[0-9]+[KMGT]")


class Flag(msgspec.Struct, frozen=True):
    """One flag. The defaults are those of one of which only the name is known."""

    names: tuple[str, ...]
    """With their dashes, `--no-` forms included."""
    least: int = 0
    most: int | None = None
    """Values that it takes; None: any number."""
    choices: tuple[str, ...] = ()
    is_open: bool = False
    """A plugin may bring further choices."""
    takes: tuple[str, ...] = ()
    """Of `SAMPLES`, those that its type takes; empty when it has none."""

    @property
    def is_number(self) -> bool:
        """Whether it takes numbers alone."""
        return "12" in self.takes and not {"x", '{"a": 1}'} & set(self.takes)


class Help(msgspec.Struct, frozen=True):
    """What an installed vLLM takes."""

    flags: tuple[Flag, ...]
    methods: dict[str, tuple[str, ...]] = {}
    """Names that its help does not list, by the key of `[model]`: `quantization`."""

    def names(self) -> frozenset[str]:
        """Returns all names of all flags."""
        return frozenset(name for flag in self.flags for name in flag.names)

    def choices(self, name: str) -> tuple[str, ...]:
        """Returns what a flag may be set to; empty when that is not known."""
        return next((flag.choices for flag in self.flags if name in flag.names), ())


def unknown_flags(args: Sequence[str], known: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yields each flag in `engine.args` that the engine refuses, and the nearest one it knows.

    Read as vLLM does: underscores for dashes, `--flag=value`, `--flag.field value`, and the short
    beginnings that argparse takes for a whole flag. Values are never yielded.
    """
    for arg in _spelled(args, known):
        if not _FLAG.match(arg):
            continue
        flag = _name(arg)
        if flag not in known and not _beginning(flag, known):
            yield flag, nearest(flag, known, LIKE_FLAG)


def wrong_values(args: Sequence[str], known: Help) -> Iterator[tuple[str, bool]]:
    """Yields a complaint about each flag whose values the engine refuses, and whether it surely
    does; flags that are not known are left out."""
    for arg, values in _groups(_spelled(args, known.names())):
        if "." in re.split(r"[= ]", arg, maxsplit=1)[0]:
            continue  # a field of a flag that takes JSON
        if " " in arg.partition("=")[0]:
            yield f"{_name(arg)} and its value are one string; write them as two", True
            continue
        flags = _flags(_name(arg), known)
        if len(flags) > 1:
            some = ", ".join(flag.names[0] for flag in flags[:SHOWN])
            yield f"{_name(arg)} may be any of {some}; write it out", True
        elif flags:
            given = [arg.partition("=")[2], *values] if "=" in arg else values
            complaint = _complaint(flags[0], given)
            if complaint:
                yield f"{_name(arg)} {complaint}", not flags[0].is_open


def _spelled(args: Sequence[str], names: frozenset[str]) -> Iterator[str]:
    """Yields the arguments with `-O3`, `-O=3` and `-O 3` written out, as vLLM does first of all."""
    for arg in args:
        if arg.startswith("-O") and LEVEL in names:
            yield LEVEL
            yield from filter(None, [arg[2:].removeprefix("=")])
        else:
            yield arg


def _groups(args: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yields each flag and the values behind it; a negative number is a value."""
    group: tuple[str, list[str]] | None = None
    for arg in args:
        if _FLAG.match(arg):
            if group:
                yield group
            group = (arg, [])
        elif group:
            group[1].append(arg)
    if group:
        yield group


def _name(arg: str) -> str:
    flag = re.split(r"[=. ]", arg, maxsplit=1)[0].rstrip("+")
    return "--" + flag[2:].replace("_", "-") if flag.startswith("--") else flag


def _flags(name: str, known: Help) -> list[Flag]:
    """Returns the flags that a name may stand for; argparse takes a beginning for the whole."""
    whole = [flag for flag in known.flags if name in flag.names]
    if whole or not name.startswith("--"):
        return whole
    return [flag for flag in known.flags if any(full.startswith(name) for full in flag.names)]


def _beginning(flag: str, known: frozenset[str]) -> bool:
    if flag.startswith("--"):
        return any(full.startswith(flag) for full in known)
    return flag[:2] in known  # `-O3`


def _complaint(flag: Flag, values: Sequence[str]) -> str:
    if len(values) < flag.least:
        return "has no value behind it"
    if flag.most is not None and len(values) > flag.most:
        return f"takes {flag.most} value, not {len(values)}" if flag.most else "takes no value"
    for value in values:
        if flag.choices:
            if value not in flag.choices:
                return f"is set to nothing it knows{instead(value, flag.choices)}"
        elif flag.is_number and not _is_number(value, flag):
            return "takes a number" if "1.5" in flag.takes else "takes a whole number"
    return ""


def _is_number(value: str, flag: Flag) -> bool:
    if value in flag.takes or ("1k" in flag.takes and _AMOUNT.fullmatch(value)):
        return True
    if value in ("", "-1") and {"None", "auto"} & set(flag.takes):
        return True
    try:
        (float if "1.5" in flag.takes else int)(value)
    except ValueError:
        return False
    return True


def instead(value: str, choices: Sequence[str]) -> str:
    """Returns the end of a sentence on a value that is none of the choices: the nearest, or all."""
    if near := nearest(value.lower(), choices) or nearest(value, choices):
        return f"; did you mean {near}?"
    return f"; it takes {', '.join(choices[:SHOWN])}{', …' if len(choices) > SHOWN else ''}"
