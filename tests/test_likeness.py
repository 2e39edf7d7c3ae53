"""The nearest of known words, and none where nothing is like it."""

from __future__ import annotations

import pytest

from hum_workers.egg.likeness import nearest

FLAGS = [
    "--enable-lora",
    "--enforce-eager",
    "--kv-cache-dtype",
    "--max-model-len",
    "--max-num-seqs",
]


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("--enforce-eagre", "--enforce-eager"),
        ("--max-modl-len", "--max-model-len"),
        ("--max-num-seq", "--max-num-seqs"),
        ("--max-len", "--max-model-len"),
        ("--enable-foo", ""),
        ("--kv-cache-size", ""),
        ("--zzz", ""),
        ("x" * 65, ""),
    ],
)
def test_common_words_alone_are_no_likeness(word: str, found: str) -> None:
    assert nearest(word, FLAGS) == found


def test_nothing_is_like_anything_among_no_choices() -> None:
    assert nearest("seed", []) == ""
