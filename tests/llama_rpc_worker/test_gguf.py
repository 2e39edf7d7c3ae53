"""What a GGUF header says, held to the maintained package; damage of every kind is one sentence."""

from __future__ import annotations

import os
import resource
import struct
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hum_workers.errors import GgufError, UsageError
from hum_workers.llama_rpc_worker.gguf import LIMIT, Headers, read
from hum_workers.llama_rpc_worker.gguf_header import MOST_KEYS, MOST_STRINGS, MOST_TENSORS, parse
from tests.llama_rpc_worker.gguf_files import BLOCKS, gguf, metadata, tensors, text, written

K = 64 * 64 // 32 * 18


def said(path: Path) -> str:
    """What is wrong with a file; always one line that begins with its name."""
    with pytest.raises(GgufError) as caught:
        read(path)
    line = str(caught.value)
    assert line.startswith(str(path))
    assert line.isprintable()
    assert isinstance(caught.value, UsageError)
    return line


def refused(tmp_path: Path, data: bytes) -> str:
    return said(written(tmp_path / "model.gguf", data))


def test_a_small_model_is_read_whole(tmp_path: Path) -> None:
    facts = read(written(tmp_path / "tiny.gguf", gguf()))
    assert (facts.architecture, facts.name, facts.context) == ("llama", "Tiny", 512)
    assert (facts.hidden_width, facts.vocabulary) == (64, 32)
    assert [(layer.weights, layer.kv_per_token) for layer in facts.layers] == [
        (256 + K, 2 * (16 + 16) * 2)
    ] * BLOCKS
    assert facts.tied
    assert (facts.embedding, facts.output) == (4096, 4096 + 256)
    assert facts.files == (facts.path,) == (str(tmp_path / "tiny.gguf"),)


def test_an_output_matrix_of_its_own_is_no_tied_one(tmp_path: Path) -> None:
    table = [*tensors(), ("output.weight", (64, 32), 0, 8192)]
    facts = read(written(tmp_path / "tiny.gguf", gguf(table=table)))
    assert not facts.tied
    assert facts.output == 8192 + 256


def test_the_fingerprint_is_that_of_the_headers_and_not_of_the_weights(tmp_path: Path) -> None:
    one = read(written(tmp_path / "a.gguf", gguf()))
    assert read(written(tmp_path / "b.gguf", gguf()[:-1] + b"x")).fingerprint == one.fingerprint
    other = gguf(metadata(**{"general.name": "Tiny."}))
    assert read(written(tmp_path / "c.gguf", other)).fingerprint != one.fingerprint


def test_heads_of_each_layer_and_blocks_without_attention(tmp_path: Path) -> None:
    values = metadata(
        **{
            "llama.attention.head_count_kv": [4, 0, 1],
            "llama.attention.key_length": 24,
            "llama.attention.value_length": 8,
        }
    )
    facts = read(written(tmp_path / "each.gguf", gguf(values)))
    assert [layer.kv_per_token for layer in facts.layers] == [4 * 32 * 2, 0, 32 * 2]
    plain = [
        ("blk.1.ssm_a", (64,), 0, 256) if name == "blk.1.attn_k.weight" else (name, *rest)
        for name, *rest in tensors()
    ]
    mixed: list[Any] = [*plain, ("blk.1.attn_qkv.weight", (64,), 0, 256)]
    facts = read(written(tmp_path / "mixed.gguf", gguf(table=mixed)))
    assert [bool(layer.kv_per_token) for layer in facts.layers] == [True, False, True]


def test_next_token_blocks_are_blocks_and_tensors_without_one_have_their_place(
    tmp_path: Path,
) -> None:
    values = metadata(**{"llama.nextn_predict_layers": 1, "llama.block_count": 4})
    table = [
        *tensors(),
        ("blk.3.nextn.eh_proj.weight", (64,), 0, 256),
        ("per_layer_token_embd.weight", (64,), 0, 256),
        ("per_layer_model_proj.weight", (64,), 0, 256),
        ("rope_freqs.weight", (8,), 0, 32),
    ]
    facts = read(written(tmp_path / "more.gguf", gguf(values, table)))
    assert [layer.weights for layer in facts.layers] == [512 + K, 256 + K, 256 + K, 256]
    assert (facts.embedding, facts.output) == (4096 + 256, 4096 + 256)


def test_a_type_newer_than_the_worker_is_as_long_as_the_way_to_the_next(tmp_path: Path) -> None:
    table = [("blk.0.new", (64,), 250, 320), *tensors(), ("blk.1.new", (64,), 250, 640)]
    facts = read(written(tmp_path / "new.gguf", gguf(table=table)))
    assert [layer.weights - 256 - K for layer in facts.layers] == [320, 640, 0]


def split(folder: Path, count: int = 3) -> list[Path]:
    table = tensors()
    paths = []
    for n in range(count):
        values = {"split.no": n, "split.count": count, "split.tensors.count": len(table)}
        part = gguf({**(metadata() if n == 0 else {}), **values}, table[n::count])
        paths.append(written(folder / f"m-{n + 1:05d}-of-{count:05d}.gguf", part))
    return paths


def test_split_files_are_one_model(tmp_path: Path) -> None:
    whole = read(written(tmp_path / "m.gguf", gguf()))
    paths = split(tmp_path)
    facts = read(paths[0])
    assert facts.files == tuple(map(str, paths))
    assert (facts.layers, facts.embedding, facts.output) == (
        whole.layers,
        whole.embedding,
        whole.output,
    )


def test_split_files_must_all_be_there_under_their_names(tmp_path: Path) -> None:
    paths = split(tmp_path)
    assert "file 2 of 3; give m-00001-of-00003.gguf" in said(paths[1])
    assert "does not end in -00001-of-00003.gguf" in said(paths[0].rename(tmp_path / "x.gguf"))
    (tmp_path / "x.gguf").rename(paths[0])
    paths[1].write_bytes(paths[2].read_bytes())
    assert said_of(paths[0]).startswith(f"{paths[1]} says it is file 2 of 3")
    paths[1].unlink()
    paths[2].unlink()
    assert "lacks m-00002-of-00003.gguf and 1 more beside it" in said(paths[0])


def said_of(path: Path) -> str:
    with pytest.raises(GgufError) as caught:
        read(path)
    return str(caught.value)


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_headers_are_read_once_until_any_file_of_the_model_is_another(
    tmp_path: Path, changed: int
) -> None:
    paths = split(tmp_path)
    headers = Headers()
    facts = headers.facts(paths[0])
    assert headers.facts(paths[0]) is facts
    new = tmp_path / "new"
    new.write_bytes(paths[changed].read_bytes())
    new.replace(paths[changed])
    again = headers.facts(paths[0])
    assert again == facts
    assert again is not facts
    paths[changed].unlink()
    said(paths[0])
    with pytest.raises(GgufError):
        headers.facts(paths[0])


def test_more_tensors_than_any_model_has_are_refused_before_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.gguf"
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, MOST_TENSORS + 1, 0))
    os.truncate(path, 1 << 40)
    assert "too many for any model" in said(path)


def test_what_is_no_file_is_told(tmp_path: Path) -> None:
    assert "No such file" in said(tmp_path / "none.gguf")
    assert "no regular file" in said(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "no regular file" in said(tmp_path / "pipe")
    assert "can't be that of a file" in said_of(Path("a\0b"))


U64 = 2**64 - 1
KEYS = metadata()


def array(kind: int, count: int, data: bytes = b"") -> bytes:
    return struct.pack("<IIQ", 9, kind, count) + data


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "is no GGUF file (0 bytes)"),
        (b"GGUF", "is no GGUF file (4 bytes)"),
        (b"\x7fELF" + bytes(100), "starts with other bytes"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "starts with other bytes"),
        (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), "big-endian"),
        (gguf(version=1), "version 1"),
        (gguf(version=4), "version 4"),
        (struct.pack("<4sIQQ", b"GGUF", 3, U64, 1), "too many"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 1, U64) + bytes(99), "too many"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + text("a" * 70_000) + bytes(99), "a key of"),
        (struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, U64) + bytes(99), "a key of 18,446"),
        (gguf({**KEYS, "x": struct.pack("<IQ", 8, U64)}), "x at byte"),
        (gguf({**KEYS, "x": array(8, U64)}), "which it can't hold"),
        (gguf({**KEYS, "x": array(8, 2, struct.pack("<Q", U64))}), "x is longer"),
        (gguf({**KEYS, "x": array(8, 9, struct.pack("<Q", 1 << 62))}), "x is longer"),
        (gguf({**KEYS, "x": array(4, U64)}), "x at byte"),
        (gguf({**KEYS, "x": array(9, 1, array(9, 1))}), "array of arrays"),
        (gguf({**KEYS, "x": array(99, 1)}), "unknown type 99"),
        (gguf({**KEYS, "x": struct.pack("<I", 13)}), "unknown type 13"),
        (gguf({**KEYS, "general.alignment": 33}), "power of two"),
        (gguf({**KEYS, "general.alignment": 0}), "power of two"),
        (gguf({**KEYS, "general.alignment": 1 << 31}), "cut off"),
        (gguf({}), "general.architecture"),
        (gguf({**KEYS, "general.architecture": 5}), "general.architecture"),
        (gguf({**KEYS, "general.type": "adapter"}), "is an adapter"),
        (gguf({**KEYS, "general.type": "mmproj"}), "is a projector"),
        (gguf(table=[]), "no tensors"),
        (gguf({**KEYS, "llama.block_count": 0}), "says it has 0 blocks"),
        (gguf({**KEYS, "llama.block_count": 1 << 31}), "2,147,483,648 blocks"),
        (gguf({**KEYS, "llama.block_count": "3"}), "no usable whole number"),
        (gguf({**KEYS, "llama.block_count": 2}), "only 2 blocks"),
        (gguf({**KEYS, "llama.embedding_length": struct.pack("<Iq", 11, -1)}), "no usable whole"),
        (gguf({**KEYS, "llama.attention.head_count_kv": [1, 2]}), "has 2 entries in"),
        (gguf({**KEYS, "llama.attention.head_count_kv": [0.5, 0.5, 0.5]}), "no usable whole"),
        (gguf({k: v for k, v in KEYS.items() if "context" not in k}), "lacks llama.context_length"),
        (gguf(table=tensors()[1:]), "no token embedding"),
        (gguf(table=[*tensors(), tensors()[0]]), "two tensors of one name"),
        (gguf(table=[*tensors(), ("x" * 64, (1,), 0, 4)]), "a tensor's name of 64 bytes"),
        (gguf(table=[*tensors(), ("x", (1,) * 5, 0, 4)]), "5 dimensions"),
        (gguf(table=[*tensors(), ("x", (33,), 2, 18)]), "a shape for 'x'"),
        (gguf(table=[*tensors(), ("x", (1 << 40, 1 << 40, 1 << 40), 0, 32)]), "cut off at 'x'"),
        (gguf(table=[("x", (64,), 0, 32), *tensors()]), "'x' lies over another"),
        (gguf()[:-200], "cut off at 'output_norm.weight'; fetch it again"),
        (gguf()[:-9000], "cut off at"),
    ],
)
def test_each_damage_is_one_sentence(tmp_path: Path, data: bytes, word: str) -> None:
    assert word in refused(tmp_path, data)


def test_a_key_twice_is_refused(tmp_path: Path) -> None:
    twice = struct.pack("<4sIQQ", b"GGUF", 3, 0, 2) + 2 * (text("a.b") + struct.pack("<II", 4, 1))
    assert "'a.b' twice" in refused(tmp_path, twice + bytes(99))


def test_every_cut_of_a_header_is_told(tmp_path: Path) -> None:
    data = gguf()
    end = parse(data, len(data)).end
    for length in range(end):
        refused(tmp_path, data[:length])


def test_a_header_without_end_takes_bounded_memory_and_time(tmp_path: Path) -> None:
    """Sparse files say that they are huge; what is read of them is not."""
    path = tmp_path / "huge.gguf"
    starts = [
        struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + text("x") + array(8, MOST_STRINGS),
        struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + text("x") + array(8, MOST_STRINGS + 1),
        struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + text("x") + array(0, 1 << 39),
        struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + text("x") + struct.pack("<IQ", 8, 1 << 39),
        struct.pack("<4sIQQ", b"GGUF", 3, 0, MOST_KEYS),
    ]
    for start in starts:
        path.write_bytes(start)
        os.truncate(path, 1 << 40)
        before = time.process_time()
        said(path)
        assert time.process_time() - before < 20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert peak < 8 * LIMIT


SMALL = gguf()


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_random_bytes_are_no_model_and_no_surprise(data: bytes) -> None:
    assert read_bytes(b"GGUF\x03\0\0\0" + data) is not None
    assert read_bytes(data) is not None


@given(
    st.lists(
        st.tuples(
            st.integers(0, len(SMALL) - 1),
            st.one_of(
                st.binary(min_size=1, max_size=9),
                st.sampled_from([bytes(8), b"\xff" * 8, b"\x01" + bytes(7), b"\0\0\0\0\xff"]),
            ),
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, len(SMALL)),
)
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_damaged_header_is_a_model_or_one_error(
    damage: list[tuple[int, bytes]], length: int
) -> None:
    data = bytearray(SMALL)
    for at, new in damage:
        data[at : at + len(new)] = new
    read_bytes(bytes(data))
    read_bytes(bytes(data[:length]))


def read_bytes(data: bytes) -> str | None:
    """Returns what is wrong with a file of these bytes; None if nothing is."""
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(data)
        file.flush()
        try:
            facts = read(Path(file.name))
        except GgufError as error:
            return str(error)
    assert all(layer.weights >= 0 and layer.kv_per_token >= 0 for layer in facts.layers)
    return None


@pytest.mark.parametrize("length", [0, 10, 24, 40, 200, 400])
def test_a_file_that_is_cut_off_or_empty_says_what_to_do(length: int, tmp_path: Path) -> None:
    assert "fetch it again" in refused(tmp_path, gguf()[:length])


def test_a_page_of_text_in_place_of_a_model_says_what_to_do(tmp_path: Path) -> None:
    assert "fetch it again" in refused(tmp_path, b"<!doctype html><title>404</title>" * 9)
