"""Tones against hum's golden ones and the vectors of thrum sections 2 to 4."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hum_workers.thrum.tones import (
    RidSource,
    Wane,
    base36,
    decode,
    delta_encoder,
    encode,
    encode_sorted,
    foreign_hum_id,
    hum_id,
    rid,
    sigil,
)

GOLDEN = (Path(__file__).parent / "fixtures" / "thrum_golden.ndjson").read_bytes().splitlines(True)

ANY_TEXT = st.text(st.characters(exclude_categories=()))
"""Lone surrogates included."""


@pytest.mark.parametrize("line", GOLDEN, ids=[json.loads(line)["chi"] for line in GOLDEN])
def test_a_golden_tone_read_and_written_sorted_is_the_same_bytes(line: bytes) -> None:
    tone = decode(line)
    assert tone is not None
    assert encode_sorted(tone) == line


def test_there_are_fifteen_golden_tones() -> None:
    assert len(GOLDEN) == 15


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b'"chi"',
        b"null",
        b"{}",
        b'{"chi":""}',
        b'{"chi":1}',
        b'{"chi":null}',
        b'{"chi":"x"',
        b'{"chi":"x"}}',
        b'{"chi":NaN}',
        b'{"chi":"x","n":1e999}',
        b'\xef\xbb\xbf{"chi":"x"}',
        b'{"chi":"\xff"}',
        b'{"chi":"x","a":"\\ud83d"}',
        b"[" * 100_000,
        b'{"chi":' * 100_000,
        b'{"chi":"x","n":' + b"9" * 10_000 + b"}",
    ],
    ids=lambda line: repr(line[:20]),
)
def test_what_is_no_tone_reads_as_none(line: bytes) -> None:
    assert decode(line) is None


@given(st.binary() | st.binary().map(lambda tail: b'{"chi":"x","a":' + tail))
def test_no_bytes_make_decode_raise(line: bytes) -> None:
    tone = decode(line)
    assert tone is None or tone["chi"]


def test_reading_is_as_lenient_as_humd() -> None:
    """Section 2: CRLF, a NUL escape, a repeated key (the last wins), integers beyond 64 bits."""
    line = b' {"chi":"a","chi":"x","t":"\\u0000","n":36893488147419103232}\r'
    tone = decode(line)
    assert tone is not None
    assert (tone["chi"], tone["t"]) == ("x", "\0")
    assert tone["n"] == 2**65


def test_keys_are_written_in_the_order_given() -> None:
    assert encode({"sid": "s", "chi": "x", "a": 1}) == b'{"sid":"s","chi":"x","a":1}\n'


def test_nan_and_infinity_are_written_as_null() -> None:
    line = encode({"chi": "x", "a": float("nan"), "b": float("inf")})
    assert line == b'{"chi":"x","a":null,"b":null}\n'


def test_lone_surrogates_become_replacement_characters_in_keys_and_values() -> None:
    line = encode({"chi": "x", "a": ["\ud83d", {"\udc00": "ok"}], "b": ("é", 1)})
    assert json.loads(line) == {"chi": "x", "a": ["\ufffd", {"\ufffd": "ok"}], "b": ["é", 1]}


def nested(depth: int, inner: Any = 0) -> Any:
    for _ in range(depth):
        inner = [inner]
    return inner


def test_a_tone_as_deep_as_humd_reads_is_written() -> None:
    assert decode(encode({"chi": "x", "a": nested(126)}))


@pytest.mark.parametrize("depth", [127, 1_000, 100_000])
def test_a_deeper_tone_is_refused_since_humd_would_drop_it(depth: int) -> None:
    with pytest.raises(ValueError, match="'x' is nested"):
        encode({"chi": "x", "a": nested(depth)})


def test_many_brackets_side_by_side_or_in_a_string_are_not_depth() -> None:
    assert encode({"chi": "x", "a": [[]] * 500, "b": '[{"\\' * 500})


def test_what_json_has_no_form_for_is_refused_with_the_chi() -> None:
    with pytest.raises(ValueError, match="'x' can't be written"):
        encode({"chi": "x", "a": object()})


@given(st.recursive(st.none() | st.floats() | st.integers() | ANY_TEXT, st.lists, max_leaves=20))
def test_every_line_written_is_one_line_of_strict_json(value: Any) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    line = encode({"chi": "x", "a": value})
    assert line.index(b"\n") == len(line) - 1
    json.loads(line.decode(), parse_constant=refuse)
    assert b"\\ud" not in line


def test_a_text_delta_speaks_both_dialects() -> None:
    line = delta_encoder('s"1', "text", 3)('a"\n\0é😀')
    assert json.loads(line) == {
        "chi": "chunk",
        "sid": 's"1',
        "chunkType": "text_delta",
        "blockIdx": 3,
        "delta": 'a"\n\0é😀',
        "part": {"type": "text", "text": 'a"\n\0é😀'},
    }
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1


def test_a_text_delta_speaks_one_dialect_when_told_so() -> None:
    assert "part" not in json.loads(delta_encoder("s", "text", 0, "delta")("a"))


def test_a_reasoning_delta_has_no_part() -> None:
    assert json.loads(delta_encoder("s", "reasoning", 1)("hm")) == {
        "chi": "chunk",
        "sid": "s",
        "chunkType": "reasoning_delta",
        "blockIdx": 1,
        "delta": "hm",
    }


@pytest.mark.parametrize("kind", ["text", "reasoning"])
def test_a_delta_has_no_lone_surrogates(kind: Any) -> None:
    assert json.loads(delta_encoder("s", kind, 0)("a\ud83d"))["delta"] == "a\ufffd"


@given(ANY_TEXT, st.sampled_from(["text", "reasoning"]))
def test_the_fast_path_writes_what_encode_writes(text: str, kind: Any) -> None:
    chunk = {"chi": "chunk", "sid": "s", "chunkType": f"{kind}_delta", "blockIdx": 0, "delta": text}
    part = {"part": {"type": "text", "text": text}} if kind == "text" else {}
    assert delta_encoder("s", kind, 0)(text) == encode({**chunk, **part})


@pytest.mark.parametrize(
    ("sid", "nest", "expected"),
    [
        ("sess-1", "vllm-worker", "362b05598391"),
        ("abc", "claude", "2ce06946efc0"),
        ("héllo", "llama-rpc-worker", "98b16932b08d"),
    ],
)
def test_sigil_vectors(sid: str, nest: str, expected: str) -> None:
    assert sigil(sid, nest) == expected


@pytest.mark.parametrize(
    ("number", "expected"), [(0, "0"), (35, "z"), (36, "10"), (1700000000000, "loyw3v28")]
)
def test_base36_vectors(number: int, expected: str) -> None:
    assert base36(number) == expected
    assert int(expected, 36) == number


def test_a_rid_is_time_and_counter() -> None:
    source = RidSource(now_ms=lambda: 1700000000000)
    assert [source() for _ in range(3)] == ["loyw3v28-0", "loyw3v28-1", "loyw3v28-2"]
    assert rid() != rid()


def test_wane_ticks_merges_to_the_greater_and_forgets() -> None:
    wane = Wane()
    assert [wane.tick("a"), wane.tick("a"), wane.tick("b")] == [1, 2, 1]
    assert [wane.merge("a", 9), wane.merge("a", 3), wane.tick("a")] == [9, 9, 10]
    wane.forget("a")
    assert wane.tick("a") == 1


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (bytes(32), "0" * 52),
        (b"\xff" * 32, "Z" * 51 + "G"),
        ((1700000000000).to_bytes(6) + bytes(26), "065WZSB8".ljust(52, "0")),
    ],
)
def test_hum_id_vectors(raw: bytes, expected: str) -> None:
    assert hum_id(raw) == expected


def test_a_hum_id_has_32_bytes() -> None:
    with pytest.raises(ValueError, match="32 bytes, not 31"):
        hum_id(bytes(31))


def test_foreign_hum_id_vector() -> None:
    expected = "AH11AVTHREM1WDBZ87EV275DV0HC29JTGMS3RCAW374CE2HCR0RG"
    assert foreign_hum_id("oc-session-abc") == expected
