"""The layer rule: what the flags of a route make llama-server do is the route."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hum_workers.llama_rpc_worker.layout import CPU, HEAD_ON_CPU, assigned, flags
from hum_workers.llama_rpc_worker.route import Route, plan
from hum_workers.llama_rpc_worker.shares import MOST_SLICES
from tests.llama_rpc_worker.routes import SMALL, model, offer, want


def route_of(count: int, cuts: list[int], head: str = "last") -> Route:
    """A route of `count` layers: the first `cuts[0]` are local, a slice between each two cuts."""
    offers = [
        offer(f"s{n}", (first, end), endpoint=f"h:{n}")
        for n, (first, end) in enumerate(zip(cuts, cuts[1:], strict=False))
    ]
    return plan(
        model(count, 1), offers, want(policy="declared", head=head, local=(0, cuts[0]), ctx=1)
    )


def value(found: list[str], flag: str) -> str:
    return found[found.index(flag) + 1]


def simulated(found: list[str], layers: int) -> list[str]:
    ts = [float(one) for one in value(found, "-ts").split(",")]
    return assigned(int(value(found, "-ngl")), ts, layers)


CUTS = st.integers(1, 512).flatmap(
    lambda count: st.tuples(
        st.just(count),
        st.sets(st.integers(0, count - 1), min_size=1, max_size=MOST_SLICES).map(
            lambda cuts: [*sorted(cuts), count]
        ),
    )
)


@given(CUTS, st.sampled_from(["last", "local"]))
@settings(max_examples=200, deadline=None)
def test_flags_give_exactly_the_layers_of_the_route(case: tuple[int, list[int]], head: str) -> None:
    count, cuts = case
    route = route_of(count, cuts, head)
    endpoints = [f"127.0.0.1:{n + 1}" for n in range(len(route.shares))]
    found = flags(route, endpoints)
    expected = [CPU] * cuts[0]
    for n, share in enumerate(route.shares):
        expected += [f"RPC{n}"] * (share.layers[1] - share.layers[0])
    assert simulated(found, count) == [*expected, f"RPC{len(route.shares) - 1}"]
    assert value(found, "--rpc").split(",") == endpoints
    assert value(found, "--device") == ",".join(f"RPC{n}" for n in range(len(endpoints)))
    assert found.index("--rpc") < found.index("--device")
    assert ("-ot" in found) == (head == "local")


def test_thousands_of_random_splits_are_exact() -> None:
    """Beside the whole route, only the arithmetic: 32 bits must not move a layer."""
    dice = random.Random(6)
    for _ in range(3000):
        count = dice.randint(1, 512)
        slices = dice.randint(1, min(MOST_SLICES, count))
        cuts = sorted(dice.sample(range(count), slices))
        counts = [end - first for first, end in zip(cuts, [*cuts[1:], count + 1], strict=True)]
        expected = [CPU] * cuts[0] + [f"RPC{n}" for n, c in enumerate(counts) for _ in range(c)]
        assert assigned(sum(counts), counts, count) == expected


MEASURED = [
    (31, [10, 21], "0:10 10:31"),
    (31, [10, 10, 11], "0:10 10:20 20:31"),
    (31, [5, 20, 6], "0:5 5:25 25:31"),
    (31, [1, 1, 29], "0:1 1:2 2:31"),
    (31, [30, 0, 1], "0:30 30:30 30:31"),
    (25, [10, 10, 5], "6:16 16:26 26:31"),
    (1, [1], "30:31"),
    (0, [1], "31:31"),
    (99, [1.0, 1.0, 1.0], "0:11 11:21 21:31"),
    (31, [10, 10], "0:16 16:31"),
]


@pytest.mark.parametrize(("ngl", "ts", "ranges"), MEASURED)
def test_the_rule_gives_what_was_measured(ngl: int, ts: list[float], ranges: str) -> None:
    """The table of the facts page, tried on the real program."""
    expected = []
    for n, part in enumerate(ranges.split()):
        first, end = map(int, part.split(":"))
        if n == 0:
            expected += [CPU] * first
        expected += [f"RPC{n}"] * (end - first)
    assert assigned(ngl, ts, 30) == expected


def test_without_slices_nothing_leaves_the_coordinator() -> None:
    route = plan(SMALL, [], want(local=(0, 30)))
    assert flags(route, []) == ["--device", "none", "-ngl", "0", "-fit", "off"]
    assert assigned(0, [], 30) == [CPU] * 31


def test_the_line_of_the_facts_page() -> None:
    found = flags(route_of(30, [0, 10, 20, 30]), ["a:1", "b:2", "c:3"])
    assert " ".join(found) == (
        "--rpc a:1,b:2,c:3 --device RPC0,RPC1,RPC2 -ngl 31 -ts 10,10,11 -sm layer -fit off"
    )


@pytest.mark.parametrize("endpoints", [[], ["a:1"], ["a:1", "a:1"], ["a:1", "b:2", "c:3"]])
def test_an_endpoint_too_few_too_many_or_twice_is_refused(endpoints: list[str]) -> None:
    """llama-server would say nothing and move the layers."""
    with pytest.raises(ValueError, match="2 slices"):
        flags(route_of(30, [0, 10, 30]), endpoints)


@pytest.mark.parametrize(
    ("tensor", "here"),
    [
        ("output.weight", True),
        ("token_embd.weight", True),
        ("blk.3.attn_output.weight", False),
        ("output_norm.weight", False),
        ("blk.0.ffn_down.weight", False),
    ],
)
def test_the_override_takes_the_output_and_no_attention(tensor: str, here: bool) -> None:
    pattern, _, buffer = HEAD_ON_CPU.partition("=")
    assert bool(re.search(pattern, tensor)) is here
    assert buffer == "CPU"
