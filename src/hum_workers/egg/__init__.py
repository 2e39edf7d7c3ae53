"""Eggs from files: every mistake of every file at once, or the eggs, ready to be raised.

Start here: `load_eggs`, `bee_settings` and its like, `schema`. The tables stand in `egg.tables`,
reading in `egg.files`, the wording of mistakes in `egg.mistakes`. Importing this module imports
pydantic; a program does so when it reads an egg, not before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from hum_workers.egg.files import Document, read_documents
from hum_workers.egg.mistakes import LATER, Names, translate
from hum_workers.egg.tables import Bee, Egg, Flaw, Log, Metrics
from hum_workers.egg.toml_positions import Path as KeyPath
from hum_workers.egg.types import Table
from hum_workers.errors import EggError, Mistake

__all__ = [
    "Bee",
    "Egg",
    "Log",
    "Metrics",
    "bee_settings",
    "load_eggs",
    "log_settings",
    "metrics_settings",
    "schema",
]

AnyEgg = TypeVar("AnyEgg", bound=Egg)

SHARED = ("bee", "metrics", "log")
"""Tables that describe the process, not one cell."""
OWN = {("bee", "models"), ("metrics", "interval")}
"""Their keys that belong to the egg all the same."""


def load_eggs(paths: Sequence[Path], model: type[AnyEgg]) -> list[AnyEgg]:
    """Reads eggs; a folder stands for all `*.toml` in it, sorted by name.

    Raises:
        EggError: with all mistakes of all files, in the order of file, line and column.
    """
    names = Names(model, model.LATER, model.SYNONYMS, model.REFUSED)
    files: list[str] = []
    mistakes: list[Mistake] = []
    nest: list[tuple[Document, AnyEgg]] = []
    for result in read_documents(paths):
        if isinstance(result, Mistake):
            files.append(result.file)
            mistakes.append(result)
            continue
        files.append(str(result.source))
        egg, found = _hatch(result, model, names)
        mistakes.extend(found)
        if egg is not None:
            nest.append((result, egg))
    mistakes.extend(_between(nest))
    if mistakes:
        raise EggError(sorted(mistakes, key=lambda m: (files.index(m.file), m.line, m.column)))
    return [egg for _, egg in nest]


def bee_settings(eggs: Sequence[Egg]) -> Bee:
    """Returns the one `[bee]` of a process; its `models` are those of all eggs, in order."""
    stated = [egg.bee for egg in eggs if _stated(egg.bee, "bee")]
    models = [model for egg in eggs for model in egg.bee.models]
    return (stated or [Bee()])[0].model_copy(update={"models": models})


def log_settings(eggs: Sequence[Egg]) -> Log:
    """Returns the one `[log]` of a process."""
    stated = [egg.log for egg in eggs if _stated(egg.log, "log")]
    return (stated or [Log()])[0]


def metrics_settings(eggs: Sequence[Egg]) -> Metrics:
    """Returns the one `[metrics]` of a process; `interval` is each egg's own."""
    stated = [egg.metrics for egg in eggs if _stated(egg.metrics, "metrics")]
    return (stated or [Metrics()])[0]


def schema(model: type[Egg]) -> dict[str, Any]:
    """Returns the JSON Schema of an egg, for editors."""
    made: dict[str, Any] = _for_editors(model.model_json_schema(by_alias=True))
    for refused in model.REFUSED:
        made["properties"].pop(refused, None)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def _hatch(
    document: Document, model: type[AnyEgg], names: Names
) -> tuple[AnyEgg | None, list[Mistake]]:
    """Returns the egg, without its wrong keys, and its mistakes; no egg if too little is right."""
    later = list(names.later(document.data))
    mistakes = [document.mistake(path, f"{_titled(path)} {LATER}", at_key=True) for path in later]
    refused = dict(names.refused(document.data))
    mistakes += [document.mistake(path, why, at_key=True) for path, why in refused.items()]
    wrong: list[KeyPath] = [*later, *refused]
    egg: AnyEgg | None = None
    try:
        egg = _validate(document, model, wrong)
    except ValidationError as error:
        found, bad = translate(document, names, error.errors(include_url=False))
        mistakes.extend(found)
        wrong.extend(bad)
        try:
            egg = _validate(document, model, wrong)
        except ValidationError:
            return None, mistakes
    egg._source = document.source.absolute()
    mistakes.extend(
        document.mistake(flaw.path, flaw.message, at_key=flaw.at_key)
        for flaw in egg.flaws()
        if not _rests_on(flaw, wrong)
    )
    egg._warnings = tuple(document.mistake(f.path, f.message) for f in egg.cautions())
    return egg, mistakes


def _validate(document: Document, model: type[AnyEgg], wrong: Sequence[KeyPath]) -> AnyEgg:
    """Validates the document without its wrong keys; a table that is not given is empty."""
    data: dict[str, Any] = {
        name: {} for name, field in model.model_fields.items() if isinstance(field.annotation, type)
    }
    for table, keys in _without(document.data, (), set(wrong)).items():
        if keys or table in data or not document.data[table]:
            data[table] = keys
    return model.model_validate(data, context={"folder": document.source.parent})


def _without(table: dict[str, Any], at: KeyPath, wrong: set[KeyPath]) -> dict[str, Any]:
    return {
        key: _without(value, (*at, key), wrong) if isinstance(value, dict) else value
        for key, value in table.items()
        if (*at, key) not in wrong
    }


def _rests_on(flaw: Flaw, wrong: Sequence[KeyPath]) -> bool:
    return any(path[: len(bad)] == bad for bad in wrong for path in (flaw.path, *flaw.about))


def _titled(path: KeyPath) -> str:
    return " ".join([f"[{path[0]}]", *(str(part) for part in path[1:])])


def _between(nest: Sequence[tuple[Document, Egg]]) -> Iterator[Mistake]:
    """Yields what is wrong between eggs that are right alone."""
    yield from _same_name(nest)
    yield from _same_model(nest)
    for table in SHARED:
        yield from _unequal(nest, table)
    yield from _too_few_cells(nest)


def _too_few_cells(nest: Sequence[tuple[Document, Egg]]) -> Iterator[Mistake]:
    """Yields what keeps eggs from sharing fewer cells than they are."""
    bee = bee_settings([egg for _, egg in nest])
    if bee.propensity == "ephemeral":
        reason = "an ephemeral bee has a cell for each egg at least"
    elif bee.raise_ == "on-start":
        reason = 'eggs can take turns with bee.raise = "on-prompt" alone; set that'
    else:
        return
    for document, egg in nest:
        limit = egg.bee.max_procs
        if limit is not None and limit < len(nest):
            message = f"{limit} is below the number of eggs, {len(nest)}: {reason}"
            message += f", or set it to {len(nest)} or more"
            yield document.mistake(("bee", "max_procs"), message)


def _same_name(nest: Sequence[tuple[Document, Egg]]) -> Iterator[Mistake]:
    first: dict[str, Document] = {}
    for document, egg in nest:
        other = first.setdefault(egg.name, document)
        if other is not document:
            message = f"{other.source} has the same name; rename one of them"
            yield Mistake(file=str(document.source), message=message)


def _same_model(nest: Sequence[tuple[Document, Egg]]) -> Iterator[Mistake]:
    first: dict[str, str] = {}
    for document, egg in nest:
        for model, path in egg.advertised():
            here = document.where(path)
            if model in first:
                message = f'"{model}" is advertised at {first[model]} as well; each id once'
                yield document.mistake(path, message)
            else:
                first[model] = here


def _stated(table: Table, name: str) -> dict[str, Any]:
    keys = {key for key in table.model_fields_set if (name, key) not in OWN}
    return {key: getattr(table, key) for key in keys}


def _unequal(nest: Sequence[tuple[Document, Egg]], table: str) -> Iterator[Mistake]:
    """Yields one mistake for each egg whose table differs from the first egg that has it."""
    first: tuple[Document, dict[str, Any]] | None = None
    for document, egg in nest:
        stated = _stated(getattr(egg, table), table)
        if not stated:
            continue
        if first is None:
            first = (document, stated)
            continue
        other, others = first
        odd = sorted(k for k in {*stated, *others} if stated.get(k) != others.get(k))
        if odd:
            listed = ", ".join(key.rstrip("_") for key in odd)
            message = (
                f"differs from {other.where((table,))} in {listed}; it describes the process: "
                "keep it in one egg"
            )
            yield document.mistake((table,), message, at_key=True)


def _for_editors(node: Any) -> Any:
    """Drops null, which TOML has not, and the titles that only repeat the key."""
    if isinstance(node, list):
        return [_for_editors(item) for item in node]
    if not isinstance(node, dict):
        return node
    clean = {key: _for_editors(value) for key, value in node.items()}
    options = [option for option in clean.get("anyOf", []) if option != {"type": "null"}]
    if len(options) == 1:
        del clean["anyOf"]
        clean = {**options[0], **clean}
    if clean.get("default", ...) is None:
        del clean["default"]
    for key in clean.get("properties", {}).values():
        key.pop("title", None)
    return clean
