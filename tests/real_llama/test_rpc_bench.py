"""The bench of slices comes out with figures; what the figures are is not asserted here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.rpc_layouts import BLOCKS
from bench.rpc_model import write
from hum_workers.llama_rpc_worker.gguf import read
from tests.real_llama.conftest import MODEL
from tests.rig import ROOT

pytestmark = [pytest.mark.llama, pytest.mark.xdist_group("llama"), pytest.mark.timeout(180)]


def test_rpc_measures_every_way_to_the_layers() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.rpc", "--short"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert [figure["unit"] for figure in told["figures"]] == [
        *["tokens/s"] * 3,
        *["B"] * 2,
        "tokens/s",
        *["s/GB"] * 2,
    ]
    assert all(value > 0 for figure in told["figures"] for value in figure["values"])


def test_the_model_for_loads_is_as_large_as_asked_and_takes_no_room(tmp_path: Path) -> None:
    file = tmp_path / "large.gguf"
    write(MODEL, file, 1_000_000_000)
    model = read(file)
    assert len(model.layers) == BLOCKS
    assert 0.95e9 < file.stat().st_size < 1.1e9
    assert file.stat().st_blocks * 512 < 16e6
