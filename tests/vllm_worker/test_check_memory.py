"""Memory in `--check`: of one turn, of one cell, of several cells at once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hum_workers.program.findings import Finding
from hum_workers.program.host_check import available_memory
from hum_workers.vllm_worker.check import check
from hum_workers.vllm_worker.memory_check import MemoryLook
from tests.vllm_worker.hatchery import egg, model_folder
from tests.vllm_worker.test_check import about, env, for_cpus, levels, look, scripted


def test_a_build_for_cpus_runs_on_the_cpu_and_needs_its_memory(short_dir: Path) -> None:
    found = look(short_dir, "[kv]\nsize = '1GiB'\n" + for_cpus(short_dir))
    assert about(found, "small devices")[0].level == "ok"
    assert "1 GiB cache" in about(found, "small memory")[0].message


def test_a_cache_beyond_the_hosts_memory_is_an_error(short_dir: Path) -> None:
    found = look(short_dir, "[kv]\nsize = '90TiB'\n" + for_cpus(short_dir))
    memory = about(found, "small memory")[0]
    assert (memory.level, "lower [kv] size" in memory.message) == ("error", True)


def test_a_limit_below_what_is_needed_is_told(short_dir: Path) -> None:
    text = "[kv]\nsize = '1GiB'\n[limits]\nmemory = '2GiB'\n" + for_cpus(short_dir)
    (memory,) = about(look(short_dir, text), "small memory")
    assert "more than [limits] memory, 2 GiB" in memory.message


@pytest.mark.parametrize(
    ("size", "args", "level"),
    [
        ("1MiB", (), "error"),
        # 4096 tokens of 2 KiB are 8 MiB, and one block is the engine's own.
        ("8MiB", (), "error"),
        ("9MiB", (), ""),
        # Blocks of 3000 tokens: two, and one more.
        ("16MiB", ("--block-size", "3000"), "error"),
        ("18MiB", ("--block-size=3000",), ""),
        ("1MiB", ("--decode-context-parallel-size", "8"), ""),
    ],
)
def test_a_cache_too_small_for_one_turn_is_an_error(
    short_dir: Path, size: str, args: tuple[str, ...], level: str
) -> None:
    text = f"max_model_len = 4096\n[kv]\nsize = '{size}'\n" + scripted(*args)
    found = about(look(short_dir, text), "small memory")
    assert [finding.level for finding in found] == ([level] if level else [])


def test_the_size_that_is_named_is_enough(short_dir: Path) -> None:
    text = f"max_model_len = 4096\n[kv]\nsize = '1MiB'\n{scripted()}"
    (found,) = about(look(short_dir, text), "small memory")
    assert "room for one turn of 496 tokens, and max_model_len is 4096" in found.message
    assert "max_model_len to 496 at most" in found.message
    named = re.search(r'size to "(\w+)"', found.message)
    assert named is not None
    assert about(look(short_dir, text.replace("1MiB", named[1])), "small memory") == []


def test_the_cache_that_an_egg_on_the_cpu_gets_unasked_has_to_be_enough_as_well(
    short_dir: Path,
) -> None:
    model = model_folder(short_dir / "long", max_position_embeddings=4_000_000)
    asked = egg(short_dir, for_cpus(short_dir), model=model)
    (found, *_) = about(check([asked], env(short_dir)), "small memory")
    assert found.level == "error"
    assert "the cache of 4 GiB has room for one turn of 2097024 tokens" in found.message
    assert "set [kv] size to" in found.message


@pytest.mark.parametrize(
    ("limit", "level"), [("1GiB", "error"), ("2GiB", "warning"), ("8GiB", "ok")]
)
def test_a_limit_of_memory_is_an_error_only_where_it_can_not_work(
    short_dir: Path, limit: str, level: str
) -> None:
    text = f"[kv]\nsize = '1GiB'\n[limits]\nmemory = '{limit}'\n{for_cpus(short_dir)}"
    (memory,) = about(look(short_dir, text), "small memory")
    assert memory.level == level


def two(folder: Path, text: str, *, bee: str = "") -> list[Finding]:
    """Checks two eggs of one text."""
    eggs = []
    for name in ("one", "two"):
        (folder / name).mkdir()
        table = f"{text}\n[bee]\n{bee}"
        eggs.append(egg(folder / name, f"served_name = '{name}'\n{table}"))
    return check(eggs, env(folder))


def test_cells_that_live_at_once_are_summed(short_dir: Path) -> None:
    total = available_memory()[1]
    size = f"{int(total * 0.6) >> 20}MiB"
    text = f"[kv]\nsize = '{size}'\n{for_cpus(short_dir)}"
    (found,) = about(two(short_dir, text), "memory")
    assert found.level == "error"
    assert "this host has" in found.message


def test_cells_that_take_turns_are_not_summed(short_dir: Path) -> None:
    text = f"[kv]\nsize = '1GiB'\n{for_cpus(short_dir)}"
    found = two(short_dir, text, bee='raise = "on-prompt"\nmax_procs = 1')
    assert about(found, "memory") == []
    assert "share 1" in about(found, "cells")[0].message


def cards(folder: Path, count: int) -> dict[str, str]:
    """Returns an environment with an `nvidia-smi` that shows cards of 80 GiB."""
    rows = "\n".join(f"echo '{n}, GPU-{n}{n}, 81920, H100'" for n in range(count))
    (folder / "smi").mkdir()
    (folder / "smi" / "nvidia-smi").write_text(f"#!/bin/sh\n{rows}\n")
    (folder / "smi" / "nvidia-smi").chmod(0o755)
    one = env(folder)
    del one["CUDA_VISIBLE_DEVICES"]
    return one | {"PATH": f"{folder}/smi:{one['PATH']}"}


@pytest.mark.parametrize(
    ("keys", "fits"),
    [
        ("", False),
        # The size of the cache alone does not help: 92 % must be free when an engine starts.
        ("[kv]\nsize = '8GiB'", False),
        ("[kv]\ngpu_memory_utilization = 0.45", True),
        ("[kv]\ngpu_memory_utilization = 0.55", False),
    ],
)
def test_engines_that_share_a_gpu_have_to_fit_on_it(short_dir: Path, keys: str, fits: bool) -> None:
    with_cards = cards(short_dir, 1)
    eggs = []
    for name in ("one", "two"):
        (short_dir / name).mkdir()
        eggs.append(egg(short_dir / name, f"served_name = '{name}'\n{keys}\n{scripted()}"))
    found = [one for one in about(check(eggs, with_cards), "memory") if one.level == "error"]
    assert bool(found) is not fits
    assert all("of GPU GPU-00, which has 80 GiB; give each GPUs" in one.message for one in found)


def test_a_gpu_that_has_no_room_for_one_turn_beside_the_weights_is_an_error(
    short_dir: Path,
) -> None:
    model = model_folder(short_dir / "long", max_position_embeddings=80_000_000)
    (found,) = about(
        check([egg(short_dir, scripted(), model=model)], cards(short_dir, 1)), "small memory"
    )
    assert found.level == "error"
    assert "lower [model] max_model_len to " in found.message


def test_the_tokens_of_a_cache_are_those_that_vllm_itself_has_counted(short_dir: Path) -> None:
    """SmolLM2-135M with 1 GiB on a CPU: vLLM 0.32 said 46592, 128 of them its own."""
    model = model_folder(
        short_dir / "smollm2",
        hidden_size=576,
        head_dim=None,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=46592,
    )
    text = f"[kv]\nsize = '1GiB'\n{for_cpus(short_dir)}"
    (found, *_) = about(check([egg(short_dir, text, model=model)], env(short_dir)), "small memory")
    assert "room for one turn of 46464 tokens, and max_model_len is 46592" in found.message
    assert 'set [kv] size to "1027MiB" or more' in found.message


def test_a_cache_that_no_numa_node_holds_is_an_error(short_dir: Path) -> None:
    memory = MemoryLook(egg(short_dir, "[kv]\nsize = '3GiB'"), {}, [], cpu=True)
    sizes = {"free": 64 << 30, "total": 64 << 30}
    (found,) = memory.findings("small memory", **sizes, node=2 << 30)
    assert found.level == "error"
    assert "no NUMA node has more than 2 GiB" in found.message
    assert levels(list(memory.findings("small memory", **sizes, node=4 << 30))) == {"ok"}
    assert levels(list(memory.findings("small memory", **sizes))) == {"ok"}
