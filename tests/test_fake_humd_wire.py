"""Lines as humd (serde_json) reads them, beyond those of the transcript."""

from __future__ import annotations

import pytest

from hum_workers.fake_humd.wire import BadLine, Lines, NotUtf8, decode, encode, sigil


def nested(levels: int) -> bytes:
    """A tone in which `levels` containers stand inside each other, the tone among them."""
    return b'{"chi":"log","x":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


@pytest.mark.parametrize(
    ("number", "read"),
    [
        (b"18446744073709551615", 18446744073709551615),
        (b"18446744073709551616", 18446744073709551616.0),
        (b"-9223372036854775808", -9223372036854775808),
        (b"-9223372036854775809", -9223372036854775809.0),
    ],
)
def test_integers_beyond_64_bits_become_floats(number: bytes, read: float) -> None:
    tone = decode(b'{"chi":"log","x":[{"y":' + number + b"}]}")
    value = tone["x"][0]["y"]
    assert (type(value), value) == (type(read), read)


def test_digits_in_a_string_stay_a_string() -> None:
    assert decode(b'{"chi":"log","x":"123456789012345678901234567890"}')["x"].isdigit()


def test_nesting_ends_at_127() -> None:
    assert decode(nested(127))["chi"] == "log"
    with pytest.raises(BadLine, match="too deep"):
        decode(nested(128))
    with pytest.raises(BadLine, match="too deep"):
        decode(nested(100_000))


def test_brackets_in_strings_nest_nothing() -> None:
    text = "[" * 1000 + '\\"' + "{" * 1000
    assert decode(f'{{"chi":"log","x":"{text}"}}'.encode())["chi"] == "log"


def test_many_brackets_side_by_side_are_not_deep() -> None:
    assert len(decode(b'{"chi":"log","x":[' + b"[]," * 999 + b"[]]}")["x"]) == 1000


@pytest.mark.parametrize(
    "line",
    [
        b'{"chi":"log","x":"\\ud83d\\u0041"}',
        b'{"chi":"log","x":"\\ude00"}',
        b'{"chi":"log","x":1e999}',
        b'{"chi":"log","x":Infinity}',
        b'{"chi":"log"}{"chi":"log"}',
        b'{"chi":"log","x":"\t"}',
        b'{"sid":"no chi"}',
        b'{"chi":',
        b'"chi"',
        b"null",
    ],
)
def test_a_line_that_humd_drops_is_a_bad_line(line: bytes) -> None:
    with pytest.raises(BadLine):
        decode(line)


@pytest.mark.parametrize(
    "line", [b"\xff\xfe", b'{"chi":"log"} \xff', b'{"chi\xff":1}', b'{"chi":"\xed\xa0\x80"}']
)
def test_bytes_that_are_not_utf8_are_told_apart(line: bytes) -> None:
    with pytest.raises(NotUtf8):
        decode(line)


def test_keys_are_sorted_at_every_depth() -> None:
    assert encode({"b": {"d": 1, "c": [{"z": 1, "y": 2}]}, "a": 0}) == (
        b'{"a":0,"b":{"c":[{"y":2,"z":1}],"d":1}}\n'
    )


def test_sigils_are_those_of_the_transcript() -> None:
    assert sigil("s1") == "2ee3337e45f2"


def test_lines_survive_every_cut() -> None:
    data = b'{"chi":"a"}\n\n{"chi":"\xc3\xbc"}\r\nrest'
    for at in range(len(data) + 1):
        lines = Lines()
        whole = lines.feed(data[:at]) + lines.feed(data[at:])
        assert whole == [b'{"chi":"a"}', b"", b'{"chi":"\xc3\xbc"}\r']
        assert lines.waiting == 4
        assert list(lines.rest()) == [b"rest"]
        assert lines.waiting == 0
