"""docs/llama.md, held to the code: the lines that it sends readers to are lines that are said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "llama.md").read_text()
SOURCE = "".join(
    re.sub(r'"\s*(?:f|rf)?"', "", path.read_text())
    for path in sorted((ROOT / "src" / "hum_workers" / "llama_rpc_worker").glob("*.py"))
)


def phrases() -> list[str]:
    """The fixed words of each line in the first column of the table."""
    table = PAGE.split("## When it fails")[1]
    lines = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
    parts = [part.strip() for line in lines for part in re.split(r"…|wbee_|\d+:\d+", line)]
    return sorted({part for part in parts if len(part) > 5})


def test_the_page_has_lines_to_look_for() -> None:
    assert len(phrases()) > 10


@pytest.mark.parametrize("phrase", phrases())
def test_what_the_page_quotes_is_said(phrase: str) -> None:
    assert phrase in SOURCE
