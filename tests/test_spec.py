"""CellSpec: what a tender is told travels as plain data, and nothing else is taken for it."""

from __future__ import annotations

from typing import Any

import pytest

from hum_workers.errors import FrameError
from hum_workers.frames import Frame, FrameReader, pack
from hum_workers.spec import CellSpec


def least() -> dict[str, Any]:
    return {
        "cell_id": "echo-1",
        "hive": "vllm-worker",
        "argv": ["/bin/true"],
        "env": {"PATH": "/bin"},
        "cwd": "/",
        "private": "/run/x",
        "uds": "/run/x/engine.sock",
        "model": "echo",
    }


def test_a_spec_survives_its_frame() -> None:
    spec = CellSpec(
        **least(),
        files={"cell.yaml": "a: 'ä'\n"},
        canaries=[{"max_tokens": 1, "messages": [{"role": "user", "content": "ok"}]}],
        marks=[["Starting to load model", "loading weights"]],
        memory=1 << 40,
        log_file=None,
        start_timeout=0.5,
    )
    [[name, wire]] = FrameReader().feed(pack(Frame.RAISE, spec.to_wire()))
    assert name == "raise"
    assert CellSpec.from_wire(wire) == spec


def test_what_is_left_out_has_its_default() -> None:
    spec = CellSpec.from_wire(least())
    assert (spec.health_path, spec.confine, spec.memory, spec.canaries) == (
        "/health",
        "auto",
        None,
        [],
    )


def test_a_field_of_another_version_is_named() -> None:
    with pytest.raises(FrameError, match="unknown fields in the cell's spec: gpus, warmth"):
        CellSpec.from_wire(least() | {"warmth": 37, "gpus": []})


@pytest.mark.parametrize("field", sorted(least()))
def test_a_missing_field_is_named(field: str) -> None:
    wire = {key: value for key, value in least().items() if key != field}
    with pytest.raises(FrameError, match=f"incomplete cell spec: .*'{field}'"):
        CellSpec.from_wire(wire)


def test_names_that_are_no_text_are_refused() -> None:
    with pytest.raises(FrameError):
        CellSpec.from_wire({**least(), 7: "x"})  # type: ignore[dict-item]
