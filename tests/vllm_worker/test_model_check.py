"""Models judged by their folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from hum_workers.program.findings import Finding
from hum_workers.vllm_worker import model_check
from hum_workers.vllm_worker.model_check import (
    Model,
    check_model,
    default_length,
    find_folder,
    length_limit,
)
from tests.vllm_worker.hatchery import CONFIG, egg, model_folder, safetensors

DUMMY = "[engine]\nargs = ['--load-format', 'dummy']"


def findings(folder: Path, text: str = DUMMY, *, model: Path | None = None) -> list[Finding]:
    return list(check_model(egg(folder, text, model=model), {}, "small model"))


def errors(folder: Path, text: str = DUMMY, *, model: Path | None = None) -> str:
    found = findings(folder, text, model=model)
    assert all(finding.level == "error" for finding in found)
    return "\n".join(finding.message for finding in found)


def test_a_whole_model_is_one_ok(tmp_path: Path) -> None:
    model = model_folder(tmp_path / "m")
    safetensors(model / "model.safetensors", {"a": 1024})
    (found,) = findings(tmp_path, "", model=model)
    assert found.level == "ok"
    assert "LlamaForCausalLM, 1.1 KiB of weights" in found.message


def test_a_model_without_weights_needs_the_dummy_format(tmp_path: Path) -> None:
    assert "no weights in it" in errors(tmp_path, "")
    assert findings(tmp_path)[0].level == "ok"


def test_weights_of_another_format_are_not_looked_into(tmp_path: Path) -> None:
    model = model_folder(tmp_path / "m")
    (model / "pytorch_model.bin").write_bytes(b"")
    assert findings(tmp_path, "", model=model)[0].level == "warning"


def test_a_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    model = model_folder(tmp_path / "m")
    file = safetensors(model / "model.safetensors", {"a": 1024})
    file.write_bytes(file.read_bytes()[:500])
    assert f"{file} is cut off: 500 of 1,0" in errors(tmp_path, "", model=model)


def test_a_folder_without_a_config_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    assert "no config.json that can be read" in errors(tmp_path, model=tmp_path / "m")


@pytest.mark.parametrize(
    ("absent", "said"),
    [("tokenizer.json", "no tokenizer"), ("chat_template.jinja", "no chat template")],
)
def test_what_a_chat_needs_is_looked_for(tmp_path: Path, absent: str, said: str) -> None:
    model = model_folder(tmp_path / "m")
    (model / absent).unlink()
    assert said in errors(tmp_path, model=model)


def test_a_chat_template_may_stand_elsewhere(tmp_path: Path) -> None:
    model = model_folder(tmp_path / "m")
    (model / "chat_template.jinja").unlink()
    (model / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    assert findings(tmp_path, model=model)[0].level == "ok"
    (model / "tokenizer_config.json").unlink()
    text = f"chat_template = '{{{{ messages }}}}'\n{DUMMY}"
    assert findings(tmp_path, text, model=model)[0].level == "ok"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[parallel]\ntensor = 3", "tensor is 3, and 8 attention heads can't be split so; 1, 2, 4"),
        ("[parallel]\npipeline = 5", "pipeline is 5, and the model has 4 layers"),
        ("max_model_len = 9000", "max_model_len is 9000; the model's own limit is 4096"),
    ],
)
def test_what_the_model_can_not_do_is_told(tmp_path: Path, text: str, said: str) -> None:
    assert said in errors(tmp_path, f"{text}\n{DUMMY}")


def test_a_length_beyond_the_model_may_be_insisted_on(tmp_path: Path) -> None:
    text = f"max_model_len = 9000\n{DUMMY}\nenv = {{ VLLM_ALLOW_LONG_MAX_MODEL_LEN = '1' }}"
    assert findings(tmp_path, text)[0].level == "warning"


def test_rope_scaling_stretches_the_limit() -> None:
    assert length_limit(Model(Path(), CONFIG)) == 4096
    stretched = CONFIG | {"rope_scaling": {"factor": 4.0, "rope_type": "linear"}}
    assert length_limit(Model(Path(), stretched)) == 16384
    assert length_limit(Model(Path(), {})) is None


@pytest.mark.parametrize("kind", ["yarn", "llama3", "longrope"])
def test_rope_scaling_of_models_that_name_the_stretched_length_does_not(kind: str) -> None:
    named = CONFIG | {"rope_scaling": {"factor": 4.0, "rope_type": kind}}
    assert length_limit(Model(Path(), named)) == 4096


def test_the_least_of_several_lengths_counts_and_a_length_of_the_model_itself_first() -> None:
    assert length_limit(Model(Path(), CONFIG | {"n_positions": 512})) == 512
    assert length_limit(Model(Path(), CONFIG | {"model_max_length": 9000})) == 9000


def test_a_long_rope_starts_with_the_length_it_was_trained_for() -> None:
    scaling = {"rope_type": "longrope", "factor": 32.0}
    config = CONFIG | {"rope_scaling": scaling, "original_max_position_embeddings": 1024}
    assert default_length(Model(Path(), config)) == 1024
    assert default_length(Model(Path(), CONFIG)) == 4096


def test_a_model_of_several_parts_is_judged_by_its_text_part(tmp_path: Path) -> None:
    model = model_folder(tmp_path / "m", text_config={"num_attention_heads": 6})
    assert model_check.read_model(model).config == {"num_attention_heads": 6}


def test_a_hub_id_is_looked_for_in_the_cache(tmp_path: Path) -> None:
    hub = tmp_path / "hub" / "models--org--name"
    snapshot = model_folder(hub / "snapshots" / "abc")
    (hub / "refs").mkdir()
    (hub / "refs" / "main").write_text("abc\n")
    asked = egg(tmp_path, model=Path("org/name"))
    assert find_folder(asked, {"HF_HUB_CACHE": str(tmp_path / "hub")}) == snapshot
    assert find_folder(asked, {"HF_HOME": str(tmp_path)}) == snapshot
    assert find_folder(asked, {"HOME": str(tmp_path)}) is None


def test_a_hub_id_that_is_not_cached_needs_a_download(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path)}
    (found,) = check_model(egg(tmp_path, model=Path("org/name")), env, "small model")
    assert (found.level, "download = true" in found.message) == ("error", True)
    asked = egg(tmp_path, "download = true", model=Path("org/name"))
    (found,) = check_model(asked, env, "small model")
    assert found.level == "warning"


PARSER = f"tool_call_parser = 'hermes'\n{DUMMY}"
WITH, WITHOUT = "{% for tool in tools %}{% endfor %}", "{{ messages }}"


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("chat_template.jinja", WITHOUT, True),
        ("chat_template.jinja", WITH, False),
        ("chat_template.json", f'{{"chat_template": "{WITH}"}}', False),
        ("tokenizer_config.json", f'{{"chat_template": "{WITH}"}}', False),
        ("tokenizer_config.json", '{"chat_template": "x"}', True),
        ("tekken.json", "{}", False),
    ],
)
def test_a_chat_template_without_tools_is_told_to_who_sets_a_parser(
    tmp_path: Path, name: str, text: str, told: bool
) -> None:
    model = model_folder(tmp_path / "m")
    (model / "chat_template.jinja").write_text(WITHOUT)
    (model / name).write_text(text)
    for egg_text, warned in ((PARSER, told), (DUMMY, False)):
        found = findings(tmp_path, egg_text, model=model)
        said = [f.message for f in found if "has no tools in it" in f.message]
        assert bool(said) == warned
        assert all(f.level != "error" for f in found)


@pytest.mark.parametrize(("template", "told"), [(WITHOUT, True), (WITH, False)])
def test_the_template_of_the_egg_is_looked_into(tmp_path: Path, template: str, told: bool) -> None:
    model = model_folder(tmp_path / "m")
    (tmp_path / "own.jinja").write_text(template)
    for given in (template, "own.jinja"):
        text = f"chat_template = '{given}'\n{PARSER}"
        found = findings(tmp_path, text, model=model)
        said = [f.message for f in found if "has no tools in it" in f.message]
        assert bool(said) == told
        assert all(one.startswith("[model] chat_template:") for one in said)
