"""Results of tools in the forms that hum's foragers and askers send."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hum_workers.tools.result import NO_MESSAGE, Result, read_result
from tests.test_sampling import JSON


@pytest.mark.parametrize(
    ("tone", "result"),
    [
        ({"result": "rainy, 4C"}, Result("rainy, 4C")),
        ({"result": {"content": "rain"}}, Result("rain")),
        ({"result": {"content": [1, "a"]}}, Result('[1,"a"]')),
        ({"result": {"content": "rain", "more": 1}}, Result('{"content":"rain","more":1}')),
        ({"output": "o", "result": "r"}, Result("o")),
        ({"output": "", "result": "r"}, Result("")),
        ({"output": None, "result": "r"}, Result("r")),
        ({"output": 4.5}, Result("4.5")),
        ({"output": False}, Result("false")),
        ({}, Result("")),
        ({"output": "no such file", "isError": True}, Result("no such file", True)),
        ({"isError": True}, Result(NO_MESSAGE, True)),
        ({"output": "o", "isError": "yes"}, Result("o")),
        ({"chi": "error", "message": "gone"}, Result("error: gone", True)),
        ({"chi": "error", "message": {"a": 1}}, Result(f"error: {NO_MESSAGE}", True)),
        ({"chi": "error", "error": "old form"}, Result("error: old form", True)),
    ],
)
def test_a_result_is_read(tone: dict[str, Any], result: Result) -> None:
    assert read_result({"chi": "tool-result", **tone}) == result


FIELDS = st.sampled_from(["chi", "output", "result", "isError", "message", "error"])


@given(st.dictionaries(FIELDS, JSON))
def test_any_result_is_text(tone: dict[str, Any]) -> None:
    assert isinstance(read_result(tone).text, str)
