"""The vLLM egg: values, broken eggs with what is said of them, page, schema and examples."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import tomli

from hum_workers.egg import load_eggs, schema
from hum_workers.errors import EggError
from hum_workers.vllm_worker.egg import VllmEgg

ROOT = Path(__file__).parents[2]
BROKEN = Path(__file__).parent / "broken_eggs"
EXAMPLES = ["smollm2.toml", "gpu.toml", "two-models"]


def load(folder: Path, text: str) -> VllmEgg:
    (folder / "a.toml").write_text(text)
    (egg,) = load_eggs([folder / "a.toml"], VllmEgg)
    return egg


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
        load_eggs([Path(name)], VllmEgg)
    assert str(caught.value).replace(str(BROKEN), "{here}").splitlines() == lines


def test_every_broken_egg_has_its_expectation() -> None:
    names = {path.name for path in BROKEN.iterdir() if not path.name.startswith(".")}
    assert names - {"expected.txt"} == set(expectations())


def test_no_message_of_a_broken_egg_shows_a_secret() -> None:
    text = (BROKEN / "expected.txt").read_text()
    assert "hush" not in text
    assert "12345" not in text


def test_the_shortest_egg_has_its_defaults(tmp_path: Path) -> None:
    egg = load(tmp_path, '[model]\npath = "org/Some-Model"\n')
    assert egg.model.path == "org/Some-Model"
    assert egg.models() == ["Some-Model"]
    assert egg.model.max_tokens is None
    assert egg.parallel.world == 1
    assert egg.placement.gpu == []
    assert egg.kv.size is None


@pytest.mark.parametrize(
    ("path", "name"),
    [("models/small", "small"), ("models/small/", "small"), ("./models/q.gguf", "q"), (".", None)],
)
def test_a_model_on_disk_is_absolute_and_named_by_its_last_part(
    tmp_path: Path, path: str, name: str | None
) -> None:
    (tmp_path / "models" / "small").mkdir(parents=True)
    (tmp_path / "models" / "q.gguf").touch()
    egg = load(tmp_path, f'[model]\npath = "{path}"\n')
    assert Path(egg.model.path) == tmp_path / path
    assert egg.model.served_name == (name or tmp_path.name)


@pytest.mark.parametrize(
    ("gpu", "world", "gpus"),
    [
        ("1", 1, ["1"]),
        ('"GPU-0f3c0e3e-5a7b"', 1, ["GPU-0f3c0e3e-5a7b"]),
        ('[0, "MIG-0f3c0e3e"]', 2, ["0", "MIG-0f3c0e3e"]),
    ],
)
def test_gpus_come_as_a_list_of_names(
    tmp_path: Path, gpu: str, world: int, gpus: list[str]
) -> None:
    text = f'[model]\npath = "org/x"\n[parallel]\ntensor = {world}\n[placement]\ngpu = {gpu}\n'
    assert load(tmp_path, text).placement.gpu == gpus


def test_a_chat_template_is_a_file_or_the_template_itself(tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").touch()
    text = '[model]\npath = "org/x"\nchat_template = {}\n'
    assert load(tmp_path, text.format('"chat.jinja"')).model.chat_template == str(
        tmp_path / "chat.jinja"
    )
    written = "'''{% for m in messages %}\n{% endfor %}'''"
    template = load(tmp_path, text.format(written)).model.chat_template
    assert template == written.strip("'")


def test_an_interpreter_is_a_program_or_a_name_for_path(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.symlink_to("/bin/sh")
    text = '[model]\npath = "org/x"\n[engine]\npython = "{}"\n'
    assert load(tmp_path, text.format("./python")).engine.python == str(program)
    assert load(tmp_path, text.format("python3.11")).engine.python == "python3.11"


def test_further_ids_stand_behind_the_served_name(tmp_path: Path) -> None:
    text = '[model]\npath = "org/x"\nserved_name = "it"\n[bee]\nmodels = ["b", "a"]\n'
    assert load(tmp_path, text).models() == ["it", "b", "a"]


# The page, the schema and the examples against the model.


def rows() -> dict[str, list[str]]:
    """Returns the rows of docs/egg.md: `table.key` to type, default, meaning, example."""
    found: dict[str, list[str]] = {}
    table = ""
    for line in (ROOT / "docs" / "egg.md").read_text().splitlines():
        if match := re.fullmatch(r"## \[(\w+)\]", line):
            table = match[1]
        elif match := re.match(r"\| `(\w+)` \|", line):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            assert len(cells) == 5, line
            found[f"{table}.{match[1]}"] = [cell.strip(" |") for cell in cells[1:]]
    return found


def properties() -> dict[str, dict[str, Any]]:
    """Returns the schema's keys: `table.key` to what it says of it."""
    made = schema(VllmEgg)
    return {
        f"{table}.{key}": facts
        for table, reference in made["properties"].items()
        for key, facts in made["$defs"][reference["$ref"].rpartition("/")[2]]["properties"].items()
    }


def test_page_schema_and_model_have_the_same_keys() -> None:
    keys = {
        f"{table}.{one.alias or key}"
        for table, field in VllmEgg.model_fields.items()
        for key, one in getattr(field.annotation, "model_fields", {}).items()
    }
    assert set(rows()) == keys
    assert set(properties()) == keys


@pytest.mark.parametrize(("key", "facts"), properties().items())
def test_the_page_tells_the_default_and_the_choices(key: str, facts: dict[str, Any]) -> None:
    kind, default, meaning, _ = rows()[key]
    literal = re.fullmatch(r"`(.*)`", default)
    told = tomli.loads(f"x = {literal[1]}")["x"] if literal else None
    assert told == facts.get("default")
    for choice in facts.get("enum", [facts["const"]] if "const" in facts else []):
        assert f'`"{choice}"`' in kind
    for bound in ("minimum", "maximum"):
        if facts.get(bound):
            assert str(facts[bound]) in kind
    assert meaning
    assert facts["description"]


@pytest.mark.parametrize(("key", "row"), rows().items())
def test_each_example_of_the_page_is_a_good_egg(key: str, row: list[str], tmp_path: Path) -> None:
    table, _, name = key.partition(".")
    example = row[3].strip("`")
    text = f"[{table}]\n{example}\n"
    if table != "model":
        text = f'[model]\npath = "org/x"\n{text}'
    elif name != "path":
        text = f'{text}path = "org/x"\n'
    if re.match(r"(tensor|pipeline|data) =", example):
        text += "[placement]\ngpu = [0, 1]\n"
    egg = load(tmp_path, text)
    attribute = "raise_" if name == "raise" else name
    assert attribute in getattr(egg, table).model_fields_set


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_egg_is_good(name: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for model in ("smollm2", "tiny"):
        (tmp_path / ".cache" / model).mkdir(parents=True)
    eggs = load_eggs([tmp_path / "examples" / name], VllmEgg)
    assert all(not egg.warnings for egg in eggs)


def test_the_page_names_each_example_egg() -> None:
    page = (ROOT / "docs" / "egg.md").read_text()
    present = {path.name for path in (ROOT / "examples").iterdir() if path.suffix != ".json"}
    assert {name for name in present if not name.startswith("llama-")} == set(EXAMPLES)
    assert all(f"../examples/{name}" in page for name in EXAMPLES)


def test_every_key_of_the_example_eggs_is_in_the_schema() -> None:
    known, eggs = properties(), list[Path]()
    for name in EXAMPLES:
        path = ROOT / "examples" / name
        eggs.extend([path] if path.is_file() else path.glob("*.toml"))
    for path in eggs:
        for table, keys in tomli.loads(path.read_text()).items():
            assert {f"{table}.{key}" for key in keys} <= set(known), path
