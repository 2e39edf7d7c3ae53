"""Which of llama.cpp's flags an egg has a key for, and which the worker sets itself (pure).

A flag of llama-server has several spellings; all of them stand here. Neither program takes the
beginning of a long flag for the whole, nor `--flag=value`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

_LISTENS = "the worker sets where the engine listens"
_ROUTE = "the worker derives it from the route"
_KEY = "the worker makes a key for each start"
_HELP = "the engine would print something and leave"
_ROUTER = "the worker needs one model, and a server of that"
_FETCH = "the engine fetches nothing; give the file as model.path"
_TEXT = "this worker takes text only"
_REACH = "what a prompt says must not reach files, programs or other hosts"
_LOG = "the worker reads the engine's output"

SERVER_KEYS = {
    **dict.fromkeys(("-m", "--model"), "model.path"),
    **dict.fromkeys(("-a", "--alias"), "model.served_name"),
    **dict.fromkeys(("-c", "--ctx-size"), "model.ctx"),
    **dict.fromkeys(("-np", "--parallel"), "model.parallel"),
    **dict.fromkeys(("-n", "--predict", "--n-predict"), "model.max_tokens"),
    **dict.fromkeys(("--chat-template", "--chat-template-file"), "model.chat_template"),
}
"""Flag of llama-server to the key of the egg that says the same."""

SERVER = {
    **dict.fromkeys(("--host", "--port", "--reuse-port", "--path", "--api-prefix"), _LISTENS),
    **dict.fromkeys(("--ssl-key-file", "--ssl-cert-file"), _LISTENS),
    **dict.fromkeys(("--cors-origins", "--cors-methods", "--cors-headers"), _LISTENS),
    **dict.fromkeys(("--cors-credentials", "--no-cors-credentials"), _LISTENS),
    **dict.fromkeys(("--api-key", "--api-key-file"), _KEY),
    **dict.fromkeys(("--rpc", "-dev", "--device", "-ts", "--tensor-split", "-sm"), _ROUTE),
    **dict.fromkeys(("--split-mode", "-ngl", "--gpu-layers", "--n-gpu-layers"), _ROUTE),
    **dict.fromkeys(("-mg", "--main-gpu", "-ot", "--override-tensor"), _ROUTE),
    **dict.fromkeys(("-cmoe", "--cpu-moe", "-ncmoe", "--n-cpu-moe", "-ncffn"), _ROUTE),
    **dict.fromkeys(("--n-cpu-ffn", "-fit", "--fit", "-fitt", "--fit-target"), _ROUTE),
    **dict.fromkeys(("-fitc", "--fit-ctx", "-nkvo", "--no-kv-offload"), _ROUTE),
    **dict.fromkeys(("-kvu", "--kv-unified", "-no-kvu", "--no-kv-unified"), _ROUTE),
    "--kv-unified-per-slot": _ROUTE,
    **dict.fromkeys(("-h", "--help", "--usage", "--version", "-cl", "--cache-list"), _HELP),
    **dict.fromkeys(("--completion-bash", "--list-devices"), _HELP),
    **dict.fromkeys(("--models-dir", "--models-preset", "--models-max"), _ROUTER),
    **dict.fromkeys(("--models-autoload", "--no-models-autoload"), _ROUTER),
    **dict.fromkeys(("--embedding", "--embeddings", "--rerank", "--reranking"), _ROUTER),
    "--sleep-idle-seconds": "an engine that sleeps lets go of its slices; use idle_timeout",
    **dict.fromkeys(("-mu", "--model-url", "-dr", "--docker-repo", "-hf", "-hfr"), _FETCH),
    **dict.fromkeys(("--hf-repo", "-hff", "--hf-file", "-hft", "--hf-token"), _FETCH),
    **dict.fromkeys(("--spec-draft-hf", "-hfd", "-hfrd", "--hf-repo-draft"), _FETCH),
    **dict.fromkeys(("-mm", "--mmproj", "-mmu", "--mmproj-url"), _TEXT),
    **dict.fromkeys(("--tools", "--tools-runtime", "-ag", "--agent"), _REACH),
    **dict.fromkeys(("--mcp-servers-config", "--mcp-servers-json"), _REACH),
    **dict.fromkeys(("--ui-mcp-proxy", "--webui-mcp-proxy", "--media-path"), _REACH),
    **dict.fromkeys(("--slot-save-path", "--props", "--ui", "--webui", "--slots"), _REACH),
    **dict.fromkeys(("--log-disable", "--log-file", "--log-jsonl", "-v"), _LOG),
    **dict.fromkeys(("--verbose", "--log-verbose", "-lv", "--verbosity"), _LOG),
    **dict.fromkeys(("--log-verbosity", "--log-prompts-dir", "--log-colors"), _LOG),
    "--no-metrics": _LOG,
    "--no-jinja": "tools need the template engine",
}
"""Flag of llama-server to why it can't be given."""

RPC_KEYS = {
    **dict.fromkeys(("-t", "--threads"), "rpc.threads"),
    **dict.fromkeys(("-d", "--device"), "rpc.devices"),
    **dict.fromkeys(("-c", "--cache"), "rpc.cache"),
}
RPC = {
    **dict.fromkeys(("-H", "--host", "-p", "--port"), _LISTENS),
    **dict.fromkeys(("-h", "--help"), _HELP),
}
"""The same of ggml-rpc-server, which has no others."""

ENV_PREFIXES = {
    "LLAMA_ARG_": "is a flag in disguise; use the egg's key or engine.args",
    "LLAMA_SERVER_ROUTER": "would make the engine another server's child",
}
ENV = {
    "LLAMA_API_KEY": "is set by the worker, which makes a key for each start",
    "LLAMA_CACHE": "is set by the worker",
    "HOME": "is set by the worker",
}
"""Variable of the engine to why it can't be set in `engine.env`."""

SYNONYMS = {flag.lstrip("-").replace("-", "_"): key for flag, key in SERVER_KEYS.items()} | {
    "max_model_len": "model.ctx",
    "context_length": "model.ctx",
    "n_ctx": "model.ctx",
    "max_num_seqs": "model.parallel",
    "slots": "model.parallel",
    "environment": "engine.env",
    "folder": "engine.bin",
    "device": "rpc.devices",
    "gpu": "rpc.devices",
    "port": "rpc.listen",
    "host": "rpc.listen",
    "bind": "rpc.listen",
    "allow": "rpc.coordinators",
    "slice": "slices",
}
"""What an operator may write for a key."""


def refused(args: Sequence[str], *, role: str) -> Iterator[tuple[int, str]]:
    """Yields index and reason for each argument that must not be in `engine.args`.

    The value of a flag is never part of a reason.
    """
    keys, ours = (RPC_KEYS, RPC) if role == "slice" else (SERVER_KEYS, SERVER)
    if args and not args[0].startswith("-"):
        yield 0, "is no flag"
    for index, arg in enumerate(args):
        flag = spelled(arg.partition("=")[0])
        if flag in keys:
            yield index, f"{flag} has a key of its own: use {keys[flag]}"
        elif flag in ours:
            yield index, f"{flag} can't be given: {ours[flag]}"
        elif role == "slice" and arg.startswith("-"):
            yield index, "is no flag of ggml-rpc-server, which has none but those of [rpc]"


def spelled(flag: str) -> str:
    """Returns a flag as llama-server reads it, which takes underscores in a long one for dashes."""
    return flag.replace("_", "-") if flag.startswith("--") else flag


def refused_env(env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields name and reason for each variable that must not be in `engine.env`."""
    for name in env:
        prefix = next((one for one in ENV_PREFIXES if name.startswith(one)), "")
        if why := ENV.get(name) or ENV_PREFIXES.get(prefix):
            yield name, why
