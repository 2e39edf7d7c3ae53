"""What an installed llama-server takes on its command line, read from its own help (pure).

Promise: no complaint repeats a value of `engine.args`, which may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hum_workers.egg.likeness import nearest
from hum_workers.llama_rpc_worker.flags import spelled

LEAST_FLAGS = 20
"""Fewer are no llama-server's help."""
COLUMN = 40
"""Where the text beside a flag begins."""
SHOWN = 16
LIKE_FLAG = 0.75
SWITCH = {
    "on": ("1", "true", "enabled"),
    "off": ("0", "false", "disabled"),
    "auto": ("-1",),
}
"""Further words for what the help calls on, off and auto."""

_NAMES = re.compile(r"(-{1,2}[A-Za-z][\w.-]*)(?:,\s+|\s+|$)")
_TWO = re.compile(r"[A-Z]+ [A-Z]+")
_SURE = re.compile(r"\{([^{}]+)\}|\[(on\|[^\]]+)\]")
_ALLOWED = re.compile(r"allowed values: (.*?)(?=\s\(|$)")
_LISTED = re.compile(r"^ *- ([\w+-]+)(?: \(default\))?: ", re.MULTILINE)
_DEFAULT = re.compile(r"\(default: ([\w+-]+)\)")
_COUNT = re.compile(r"N|<[\d.|]+>")
_NUMBER = re.compile(r"[+-]?(\d|\.\d|inf|nan)", re.IGNORECASE)
_QUOTED = re.compile(r"'[A-Za-z]+'")
_ENV = re.compile(r"\(env: \w+\)")
_REMOVED = "the argument has been removed. "


@dataclass(frozen=True)
class Flag:
    """One flag of the help. `choices`: what it may be set to; none: anything, as far as it says."""

    names: tuple[str, ...]
    values: int = 0
    """Values that it takes, always so many."""
    choices: tuple[str, ...] = ()
    is_number: bool = False
    is_sure: bool = True
    """Whether it surely takes nothing else than `choices`."""
    removed: str = ""
    """What to use instead."""


def parse(text: str) -> dict[str, Flag]:
    """Returns the flags of a help by all of their names; none when it is no llama-server's."""
    known: dict[str, Flag] = {}
    head, beside = "", list[str]()
    for line in [*text.splitlines(), "-----"]:
        if not line.startswith("-"):
            beside.append(line.removeprefix(" " * COLUMN))
            continue
        if head:
            flag = _flag(head, "\n".join(beside))
            known.update(dict.fromkeys(flag.names, flag))
        head, first = ("", "") if line.startswith("---") else _columns(line)
        beside = [first]
    return known if len(known) >= LEAST_FLAGS else {}


def _columns(line: str) -> tuple[str, str]:
    """Returns the two columns of a flag's first line; a long flag has it for itself."""
    match = re.match(r"(-.*?) {2,}(?=[^\s-])", line)
    if match and match.end() >= COLUMN:
        return match[1], line[match.end() :]
    return (line[: COLUMN - 1], line[COLUMN:]) if line[COLUMN - 1 :][:1] == " " else (line, "")


def _flag(head: str, beside: str) -> Flag:
    names, at = [], 0
    while match := _NAMES.match(head, at):
        names.append(match[1])
        at = match.end()
    value = head[at:].strip()
    if not value:
        return Flag(tuple(names))
    text = " ".join(_ENV.sub("", beside).split())
    choices, sure = _choices(value, beside, text)
    return Flag(
        tuple(names),
        values=2 if _TWO.fullmatch(value) else 1,
        choices=choices,
        is_number=bool(_COUNT.fullmatch(value)) and not _QUOTED.search(text),
        is_sure=sure,
        removed=text.removeprefix(_REMOVED) if text.startswith(_REMOVED) else "",
    )


def _choices(value: str, beside: str, text: str) -> tuple[tuple[str, ...], bool]:
    if match := _SURE.fullmatch(value):
        words = re.split(r"[,|]", match[1] or match[2])
        return tuple(words), True
    if match := _ALLOWED.search(text):
        return tuple(match[1].split(", ")), True
    if listed := _LISTED.findall(beside):
        default = _DEFAULT.findall(text)
        return tuple(dict.fromkeys((*listed, *default))), False
    return (), True


def complaints(args: Sequence[str], known: Mapping[str, Flag]) -> Iterator[tuple[str, bool]]:
    """Yields what llama-server refuses of `engine.args`, and whether it surely does.

    Read as it reads them: a flag takes the words behind it, whatever they look like.
    """
    at = 0
    while at < len(args):
        name = spelled(args[at])
        flag = known.get(name)
        if flag is None:
            yield _stranger(name, known), True
            at += 1
            while name.startswith("-") and at < len(args) and not args[at].startswith("-"):
                at += 1  # what was meant for it
            continue
        values = args[at + 1 : at + 1 + flag.values]
        if why := _complaint(flag, values):
            yield f"{name} {why}", flag.is_sure
        at += 1 + flag.values


def _stranger(name: str, known: Mapping[str, Flag]) -> str:
    if not name.startswith("-"):
        return "a word stands behind a flag that takes no more values"
    whole = name.partition("=")[0]
    if whole != name and whole in known:
        return f"{whole} and its value are one string; write them as two"
    near = nearest(whole, list(known), LIKE_FLAG)
    return f"{whole} is not known to it" + (f"; did you mean {near}?" if near else "")


def _complaint(flag: Flag, values: Sequence[str]) -> str:
    if flag.removed:
        return f"was removed: {flag.removed}"
    if len(values) < flag.values:
        return "has no value behind it" if flag.values == 1 else f"takes {flag.values} values"
    for value in values:
        more = [word for choice in flag.choices for word in SWITCH.get(choice, ())]
        if flag.choices and value not in (*flag.choices, *more):
            return f"is set to nothing it knows{_instead(value, flag.choices)}"
        if flag.is_number and not _NUMBER.match(value.strip()):
            return "takes a number"
    return ""


def _instead(value: str, choices: Sequence[str]) -> str:
    if near := nearest(value.lower(), choices):
        return f"; did you mean {near}?"
    return f"; it takes {', '.join(choices[:SHOWN])}{', …' if len(choices) > SHOWN else ''}"
