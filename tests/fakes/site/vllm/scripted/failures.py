"""How starts of the real one fail: where the good line is, and what stands around it."""

from __future__ import annotations

FAILURES: dict[str, tuple[str, str, str]] = {
    # name: (stage, line on stdout of the deepest process, last lines on stderr)
    "missing_repo": (
        "config",
        "",
        (
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or "
            "'namespace/repo_name': '/nonexist/a'. Use `repo_type` argument if needed."
        ),
    ),
    "bad_config": (
        "config",
        "",
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
            "  Value error, User-specified max_model_len (99999) is greater than the derived "
            "max_model_len (max_position_embeddings=8192). [type=value_error, "
            "input_value=ArgsKwargs((), {'model':...}), input_type=ArgsKwargs]\n"
            "    For further information visit https://errors.pydantic.dev/2.12/v/value_error"
        ),
    ),
    "truncated_weights": (
        "load",
        (
            "(Worker pid={pid}) ERROR {now} [multiproc_executor.py:1012] "
            "safetensors_rust.SafetensorError: Error while deserializing header: "
            "incomplete metadata, file not fully covered"
        ),
        (
            "RuntimeError: Engine core initialization failed. See root cause above. "
            "Failed core proc(s): {}"
        ),
    ),
    "kv_too_big": (
        "kv",
        (
            "(EngineCore pid={pid}) ERROR {now} [core.py:1188] ValueError: To serve at least one "
            "request with the models's max seq len (2048), (0.04 GiB KV cache is needed, which is "
            "larger than the available KV cache memory (0.01 GiB)."
        ),
        (
            "RuntimeError: Engine core initialization failed. See root cause above. "
            "Failed core proc(s): {}"
        ),
    ),
    "worker_killed": (
        "load",
        (
            "(EngineCore pid={pid}) ERROR {now} [multiproc_executor.py:271] Worker proc "
            "VllmWorker-0 died unexpectedly, shutting down executor."
        ),
        (
            "RuntimeError: Engine core initialization failed. See root cause above. "
            "Failed core proc(s): {}"
        ),
    ),
}

NOISE = (
    'nanobind: leaked 2 instances!\n - leaked instance 0x7f of type "xgrammar.xgrammar_bindings"\n'
    "nanobind: this is likely caused by a reference counting issue in the binding code.\n"
    "/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: "
    "There appear to be 1 leaked shared_memory objects to clean up at shutdown\n"
)
