"""What GGUF headers say of a model: bytes of each block, of embedding and output, of the KV cache.

Pure: headers in, `ModelFacts` out. Which tensor lies where is llama.cpp's own table: input tensors
stay on the CPU, the other ones without a block belong to the output. KV figures are an upper
bound: sliding windows, latent attention and next-token blocks take less.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hum_workers.llama_rpc_worker.facts import LayerFacts, ModelFacts
from hum_workers.llama_rpc_worker.gguf_header import Header, Malformed, Tensor

MOST_LAYERS = 512
"""llama.cpp's own bound."""
MOST = 1 << 40
"""A figure of the metadata at most; whatever is larger is damage."""
KV_VALUE = 2
"""Bytes of one value of the KV cache."""

_BLOCK = re.compile(r"blk\.(\d{1,6})\.(.+)")
_INPUT = frozenset(
    "token_embd position_embd token_types token_embd_norm per_layer_token_embd".split()
)
_FIRST_BLOCK = frozenset("per_layer_model_proj per_layer_proj_norm".split())
"""Tensors without a block that llama.cpp puts beside block 0."""
_NO_MODEL = {"adapter": "an adapter", "mmproj": "a projector", "imatrix": "an importance matrix"}


def model(headers: Sequence[Header], files: Sequence[str], fingerprint: str) -> ModelFacts:
    """Returns the facts of a model whose files have these headers, the first one first.

    Raises:
        Malformed: they are not those of a model that can be split into layers.
    """
    meta = _Meta(headers[0])
    tensors = [tensor for header in headers for tensor in header.tensors]
    blocks = meta.blocks()
    per_block: list[list[Tensor]] = [[] for _ in range(blocks)]
    rest = []
    for tensor in tensors:
        found = _BLOCK.fullmatch(tensor.name)
        if found is None:
            rest.append(tensor)
            continue
        at = int(found[1])
        if at >= blocks:
            raise Malformed(f"has the tensor {tensor.name!r} but only {blocks} blocks")
        per_block[at].append(tensor)
    by_name = {tensor.name: tensor for tensor in rest}
    token_embd = by_name.get("token_embd.weight")
    if token_embd is None or len(token_embd.shape) != 2:
        raise Malformed("has no token embedding; is it a language model, and whole?")
    embedding, first, output = _places(rest)
    tied = "output.weight" not in by_name
    layers = [
        LayerFacts(weights=_bytes(block), kv_per_token=meta.kv(at, block))
        for at, block in enumerate(per_block)
    ]
    layers[0] = LayerFacts(weights=layers[0].weights + first, kv_per_token=layers[0].kv_per_token)
    return ModelFacts(
        path=files[0],
        fingerprint=fingerprint,
        architecture=meta.architecture,
        name=meta.text("general.name"),
        layers=tuple(layers),
        hidden_width=meta.number("embedding_length"),
        vocabulary=token_embd.shape[1],
        context=meta.number("context_length"),
        embedding=embedding,
        output=output + (token_embd.size if tied else 0),
        tied=tied,
        files=tuple(files),
    )


def _places(rest: Sequence[Tensor]) -> tuple[int, int, int]:
    """Bytes of the tensors without a block: with the input, with block 0, with the output."""
    input_: list[Tensor] = []
    first: list[Tensor] = []
    output: list[Tensor] = []
    for tensor in rest:
        stem = tensor.name.partition(".")[0]
        place = input_ if stem in _INPUT else first if stem in _FIRST_BLOCK else output
        if not stem.startswith("rope_"):  # a copy for each device, of some hundred bytes
            place.append(tensor)
    return _bytes(input_), _bytes(first), _bytes(output)


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.size for tensor in tensors)


class _Meta:
    """The metadata of a model's first file, each value checked as it is taken."""

    def __init__(self, header: Header) -> None:
        self._values = header.values
        kind = self.text("general.type")
        if kind in _NO_MODEL:
            raise Malformed(f"is {_NO_MODEL[kind]}, no model; give the model's own file")
        self.architecture = self.text("general.architecture")
        if not self.architecture:
            raise Malformed("does not say its general.architecture")
        if not header.tensors:
            raise Malformed("holds no tensors, only a vocabulary; give the file with the weights")
        self._heads = self._each("attention.head_count", None)
        self._kv_heads = self._each("attention.head_count_kv", self._heads)

    def text(self, key: str) -> str:
        value = self._values.get(key, "")
        return value if isinstance(value, str) else ""

    def number(self, key: str, default: int | None = None) -> int:
        """Returns a whole number of the architecture's."""
        key = f"{self.architecture}.{key}"
        value = self._values.get(key, default)
        if key not in self._values and default is None:
            raise Malformed(f"lacks {key[:80]}")
        return _whole(value, key)

    def blocks(self) -> int:
        blocks = self.number("block_count")
        if not 0 < blocks <= MOST_LAYERS:
            raise Malformed(f"says it has {blocks:,} blocks; 1 to {MOST_LAYERS} are possible")
        return blocks

    def kv(self, at: int, block: Sequence[Tensor]) -> int:
        """Bytes of KV cache for one token in a block; 0 where it has no attention."""
        parts = {tensor.name.split(".")[2] for tensor in block}
        recurrent = any(part.startswith("ssm_") for part in parts)
        attends = any(
            part.startswith(("attn_k", "attn_v")) or (part == "attn_qkv" and not recurrent)
            for part in parts
        )
        if not attends:
            return 0
        heads, kv_heads = _at(self._heads, at), _at(self._kv_heads, at)
        width = self.number("embedding_length") // heads if heads else 0
        key = self.number("attention.key_length", width)
        value = self.number("attention.value_length", width)
        return kv_heads * (key + value) * KV_VALUE

    def _each(self, key: str, default: tuple[int, ...] | None) -> tuple[int, ...]:
        """Returns a number that stands for all blocks, or one for each of them."""
        key = f"{self.architecture}.{key}"
        value = self._values.get(key)
        if key not in self._values:
            return default or (0,)
        if isinstance(value, tuple):
            if len(value) < self.blocks():
                raise Malformed(
                    f"has {len(value)} entries in {key[:80]} for {self.blocks()} blocks"
                )
            return tuple(_whole(one, key) for one in value)
        return (_whole(value, key),)


def _at(values: tuple[int, ...], at: int) -> int:
    return values[at] if len(values) > 1 else values[0]


def _whole(value: object, key: str) -> int:
    if type(value) is not int or not 0 <= value < MOST:
        raise Malformed(f"has no usable whole number in {key[:80]}")
    return value
