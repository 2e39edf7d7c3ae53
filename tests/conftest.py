"""Fixtures that more than one test file uses."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's name below the kernel's 108 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="hum-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
