"""VllmEgg: the tables of a vLLM egg, and what must hold between their values."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
)

from hum_workers.egg import wrappers
from hum_workers.egg.tables import Egg, Engine, Flaw
from hum_workers.egg.toml_positions import Path as KeyPath
from hum_workers.egg.types import Count, Size, Table, Text, Word, expand_path, later_value
from hum_workers.vllm_worker import flags

_PATH_LIKE = ("./", "../", "/", "~")
_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?(:[\w.-]+)?$")
_GPU_UUID = re.compile(r"^(GPU|MIG)-[0-9a-fA-F][0-9a-fA-F-]*$")


def _model_path(value: str, info: ValidationInfo) -> str:
    """Returns an absolute folder or file, or a hub id as it is."""
    path = expand_path(value, info)
    if os.path.exists(path):
        return str(path)
    if value.startswith(_PATH_LIKE) or value in (".", "..") or value.endswith(".gguf"):
        raise ValueError(f"{path} does not exist")
    if not _HUB_ID.fullmatch(value):
        raise ValueError(f"{path} does not exist, and it is no hub id like organisation/name")
    return value


def _chat_template(value: str, info: ValidationInfo) -> str:
    """Returns an absolute file, or a template written out as it is."""
    if "{" in value:
        return value
    path = expand_path(value, info)
    if not os.path.isfile(path):
        raise ValueError(f"{path} does not exist")
    return str(path)


def _gpus(value: object) -> list[str]:
    given = value if isinstance(value, list) else [value]
    if not given:
        raise ValueError("names no GPU; leave the key out to use what is there")
    gpus = [_gpu(one) for one in given]
    twice = next((gpu for gpu in gpus if gpus.count(gpu) > 1), None)
    if twice is not None:
        raise ValueError(f"names GPU {twice} twice")
    return gpus


def _gpu(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise ValueError(f"{value} is no index of a GPU; they count from 0")
        return str(value)
    if isinstance(value, str):
        if _GPU_UUID.fullmatch(value):
            return value
        if re.fullmatch("[0-9]+", value):
            raise ValueError(f'must be a number without quotes: {value}, not "{value}"')
    raise ValueError('must be an index, a UUID like "GPU-5f3c…" as nvidia-smi -L shows, or a list')


def _served_name(data: dict[str, Any]) -> str:
    path = str(data.get("path", ""))
    return path.rstrip("/").rpartition("/")[2].removesuffix(".gguf")


class Model(Table):
    """The model and how it is offered."""

    model_config = ConfigDict(json_schema_extra={"required": ["path"]})

    path: Annotated[Text, AfterValidator(_model_path)] = Field(
        default_factory=str, description="A folder, a .gguf file or a hub id. Required."
    )
    download: bool = Field(
        default=False,
        description="Whether a hub id is fetched before the start; else it must be cached.",
    )
    revision: Text | None = Field(default=None, description="Branch, tag or commit of a hub id.")
    served_name: Text = Field(
        default_factory=_served_name,
        description="The model's id. Default: the last part of path.",
    )
    dtype: Literal["auto", "half", "float16", "bfloat16", "float", "float32"] = Field(
        default="auto", description="Type of weights and activations."
    )
    quantization: Text | None = Field(default=None, description="Method of quantization.")
    max_model_len: Count | None = Field(
        default=None,
        description="Tokens of prompt and answer together. Default: what the model has.",
    )
    max_tokens: Count | None = Field(
        default=None,
        description="Tokens of an answer whose prompt does not say. Default: all that fit.",
    )
    trust_remote_code: bool = Field(
        default=False, description="Whether code of the model's folder is run."
    )
    chat_template: Annotated[Word, AfterValidator(_chat_template)] | None = Field(
        default=None, description="A file with a chat template, or the template itself."
    )
    tool_call_parser: Text | None = Field(default=None, description="How tool calls are read.")
    reasoning_parser: Text | None = Field(
        default=None, description="How reasoning is told from text."
    )


class Parallel(Table):
    """Over how many devices one cell spreads."""

    tensor: Count = Field(default=1, description="Devices that share each layer.")
    pipeline: Count = Field(default=1, description="Groups of layers, each on its own devices.")
    data: Count = Field(default=1, description="Replicas inside one engine.")
    backend: Annotated[Literal["mp"], later_value("ray", "uni", "external_launcher")] = Field(
        default="mp", description="How the engine's processes are started."
    )

    @property
    def world(self) -> int:
        """Devices of one cell."""
        return self.tensor * self.pipeline * self.data


class Batching(Table):
    """How the engine puts requests together. Defaults are the engine's."""

    max_num_seqs: Count | None = Field(default=None, description="Requests that run at once.")
    max_num_batched_tokens: Count | None = Field(default=None, description="Tokens of one step.")
    prefix_caching: bool | None = Field(
        default=None, description="Whether equal beginnings are kept."
    )
    chunked_prefill: bool | None = Field(
        default=None, description="Whether long prompts are cut up."
    )


class Kv(Table):
    """Memory for keys and values: one of `size` and `gpu_memory_utilization`."""

    size: Size | None = Field(default=None, description="Memory of the cache, on each device.")
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="Share of each device's memory that the engine may take in all."
    )
    cache_dtype: Text | None = Field(default=None, description="Type of the cache's entries.")


class Placement(Table):
    """Where the cell runs."""

    gpu: Annotated[
        list[str],
        BeforeValidator(_gpus),
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "integer", "minimum": 0},
                    {"type": "string", "pattern": _GPU_UUID.pattern},
                    {"type": "array", "minItems": 1, "items": {"type": ["integer", "string"]}},
                ]
            }
        ),
    ] = Field(
        default_factory=list,
        description="Index, UUID or a list. Default: what is there, else the CPU.",
    )


class VllmEgg(Egg):
    """An egg of vllm-worker."""

    model_config = ConfigDict(title="Egg of vllm-worker", json_schema_extra={"required": ["model"]})

    LATER: ClassVar[dict[str, frozenset[str]]] = Egg.LATER | {
        "placement": frozenset({"hosts", "replicas", "policy"})
    }
    SYNONYMS: ClassVar[dict[str, str]] = flags.SYNONYMS

    engine: Engine = Field(default_factory=Engine)
    model: Model = Field(default_factory=Model)
    parallel: Parallel = Field(default_factory=Parallel)
    batching: Batching = Field(default_factory=Batching)
    kv: Kv = Field(default_factory=Kv)
    placement: Placement = Field(default_factory=Placement)

    def advertised(self) -> list[tuple[str, KeyPath]]:
        """Returns the served name, then the further ids."""
        named = "served_name" in self.model.model_fields_set
        first: list[tuple[str, KeyPath]] = [
            (self.model.served_name, ("model", "served_name" if named else "path"))
        ]
        return [pair for pair in [*first, *super().advertised()] if pair[0]]

    def flaws(self) -> Iterator[Flaw]:
        """Yields what is wrong between values that are right alone."""
        yield from super().flaws()
        yield from self._model_flaws()
        yield from self._memory_flaws()
        yield from self._batching_flaws()
        yield from self._engine_flaws()

    def _model_flaws(self) -> Iterator[Flaw]:
        model = self.model
        if not model.path:
            yield Flaw(("model", "path"), "is missing; give a folder, a .gguf file or a hub id")
        elif not model.served_name:
            yield Flaw(("model", "served_name"), "is missing, and model.path has no last part")
        if (model.max_tokens or 0) > (model.max_model_len or float("inf")):
            yield Flaw(
                ("model", "max_tokens"),
                f"must be at most model.max_model_len, which is {model.max_model_len}",
                (("model", "max_model_len"),),
            )

    def _memory_flaws(self) -> Iterator[Flaw]:
        size, share = ("kv", "size"), ("kv", "gpu_memory_utilization")
        if self.kv.size is not None and self.kv.gpu_memory_utilization is not None:
            yield Flaw(share, "excludes kv.size; keep one of them", (size,))
        gpus, world = len(self.placement.gpu), self.parallel.world
        if gpus and gpus != world:
            yield Flaw(
                ("placement", "gpu"),
                f"names {gpus}, but parallel.tensor × pipeline × data needs {world}",
                tuple(("parallel", key) for key in ("tensor", "pipeline", "data")),
            )

    def _batching_flaws(self) -> Iterator[Flaw]:
        batching, tokens = self.batching, ("batching", "max_num_batched_tokens")
        limit, seqs = batching.max_num_batched_tokens, batching.max_num_seqs
        if limit is None:
            return
        if seqs is not None and limit < seqs:
            message = f"must be at least batching.max_num_seqs, which is {seqs}"
            yield Flaw(tokens, message, (("batching", "max_num_seqs"),))
        length = self.model.max_model_len
        if batching.chunked_prefill is False and length is not None and limit < length:
            yield Flaw(
                tokens,
                f"must be at least model.max_model_len, which is {length}, "
                "as chunked_prefill is off",
                (("model", "max_model_len"), ("batching", "chunked_prefill")),
            )

    def _engine_flaws(self) -> Iterator[Flaw]:
        for index, reason in flags.refused(self.engine.args):
            yield Flaw(("engine", "args", index), reason)
        if found := wrappers.leaver(self.engine.command):
            yield Flaw(("engine", "command", found[0]), found[1])
        for name in self.engine.env:
            if name in flags.ENV:
                yield Flaw(("engine", "env", name), flags.ENV[name], at_key=True)
