"""The server's own report beside the route; the lines are those of the real program."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from hum_workers.llama_rpc_worker.facts import Layers
from hum_workers.llama_rpc_worker.proof import MOST_SAID, Proof
from hum_workers.llama_rpc_worker.route import Route, plan
from tests.llama_rpc_worker.routes import SMALL, offer, want

LINES = Path(__file__).parent / "server_lines"


def lines(name: str) -> list[str]:
    return (LINES / f"{name}.txt").read_text().splitlines()


def endpoints(log: list[str]) -> list[str]:
    return re.findall(r"using device \S+ \((.*?)\)", "\n".join(log))


def route(*cuts: int, head: str = "last") -> Route:
    offers = [offer(f"s{n}", part, endpoint=f"h:{n}") for n, part in enumerate(pairwise(cuts))]
    local: Layers = (0, cuts[0])
    return plan(SMALL, offers, want(policy="declared", head=head, local=local))


def differences(a_route: Route, log: list[str], at: list[str] | None = None) -> list[str]:
    proof = Proof(a_route, endpoints(log) if at is None else at)
    for line in log:
        proof.line(line)
    return proof.differences()


CASES = {
    "s3_last": route(0, 10, 20, 30),
    "s3_local": route(0, 10, 20, 30, head="local"),
    "s2_ngl25": route(6, 18, 30),
    "s2_ngl25_local": route(6, 18, 30, head="local"),
    "s2_lv5": route(6, 18, 30),
    "s1": route(0, 30),
    "s0": route(30),
}


@pytest.mark.parametrize("name", CASES)
def test_the_real_report_of_a_route_proves_it(name: str) -> None:
    assert differences(CASES[name], lines(name)) == []


@pytest.mark.parametrize(
    ("name", "other", "words"),
    [
        ("s3_last", route(0, 10, 21, 30), ["slice s1", "layers 10:21", "slice s2"]),
        ("s3_last", route(0, 9, 20, 30), ["slice s0", "layers 0:9"]),
        ("s3_last", route(0, 10, 20, 30, head="local"), ["slice s2", "49.8 MiB of weights"]),
        ("s3_local", route(0, 10, 20, 30), ["slice s2", "with the output"]),
        ("s2_ngl25", route(5, 18, 30), ["slice s0", "layers 5:18"]),
        ("s2_lv5", route(6, 17, 30), ["layer 17 is on RPC0 and has to be on RPC1"]),
        ("s2_lv5", route(7, 18, 30), ["layer 6 is on RPC0 and has to be on CPU"]),
    ],
)
def test_a_route_that_is_off_by_one_layer_is_told(
    name: str, other: Route, words: list[str]
) -> None:
    found = "\n".join(differences(other, lines(name)))
    assert all(word in found for word in words), found


def test_a_report_without_lines_proves_nothing() -> None:
    a_route = CASES["s3_last"]
    found = differences(a_route, [], ["a:1", "b:2", "c:3"])
    assert [line for line in found if "slice s0" in line and "is 0 devices" in line]
    assert [line for line in found if "slice s2" in line and "holds 0 bytes" in line]
    assert differences(CASES["s0"], []) == []


def test_a_device_that_has_no_share_is_told() -> None:
    log = lines("s3_last")
    at = endpoints(log)
    found = differences(route(0, 10, 30), log, at[:2])
    assert [line for line in found if f"RPC2 ({at[2]})" in line and "no share" in line]
    assert [line for line in found if f"buffer on {at[2]}" in line]
    gpu = "I llama_prepare_model_devices: using device CUDA0 (NVIDIA H200) (0000:01) - 9 MiB free"
    assert any("CUDA0 (NVIDIA H200)" in line for line in differences(CASES["s0"], [gpu], []))
    weights = "I load_tensors:        CUDA0 model buffer size =    10.00 MiB"
    assert any("model buffer on CUDA0" in line for line in differences(CASES["s0"], [weights], []))


def test_devices_in_another_order_are_told() -> None:
    log = lines("s3_last")
    found = differences(CASES["s3_last"], log, endpoints(log)[::-1])
    assert any("not in that of the route" in line for line in found)


def changed(name: str, pattern: str, by: str) -> list[str]:
    return [re.sub(pattern, by, line) for line in lines(name)]


def test_more_kv_cache_than_planned_is_told_and_less_is_not() -> None:
    more = changed("s3_last", r"7\.50 MiB", "15.00 MiB")
    assert any("15 MiB of KV cache and 7.5 MiB" in d for d in differences(CASES["s3_last"], more))
    less = changed("s3_last", r"7\.50 MiB", "1.00 MiB")
    assert differences(CASES["s3_last"], less) == []


def test_weights_that_strayed_to_the_coordinator_are_told() -> None:
    strayed = changed("s3_last", r"(CPU_Mapped model.* )28\.69", r"\g<1>38.69")
    assert any("the coordinator holds 38.7" in d for d in differences(CASES["s3_last"], strayed))
    copied = changed("s2_ngl25", r"CPU_Mapped( model.* )83\.65", r"CPU\g<1>83.65")
    assert any("its part is 41.4 MiB" in d for d in differences(CASES["s2_ngl25"], copied))
    kv = "I llama_kv_cache:        CPU KV buffer size =     4.50 MiB"
    found = differences(CASES["s3_last"], [*lines("s3_last"), kv])
    assert any("the coordinator holds 4.5 MiB of KV cache" in d for d in found)


def test_tensors_that_llama_server_leaves_out_are_not_missed() -> None:
    """Next-token blocks of a model are not loaded without speculation."""
    less = changed("s3_last", r"\b49\.83", "47.72")
    assert differences(CASES["s3_last"], less) != []
    unused = "W model has unused tensor blk.29.attn_q.weight (size = 2216448 bytes) -- ignoring"
    assert differences(CASES["s3_last"], [unused, *less]) == []


def test_one_server_with_two_devices_is_not_one_slice() -> None:
    log = lines("s1")
    twice = [line for line in log if "using device" in line]
    found = differences(CASES["s1"], [*log, *twice], endpoints(log))
    assert any("is 2 devices" in line for line in found)


def test_a_hostile_line_does_no_harm() -> None:
    a_route = CASES["s1"]
    proof = Proof(a_route, ["h:1"])
    for text in ("using device", "model buffer size = x MiB", "using device RPC0 (" * 9999, "\0"):
        proof.line(text)
    for n in range(20_000):
        proof.line(f"using device RPC{n} (x\x1b{n}) (y)")
    assert all(line.isprintable() for line in proof.differences())
    assert len(proof.differences()) == MOST_SAID + 1
