"""Where the real llama.cpp and its small model lie, if `python -m scripts.llama_cpp` was run."""

from __future__ import annotations

from pathlib import Path

_HOME = Path(__file__).resolve().parents[2] / ".cache" / "llama.cpp"
_BIN = _HOME / "current" / "bin"

ABSENT = "the real one is not there: python -m scripts.llama_cpp"
MODEL: Path | None = next(iter(sorted((_HOME / "model").glob("*.gguf"))), None)
RPC_SERVER: Path | None = path if (path := _BIN / "ggml-rpc-server").is_file() else None
LLAMA_SERVER: Path | None = path if (path := _BIN / "llama-server").is_file() else None
