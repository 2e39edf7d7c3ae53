"""The one useful line, held against what llama.cpp 11434 really printed when it did not start.

Each file of `failures/` is the trimmed output of one failed start; on top the class and the line.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hum_workers.llama_rpc_worker.failure import LONGEST, NOTHING, diagnosis

FAILURES = sorted((Path(__file__).parent / "failures").glob("*.txt"))


@pytest.mark.parametrize("file", FAILURES, ids=lambda file: file.stem)
def test_the_cause_and_its_class_are_found_in_real_output(file: Path) -> None:
    expected, _, *lines = file.read_text("utf-8").splitlines()
    found = diagnosis(lines)
    assert f"{found.death.value if found.death else '-'}: {found.line}" == expected
    assert len(found.line) <= LONGEST


def test_an_engine_that_says_nothing_gives_no_reason() -> None:
    assert diagnosis([]).line == NOTHING
    assert diagnosis(["", "   "]).vague


def test_a_lost_slice_is_told_with_its_endpoint() -> None:
    lines = ["/build/ggml-rpc.cpp:547: Failed to connect to 10.0.0.7:7301", ""]
    assert "10.0.0.7:7301" in diagnosis(lines).line


def test_memory_that_a_device_has_not_is_told_with_its_size() -> None:
    where = "0.00.645.371 E ggml_backend_buft_alloc_buffer_n_default"
    found = diagnosis([f"{where}: failed to allocate CUDA0 buffer of size 23044423680"])
    assert found.line == "no room for 21.5 GiB of weights on CUDA0"
    assert found.death is not None
    assert found.death.value == "gpu_memory"
