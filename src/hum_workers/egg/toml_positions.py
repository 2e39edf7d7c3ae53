"""Where each key of a TOML document stands. Pure: text in, lines and columns out.

The parser that reads the values keeps no positions. This scanner knows just enough of TOML to walk
a document that the parser accepts, or one that it refuses for a key given twice. It never raises:
where it does not understand the text it stops, and what follows has no position.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field

import tomli

Path = tuple[str | int, ...]
"""Keys from the root; an index in an array is an int."""

_DEPTH = 64
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_QUOTED = re.compile(r"\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'")
_STRING = re.compile(
    r"\"\"\"(?:[^\\]|\\[\s\S])*?\"{3,5}|'''[\s\S]*?'{3,5}|" + _QUOTED.pattern,
)
_SCALAR = re.compile(r"[^,\]}\n#]+")


@dataclass(frozen=True)
class Place:
    """Line and column, both from 1, of a key and of its value (the key's again for a table)."""

    key: tuple[int, int]
    value: tuple[int, int]


@dataclass(frozen=True)
class Twice:
    """A key or table that stands twice: where it was first, and where again."""

    path: Path
    first: Place
    again: Place


@dataclass
class Positions:
    """All places of a document, and the keys that stand twice, in the order of the text."""

    places: dict[Path, Place] = field(default_factory=dict)
    twice: list[Twice] = field(default_factory=list)

    def find(self, path: Path, *, key: bool = False) -> tuple[int, int]:
        """Returns line and column of the value (or key), of the nearest table above it, or 0, 0."""
        place = self.places.get(path)
        if place:
            return place.key if key else place.value
        while path:
            path = path[:-1]
            if path in self.places:
                return self.places[path].key
        return (0, 0)


def positions(text: str) -> Positions:
    """Returns the places of all keys in `text`, as far as it can be followed."""
    scanner = _Scanner(text)
    try:
        scanner.document()
    except _Lost:
        pass
    return scanner.found


class _Lost(Exception):
    """The text is not what the scanner expects here."""


class _Scanner:
    def __init__(self, text: str) -> None:
        self.found = Positions()
        self._text = text
        self._at = 0
        self._lines = [0, *(match.end() for match in re.finditer("\n", text))]
        self._defined: dict[Path, Place] = {}
        self._arrays: dict[Path, int] = {}

    def document(self) -> None:
        table: Path = ()
        self._skip(_BLANK)
        while self._at < len(self._text):
            if self._peek("["):
                table = self._header()
            else:
                self._pair(table, 0)
            self._skip(_BLANK)

    def _header(self) -> Path:
        array = self._peek("[[")
        self._at += 2 if array else 1
        here = self._position(self._at)
        place = Place(here, here)
        keys = self._keys()
        path: Path = ()
        for name, _ in keys[:-1]:
            path = (*path, name)
            self._note(path, place)
            if path in self._arrays:
                path = (*path, self._arrays[path])
        path = (*path, keys[-1][0])
        if array:
            self._arrays[path] = self._arrays.get(path, -1) + 1
            self._note(path, place)
            path = (*path, self._arrays[path])
        self._define(path, place)
        self._expect("]]" if array else "]")
        return path

    def _pair(self, table: Path, depth: int) -> None:
        keys = self._keys()
        self._expect("=")
        self._skip(_SPACE)
        value = self._position(self._at)
        path = table
        for name, start in keys[:-1]:
            path = (*path, name)
            self._note(path, Place(self._position(start), self._position(start)))
        path = (*path, keys[-1][0])
        self._define(path, Place(self._position(keys[-1][1]), value))
        self._value(path, depth)

    def _value(self, path: Path, depth: int) -> None:
        if depth > _DEPTH:
            raise _Lost
        if self._peek("["):
            self._array(path, depth + 1)
        elif self._peek("{"):
            self._inline_table(path, depth + 1)
        elif self._peek('"') or self._peek("'"):
            self._take(_STRING)
        else:
            self._take(_SCALAR)

    def _array(self, path: Path, depth: int) -> None:
        self._at += 1
        index = 0
        self._skip(_BLANK)
        while not self._peek("]"):
            here = self._position(self._at)
            self._note((*path, index), Place(here, here))
            self._value((*path, index), depth)
            index += 1
            self._skip(_BLANK)
            if self._peek(","):
                self._at += 1
                self._skip(_BLANK)
            elif not self._peek("]"):
                raise _Lost
        self._at += 1

    def _inline_table(self, path: Path, depth: int) -> None:
        self._at += 1
        self._skip(_BLANK)
        while not self._peek("}"):
            self._pair(path, depth)
            self._skip(_BLANK)
            if self._peek(","):
                self._at += 1
                self._skip(_BLANK)
            elif not self._peek("}"):
                raise _Lost
        self._at += 1

    def _keys(self) -> list[tuple[str, int]]:
        """Reads a dotted key: its names, each with the offset where it starts."""
        keys: list[tuple[str, int]] = []
        while True:
            self._skip(_SPACE)
            start = self._at
            if self._peek('"') or self._peek("'"):
                keys.append((_unquote(self._take(_QUOTED)), start))
            else:
                keys.append((self._take(_BARE), start))
            self._skip(_SPACE)
            if not self._peek("."):
                return keys
            self._at += 1

    def _define(self, path: Path, place: Place) -> None:
        if path in self._defined:
            self.found.twice.append(Twice(path, self._defined[path], place))
        else:
            self._defined[path] = place
            self.found.places[path] = place

    def _note(self, path: Path, place: Place) -> None:
        self.found.places.setdefault(path, place)

    def _position(self, offset: int) -> tuple[int, int]:
        line = bisect_right(self._lines, offset)
        return line, offset - self._lines[line - 1] + 1

    def _peek(self, token: str) -> bool:
        return self._text.startswith(token, self._at)

    def _expect(self, token: str) -> None:
        if not self._peek(token):
            raise _Lost
        self._at += len(token)

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self._text, self._at)
        self._at = match.end() if match else self._at

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        if not match:
            raise _Lost
        self._at = match.end()
        return match.group()


def _unquote(raw: str) -> str:
    if "\\" not in raw:
        return raw[1:-1]
    try:
        name: str = tomli.loads(f"key = {raw}")["key"]
    except tomli.TOMLDecodeError as error:
        raise _Lost from error
    return name
