"""The cut of the code, held to the tables in docs/architecture.md."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src"
PACKAGE = "hum_workers"
PAGE = ROOT / "docs" / "architecture.md"
LAYERS = ("pure", "I/O", "actors", "programs")
NOT_PURE = frozenset(
    "asyncio ctypes fcntl httptools multiprocessing psutil resource select selectors signal socket "
    "subprocess threading uvloop".split()
)
FILE_LINES = 350
FUNCTION_LINES = 60
ALWAYS = frozenset({"", "errors"})


@cache
def modules() -> dict[str, Path]:
    """Every module below src by its name without the package."""
    found = {}
    for path in SRC.rglob("*.py"):
        parts = path.relative_to(SRC).with_suffix("").parts
        assert parts[0] == PACKAGE
        found[".".join(part for part in parts[1:] if part != "__init__")] = path
    return found


@cache
def imports(name: str) -> tuple[frozenset[str], frozenset[str]]:
    """What a module imports anywhere in its text: (modules of ours, packages of others)."""
    own, others = set(), set()
    for node in ast.walk(ast.parse(modules()[name].read_text())):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative import in line {node.lineno}"
            targets = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for target in targets:
            if target.split(".")[0] != PACKAGE:
                others.add(target.split(".")[0])
                continue
            target = target.removeprefix(PACKAGE).lstrip(".")
            while target not in modules():
                target = target.rpartition(".")[0]
            own.add(target)
    return frozenset(own - {""}), frozenset(others)


def rows(title: str) -> Iterator[list[str]]:
    """The cells of each row of the table below a heading."""
    section = PAGE.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("|")]
    for line in table[2:]:
        yield [cell.strip() for cell in line.strip("|").split("|")]


def named(cell: str) -> list[str]:
    """The names between backticks."""
    return re.findall(r"`([^`]+)`", cell)


def members(cell: str) -> set[str]:
    """The modules that the names of a cell stand for; `a.*` is a package and all in it."""
    found = set()
    for name in named(cell):
        stem = name.removesuffix(".*")
        found |= {m for m in modules() if m == stem or (stem != name and m.startswith(stem + "."))}
    return found


def layer_of() -> dict[str, int]:
    """The layer of each module, 0 the lowest."""
    return {name: LAYERS.index(layer) for layer, _, cell in rows("Layers") for name in named(cell)}


def packages() -> set[str]:
    """Packages whose `__init__` holds no code."""
    return {
        name
        for name, path in modules().items()
        if path.name == "__init__.py" and not imports(name)[0]
    }


def test_every_module_stands_in_one_layer_of_the_page() -> None:
    listed = [name for _, _, cell in rows("Layers") for name in named(cell)]
    assert [row[0] for row in rows("Layers")] == list(LAYERS)
    assert sorted(set(modules()) - packages() - set(listed)) == []
    assert sorted(set(listed) - set(modules())) == []
    assert sorted(name for name in set(listed) if listed.count(name) > 1) == []


def test_no_module_imports_upward() -> None:
    layer = layer_of()
    upward = [
        f"{name} ({LAYERS[layer[name]]}) imports {other} ({LAYERS[layer[other]]})"
        for name in layer
        for other in imports(name)[0]
        if layer.get(other, 0) > layer[name]
    ]
    assert upward == []


def test_no_module_imports_itself_round_a_corner() -> None:
    try:
        TopologicalSorter({name: imports(name)[0] for name in modules()}).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def test_pure_modules_know_no_loop_no_socket_no_process() -> None:
    impure = [
        f"{name} imports {', '.join(sorted(imports(name)[1] & NOT_PURE))}"
        for name, layer in layer_of().items()
        if layer == 0 and imports(name)[1] & NOT_PURE
    ]
    assert impure == []


def test_the_guard_needs_nothing_but_the_standard_library() -> None:
    own, others = imports("process.guard")
    assert own == frozenset()
    assert others <= sys.stdlib_module_names | {"__future__"}


@pytest.mark.parametrize("room", [row[0] for row in rows("Rooms")])
def test_a_room_does_not_know_what_it_may_not(room: str) -> None:
    inside_cell, denied_cell = next(row[1:] for row in rows("Rooms") if row[0] == room)
    inside, denied = members(inside_cell), members(denied_cell)
    assert inside, f"no module is in the room {room}"
    if denied_cell.startswith("everything but"):
        denied = set(modules()) - denied - inside
    known = [
        f"{name} imports {other}" for name in inside for other in imports(name)[0] & denied - ALWAYS
    ]
    assert known == []


def python_files() -> list[Path]:
    return [
        path
        for folder in ("src", "tests", "scripts", "bench")
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]


def test_no_file_is_long() -> None:
    long = [
        f"{path.relative_to(ROOT)}: {count} lines"
        for path in python_files()
        if (count := len(path.read_text().splitlines())) > FILE_LINES
    ]
    assert long == []


def test_no_function_is_long() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name} has {count} lines"
        for path in python_files()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (count := _lines(node)) > FUNCTION_LINES
    ]
    assert long == []


def _lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    assert node.end_lineno is not None
    count = node.end_lineno - node.lineno + 1
    first = node.body[0]
    if ast.get_docstring(node, clean=False) is not None:
        assert first.end_lineno is not None
        count -= first.end_lineno - first.lineno + 1
    return count
