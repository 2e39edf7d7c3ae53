"""What a model's weights and its cache take in memory, by its config: vLLM's own arithmetic."""

from __future__ import annotations

from math import ceil

from hum_workers.vllm_worker.model_check import DTYPES, Model, count

FP8 = frozenset({"fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"})
ODD_KEYS = ("mamba", "ssm", "linear_attn", "linear_attention", "attn_layer", "hybrid", "kv_shared")
"""Parts of keys that tell of layers whose cache is of another build, or of none."""
ODD = frozenset(
    """kv_lora_rank sliding_window_pattern attention_chunk_size layers_block_type block_types
    is_encoder_decoder full_attention_interval cross_attention_layers v_head_dim global_head_dim
    block_configs multi_query multi_query_attention multi_query_group_num num_kv_heads
    n_head_kv""".split()
)
"""Keys that tell the same, or of heads that other models name otherwise."""


def kv_bytes_per_token(
    model: Model,
    cache_dtype: str | None,
    dtype: str = "auto",
    *,
    tensor: int = 1,
    pipeline: int = 1,
) -> int | None:
    """Returns the cache that one token takes on the rank that has most of it; None for models whose
    layers are not all alike.

    Args:
        cache_dtype: `kv.cache_dtype` of the egg.
        dtype: `model.dtype` of the egg.
        tensor: ranks that share each layer.
        pipeline: ranks that share the layers.
    """
    layers, heads = count(model, "num_hidden_layers"), count(model, "num_attention_heads")
    width, entry = count(model, "hidden_size"), _entry_bytes(model, cache_dtype, dtype)
    if not layers or not heads or entry is None or not _is_plain(model):
        return None
    size = count(model, "head_dim") or width // heads
    if not size:
        return None
    if model.config.get("num_key_value_heads") is not None:
        heads = count(model, "num_key_value_heads")
        if not heads:
            return None  # one for each layer
    heads = max(1, heads // tensor)
    return 2 * ceil(layers / pipeline) * heads * size * entry


def loaded_bytes(model: Model, dtype: str, quantization: str | None) -> int:
    """Returns the bytes of the weights once they are loaded, cast to another type where that is
    asked for."""
    stored = DTYPES.get(_stored(model))
    if quantization or model.config.get("quantization_config") or stored is None:
        return model.weights
    return model.weights * _dtype_bytes(model, dtype) // stored


def _is_plain(model: Model) -> bool:
    config = model.config
    kinds = config.get("layer_types")
    if kinds and not (isinstance(kinds, list) and set(map(str, kinds)) == {"full_attention"}):
        return False
    if config.get("sliding_window") and config.get("use_sliding_window") is not False:
        return False
    return not any(
        value and (key in ODD or any(part in key for part in ODD_KEYS))
        for key, value in config.items()
    )


def _entry_bytes(model: Model, cache_dtype: str | None, dtype: str) -> int | None:
    if cache_dtype in (None, "auto"):
        return _dtype_bytes(model, dtype)
    return 1 if cache_dtype in FP8 else DTYPES.get(str(cache_dtype))


def _stored(model: Model) -> str:
    return str(model.config.get("dtype", model.config.get("torch_dtype", "bfloat16")))


def _dtype_bytes(model: Model, dtype: str) -> int:
    # With "auto", models of 32 bits are cast to 16.
    return 2 if dtype == "auto" else DTYPES[dtype]
