"""Fixtures that more than one test file uses."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.liveness import Liveness


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's name below the kernel's 108 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="hum-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def alive(short_dir: Path) -> Iterator[Liveness]:
    """A socket that the members of a scripted tree hold for as long as they live."""
    with Liveness(short_dir) as liveness:
        yield liveness
