"""The tables of a llama.cpp egg. What must hold between their values stands in `egg_flaws`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from hum_workers.egg.tables import Egg, Launch
from hum_workers.egg.types import Count, Duration, Grace, Size, Table, Text, seconds
from hum_workers.llama_rpc_worker import flags
from hum_workers.llama_rpc_worker.values import (
    SPLIT,
    Device,
    Door,
    Endpoint,
    Fingerprint,
    Folder,
    Gguf,
    Hid,
    LayerRange,
    Template,
)


def _served_name(data: dict[str, Any]) -> str:
    path = data.get("path")
    return SPLIT.sub("", path.stem) if isinstance(path, Path) else ""


class CellTable(Table):
    """What kind of cell the egg raises."""

    model_config = ConfigDict(json_schema_extra={"required": ["role"]})

    role: Literal["coordinator", "slice"] = Field(
        default="coordinator",
        description="A server of a whole model, or memory for others' models. Required.",
    )


class LlamaEngine(Launch):
    """How llama.cpp's programs are found and started."""

    bin: Folder | None = Field(
        default=None,
        description="Folder of llama.cpp's programs. Default: what make llama built, then PATH.",
    )


class LlamaModel(Table):
    """The model and how it is offered. A slice has only the fingerprint."""

    path: Gguf | None = Field(
        default=None,
        description="A .gguf file, the first one of a split model. Required for a coordinator.",
    )
    served_name: Text = Field(
        default_factory=_served_name,
        description="The model's id. Default: the file's name without .gguf.",
    )
    ctx: Count = Field(default=4096, description="Tokens of prompt and answer of one turn.")
    parallel: Count = Field(default=1, description="Turns that the engine works on at once.")
    hidden_width: Count | None = Field(
        default=None, description="The model's hidden width; if given, another one is refused."
    )
    fingerprint: Fingerprint | None = Field(
        default=None,
        description="The model's fingerprint; if given, another one is refused. A slice with one "
        "serves no other model.",
    )
    max_tokens: Count | None = Field(
        default=None,
        description="Tokens of an answer whose prompt does not say. Default: all that fit.",
    )
    chat_template: Template | None = Field(
        default=None, description="A file with a chat template, or the template itself."
    )


class Rpc(Table):
    """What a slice lends, where, and to whom."""

    listen: Door = Field(
        default=("127.0.0.1", 0),
        description="Where the slice's door listens; port 0 is any that is free.",
    )
    memory: Size | None = Field(
        default=None, description="Memory that models may take. Default: what is free."
    )
    cache: bool = Field(
        default=False, description="Whether big tensors are kept in files for the next load."
    )
    devices: list[Device] = Field(
        default=[], description="Devices that are lent. Default: all GPUs, else the CPU."
    )
    threads: Count | None = Field(
        default=None, description="Threads of the CPU device. Default: the CPUs of the cell."
    )
    layers: LayerRange | None = Field(
        default=None, description="The only blocks that this slice may hold. Default: any."
    )
    coordinators: list[Hid] = Field(
        default=[],
        description="Bees that may lease it. Default: those of this user on this machine.",
    )
    private_network: bool = Field(
        default=False, description="Whether tensors may pass the door unencrypted."
    )


class SliceEntry(Table):
    """A slice that a coordinator may use: named, or found under the same humd."""

    endpoint: Endpoint | None = Field(default=None, description="Where its door is.")
    hid: Hid | None = Field(default=None, description="Whose it must be.")
    layers: LayerRange | None = Field(
        default=None, description="Blocks that it is to hold, with split.policy declared."
    )
    discover: bool = Field(
        default=False, description="Whether all slices under the same humd are used."
    )


class Split(Table):
    """How a coordinator spreads its model."""

    policy: Literal["by-memory", "declared"] = Field(
        default="by-memory", description="Who says which blocks a slice holds."
    )
    local: LayerRange | None = Field(
        default=None, description="Blocks that stay with the coordinator."
    )
    head: Literal["last", "local"] | None = Field(
        default=None, description="Where the output layer is. Default: what is faster."
    )
    hold_back: Grace = seconds(
        "30s", "Time that the slices of a route have to come back before it is planned anew."
    )
    canary: Duration = seconds(
        "60s", "Time without a prompt after which the route is tried with one token."
    )


class LlamaTables(Egg):
    """An egg of llama-rpc-worker, its values not yet held against each other."""

    model_config = ConfigDict(
        title="Egg of llama-rpc-worker", json_schema_extra={"required": ["cell"]}
    )

    SYNONYMS: ClassVar[dict[str, str]] = flags.SYNONYMS
    REFUSED: ClassVar[dict[str, str]] = {
        "media": "is not for llama-rpc-worker, which takes text only; remove it",
        "batching": "is a table of vllm-worker; turns at once are model.parallel",
        "kv": "is a table of vllm-worker; the context of a turn is model.ctx",
        "parallel": "is a table of vllm-worker; a model is spread by [[slices]] and [split]",
        "placement": "is a table of vllm-worker; a slice's devices are rpc.devices",
        "engine.python": "is a key of vllm-worker; llama.cpp's programs are in engine.bin",
        "model.max_model_len": "is a key of vllm-worker; the context of a turn is model.ctx",
        "model.tool_call_parser": "is a key of vllm-worker; the model's chat template says it here",
        "model.reasoning_parser": "is a key of vllm-worker; the model's chat template says it here",
    }

    cell: CellTable = Field(default_factory=CellTable)
    engine: LlamaEngine = Field(default_factory=LlamaEngine)
    model: LlamaModel = Field(default_factory=LlamaModel)
    rpc: Rpc = Field(default_factory=Rpc)
    slices: list[SliceEntry] = Field(
        default=[], description="Slices that a coordinator may use; none: it holds all itself."
    )
    split: Split = Field(default_factory=Split)
