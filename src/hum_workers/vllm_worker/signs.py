"""What vLLM shows of itself: its progress, its processes, its refusals (pure: words only)."""

from __future__ import annotations

from hum_workers.figures.counts import Death

MARKS = [
    ["non-default args", "arguments"],
    ["Resolved architecture", "architecture"],
    ["Initializing a V1 LLM engine", "engine"],
    ["Starting to load model", "loading weights"],
    ["Loading weights took", "weights loaded"],
    ["KV cache size:", "KV cache"],
    ["init engine", "engine ready"],
    ["Starting vLLM server on", "server"],
    ["Application startup complete", "serving"],
]
"""Words of a line of output, and the stage of the start that they stand for."""
NEEDED = ["VLLM::EngineCor", "VLLM::Worker", "VLLM::DPCoord"]
"""Titles of the processes without which the API server is useless; the kernel cuts names."""
PROGRESS = [
    "vllm:iteration_tokens_total_count",
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
]
"""Counters of which one moves with each step, be it of a prompt or of an answer."""
TEXT_ONLY = "is not a multimodal model"
"""Words of a refusal of any media, whatever its kind."""
ADVICE: dict[str, str] = {
    Death.ROOM: "give the cache more room by [kv] size, or lower [model] max_model_len or "
    "[batching] max_num_seqs",
    Death.MEMORY: "raise [limits] memory or lower [kv] size",
    Death.GPU_MEMORY: "lower [kv] gpu_memory_utilization, or free the device of others",
}
"""What to do after a death, in the keys of this worker's eggs."""
