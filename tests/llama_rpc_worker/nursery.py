"""Eggs and installed llama.cpps for tests of the llama.cpp worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hum_workers.egg import load_eggs
from hum_workers.llama_rpc_worker.binaries import Binaries
from hum_workers.llama_rpc_worker.egg import LlamaEgg
from hum_workers.llama_rpc_worker.facts import Build


def coordinator(folder: Path, text: str = "") -> LlamaEgg:
    """Returns a coordinator's egg; `text` may open with keys of `[model]`."""
    (folder / "m.gguf").touch()
    file = folder / "small.toml"
    file.write_text(f'[cell]\nrole = "coordinator"\n[model]\npath = "m.gguf"\n{text}\n')
    return load_eggs([file], LlamaEgg)[0]


def lent(folder: Path, text: str = "") -> LlamaEgg:
    """Returns a slice's egg; `text` may open with keys of `[rpc]`."""
    file = folder / "slice.toml"
    file.write_text(f'[cell]\nrole = "slice"\n[rpc]\n{text}\n')
    return load_eggs([file], LlamaEgg)[0]


def binaries(**changes: Any) -> Binaries:
    """Returns an installed llama.cpp that is not there."""
    facts: dict[str, Any] = {
        "server": Path("/opt/llama/llama-server"),
        "slice": Path("/opt/llama/ggml-rpc-server"),
        "build": Build(commit="11434-1a2b3c4d", digest="0123456789abcdef", protocol=(0, 0, 0)),
        "version": "11434 (1a2b3c4d)",
        "devices": (),
        "rpc": True,
    }
    return Binaries(**(facts | changes))
