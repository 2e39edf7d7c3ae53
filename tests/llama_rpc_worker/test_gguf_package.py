"""Our reader beside the maintained one, on files of its writer and on the real small model."""

from __future__ import annotations

import re
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from hum_workers.llama_rpc_worker import gguf_header
from hum_workers.llama_rpc_worker.gguf import read
from tests.llama_rpc_worker.real_llama import ABSENT, MODEL

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    gguf = pytest.importorskip("gguf")
    np = pytest.importorskip("numpy")


def write(path: Path, *, tokens: int, blocks: int = 4, tied: bool = False, **more: Any) -> Path:
    """A model as a converter writes it: vocabulary with scores and merges, quantized blocks."""
    writer = gguf.GGUFWriter(path, "llama", **more)
    writer.add_name("Written")
    writer.add_block_count(blocks)
    writer.add_context_length(4096)
    writer.add_embedding_length(256)
    writer.add_head_count(8)
    writer.add_head_count_kv(2)
    writer.add_key_length(64)
    writer.add_value_length(32)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"token-{n}" for n in range(tokens)])
    writer.add_token_scores([0.5] * tokens)
    writer.add_token_types([1] * tokens)
    writer.add_token_merges([f"to ken-{n}" for n in range(2 * tokens)])
    writer.add_chat_template("{% for m in messages %}" * 1000)
    writer.add_tensor("token_embd.weight", np.zeros((512, 256), dtype=np.float16))
    q4 = gguf.GGMLQuantizationType.Q4_K
    for n in range(blocks):
        quantized = np.zeros((64 + 64 * n, 144), dtype=np.uint8)
        writer.add_tensor(f"blk.{n}.attn_k.weight", quantized, raw_dtype=q4)
        writer.add_tensor(f"blk.{n}.attn_norm.weight", np.zeros(256, dtype=np.float32))
    writer.add_tensor("output_norm.weight", np.zeros(256, dtype=np.float32))
    if not tied:
        writer.add_tensor("output.weight", np.zeros((512, 256), dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def theirs(paths: list[Path]) -> dict[str, int]:
    """Bytes of each tensor as the package reads them."""
    return {
        tensor.name: int(tensor.n_bytes)
        for path in paths
        for tensor in gguf.GGUFReader(path).tensors
    }


def agree(path: Path) -> None:
    facts = read(path)
    sizes = theirs([Path(file) for file in facts.files])
    for n, layer in enumerate(facts.layers):
        assert layer.weights == sum(
            size for name, size in sizes.items() if re.match(rf"blk\.{n}\.", name)
        )
    assert facts.embedding == sizes["token_embd.weight"]
    assert facts.output == sizes["output_norm.weight"] + sizes.get(
        "output.weight", sizes["token_embd.weight"]
    )
    assert facts.tied == ("output.weight" not in sizes)


@pytest.mark.parametrize("tied", [True, False])
def test_a_written_model_is_read_as_the_package_reads_it(tmp_path: Path, tied: bool) -> None:
    path = write(tmp_path / "m.gguf", tokens=50, tied=tied)
    agree(path)
    assert {layer.kv_per_token for layer in read(path).layers} == {2 * (64 + 32) * 2}


def test_a_model_that_the_package_split_is_one(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", tokens=50, split_max_tensors=4)
    first = min(tmp_path.glob("m-*.gguf"))
    assert len(read(first).files) == 3
    agree(first)


def test_a_vocabulary_of_150k_tokens_is_stepped_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "m.gguf", tokens=150_000)
    before = time.perf_counter()
    read(path)
    took = time.perf_counter() - before
    with capsys.disabled():
        print(f"\n150,000 tokens, 300,000 merges: {1000 * took:.0f} ms")  # noqa: T201
    assert read(path).vocabulary == 512


def test_the_sizes_of_all_types_are_those_of_the_package() -> None:
    ours = dict(gguf_header._BLOCKS)
    for kind, size in gguf.GGML_QUANT_SIZES.items():
        if kind.name != "Q8_1":  # no file holds it, and the package counts its sums as 32 bits
            assert ours[int(kind)] == size, kind


@pytest.mark.skipif(MODEL is None, reason=ABSENT)
def test_the_real_small_model_is_read_as_the_package_reads_it() -> None:
    assert MODEL is not None
    agree(MODEL)
    facts = read(MODEL)
    assert len(facts.layers) == 30
    assert facts.vocabulary == 49_152
    assert facts.hidden_width == 576
    assert facts.layers[0].kv_per_token == 768
