"""The one useful line, held against what vLLM 0.32 really printed when it did not start.

Each file of `failures/` is the trimmed output of one failed start, the expected line on top.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hum_workers.vllm_worker.failure import DIED, LONGEST, NOTHING, reason

FAILURES = sorted((Path(__file__).parent / "failures").glob("*.txt"))


@pytest.mark.parametrize("file", FAILURES, ids=lambda file: file.stem)
def test_the_cause_is_found_in_real_output(file: Path) -> None:
    expected, _, *lines = file.read_text("utf-8").splitlines()
    assert reason(lines) == expected
    assert len(expected) <= LONGEST


def test_an_engine_that_says_nothing_gives_no_reason() -> None:
    assert reason([]) == NOTHING
    assert reason(["", "nanobind: leaked 3 instances!", "   "]) == NOTHING


def test_without_an_error_the_last_words_count() -> None:
    assert reason(["bash: vllm: command not found", ""]) == "bash: vllm: command not found"


def test_the_deepest_process_is_believed_and_of_it_the_first_error() -> None:
    assert (
        reason(
            [
                "(APIServer pid=1) ValueError: outer",
                "(Worker_TP0 pid=3) ERROR 12-01 10:00:00 [x.py:1] ValueError: root cause",
                "(Worker_TP0 pid=3) ERROR 12-01 10:00:00 [x.py:1] ValueError: consequence",
                "(EngineCore pid=2) RuntimeError: in between",
            ]
        )
        == "root cause"
    )


def test_of_the_api_server_the_last_error_counts() -> None:
    assert reason(["KeyError: 'a'", "OSError: [Errno 98] Address already in use"]).startswith("[Er")


def test_a_bare_assertion_is_told_with_its_statement() -> None:
    """As when a pipeline cell on a CPU gets its first request in eager mode."""
    lines = [
        '  File "worker.py", line 3, in execute',
        "    assert intermediate_tensors is not None",
        "           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
        "AssertionError",
    ]
    prefixed = [f"(Worker_PP1 pid=7) ERROR 12-01 10:00:00 [x.py:1] {line}" for line in lines]
    assert reason(prefixed) == "AssertionError: assert intermediate_tensors is not None"


def test_generic_errors_alone_mean_a_silent_death() -> None:
    generic = "RuntimeError: Engine core initialization failed. See root cause above."
    assert reason([f"(APIServer pid=1) {generic}"]) == DIED


def test_a_field_that_is_wrong_is_named() -> None:
    lines = [
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for CacheConfig",
        "block_size",
        "  Input should be a valid integer [type=int_parsing, input_value='x', input_type=str]",
    ]
    assert reason(lines) == "block_size: Input should be a valid integer"
