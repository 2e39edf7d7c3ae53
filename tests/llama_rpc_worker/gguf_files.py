"""Small GGUF files written by hand, to be broken on purpose."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BLOCKS = 3
WIDTH = 64
TOKENS = 32
ALIGNMENT = 32

Entry = tuple[str, tuple[int, ...], int, int]
"""Name, shape, type and bytes of a tensor."""


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def value(one: Any) -> bytes:
    """A value behind its type: whole numbers as u32, lists as arrays of what is first in them."""
    if isinstance(one, bytes):  # written out by the test
        return one
    if isinstance(one, bool):
        return struct.pack("<I?", 7, one)
    if isinstance(one, int):
        return struct.pack("<II", 4, one)
    if isinstance(one, float):
        return struct.pack("<If", 6, one)
    if isinstance(one, str):
        return struct.pack("<I", 8) + text(one)
    kind = value(one[0])[:4]
    return struct.pack("<I", 9) + kind + struct.pack("<Q", len(one)) + b"".join(
        value(part)[4:] for part in one
    )  # fmt: skip


def metadata(**more: Any) -> dict[str, Any]:
    return {
        "general.architecture": "llama",
        "general.name": "Tiny",
        "llama.block_count": BLOCKS,
        "llama.context_length": 512,
        "llama.embedding_length": WIDTH,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "tokenizer.ggml.tokens": [f"t{n}" for n in range(TOKENS)],
        **more,
    }


def tensors(blocks: int = BLOCKS) -> list[Entry]:
    table: list[Entry] = [("token_embd.weight", (WIDTH, TOKENS), 1, 2 * WIDTH * TOKENS)]
    for n in range(blocks):
        table.append((f"blk.{n}.attn_norm.weight", (WIDTH,), 0, 4 * WIDTH))
        table.append((f"blk.{n}.attn_k.weight", (WIDTH, WIDTH), 2, WIDTH * WIDTH // 32 * 18))
    return [*table, ("output_norm.weight", (WIDTH,), 0, 4 * WIDTH)]


def gguf(
    values: Mapping[str, Any] | None = None, table: Sequence[Entry] | None = None, version: int = 3
) -> bytes:
    """A whole file; its tensors hold zeros."""
    values = metadata() if values is None else values
    table = tensors() if table is None else table
    data = struct.pack("<4sIQQ", b"GGUF", version, len(table), len(values))
    data += b"".join(text(key) + value(one) for key, one in values.items())
    offset = 0
    for name, shape, kind, size in table:
        data += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
        offset += size + -size % ALIGNMENT
    return data + bytes(-len(data) % ALIGNMENT) + bytes(offset)


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path
