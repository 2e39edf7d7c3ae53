"""Which of vLLM's flags an egg has a key for, and which the worker sets itself. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

KEYS = {
    "--model": "model.path",
    "--revision": "model.revision",
    "--served-model-name": "model.served_name",
    "--dtype": "model.dtype",
    "--quantization": "model.quantization",
    "-q": "model.quantization",
    "--max-model-len": "model.max_model_len",
    "--trust-remote-code": "model.trust_remote_code",
    "--chat-template": "model.chat_template",
    "--tool-call-parser": "model.tool_call_parser",
    "--enable-auto-tool-choice": "model.tool_call_parser",
    "--reasoning-parser": "model.reasoning_parser",
    "--tensor-parallel-size": "parallel.tensor",
    "-tp": "parallel.tensor",
    "--pipeline-parallel-size": "parallel.pipeline",
    "-pp": "parallel.pipeline",
    "--data-parallel-size": "parallel.data",
    "-dp": "parallel.data",
    "--distributed-executor-backend": "parallel.backend",
    "--max-num-seqs": "batching.max_num_seqs",
    "--max-num-batched-tokens": "batching.max_num_batched_tokens",
    "--enable-prefix-caching": "batching.prefix_caching",
    "--enable-chunked-prefill": "batching.chunked_prefill",
    "--kv-cache-memory-bytes": "kv.size",
    "--gpu-memory-utilization": "kv.gpu_memory_utilization",
    "--device-memory-utilization": "kv.gpu_memory_utilization",
    "--kv-cache-dtype": "kv.cache_dtype",
    "--device-ids": "placement.gpu",
    "--allowed-media-domains": "media.domains",
}
"""Flag to the key of the egg that says the same."""

WORKER = {
    "--host": "the worker sets where the engine listens",
    "--port": "the worker sets where the engine listens",
    "--uds": "the worker sets where the engine listens",
    "--root-path": "the worker sets where the engine listens",
    "--api-key": "the worker makes a key for each start",
    "--config": "the worker writes the engine's configuration",
    "--headless": "the worker needs the engine's HTTP server",
    "--api-server-count": "the worker needs one HTTP server",
    "-asc": "the worker needs one HTTP server",
    "--grpc": "the worker needs the engine's HTTP server",
    "--ssl-keyfile": "the engine listens on a private socket",
    "--ssl-certfile": "the engine listens on a private socket",
    "--allowed-local-media-path": "a prompt never names a file of this machine",
    "--shutdown-timeout": "it is set from lifecycle.drain_timeout",
    "--nnodes": "a cell stands on one host",
    "-n": "a cell stands on one host",
    "--node-rank": "a cell stands on one host",
    "-r": "a cell stands on one host",
    "--help": "the engine would print its help and leave",
    "-h": "the engine would print its help and leave",
    "--version": "the engine would print its version and leave",
    "-v": "the engine would print its version and leave",
}
"""Flag to why it can't be given."""

ENV = {
    "CUDA_VISIBLE_DEVICES": "is set from placement.gpu; use that",
    "CUDA_DEVICE_ORDER": "is set by the worker, so that indices mean the same everywhere",
    "VLLM_CPU_KVCACHE_SPACE": "is set from kv.size; use that",
    "VLLM_API_KEY": "is set by the worker, which makes a key for each start",
}
"""Variable of the engine to why it can't be set in `engine.env`."""

SYNONYMS = {flag.lstrip("-").replace("-", "_"): key for flag, key in KEYS.items()} | {
    "gpus": "placement.gpu",
    "device": "placement.gpu",
    "devices": "placement.gpu",
    "context_length": "model.max_model_len",
    "kv_cache_size": "kv.size",
    "environment": "engine.env",
}
"""The same flags as an operator may write them for keys, and other tools' words."""


def refused(args: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yields index and reason for each argument that must not be in `engine.args`.

    Knows `--flag=value`, underscores for dashes, `--no-` forms and the short beginnings that
    argparse takes for the whole flag. The value of a flag is never part of a reason.
    """
    if args and not args[0].startswith("-"):
        yield 0, "is no flag; the model is given as model.path"
    for index, arg in enumerate(args):
        if not arg.startswith("-"):
            continue
        flag = arg.partition("=")[0]
        if flag.startswith("--"):
            flag = "--" + flag[2:].replace("_", "-")
        if key := _find(flag, KEYS):
            yield index, f"{flag} has a key of its own: use {key}"
        elif reason := _find(flag, WORKER):
            yield index, f"{flag} can't be given: {reason}"


def _find(flag: str, table: dict[str, str]) -> str | None:
    names = [flag, "--" + flag.removeprefix("--no-")]
    for name in names:
        if name in table:
            return table[name]
    if not flag.startswith("--") or len(flag) < 5:
        return None
    return next((table[full] for full in table if full.startswith(flag)), None)
