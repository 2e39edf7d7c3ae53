"""What an egg says of its model, held against the model's own header."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hum_workers.llama_rpc_worker.facts import ModelFacts

if TYPE_CHECKING:
    from hum_workers.llama_rpc_worker.egg import LlamaEgg

STEP = 256
"""Tokens; llama.cpp makes the context of each sequence a multiple of it."""


def mismatches(egg: LlamaEgg, model: ModelFacts) -> Iterator[str]:
    """Yields, each with its key, what the egg expects and the model is not."""
    wanted = egg.model
    if wanted.hidden_width not in (None, model.hidden_width):
        yield (
            f"[model] hidden_width is {wanted.hidden_width}, and {model.path} has "
            f"{model.hidden_width}: is it another model?"
        )
    if wanted.fingerprint not in (None, model.fingerprint):
        yield (
            f"[model] fingerprint is {wanted.fingerprint}, and that of {model.path} is "
            f"{model.fingerprint}: is it another model?"
        )


def weights(model: ModelFacts) -> int:
    """Returns the bytes of all weights; a tied output layer is no further copy."""
    output = 0 if model.tied else model.output
    return model.embedding + output + sum(layer.weights for layer in model.layers)


def rounded(ctx: int) -> int:
    """Returns the context of a turn that llama-server uses: the next multiple of `STEP`."""
    return -(-ctx // STEP) * STEP


def cache(egg: LlamaEgg, model: ModelFacts) -> int:
    """Returns the bytes of the KV cache of all turns at once, in 16-bit values."""
    tokens = rounded(egg.model.ctx) * egg.model.parallel
    return tokens * sum(layer.kv_per_token for layer in model.layers)
