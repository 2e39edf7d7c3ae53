"""The scanner against the parser that reads the values: each key of a document has a place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import tomli
from hypothesis import given
from hypothesis import strategies as st

from hum_workers.egg.toml_positions import Path, Place, positions

DOCUMENT = """\
# a comment with [a] = "bracket"
top = 1 # and another

[model]
path = "x # no comment ] }"
"quoted key" = 'literal'
dotted . inner.deep = true
when = 1979-05-27 07:32:00

  [ engine . env ]
  A = '''
[not.a.table]
b = 1
'''
B = \"\"\"two "quotes" and \\\"\"\" more\"\"\"
C = "tab\\t\\"quote\\""

[engine]
args = [
  "--one", # first
  [1, 2,],
  { x = 1, y.z = [3] },
]
[[cells]]
name = "a"
[cells.sub]
k = 1
[[cells]]
name = "b"
[cells.sub]
k = 2
"""


def paths(data: Any, at: Path = ()) -> Iterator[Path]:
    if isinstance(data, dict):
        for key, value in data.items():
            yield (*at, key)
            yield from paths(value, (*at, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield (*at, index)
            yield from paths(value, (*at, index))


def test_every_key_of_a_document_has_a_place() -> None:
    found = positions(DOCUMENT)
    assert set(paths(tomli.loads(DOCUMENT))) == set(found.places)
    assert not found.twice


@pytest.mark.parametrize(
    ("path", "place"),
    [
        (("top",), Place((2, 1), (2, 7))),
        (("model",), Place((4, 2), (4, 2))),
        (("model", "path"), Place((5, 1), (5, 8))),
        (("model", "quoted key"), Place((6, 1), (6, 16))),
        (("model", "dotted", "inner", "deep"), Place((7, 16), (7, 23))),
        (("engine", "env", "A"), Place((11, 3), (11, 7))),
        (("engine", "args", 0), Place((20, 3), (20, 3))),
        (("engine", "args", 1, 1), Place((21, 7), (21, 7))),
        (("engine", "args", 2, "y", "z"), Place((22, 14), (22, 18))),
        (("cells", 1, "name"), Place((29, 1), (29, 8))),
        (("cells", 1, "sub", "k"), Place((31, 1), (31, 5))),
    ],
)
def test_a_place_is_where_key_and_value_begin(path: Path, place: Place) -> None:
    assert positions(DOCUMENT).places[path] == place


def test_a_path_that_is_not_there_stands_at_the_nearest_table_above() -> None:
    found = positions("[model]\nx = 1\n[a]\nb = 2\n")
    assert found.find(("model", "nothing")) == (1, 2)
    assert found.find(("a", "b", "c", "d")) == (4, 1)
    assert found.find(("zoo", "lion")) == (0, 0)


def test_lines_that_end_with_crlf_count_the_same() -> None:
    unix, dos = positions(DOCUMENT), positions(DOCUMENT.replace("\n", "\r\n"))
    assert unix.places == dos.places


def test_keys_that_stand_twice_are_all_found_with_both_places() -> None:
    found = positions("[a]\nx = 1\nx = 2\n[b]\ny = {k = 1, k = 2}\n[a]\nz = 1\n")
    assert [(t.path, t.first.key, t.again.key) for t in found.twice] == [
        (("a", "x"), (2, 1), (3, 1)),
        (("b", "y", "k"), (5, 6), (5, 13)),
        (("a",), (1, 2), (6, 2)),
    ]


@given(st.text(alphabet=st.sampled_from(list("ab.=\"'[]{},#\\\n\r \t1")), max_size=60))
def test_any_text_is_scanned_without_an_exception(text: str) -> None:
    positions(text)


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
VALUES = st.recursive(
    st.integers(-9, 9) | st.booleans() | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


def inline(value: Any) -> str:
    """Writes a value as TOML; JSON's strings are TOML's, but for the escape of DEL."""
    if isinstance(value, dict):
        pairs = (f"{inline(key)} = {inline(item)}" for key, item in value.items())
        return "{ " + ", ".join(pairs) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(inline(item) for item in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_whatever_the_parser_reads_the_scanner_finds(data: dict[str, Any]) -> None:
    text = "".join(f"{inline(key)} = {inline(value)}\n" for key, value in data.items())
    assert tomli.loads(text) == data
    assert set(paths(data)) == set(positions(text).places)
