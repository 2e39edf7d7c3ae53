"""What `--check` says of a model before anything is started: its folder, read without torch."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hum_workers.errors import one_line
from hum_workers.program.findings import Finding, Level, amount
from hum_workers.program.plain_files import read_plain
from hum_workers.vllm_worker import safetensors

if TYPE_CHECKING:
    from hum_workers.vllm_worker.egg import VllmEgg

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json", "tiktoken.model")
OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.gguf")
LENGTHS = (
    "max_position_embeddings n_positions max_seq_len seq_length max_target_positions "
    "max_sequence_length max_seq_length seq_len"
).split()
"""Keys that bound the context; vLLM takes the least of them."""
STRETCHED = frozenset("su longrope llama3 yarn deepseek_yarn deepseek_llama_scaling".split())
"""Kinds of rope scaling whose models name the stretched length already."""
DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2, "half": 2, "float": 4}


CONFIG_LIMIT = 16 * 1024 * 1024
"""Bytes of a JSON file or template at most; those of real models have some thousand."""
MOST_TEMPLATES = 64
MOST_RANKS = 1024
MOST_COUNT = 1 << 40
MOST_ROPE = 1e6
SHOWN = 16
"""Names or numbers in one sentence."""


@dataclass(frozen=True)
class Model:
    """A model's folder."""

    folder: Path
    config: dict[str, Any] = field(default_factory=dict)
    """Of the text model, where a model has several parts."""
    architectures: tuple[str, ...] = ()
    weights: int = 0
    """Bytes of the weight files; 0 when unknown."""
    unread: str = ""
    """Why there is no config."""


def find_folder(egg: VllmEgg, env: Mapping[str, str]) -> Path | None:
    """Returns the folder of a model on this disk; None for a hub id that is not in the cache."""
    path = Path(egg.model.path)
    if os.path.exists(path):
        return path
    home = env.get("HF_HOME") or os.path.join(
        env.get("XDG_CACHE_HOME") or os.path.join(env.get("HOME") or "~", ".cache"), "huggingface"
    )
    hub = Path(env.get("HF_HUB_CACHE") or os.path.join(home, "hub")).expanduser()
    entry = hub / f"models--{egg.model.path.replace('/', '--')}"
    revision = egg.model.revision or "main"
    reference = entry / "refs" / revision
    try:
        commit = read_plain(reference, 4096).decode().strip()
    except (OSError, ValueError):
        commit = revision
    snapshot = entry / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None


def read_model(folder: Path) -> Model:
    """Returns what the folder's `config.json` says; an empty one when there is none to read."""
    try:
        text = read_plain(folder / "config.json", CONFIG_LIMIT)
        config = msgspec.json.decode(text, type=dict[str, Any])
    except OSError as error:
        return Model(folder, unread=error.strerror or "")
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return Model(folder, unread="is no JSON object")
    named = config.get("architectures")
    part = config.get("text_config")
    return Model(
        folder,
        part if isinstance(part, dict) else config,
        tuple(one_line(str(name)) for name in named[:SHOWN]) if isinstance(named, list) else (),
        safetensors.look(folder).size,
    )


def check_model(egg: VllmEgg, env: Mapping[str, str], subject: str) -> Iterator[Finding]:
    """Yields findings on the model's folder and on what the egg asks of the model."""
    folder = find_folder(egg, env)
    if folder is None:
        if egg.model.download:
            text = f"{egg.model.path} is not in the cache; it will be fetched at the start"
            yield Finding("warning", subject, text)
        else:
            text = f"{egg.model.path} is not in the cache; set [model] download = true"
            yield Finding("error", subject, text)
        return
    if folder.is_file():
        yield Finding("ok", subject, f"{folder}: a single file, not looked into")
        return
    model = read_model(folder)
    if not model.config:
        why = f": {model.unread}" if model.unread else ""
        yield Finding("error", subject, f"{folder}: no config.json that can be read{why}")
        return
    wrong = [
        Finding(level, subject, text)
        for level, text in (
            *_weights(folder, dummy="dummy" in " ".join(egg.engine.args)),
            *_strange(folder),
            *_files(folder, template=egg.model.chat_template is not None),
            *_shape(model, egg.parallel.tensor, egg.parallel.pipeline),
            *_length(model, egg),
            *_tools(folder, egg),
        )
    ]
    yield from wrong
    if all(finding.level != "error" for finding in wrong):
        names = ", ".join(model.architectures)
        size = f", {amount(model.weights)} of weights" if model.weights else ""
        yield Finding("ok", subject, f"{folder}: {names}{size}")


def _weights(folder: Path, *, dummy: bool) -> Iterator[tuple[Level, str]]:
    found = safetensors.look(folder)
    for problem in found.problems:
        yield "error", problem
    if found.files or dummy:
        return
    if any(any(folder.glob(pattern)) for pattern in OTHER_WEIGHTS):
        yield "warning", f"{folder}: weights are in no safetensors file and are not looked into"
    else:
        yield "error", f"{folder}: no weights in it"


def _strange(folder: Path) -> Iterator[tuple[Level, str]]:
    """Looks for what an engine that opens it would wait for, or read without end."""
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                mode = entry.stat().st_mode
            except OSError:
                continue
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                yield "error", f"{folder}/{one_line(entry.name)} is no regular file"
                return


def _files(folder: Path, *, template: bool) -> Iterator[tuple[Level, str]]:
    if not any((folder / name).exists() for name in TOKENIZERS):
        yield "error", f"{folder}: no tokenizer; one of {', '.join(TOKENIZERS[:2])} is needed"
    elif not template and not _has_template(folder):
        text = "no chat template, and the engine refuses chats without; set [model] chat_template"
        yield "error", f"{folder}: {text}"


def _has_template(folder: Path) -> bool:
    names = ("chat_template.jinja", "chat_template.json", "tekken.json")
    if any((folder / name).exists() for name in names) or (folder / "chat_templates").is_dir():
        return True
    return bool(_own_template(folder))


def _own_template(folder: Path) -> Any:
    """Returns the chat template that the tokenizer's own settings hold, whatever its form."""
    try:
        config = msgspec.json.decode(read_plain(folder / "tokenizer_config.json", CONFIG_LIMIT))
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return config.get("chat_template") if isinstance(config, dict) else None


def _tools(folder: Path, egg: VllmEgg) -> Iterator[tuple[Level, str]]:
    """Looks whether the model would hear of tools that are offered to it."""
    if egg.model.tool_call_parser is None:
        return
    own = egg.model.chat_template
    texts = _templates(folder) if own is None else [own if "{" in own else _read(Path(own))]
    if any(texts) and not any("tools" in text for text in texts):
        place = folder if own is None else "[model] chat_template"
        text = "the chat template has no tools in it, so the model never hears of any"
        yield "warning", f"{place}: {text}; unset [model] tool_call_parser or give another template"


def _templates(folder: Path) -> list[str]:
    """Returns the texts of a model's chat templates, wherever it keeps them."""
    files = [folder / "chat_template.jinja", folder / "chat_template.json"]
    files += sorted((folder / "chat_templates").glob("*.jinja"))[:MOST_TEMPLATES]
    texts = [_read(file) for file in files]
    if (folder / "tekken.json").exists():  # Mistral's own tokenizer knows tools without a template
        texts.append("tools")
    return [*texts, str(_own_template(folder) or "")]


def _read(file: Path) -> str:
    try:
        return read_plain(file, CONFIG_LIMIT).decode("utf-8", "replace")
    except OSError:
        return ""


def _shape(model: Model, tensor: int, pipeline: int) -> Iterator[tuple[Level, str]]:
    if not model.architectures:
        yield "error", f"{model.folder}/config.json: names no architectures"
    heads, layers = count(model, "num_attention_heads"), count(model, "num_hidden_layers")
    if heads and heads % tensor:
        fits = [n for n in range(1, min(heads, MOST_RANKS) + 1) if heads % n == 0][:SHOWN]
        text = f"[parallel] tensor is {tensor}, and {heads} attention heads can't be split so"
        yield "error", f"{text}; {', '.join(map(str, fits))} would do"
    if layers and layers < pipeline:
        yield "error", f"[parallel] pipeline is {pipeline}, and the model has {layers} layers"
    dtype = model.config.get("dtype", model.config.get("torch_dtype"))
    if dtype is not None and not (isinstance(dtype, str) and dtype in DTYPES):
        shown = repr(dtype)[:60]
        yield "warning", f"{model.folder}/config.json: dtype {shown} is not known here"
    if (factor := _rope_factor(model)) > MOST_ROPE:
        yield "warning", f"{model.folder}/config.json: a rope factor of {factor:g} is no real one"


def _length(model: Model, egg: VllmEgg) -> Iterator[tuple[Level, str]]:
    limit, asked = length_limit(model), egg.model.max_model_len
    if asked is None or limit is None or asked <= limit:
        return
    if egg.engine.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") == "1":
        yield "warning", f"[model] max_model_len is {asked}, beyond the model's own {limit}"
        return
    yield "error", f"[model] max_model_len is {asked}; the model's own limit is {limit}"


def length_limit(model: Model) -> int | None:
    """Returns the longest context that vLLM allows; None when the config names none."""
    own = count(model, "model_max_length")
    lengths = [own] if own else [length for name in LENGTHS if (length := count(model, name))]
    if not lengths:
        return None
    factor, kind = _rope_factor(model), _rope(model).get("rope_type", _rope(model).get("type"))
    stretches = kind not in STRETCHED and 1 < factor <= MOST_ROPE
    return int(min(lengths) * factor) if stretches else min(lengths)


def default_length(model: Model) -> int | None:
    """Returns the context that vLLM takes when it is told none."""
    if _rope(model).get("rope_type", _rope(model).get("type")) == "longrope":
        if original := count(model, "original_max_position_embeddings"):
            return original
    return length_limit(model)


def _rope(model: Model) -> dict[str, Any]:
    scaling = model.config.get("rope_scaling") or model.config.get("rope_parameters")
    return scaling if isinstance(scaling, dict) else {}


def _rope_factor(model: Model) -> float:
    factor = _rope(model).get("factor")
    return factor if isinstance(factor, int | float) else 1.0


def count(model: Model, key: str) -> int:
    """Returns a number of the config; 0 when it is none."""
    value = model.config.get(key)
    return value if isinstance(value, int) and 0 < value <= MOST_COUNT else 0
