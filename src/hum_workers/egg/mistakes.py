"""What is wrong with an egg, in the operator's words: one `Mistake` for each complaint. Pure.

Translates the validator's errors, and finds the name that a misspelt table, key or value was most
likely meant to be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from hum_workers.egg.files import Document, clip
from hum_workers.egg.likeness import nearest
from hum_workers.egg.toml_positions import Path
from hum_workers.errors import Mistake

_KINDS: dict[str, str] = {
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be a string in quotes",
    "list_type": "must be an array in [ ]",
    "dict_type": "must be a table",
}
_BOUNDS = {
    "greater_than_equal": ("must be at least", "ge"),
    "greater_than": ("must be above", "gt"),
    "less_than_equal": ("must be at most", "le"),
    "less_than": ("must be below", "lt"),
}
MOST = 100
"""Mistakes told of one file at most; one with more is no egg."""
LATER = "comes with a later release of hum_workers; remove it"


class Names:
    """The tables and keys of one kind of egg, for suggestions."""

    def __init__(
        self,
        model: type[BaseModel],
        later: Mapping[str, frozenset[str]],
        synonyms: Mapping[str, str],
        refused: Mapping[str, str],
    ) -> None:
        self.tables: dict[str, list[str]] = {
            name: [field.alias or key for key, field in table.model_fields.items()]
            for name, field in model.model_fields.items()
            if name not in refused and (table := _table(field.annotation)) is not None
        }
        self._arrays = {
            name
            for name, field in model.model_fields.items()
            if get_origin(field.annotation) is list
        }
        self._refused = refused
        self._later = later
        self._synonyms = synonyms

    def later(self, data: Mapping[str, Any]) -> Iterator[Path]:
        """Yields the tables and keys of `data` that a later release brings."""
        for table, keys in self._later.items():
            given = data.get(table)
            if not isinstance(given, Mapping):
                continue
            known = self.tables.get(table)
            here = [key for key in given if key in keys]
            yield from ((table, key) for key in here)
            if known is None and not here:
                yield (table,)

    def refused(self, data: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
        """Yields the tables and keys of `data` that only other workers have, and what to do."""
        for name, why in self._refused.items():
            table, _, key = name.partition(".")
            given = data.get(table)
            if not key and given is not None:
                yield (table,), why
            elif key and isinstance(given, Mapping) and key in given:
                yield (table, key), why

    def unknown(self, path: Path) -> tuple[str, Path]:
        """Returns the message for a table or key that no egg has, and what was meant, or ()."""
        if len(path) == 1:
            return self._unknown_table(str(path[0]))
        table, key = str(path[0]), str(path[-1])
        name = key.replace("-", "_").lower()
        keys = self.tables.get(table, [])
        if home := self._home(name, keys, table):
            here, there = self._header(table), self._header(home)
            return f"is no key of {here}, but of {there}; move it there", (home, name)
        meant = self._synonym(name) or _meant(table, name, keys) or self._elsewhere(name)
        if meant:
            shown = ".".join(meant).removeprefix(f"{table}.")
            return f"is no key of {self._header(table)}; did you mean {shown}?", meant
        return f"is no key of {self._header(table)}; those are {', '.join(keys)}", ()

    def _unknown_table(self, name: str) -> tuple[str, Path]:
        if table := nearest(name, [*self.tables, *self._later]):
            return f"is no table of an egg; did you mean {self._header(table)}?", (table,)
        if home := self._home(name, [], ""):
            there = self._header(home)
            return f"is no table of an egg, but a key of {there}; move it there", (home, name)
        if meant := self._synonym(name.replace("-", "_")):
            shown = self._header(meant[0]) if len(meant) == 1 else ".".join(meant)
            return f"is no table of an egg; did you mean {shown}?", meant
        known = ", ".join(map(self._header, self.tables))
        return f"is no table of an egg; those are {known}", ()

    def _header(self, table: str) -> str:
        """Returns the line that opens a table: an array of tables has another one."""
        return f"[[{table}]]" if table in self._arrays else f"[{table}]"

    def _home(self, key: str, keys: Sequence[str], table: str) -> str:
        """Returns another table that has exactly this key."""
        if key in keys:
            return ""
        return next((t for t, has in self.tables.items() if key in has and t != table), "")

    def _synonym(self, name: str) -> tuple[str, ...]:
        return tuple(self._synonyms.get(name, "").split(".")) if name in self._synonyms else ()

    def _elsewhere(self, name: str) -> tuple[str, ...]:
        homes = {key: table for table, keys in self.tables.items() for key in keys}
        key = nearest(name, list(homes), 0.75)
        return (homes[key], key) if key else ()


def _table(kind: Any) -> type[BaseModel] | None:
    """Returns the table that a field's type stands for: itself, or those of an array of them."""
    found = next(iter(get_args(kind)), None) if get_origin(kind) is list else kind
    return found if isinstance(found, type) and issubclass(found, BaseModel) else None


def _meant(table: str, name: str, keys: Sequence[str]) -> tuple[str, ...]:
    key = nearest(name, keys)
    return (table, key) if key else ()


def translate(
    document: Document, names: Names, errors: Sequence[Mapping[str, Any]]
) -> tuple[list[Mistake], list[Path]]:
    """Turns pydantic's `ValidationError.errors()` into mistakes.

    Returns them, and the keys that are wrong or were meant by a wrong name: what rests on those
    can't be judged.
    """
    mistakes: list[Mistake] = []
    wrong: list[Path] = []
    for error in errors:
        path: Path = error["loc"]
        wrong.append(tuple(takewhile(lambda part: isinstance(part, str), path)))
        if error["type"] == "default_factory_not_called" or len(mistakes) > MOST:
            continue  # the former: another key of the table is wrong, and that is told
        if len(mistakes) == MOST:
            mistakes.append(Mistake(file=str(document.source), message="has more mistakes"))
        elif error["type"] == "extra_forbidden":
            message, meant = names.unknown(path)
            mistakes.append(document.mistake(path, message, at_key=True))
            wrong.extend([meant] if meant else [])
        else:
            mistakes.append(document.mistake(path, _message(path, error)))
    return mistakes, wrong


def _message(path: Path, error: Mapping[str, Any]) -> str:
    kind, given = error["type"], error["input"]
    context = error.get("ctx", {})
    if kind == "list_type" and len(path) == 1:
        return f"must be an array of tables: write [[{path[0]}]] and its keys below it"
    if kind in ("model_type", "model_attributes_type"):
        header = f"[{path[0]}]" if len(path) == 1 else f"[[{path[0]}]]"
        return f"must be a table: write {header} and its keys below it"
    if kind in _KINDS:
        return f"{_KINDS[kind]}, not {_shown(path, given)}"
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        return f"{words} {_plain(context[bound])}, not {_shown(path, given)}"
    if kind == "literal_error":
        return _not_one_of(given, re.findall(r"'([^']*)'", context["expected"]))
    if kind == "value_error":
        return str(context["error"])
    return str(error["msg"]).lower()


def _plain(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else f"{bound:g}"


def _not_one_of(given: object, choices: Sequence[str]) -> str:
    listed = ", ".join(f'"{choice}"' for choice in choices)
    message = f"must be {'one of ' if len(choices) > 1 else ''}{listed}, not {_toml(given)}"
    meant = nearest(given.lower(), choices) if isinstance(given, str) else ""
    return f'{message}; did you mean "{meant}"?' if meant else message


def _shown(path: Path, given: object) -> str:
    """Shows a value, or only its kind where it may be a secret."""
    if path[:2] in (("engine", "env"), ("engine", "args")):
        return _kind(given)
    return _toml(given)


def _kind(given: object) -> str:
    if isinstance(given, bool):
        return "true or false"
    if isinstance(given, int | float):
        return "a number"
    names: dict[type, str] = {str: "a string", list: "an array", dict: "a table"}
    return names.get(type(given), "a date or time")


def _toml(given: object) -> str:
    if isinstance(given, bool):
        return str(given).lower()
    if isinstance(given, str):
        return f'"{clip(given)}"'
    if isinstance(given, int | float):
        return clip(str(given))
    return _kind(given)
