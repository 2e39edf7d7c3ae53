"""What is wrong with an egg, in the operator's words: one `Mistake` for each complaint. Pure.

Translates the validator's errors, and finds the name that a misspelt table, key or value was most
likely meant to be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel

from hum_workers.egg_files import Document, clip
from hum_workers.errors import Mistake
from hum_workers.toml_positions import Path

_KINDS: dict[str, str] = {
    "int_type": "must be a whole number",
    "float_type": "must be a number",
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
LATER = "comes with a later release of hum_workers; remove it"


class Names:
    """The tables and keys of one kind of egg, for suggestions."""

    def __init__(
        self,
        model: type[BaseModel],
        later: Mapping[str, frozenset[str]],
        synonyms: Mapping[str, str],
    ) -> None:
        self.tables: dict[str, list[str]] = {
            name: [field.alias or key for key, field in table.model_fields.items()]
            for name, field in model.model_fields.items()
            if isinstance(table := field.annotation, type) and issubclass(table, BaseModel)
        }
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

    def unknown(self, path: Path) -> str:
        """Returns the message for a table or key that no egg has."""
        if len(path) == 1:
            return self._unknown_table(str(path[0]))
        table, key = str(path[0]), str(path[1])
        if len(path) > 2:
            return "is unknown"
        near = self._near(table, key)
        return f"is no key of [{table}]{near}"

    def _unknown_table(self, name: str) -> str:
        near = get_close_matches(name, [*self.tables, *self._later], 1, 0.6)
        if near:
            return f"is no table of an egg; did you mean [{near[0]}]?"
        homes = self._homes(name)
        if homes:
            return f"is no table of an egg, but a key of [{homes[0]}]; move it there"
        synonym = self._synonyms.get(name.replace("-", "_"))
        if synonym:
            return f"is no table of an egg; did you mean {synonym}?"
        known = ", ".join(f"[{table}]" for table in self.tables)
        return f"is no table of an egg; those are {known}"

    def _near(self, table: str, key: str) -> str:
        name = key.replace("-", "_").lower()
        keys = self.tables.get(table, [])
        if name in keys:
            return f"; did you mean {name}?"
        homes = self._homes(name)
        if homes:
            return f", but of [{homes[0]}]; move it there"
        synonym = self._synonyms.get(name)
        if synonym:
            return f"; did you mean {synonym.removeprefix(table + '.')}?"
        near = get_close_matches(name, keys, 1, 0.6)
        if near:
            return f"; did you mean {near[0]}?"
        elsewhere = {key: table for table, keys in self.tables.items() for key in keys}
        near = get_close_matches(name, list(elsewhere), 1, 0.75)
        if near:
            return f"; did you mean {elsewhere[near[0]]}.{near[0]}?"
        return f"; those are {', '.join(keys)}" if keys else ""

    def _homes(self, key: str) -> list[str]:
        return [table for table, keys in self.tables.items() if key in keys]


def translate(
    document: Document, names: Names, errors: Sequence[Mapping[str, Any]]
) -> Iterator[Mistake]:
    """Yields the `Mistake` for each error of pydantic's `ValidationError.errors()`."""
    for error in errors:
        path: Path = error["loc"]
        unknown = error["type"] == "extra_forbidden"
        message = names.unknown(path) if unknown else _message(path, error)
        yield document.mistake(path, message, at_key=unknown)


def _message(path: Path, error: Mapping[str, Any]) -> str:
    kind, given = error["type"], error["input"]
    context = error.get("ctx", {})
    if kind in ("model_type", "model_attributes_type"):
        return f"must be a table: write [{path[0]}] and its keys below it"
    if kind in _KINDS:
        return f"{_KINDS[kind]}, not {_shown(path, given)}"
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        return f"{words} {context[bound]}, not {_shown(path, given)}"
    if kind == "literal_error":
        return _not_one_of(given, re.findall(r"'([^']*)'", context["expected"]))
    if kind == "value_error":
        return str(context["error"])
    return str(error["msg"]).lower()


def _not_one_of(given: object, choices: Sequence[str]) -> str:
    listed = ", ".join(f'"{choice}"' for choice in choices)
    message = f"must be one of {listed}, not {_toml(given)}"
    near = get_close_matches(given.lower(), choices, 1, 0.5) if isinstance(given, str) else []
    return f'{message}; did you mean "{near[0]}"?' if near else message


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
