from __future__ import annotations

import pytest

from hum_workers.egg.wrappers import leaver
from hum_workers.vllm_worker.egg import VllmEgg
from hum_workers.vllm_worker.flags import KEYS, SYNONYMS, refused


@pytest.mark.parametrize(
    ("arg", "key"),
    [
        ("--model", "model.path"),
        ("--model=x", "model.path"),
        ("--served_model_name", "model.served_name"),
        ("--served-model", "model.served_name"),
        ("-tp", "parallel.tensor"),
        ("-tp=2", "parallel.tensor"),
        ("-q", "model.quantization"),
        ("--no-enable-prefix-caching", "batching.prefix_caching"),
        ("--no_enable_chunked_prefill", "batching.chunked_prefill"),
        ("--device-ids", "placement.gpu"),
    ],
)
def test_a_flag_with_a_key_of_its_own_is_found_however_it_is_written(arg: str, key: str) -> None:
    ((index, reason),) = refused(["--seed", "1", arg])
    assert index == 2
    assert reason.endswith(f"has a key of its own: use {key}")


@pytest.mark.parametrize(
    "args",
    [
        ["--enforce-eager"],
        ["--model-impl", "vllm"],
        ["--enable-expert-parallel", "--seed=7"],
        ["--data-parallel-size-local", "1"],
        ["--hf-overrides", "{}"],
        ["--long-prefill-token-threshold", "-1"],
        [],
    ],
)
def test_other_flags_pass(args: list[str]) -> None:
    assert list(refused(args)) == []


def test_a_secret_never_stands_in_a_reason() -> None:
    reasons = list(refused(["--api-key=hush", "--api-key", "hush"]))
    assert len(reasons) == 2
    assert "hush" not in str(reasons)


def test_a_wrapper_whose_child_leaves_the_tree_is_found_behind_another() -> None:
    assert leaver(["taskset", "-c", "0", "numactl", "--membind=0"]) is None
    assert leaver(["env", "A=1", "/usr/bin/podman", "run"]) == (
        2,
        "podman is refused: it starts the engine below its daemon, so it would outlive the worker",
    )


@pytest.mark.parametrize("key", sorted({*KEYS.values(), *SYNONYMS.values()}))
def test_every_key_that_is_suggested_exists(key: str) -> None:
    table, _, name = key.partition(".")
    tables = {name: field.annotation for name, field in VllmEgg.model_fields.items()}
    annotation = tables[table]
    assert annotation is not None
    assert name in annotation.model_fields
