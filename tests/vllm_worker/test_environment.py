"""What an engine inherits, and what wins."""

from __future__ import annotations

import pytest

from hum_workers.vllm_worker.environment import base, with_path

SHELL = {
    "PATH": "/usr/bin", "HOME": "/home/u", "LC_ALL": "C", "XDG_CACHE_HOME": "/c", "OMP_X": "1",
    "NVIDIA_VISIBLE_DEVICES": "all", "HF_HOME": "/hf", "VLLM_USE_V1": "0", "CUDA_HOME": "/cuda",
    "CUDA_VISIBLE_DEVICES": "3", "https_proxy": "http://p", "HTTP_PROXY": "http://p",
    "HF_TOKEN": "t", "AWS_SECRET_ACCESS_KEY": "s", "PYTHONPATH": "/elsewhere", "LD_PRELOAD": "x.so",
}  # fmt: skip


def env(egg: dict[str, str] | None = None, *, download: bool = False) -> dict[str, str]:
    return base(SHELL, egg or {}, python="/venv/bin/python", download=download)


@pytest.mark.parametrize("name", ["HOME", "LC_ALL", "XDG_CACHE_HOME", "OMP_X", "HF_HOME"])
def test_an_allow_list_is_inherited(name: str) -> None:
    assert env()[name] == SHELL[name]


@pytest.mark.parametrize(
    "name",
    ["VLLM_USE_V1", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "https_proxy", "HTTP_PROXY", "HF_TOKEN",
     "AWS_SECRET_ACCESS_KEY", "PYTHONPATH", "LD_PRELOAD"],
)  # fmt: skip
def test_the_rest_of_the_shell_does_not_leak(name: str) -> None:
    assert name not in env()


def test_proxies_and_token_pass_for_a_download_only() -> None:
    assert env()["HF_HUB_OFFLINE"] == "1"
    loading = env(download=True)
    assert "HF_HUB_OFFLINE" not in loading
    assert (loading["HF_TOKEN"], loading["HTTP_PROXY"]) == ("t", "http://p")
    assert "AWS_SECRET_ACCESS_KEY" not in loading


def test_the_eggs_own_variables_come_last() -> None:
    assert env({"VLLM_HOST_IP": "10.0.0.1", "HOME": "/h"})["VLLM_HOST_IP"] == "10.0.0.1"
    assert env()["VLLM_HOST_IP"] == "127.0.0.1"


def test_a_redirect_does_not_lead_past_the_allowed_hosts() -> None:
    assert env()["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] == "0"


def test_the_interpreters_folder_comes_first_on_the_path() -> None:
    assert env()["PATH"] == "/venv/bin:/usr/bin"
    assert base({"PATH": "/usr/bin"}, {}, python="python3", download=False)["PATH"] == "/usr/bin"


def test_a_folder_goes_in_front_of_pythonpath() -> None:
    assert with_path({}, "/a")["PYTHONPATH"] == "/a"
    assert with_path({"PYTHONPATH": "/b"}, "/a")["PYTHONPATH"] == "/a:/b"
