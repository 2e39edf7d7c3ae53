"""Egg files as documents: found, read and parsed, with the place of each key.

Nothing here knows what belongs into an egg. What can't be read becomes a `Mistake`, so that the
mistakes of all files can be told at once.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import tomli

from hum_workers.egg.toml_positions import Path as KeyPath
from hum_workers.egg.toml_positions import Positions, positions
from hum_workers.errors import Mistake
from hum_workers.program.plain_files import open_plain

MAX_EGG = 1024 * 1024
"""Bytes of an egg at most; an egg of a real cell has a few thousand."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_BOMS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
_WORD_VALUE = re.compile(r"=\s*([^\s\"'\[{#=][^#=]*?)\s*(?:#.*)?$")


@dataclass(frozen=True)
class Document:
    """One egg as TOML says it, not yet held against the tables an egg may have."""

    source: Path
    data: dict[str, Any]
    places: Positions

    def mistake(self, path: KeyPath, message: str, *, at_key: bool = False) -> Mistake:
        """Returns a `Mistake` at the value (or the key) that `path` names."""
        line, column = self.places.find(path, key=at_key)
        return Mistake(
            file=str(self.source), line=line, column=column, key=dotted(path), message=message
        )

    def where(self, path: KeyPath) -> str:
        """Returns `file:line`, to point at another place from within a message."""
        line, _ = self.places.find(path)
        return f"{self.source}:{line}" if line else str(self.source)


def dotted(path: KeyPath) -> str:
    """Returns a path as TOML writes it, an index in brackets: `engine.args[1]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
            continue
        bare = _BARE.fullmatch(part)
        name = clip(part) if bare else '"' + clip(part.replace('"', '\\"')) + '"'
        text += f".{name}" if text else name
    return text


def clip(text: str, limit: int = 60) -> str:
    """Returns `text` on one line and no longer than `limit` characters."""
    line = "".join(c if c.isprintable() else " " for c in text)
    return line if len(line) <= limit else line[: limit - 1] + "…"


def read_documents(paths: Sequence[Path]) -> list[Document | Mistake]:
    """Reads each file, and each `*.toml` of each folder, in the order given."""
    if not paths:
        return [Mistake(file="egg", message="none is given; name a .toml file or a folder")]
    results: list[Document | Mistake] = []
    seen: set[tuple[int, int]] = set()
    for path in paths:
        for found in _expand(path):
            results.extend([found] if isinstance(found, Mistake) else _read(found, seen))
    return results


def _expand(path: Path) -> Iterator[Path | Mistake]:
    """Yields the eggs that a path stands for: itself, or those of a folder, sorted by name."""
    if not os.path.isdir(path):  # unlike Path.is_dir, it also takes names that no file can have
        yield path
        return
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        yield Mistake(file=str(path), message=f"can't list the folder: {error.strerror}")
        return
    eggs = [
        path / name
        for name in names
        if name.endswith(".toml") and not name.startswith(".") and not os.path.isdir(path / name)
    ]
    if not eggs:
        yield Mistake(file=str(path), message="the folder holds no egg; put a .toml file there")
    yield from eggs


def _read(path: Path, seen: set[tuple[int, int]]) -> Sequence[Document | Mistake]:
    file = str(path)
    try:
        os.path.abspath(path).encode()
    except UnicodeEncodeError:
        return [Mistake(file=ascii(file), message="its path is no UTF-8; rename it")]
    try:
        facts = path.stat()
        if not stat.S_ISREG(facts.st_mode):
            return [Mistake(file=file, message="is no regular file; give a .toml file or a folder")]
        if (facts.st_dev, facts.st_ino) in seen:
            return [Mistake(file=file, message="is given twice; name each egg once")]
        seen.add((facts.st_dev, facts.st_ino))
        with open_plain(path) as stream:
            raw = stream.read(MAX_EGG + 1)
    except FileNotFoundError:
        if path.is_symlink():
            target = clip(os.readlink(path), 200)
            return [Mistake(file=file, message=f"is a link to {target}, which is not there")]
        return [Mistake(file=file, message=f"no such file{_near_file(path)}")]
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return [Mistake(file=clip(file, 300), message=f"can't be read: {reason}")]
    if len(raw) > MAX_EGG:
        return [Mistake(file=file, message="is larger than 1 MiB; is this an egg?")]
    return parse(path, raw)


def parse(path: Path, raw: bytes) -> Sequence[Document | Mistake]:
    """Parses the bytes of one egg; a byte order mark and CRLF are allowed."""
    file = str(path)
    if encoding := _BOMS.get(raw[:2]):
        return [Mistake(file=file, message=f"is {encoding}; save the file as UTF-8")]
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return [_not_utf8(file, raw, error.start)]
    try:
        data = tomli.loads(text)
    except tomli.TOMLDecodeError as error:
        return _twice(path, text) or [_syntax(file, text, error)]
    except RecursionError:
        return [Mistake(file=file, message="is no TOML: tables or arrays are nested too deep")]
    if not data:
        return [Mistake(file=file, message="is empty; an egg needs at least [model] path")]
    return [Document(path, data, positions(text))]


def _not_utf8(file: str, raw: bytes, offset: int) -> Mistake:
    start = raw.rfind(b"\n", 0, offset) + 1
    line = raw.count(b"\n", 0, offset) + 1
    column = len(raw[start:offset].decode("utf-8-sig" if start == 0 else "utf-8")) + 1
    message = f"is not UTF-8: byte 0x{raw[offset]:02x} at offset {offset}; save the file as UTF-8"
    return Mistake(file=file, line=line, column=column, message=message)


def _twice(path: Path, text: str) -> list[Mistake]:
    found = positions(text)
    document = Document(path, {}, found)
    mistakes = []
    for twice in found.twice:
        line, column = twice.again.key
        message = f"stands twice: first on line {twice.first.key[0]}; remove one"
        key = dotted(twice.path)
        mistakes.append(
            Mistake(file=str(document.source), line=line, column=column, key=key, message=message)
        )
    return mistakes


def _syntax(file: str, text: str, error: tomli.TOMLDecodeError) -> Mistake:
    lines = text.splitlines()
    line = lines[error.lineno - 1] if error.lineno <= len(lines) else ""
    reason = error.msg[:1].lower() + error.msg[1:]
    return Mistake(
        file=file,
        line=error.lineno,
        column=error.colno,
        message=f"is no TOML: {reason}{_hint(line, reason)}",
    )


def _hint(line: str, reason: str) -> str:
    """Says what is most likely missing. What stands there may be a secret, so it is not shown."""
    if reason == r"illegal character '\n'":
        return "; is a closing quote missing?"
    match = _WORD_VALUE.search(line)
    if not match:
        return ""
    word = match.group(1)
    if word.lower() in ("true", "yes", "on"):
        return "; did you mean true?"
    if word.lower() in ("false", "no", "off"):
        return "; did you mean false?"
    return "; a value that is no number, true or false stands in quotes"


def _near_file(path: Path) -> str:
    try:
        names = [
            name for name in os.listdir(path.parent) if name.endswith(".toml") and name != path.name
        ]
    except OSError:
        return ""
    near = get_close_matches(path.name, names, 1)
    return f"; did you mean {path.parent / near[0]}?" if near else ""
