"""What llama.cpp shows of itself: its progress, its figures, its refusals (pure: words only)."""

from __future__ import annotations

from typing import Any

from hum_workers.figures.counts import Death

MARKS = [
    ["initializing ...", "arguments"],
    ["using device RPC", "slices"],
    ["loading model '", "reading the model"],
    ["loading model tensors", "loading weights"],
    ["constructing llama_context", "context"],
    ["KV buffer size", "KV cache"],
    ["warming up", "warm-up"],
    ["model loaded", "model loaded"],
    ["listening on", "serving"],
]
"""Words of a line of output, and the stage of the start that they stand for."""
RUNNING, WAITING = "llamacpp:requests_processing", "llamacpp:requests_deferred"
"""Gauges; a request that is deferred waits for a slot."""
PROGRESS = [
    "llamacpp:n_decode_total",
    "llamacpp:prompt_tokens_total",
    "llamacpp:tokens_predicted_total",
]
"""Counters. The first moves with every batch, those of a prompt included."""

REQUEST: dict[str, Any] = {"timings_per_token": True, "return_progress": True}
"""Fields of each request. The first lets a broken answer still be counted. Without the second a
prompt that is being read sends nothing, and llama-server then never looks whether its client is
gone as long as anything else is answered, be it a stream or a look at the figures."""
MOST_SCHEMA = 400
"""Alternatives in one schema. Each is weighed at every token, between the steps of all turns: 300
constants take 0.5 to 0.7 s of a core for six tokens, 1,000 take 2.4 s, 3,000 take 14 s. Required
properties cost nothing, repetitions are bounded by llama-server itself."""
RENAMED = {
    "repetition_penalty": "repeat_penalty",
    "thinking_token_budget": "reasoning_budget_tokens",
    "min_tokens": "",
    "stop_token_ids": "",
    "bad_words": "",
    "include_reasoning": "",
}
"""Fields as vLLM calls them, and as llama-server does; it has nothing for those without a name."""

PROOF = ["using device", "model buffer size", "KV buffer size", "compute buffer size", "offloaded"]
"""Words of the lines in which llama-server reports where everything lies."""
ACCEPTED, CLOSED = "accepted", "closed"
SLICE_NOTICES = [["Accepted client connection", ACCEPTED], ["Client connection closed", CLOSED]]
"""Lines of rpc-server that are flushed at once, and what they are called here."""

REWORDED = [["try increasing it", "which [model] ctx of the egg sets"]]
"""What of an error the asker or the operator would look for in vain."""
_LOWER = "lower [model] ctx or parallel"
ADVICE: dict[str, str] = {
    Death.MODEL: "correct [model], or fetch the .gguf file again",
    Death.ROOM: f"{_LOWER}, or spread the model over more [[slices]]",
    Death.MEMORY: f"raise [limits] memory, or {_LOWER}",
    Death.GPU_MEMORY: f"{_LOWER}, or free the device of others",
}
"""What to do after a death of llama-server, in the keys of its egg."""
SLICE_ADVICE: dict[str, str] = {
    Death.ROOM: "lower [rpc] memory",
    Death.MEMORY: "raise [limits] memory, or lower [rpc] memory",
    Death.GPU_MEMORY: "lower [rpc] memory, or free the device of others",
}
"""The same of rpc-server."""
