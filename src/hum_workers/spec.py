"""CellSpec: all that a tender must know to raise one engine, and nothing about eggs or tones.

A worker's `command.py` builds it from an egg; the bee sends it to the tender as the first frame.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Self

from hum_workers.errors import FrameError


@dataclass(frozen=True, kw_only=True)
class CellSpec:
    """One engine to be raised. Paths are absolute, times in seconds, sizes in bytes."""

    cell_id: str
    hive: str
    argv: list[str]
    env: dict[str, str]
    """The complete environment of the engine; nothing else is inherited."""
    cwd: str
    private: str
    """Folder of mode 0700, wiped before each start; holds `files`, the socket, temporary files."""
    files: dict[str, str] = field(default_factory=dict)
    """Written with mode 0600 into `private` before the start: relative name to text."""
    uds: str
    """Where the engine listens: a Unix socket, or `host:port` where the protocol is "rpc"."""
    protocol: Literal["openai", "rpc"] = "openai"
    """How the engine is spoken to: as an OpenAI server, or not at all but for a greeting."""
    headers: dict[str, str] = field(default_factory=dict)
    """Sent with each request (the API key); never logged."""
    model: str
    """The name the engine must list in its models, else the start has failed."""

    health_path: str = "/health"
    models_path: str = "/v1/models"
    chat_path: str = "/v1/chat/completions"
    metrics_path: str = "/metrics"
    running_gauge: str = ""
    waiting_gauge: str = ""
    progress_counters: list[str] = field(default_factory=list)
    """Counters of the engine's metrics of which one moves while it works, prefill included."""
    request_fields: dict[str, Any] = field(default_factory=dict)
    """Fields that each chat request gets besides those of the prompt."""
    renamed_fields: dict[str, str] = field(default_factory=dict)
    """Fields of a chat request that the engine calls otherwise: ours to its own. Without a name of
    its own it has nothing like it, and the field is left out."""
    most_schema: int = 0
    """Alternatives that one JSON schema of a request may have; 0 is without limit."""
    needed: list[str] = field(default_factory=list)
    """Words in the titles of processes below the engine's main one without which it can't work."""
    canaries: list[dict[str, Any]] = field(default_factory=list)
    """Chat requests to make, in turn, before the cell counts as ready. The first must succeed; the
    others only pay for what would else stall the first asker."""
    media_probes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By kind of media, the chat request that shows whether the model takes it."""
    text_only: str = ""
    """Words of a refusal that say so for every kind: no further probe is made."""

    reworded: list[list[str]] = field(default_factory=list)
    """`[text, ours]`: what the engine's errors call otherwise than an egg does, as a flag of its
    own. The part of a message that is the text becomes ours."""
    advice: dict[str, str] = field(default_factory=dict)
    """By the class of a death, the next step of an operator in the egg's own keys, where the common
    one names none."""

    marks: list[list[str]] = field(default_factory=list)
    """`[text, stage]`: a line of output that holds the text means that the start got there."""

    notices: list[list[str]] = field(default_factory=list)
    """`[text, notice]`: a line of output that holds the text is told to the bee, always; an empty
    notice stands for the line itself."""

    devices: list[str] = field(default_factory=list)
    """UUIDs of the GPUs that the engine has; their memory must be back when it is dead."""
    log_file: str | None = None
    log_limit: int = 16 * 1024 * 1024
    confine: str = "auto"
    cgroup: str = "auto"
    memory: int | None = None
    open_files: int | None = None
    cpus: str | None = None

    start_timeout: float = 300.0
    """Without a sign of progress; each line of output and each stage moves the deadline."""
    stop_grace: float = 15.0
    stall_timeout: float = 120.0
    """Without a token or a step of the engine while turns are in flight; 0 is without limit."""
    sample_interval: float = 1.0
    cancel_confirm: float = 10.0
    """Within which the engine has let go of a cancelled turn, by its own gauges."""
    cancel_steps: int = 0
    """Steps of the engine, by the first of its progress counters, that it may take besides: a step
    of a large model on a slow machine can take longer than any time."""
    cancel_recycles: bool = False
    """Whether an engine that does not let go is ended. Where turns have slots, one would be lost,
    and what waits for it inside the engine can't be cancelled."""

    def to_wire(self) -> dict[str, Any]:
        """Returns the spec as plain data for the `raise` frame."""
        return asdict(self)

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """Reads what `to_wire` wrote.

        Raises:
            FrameError: a field is missing, or unknown to this version.
        """
        unknown = sorted(map(str, set(data) - {f.name for f in fields(cls)}))
        if unknown:
            raise FrameError(f"unknown fields in the cell's spec: {', '.join(unknown)}")
        try:
            return cls(**data)
        except TypeError as error:
            raise FrameError(f"incomplete cell spec: {error}") from error
