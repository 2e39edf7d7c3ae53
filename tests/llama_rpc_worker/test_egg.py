"""The llama.cpp egg: values, broken eggs with what is said of them, page, schema and examples."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import tomli

from hum_workers.egg import load_eggs, schema
from hum_workers.egg.changes import changes
from hum_workers.egg.tables import Egg
from hum_workers.errors import EggError
from hum_workers.llama_rpc_worker.egg import LlamaEgg
from tests.llama_rpc_worker.nursery import coordinator, lent

ROOT = Path(__file__).parents[2]
BROKEN = Path(__file__).parent / "broken_eggs"
PAGE = ROOT / "docs" / "llama-egg.md"
SHARED = {"bee", "limits", "tools", "lifecycle", "metrics", "log"}
"""Tables that docs/egg.md describes."""
HID = f"wbee_{'ab' * 32}"


def expectations() -> dict[str, list[str]]:
    expected: dict[str, list[str]] = {}
    name = ""
    for line in (BROKEN / "expected.txt").read_text().splitlines():
        if line.startswith("    "):
            expected[name].append(line.strip())
        elif not line.startswith("#"):
            name = line
            expected[name] = []
    return expected


@pytest.mark.parametrize(("name", "lines"), expectations().items())
def test_a_broken_egg_is_refused_with_every_mistake(
    name: str, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(BROKEN)
    with pytest.raises(EggError) as caught:
        load_eggs([Path(name)], LlamaEgg)
    assert str(caught.value).replace(str(BROKEN), "{here}").splitlines() == lines


def test_every_broken_egg_has_its_expectation() -> None:
    names = {path.name for path in BROKEN.glob("*.toml")}
    assert names == set(expectations())
    assert len(names) >= 30


def test_no_message_of_a_broken_egg_shows_a_secret() -> None:
    assert "hush" not in (BROKEN / "expected.txt").read_text()


def test_the_shortest_eggs_have_their_defaults(tmp_path: Path) -> None:
    egg = coordinator(tmp_path)
    assert egg.models() == ["m"]
    assert (egg.model.ctx, egg.model.parallel) == (4096, 1)
    assert (egg.slices, egg.split.policy, egg.split.head) == ([], "by-memory", None)
    slice_ = lent(tmp_path)
    assert slice_.models() == []
    assert slice_.rpc.listen == ("127.0.0.1", 0)
    assert not slice_.rpc.private_network


def test_a_split_model_is_named_without_its_number(tmp_path: Path) -> None:
    (tmp_path / "big-00001-of-00003.gguf").touch()
    (tmp_path / "a.toml").write_text(
        '[cell]\nrole = "coordinator"\n[model]\npath = "big-00001-of-00003.gguf"\n'
    )
    (egg,) = load_eggs([tmp_path / "a.toml"], LlamaEgg)
    assert egg.model.served_name == "big"


def test_values_come_as_the_code_needs_them(tmp_path: Path) -> None:
    egg = coordinator(
        tmp_path,
        f"""[[slices]]
endpoint = "[fd00::7]:7300"
layers = "0:10"
[[slices]]
endpoint = "host.example:7300"
hid = "{HID}"
layers = "10:30"
[split]
policy = "declared"
""",
    )
    assert [one.endpoint for one in egg.slices] == [("fd00::7", 7300), ("host.example", 7300)]
    assert [one.layers for one in egg.slices] == [(0, 10), (10, 30)]
    slice_ = lent(tmp_path, 'listen = 7300\nmemory = "2GiB"\nlayers = "3:9"')
    assert (slice_.rpc.listen, slice_.rpc.memory, slice_.rpc.layers) == (
        ("127.0.0.1", 7300),
        2 << 30,
        (3, 9),
    )


@pytest.mark.parametrize(
    ("rpc", "warned"),
    [
        ("listen = '0.0.0.0:7300'", 2),
        ("listen = '10.0.0.7:7300'", 1),
        (f"listen = '10.0.0.7:7300'\ncoordinators = ['{HID}']", 0),
        (f"listen = '10.0.0.7:7300'\ncoordinators = ['{HID}']\nprivate_network = true", 1),
        ("listen = '127.0.0.1:7300'\nprivate_network = true", 0),
    ],
)
def test_what_a_door_exposes_is_a_warning(tmp_path: Path, rpc: str, warned: int) -> None:
    assert len(lent(tmp_path, rpc).warnings) == warned


def test_other_slices_replace_the_cell_and_other_tools_do_not(tmp_path: Path) -> None:
    plain = coordinator(tmp_path)
    sliced = coordinator(tmp_path, "[[slices]]\ndiscover = true")
    stepped = coordinator(tmp_path, "[tools]\nmax_steps = 3")
    assert changes([plain], [sliced]).cells == {"small": ["slices"]}
    assert changes([plain], [stepped]).others == {"small": ["tools.max_steps"]}


# The page, the schema and the examples against the model.


def rows() -> dict[str, list[str]]:
    """Returns the rows of docs/llama-egg.md: `table.key` to type, default, meaning, example."""
    found: dict[str, list[str]] = {}
    table = ""
    for line in PAGE.read_text().splitlines():
        if match := re.fullmatch(r"## \[+(\w+)\]+", line):
            table = match[1]
        elif match := re.match(r"\| `(\w+)` \|", line):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            assert len(cells) == 5, line
            found[f"{table}.{match[1]}"] = [cell.strip(" |") for cell in cells[1:]]
    return found


def properties() -> dict[str, dict[str, Any]]:
    """Returns the schema's keys: `table.key` to what it says of it."""
    made = schema(LlamaEgg)
    found = {}
    for table, reference in made["properties"].items():
        named = reference.get("items", reference)["$ref"].rpartition("/")[2]
        for key, facts in made["$defs"][named]["properties"].items():
            found[f"{table}.{key}"] = facts
    return found


def own() -> dict[str, dict[str, Any]]:
    """Returns those that docs/egg.md does not describe."""
    return {key: facts for key, facts in properties().items() if key.split(".")[0] not in SHARED}


def test_page_and_schema_have_the_same_keys() -> None:
    assert set(rows()) == set(own())


def test_the_shared_tables_are_those_of_every_worker_and_described_there() -> None:
    page = (ROOT / "docs" / "egg.md").read_text()
    assert {key.split(".")[0] for key in properties()} - {key.split(".")[0] for key in own()} == (
        SHARED
    )
    for table in SHARED:
        assert LlamaEgg.model_fields[table].annotation is Egg.model_fields[table].annotation
        assert f"## [{table}]" in page
        assert f"`[{table}]`" in PAGE.read_text()


def test_the_page_names_what_is_refused() -> None:
    text = " ".join(PAGE.read_text().split())
    for name in LlamaEgg.REFUSED:
        assert (f"`{name}`" if "." in name else f"`[{name}]`") in text


@pytest.mark.parametrize(("key", "facts"), own().items())
def test_the_page_tells_the_default_and_the_choices(key: str, facts: dict[str, Any]) -> None:
    kind, default, meaning, _ = rows()[key]
    literal = re.fullmatch(r"`(.*)`", default)
    told = tomli.loads(f"x = {literal[1]}")["x"] if literal else None
    if key not in ("cell.role", "rpc.listen"):  # required, and told in words
        assert told == facts.get("default")
    for choice in facts.get("enum", []):
        assert f'`"{choice}"`' in kind
    for bound in ("minimum", "maximum"):
        if facts.get(bound):
            assert str(facts[bound]) in kind
    assert meaning
    assert facts["description"]


@pytest.mark.parametrize(("key", "row"), rows().items())
def test_each_example_of_the_page_is_a_good_egg(key: str, row: list[str], tmp_path: Path) -> None:
    table, _, name = key.partition(".")
    role = "slice" if table == "rpc" else "coordinator"
    (tmp_path / "model.gguf").touch()
    (tmp_path / "llama.cpp").mkdir()
    document: dict[str, str] = {}
    if role == "coordinator":
        document["model"] = 'path = "model.gguf"\n'
    if name == "path":
        del document["model"]
    header = f"[[{table}]]" if table == "slices" else f"[{table}]"
    lines = [row[3].strip("`")]
    if name == "layers" and table == "slices":
        lines.append('endpoint = "10.0.0.7:7300"')
        document["split"] = 'policy = "declared"\n'
    if name == "private_network":
        lines.append('listen = "10.0.0.7:7300"')
    if table != "cell":
        document["cell"] = f'role = "{role}"\n'
    text = header + "\n" + "\n".join(lines) + "\n" + document.pop(table, "")
    text += "".join(f"[{other}]\n{keys}" for other, keys in document.items())
    (tmp_path / "a.toml").write_text(text)
    (egg,) = load_eggs([tmp_path / "a.toml"], LlamaEgg)
    found = getattr(egg, table)
    assert name in (found[0] if isinstance(found, list) else found).model_fields_set


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("llama-*.toml")))
def test_each_example_egg_is_good_and_on_the_page(path: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    models = tmp_path / ".cache" / "llama.cpp" / "model"
    models.mkdir(parents=True)
    (models / "SmolLM2-135M-Instruct.Q4_1.gguf").touch()
    (egg,) = load_eggs([tmp_path / "examples" / path.name], LlamaEgg)
    assert not egg.warnings
    assert f"../examples/{path.name}" in PAGE.read_text()
