"""A model of a gigabyte for loads: the small one with wide blocks of zeros, in a file of holes."""

from __future__ import annotations

import struct
from pathlib import Path

WIDTH, BLOCKS = 576, 30
"""Of the small model."""
HIDDEN_KEY = b"llama.feed_forward_length"
FLOAT32 = 0
ALIGNMENT = 32
SHAPES = {"ffn_gate": (0, 1), "ffn_up": (0, 1), "ffn_down": (1, 0)}
"""Of (width, hidden), which is first."""


def write(small: Path, to: Path, size: int) -> None:
    """Writes a model whose blocks hold about `size` bytes; the file itself takes next to none.

    Raises:
        ValueError: `small` is not the small model.
    """
    from gguf import GGUFReader, quant_shape_to_byte_shape  # comes with vLLM, slow to import

    reader = GGUFReader(str(small))
    hidden = size // (len(SHAPES) * WIDTH * BLOCKS * 4) // ALIGNMENT * ALIGNMENT
    infos, offset = bytearray(), 0
    for tensor in reader.tensors:
        shape, kind = [int(n) for n in tensor.shape], int(tensor.tensor_type)
        part = tensor.name.split(".")[-2]
        if part in SHAPES:
            pair = WIDTH, hidden
            shape, kind, length = [pair[n] for n in SHAPES[part]], FLOAT32, WIDTH * hidden * 4
        else:
            rows = quant_shape_to_byte_shape(shape[::-1], tensor.tensor_type)
            length = 1
            for n in rows:
                length *= int(n)
        infos += struct.pack("<Q", len(tensor.name)) + tensor.name.encode()
        infos += struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
        offset += length + -length % ALIGNMENT
    start = min(tensor.field.offset for tensor in reader.tensors)
    head = _wider(small.read_bytes()[:start], hidden) + infos
    head += bytes(-len(head) % ALIGNMENT)
    with to.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + offset)


def _wider(head: bytes, hidden: int) -> bytes:
    """Returns the header with another width of the blocks' inner layer."""
    at = head.find(HIDDEN_KEY)
    if at < 0:
        raise ValueError(f"no {HIDDEN_KEY.decode()} in the model's header: it is another model")
    at += len(HIDDEN_KEY) + 4  # behind the value's type
    return head[:at] + struct.pack("<I", hidden) + head[at + 4 :]
