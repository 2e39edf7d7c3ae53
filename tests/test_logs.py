"""The log as a person sees it on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

SCRIPT = """
import structlog
from hum_workers.program import logs
logs.configure()
structlog.get_logger().info("worker.cell.stage", cell="a-1", stage="listening", detail="at last")
"""


def said(**env: str) -> str:
    """Returns what the script writes to a terminal."""
    master, slave = pty.openpty()
    plain = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TERM")}
    subprocess.run(
        [sys.executable, "-c", SCRIPT], env=plain | env, stderr=slave, check=True, timeout=30
    )
    os.close(slave)
    text = os.read(master, 65536).decode()
    os.close(master)
    return text


@pytest.mark.parametrize(
    ("env", "coloured"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
        ({"TERM": "xterm", "NO_COLOR": "0"}, False),
        ({"TERM": "dumb"}, False),
    ],
)
def test_a_terminal_gets_colours_unless_it_asks_for_none(
    env: dict[str, str], coloured: bool
) -> None:
    assert ("\x1b" in said(**env)) is coloured


def test_the_fields_of_a_line_stand_in_the_order_in_which_they_were_given() -> None:
    assert said(NO_COLOR="1").rstrip().endswith("cell=a-1 stage=listening detail='at last'")
