"""Weights and cache of a model, by its config alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hum_workers.vllm_worker.model_check import Model
from hum_workers.vllm_worker.model_size import kv_bytes_per_token, loaded_bytes
from tests.vllm_worker.hatchery import CONFIG

PLAIN = Model(Path(), CONFIG)
KEYS_AND_VALUES, LAYERS, HEADS, WIDTH = 2, 4, 4, 32


def with_(**config: Any) -> Model:
    return replace(PLAIN, config=CONFIG | config)


@pytest.mark.parametrize(
    ("cache_dtype", "dtype", "entry"),
    [
        (None, "auto", 2),
        ("auto", "auto", 2),
        (None, "float32", 4),
        ("fp8", "float32", 1),
        ("fp8_e5m2", "auto", 1),
        ("bfloat16", "float32", 2),
    ],
)
def test_an_entry_has_the_type_of_the_cache_else_of_the_model(
    cache_dtype: str | None, dtype: str, entry: int
) -> None:
    expected = KEYS_AND_VALUES * LAYERS * HEADS * WIDTH * entry
    assert kv_bytes_per_token(PLAIN, cache_dtype, dtype) == expected


def test_ranks_share_heads_and_layers() -> None:
    whole = kv_bytes_per_token(PLAIN, None)
    assert whole is not None
    assert kv_bytes_per_token(PLAIN, None, tensor=2, pipeline=2) == whole // 4
    # Three stages of four layers: one has two. Eight ranks of four heads: each has one.
    assert kv_bytes_per_token(PLAIN, None, pipeline=3) == whole // 2
    assert kv_bytes_per_token(PLAIN, None, tensor=8) == whole // 4


@pytest.mark.parametrize(
    "config",
    [
        {"kv_lora_rank": 8},
        {"sliding_window": 512},
        {"layer_types": ["full_attention", "sliding_attention"]},
        {"mamba_d_state": 16},
        {"num_key_value_heads": [4, 2]},
        {"multi_query": True},
        {"num_hidden_layers": None},
    ],
)
def test_a_model_of_unlike_layers_is_not_judged(config: dict[str, Any]) -> None:
    assert kv_bytes_per_token(with_(**config), None) is None


@pytest.mark.parametrize(
    "config",
    [
        {"sliding_window": 512, "use_sliding_window": False},
        {"sliding_window": None},
        {"layer_types": ["full_attention"] * 4},
    ],
)
def test_a_model_whose_layers_are_alike_is_judged_whatever_else_it_says(
    config: dict[str, Any],
) -> None:
    assert kv_bytes_per_token(with_(**config), None) == kv_bytes_per_token(PLAIN, None)


def test_a_type_of_the_cache_that_is_packed_is_not_judged() -> None:
    assert kv_bytes_per_token(PLAIN, "int4_per_token_head") is None


def test_weights_are_cast_when_they_are_loaded() -> None:
    model = replace(PLAIN, weights=1000)
    assert loaded_bytes(model, "auto", None) == 1000
    assert loaded_bytes(model, "float32", None) == 2000
    assert loaded_bytes(model, "float32", "awq") == 1000
    assert loaded_bytes(replace(with_(dtype="float32"), weights=1000), "auto", None) == 500
    assert loaded_bytes(replace(with_(dtype="float8"), weights=1000), "auto", None) == 1000
