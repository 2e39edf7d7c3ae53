"""Why there is no route: what is known of each slice, and no more than that of nobody's layers."""

from __future__ import annotations

import pytest

from hum_workers.llama_rpc_worker.facts import Absent, Build, Layers, SliceState
from hum_workers.llama_rpc_worker.route import RouteError, plan
from tests.llama_rpc_worker.routes import SMALL, offer, want

DECLARED = want(policy="declared")


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (SliceState.LEASED, "is leased by another bee"),
        (SliceState.STARTING, "is starting: wait"),
        (SliceState.RECYCLING, "is being recycled"),
        (SliceState.FAILED, "has failed: look"),
    ],
)
@pytest.mark.parametrize("layers", [None, (0, 30)])
def test_layers_that_a_slice_would_hold_are_not_said_to_be_nobodys(
    state: SliceState, words: str, layers: Layers | None
) -> None:
    for policy in ("by-memory", "declared"):
        if layers is None and policy == "declared":
            continue
        with pytest.raises(RouteError) as caught:
            plan(SMALL, [offer("a", state=state, layers=layers)], want(policy=policy))
        (line,) = caught.value.problems
        assert words in line


def test_a_slice_that_has_started_nothing_yet_is_not_said_to_have_another_llama_cpp() -> None:
    unknown = Build(commit="unknown", digest="", protocol=(0, 0, 0))
    with pytest.raises(RouteError) as caught:
        plan(SMALL, [offer("a", state=SliceState.STARTING, build=unknown)], want())
    (line,) = caught.value.problems
    assert "is starting: wait" in line


def test_layers_that_no_unfit_slice_would_hold_are_still_said_to_be_nobodys() -> None:
    failed = offer("a", state=SliceState.FAILED, layers=(0, 10))
    with pytest.raises(RouteError) as caught:
        plan(SMALL, [failed, offer("b", layers=(10, 20))], want())
    gap, why = caught.value.problems
    assert gap.startswith("no slice holds layers 20:30 (after slice b at ")
    assert why.startswith("slice a at ")


def test_what_is_said_of_a_door_stands_before_all_that_follows_from_it() -> None:
    door = Absent(reason="nobody is at the door h:1: start it")
    with pytest.raises(RouteError) as caught:
        plan(SMALL, [], want(), [door])
    assert caught.value.problems == (door.reason,)
    given = Absent(reason="nobody is at the door h:2: start it", layers=(10, 20))
    with pytest.raises(RouteError) as caught:
        plan(SMALL, [offer("a", (0, 10))], DECLARED, [given])
    first, second = caught.value.problems
    assert first == given.reason
    assert second.startswith("no slice holds layers 20:30")
    assert plan(SMALL, [offer("a")], want(), [door]).shares
