"""The hints of a humd's list of bees, whatever it holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hum_workers.llama_rpc_worker.bees_file import MOST_SLICES, slices


def bee(number: int, host: str = "127.0.0.1", **changes: Any) -> dict[str, Any]:
    bind = {"host": host, "port": 9, "scheme": "hum-slice"}
    return {"name": "llama-rpc-worker", "hid": f"wbee_{number:04}", "bind": bind, **changes}


def listed(folder: Path, data: bytes) -> list[tuple[str, int, str]]:
    path = folder / "bees.json"
    path.write_bytes(data)
    return slices(path)


def test_slices_are_listed_by_hid_and_other_bees_are_not(tmp_path: Path) -> None:
    bees = {"b": bee(2), "a": bee(1), "c": bee(3, name="vllm-worker"), "d": bee(4, bind=None)}
    assert listed(tmp_path, json.dumps(bees).encode()) == [
        ("127.0.0.1", 9, "wbee_0001"),
        ("127.0.0.1", 9, "wbee_0002"),
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"\0" * 1000,
        b"\xff\xfe",
        b"[" * 2_000_000,
        b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"a":{"name":"llama-rpc-worker","x":' + b"[" * 5000 + b"]" * 5000 + b"}}",
    ],
)
def test_what_is_no_list_of_bees_hints_at_nothing(tmp_path: Path, data: bytes) -> None:
    assert listed(tmp_path, data) == []


@pytest.mark.parametrize("host", ["", "\0x", "a b", "a" * 300, "127.0.0.1\n", "\x1b[31m"])
def test_one_bee_that_is_damaged_hides_no_other(tmp_path: Path, host: str) -> None:
    bees = {"bad": bee(1, host), "odd": {"bind": 7}, "good": bee(2)}
    assert listed(tmp_path, json.dumps(bees).encode()) == [("127.0.0.1", 9, "wbee_0002")]


def test_a_file_that_is_not_there_or_too_long_hints_at_nothing(tmp_path: Path) -> None:
    assert slices(tmp_path / "none") == []
    assert listed(tmp_path, b" " * (5 << 20)) == []


def test_few_of_many_are_knocked_at(tmp_path: Path) -> None:
    bees = {str(number): bee(number) for number in range(200)}
    assert len(listed(tmp_path, json.dumps(bees).encode())) == MOST_SLICES
