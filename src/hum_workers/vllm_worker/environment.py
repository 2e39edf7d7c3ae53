"""The environment of a vLLM: an allow-list of what we inherit, then ours, then the egg's (pure).

Not inherited: VLLM_* and CUDA_* of the shell, which would change a cell unseen, and proxies and
tokens unless the egg lets the engine download.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

ALLOWED = frozenset(
    """PATH HOME LANG LANGUAGE TZ USER LOGNAME SHELL LD_LIBRARY_PATH HF_HOME HF_HUB_CACHE
    HUGGINGFACE_HUB_CACHE TRANSFORMERS_CACHE SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE
    CURL_CA_BUNDLE CC CXX TRITON_CACHE_DIR TORCHINDUCTOR_CACHE_DIR""".split()
)
ALLOWED_PREFIXES = ("LC_", "XDG_", "OPENBLAS_", "OMP_", "GOMP_", "KMP_", "MKL_", "NVIDIA_")
FOR_DOWNLOADS = frozenset(
    """HF_TOKEN HF_TOKEN_PATH HUGGING_FACE_HUB_TOKEN HF_ENDPOINT HF_XET_CACHE
    HF_HUB_ENABLE_HF_TRANSFER HF_HUB_DOWNLOAD_TIMEOUT""".split()
)
PROXIES = frozenset(("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy"))

OURS = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONSAFEPATH": "1",  # a file beside the egg must not stand in for a package
    "VLLM_HOST_IP": "127.0.0.1",  # else the message queues bind the outbound interface
    "VLLM_LOGGING_COLOR": "0",
    "NO_COLOR": "1",
    "VLLM_DISABLE_LOG_LOGO": "1",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",  # vLLM checks only the first host against its list
}


def inherit(inherited: Mapping[str, str], *, download: bool = False) -> dict[str, str]:
    """Returns the part of our environment that an engine may see."""
    return {
        name: value
        for name, value in inherited.items()
        if name in ALLOWED
        or name.startswith(ALLOWED_PREFIXES)
        or (download and (name in FOR_DOWNLOADS or name.lower() in PROXIES))
    }


def base(
    inherited: Mapping[str, str], egg_env: Mapping[str, str], *, python: str, download: bool
) -> dict[str, str]:
    """Returns the environment of any run of the engine's interpreter, the egg's part last.

    The interpreter's own folder comes first on PATH: just-in-time compilers look for ninja there.
    """
    env = inherit(inherited, download=download) | OURS
    if not download:
        env["HF_HUB_OFFLINE"] = "1"
    path = env.get("PATH") or os.defpath
    folder = str(Path(python).parent) if os.sep in python else ""
    env["PATH"] = f"{folder}{os.pathsep}{path}" if folder else path
    return env | dict(egg_env)


def with_path(env: Mapping[str, str], folder: str) -> dict[str, str]:
    """Returns the environment with a folder in front of PYTHONPATH."""
    there = env.get("PYTHONPATH")
    return {**env, "PYTHONPATH": f"{folder}{os.pathsep}{there}" if there else folder}
