"""Routes: whole ones are planned, others come with every reason why they are none."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hum_workers.llama_rpc_worker.facts import Build, Layers, Offer, SliceState
from hum_workers.llama_rpc_worker.route import Route, RouteError, plan
from hum_workers.llama_rpc_worker.shares import MOST_SLICES, capacity, kv_of, working
from tests.llama_rpc_worker.routes import MIB, OWN, SMALL, model, offer, want

DECLARED = want(policy="declared")


def held(route: Route) -> list[tuple[str, Layers]]:
    return [(share.offer.facts.name, share.layers) for share in route.shares]


def problems(*offers: Offer, **more: Any) -> tuple[str, ...]:
    """Every reason why there is no declared route; each is one line."""
    with pytest.raises(RouteError) as caught:
        plan(SMALL, offers, want(policy="declared", **more))
    assert all(line.isprintable() for line in caught.value.problems)
    assert str(caught.value) == "; ".join(caught.value.problems)
    return caught.value.problems


def test_declared_layers_are_the_route_in_their_order() -> None:
    route = plan(SMALL, [offer("b", (10, 20)), offer("c", (20, 30)), offer("a", (0, 10))], DECLARED)
    assert held(route) == [("a", (0, 10)), ("b", (10, 20)), ("c", (20, 30))]
    assert route.local == (0, 0)
    assert route.fingerprint == SMALL.fingerprint
    assert route.notes == ()


def test_a_share_is_weights_and_kv_of_its_layers_and_the_output_of_the_last() -> None:
    offers = [offer("a", (0, 10)), offer("b", (10, 30))]
    route = plan(SMALL, offers, want(policy="declared", head="last", ctx=500))
    one, two = route.shares
    assert (one.weights, one.output) == (10 * 2_216_448, False)
    assert (two.weights, two.output) == (20 * 2_216_448 + SMALL.output, True)
    assert (one.kv, two.kv) == (10 * 768 * 1024, 20 * 768 * 1024)
    assert kv_of(SMALL, want(kv_bytes_factor=0.5), (0, 2)) == 768 * 1024


def test_the_egg_of_a_slice_may_declare_its_layers() -> None:
    offers = [offer("a", (0, 20)), offer("b", None, layers=(20, 30))]
    assert held(plan(SMALL, offers, DECLARED)) == [("a", (0, 20)), ("b", (20, 30))]


def test_the_first_layers_may_stay_with_the_coordinator() -> None:
    route = plan(SMALL, [offer("a", (6, 30))], want(policy="declared", local=(0, 6)))
    assert (route.local, held(route)) == ((0, 6), [("a", (6, 30))])


def test_a_route_needs_no_slice_if_all_layers_are_local() -> None:
    route = plan(SMALL, [], want(local=(0, 30), head="last"))
    assert (route.shares, route.local, route.head) == ((), (0, 30), "local")
    assert route.lines()
    bad = offer("a", (0, 10), state=SliceState.FAILED)
    assert plan(SMALL, [bad], want(policy="declared", local=(0, 30))).shares == ()


def test_gaps_and_overlaps_name_who_is_beside_them() -> None:
    a, b, c = offer("a", (2, 10)), offer("b", (8, 15)), offer("c", (20, 29))
    one, two, three = (
        f"slice {name} at {at.endpoint}" for name, at in zip("abc", (a, b, c), strict=True)
    )
    assert problems(a, b, c) == (
        f"layers 8:10 are held by {one} and by {two}: give them to one",
        f"no slice holds layers 0:2 (before {one}): give them to one",
        f"no slice holds layers 15:20 (after {two} and before {three}): give them to one",
        f"no slice holds layers 29:30 (after {three}): give them to one",
    )


def test_local_layers_overlap_like_those_of_a_slice() -> None:
    (line,) = problems(offer("a", (5, 30)), local=(0, 6))
    assert line.startswith("layers 5:6 are held by the coordinator and by slice a at ")


@pytest.mark.parametrize(
    ("local", "word"), [((5, 10), "begin at 0"), ((0, 31), "has not"), ((9, 3), "has not")]
)
def test_local_layers_that_no_coordinator_can_hold(local: Layers, word: str) -> None:
    lines = problems(offer("a", (0, 30)), local=local)
    assert any("[split] local" in line and word in line for line in lines)


OTHER = msgspec.structs.replace(offer("x").facts.build, commit="11500-fff")
NEWER = Build(commit="11434-abc", digest="d" * 16, protocol=(7, 0, 1))


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"fingerprint": "e" * 16}, "bound to the model eeee"),
        ({"build": OTHER}, "has llama.cpp 11500-fff and the coordinator 11434-abc: install"),
        ({"build": NEWER}, "speaks RPC 7.0.1 and the coordinator 7.0.0: install the same"),
        ({"memory": 40 * MIB}, "has 40 MiB and layers 0:30 need"),
        ({"state": SliceState.LEASED, "holder": "hid-other"}, "is leased by hid-other: stop"),
        ({"state": SliceState.RECYCLING}, "is being recycled"),
        ({"state": SliceState.STARTING}, "is starting"),
        ({"state": SliceState.FAILED}, "has failed: look into its bee's log"),
        ({"layers": (0, 29)}, "is given layers 0:30 here and bound to 0:29 by its own egg"),
    ],
)
def test_a_slice_that_is_not_fit_is_named_with_the_mend(facts: dict[str, Any], words: str) -> None:
    one = offer("a", (0, 30), **facts)
    (line,) = problems(one)
    assert line.startswith(f"slice a at {one.endpoint} ")
    assert words in line


def test_layers_outside_the_model_are_named() -> None:
    lines = problems(offer("a", (0, 30)), offer("b", (30, 40)))
    assert [line for line in lines if "slice b" in line and "a part of 0:30" in line]


def test_a_slice_that_this_coordinator_leases_already_is_its_own() -> None:
    own = offer("a", (0, 30), state=SliceState.LEASED, holder=OWN)
    assert held(plan(SMALL, [own], DECLARED)) == [("a", (0, 30))]


def test_another_binary_of_the_same_commit_is_a_note() -> None:
    build = Build(commit="11434-abc", digest="c" * 16, protocol=(0, 0, 0))
    route = plan(SMALL, [offer("a", (0, 30), build=build)], DECLARED)
    assert "another binary of the same llama.cpp" in route.notes[0]


def test_a_slice_that_is_named_twice_is_told_by_address_or_owner() -> None:
    twin = offer("b", (15, 30), endpoint="10.0.0.1:1")
    assert "has the address of" in problems(offer("a", (0, 15), endpoint="10.0.0.1:1"), twin)[0]
    again = offer("a", (15, 30), endpoint="10.0.0.2:1")
    assert (
        "has the hid of slice a at 10.0.0.1:1"
        in (problems(offer("a", (0, 15), endpoint="10.0.0.1:1"), again)[0])
    )


def test_more_slices_than_llama_server_takes_are_refused() -> None:
    offers = [offer(f"s{n:02}", (n, n + 1), endpoint=f"h:{n}") for n in range(16)]
    lines = problems(*offers, offer("z", (16, 30), endpoint="h:99"))
    assert [line for line in lines if "slice s15" in line and "15 at most" in line]


def test_all_problems_come_at_once_and_what_another_bee_says_stays_one_line() -> None:
    bad = offer("a\n\x1b[2J" + "x" * 99, (0, 9), fingerprint="a\nb", state=SliceState.FAILED)
    lines = problems(bad, offer("b", (20, 30), memory=MIB))
    assert len(lines) == 4
    assert all(len(line) < 400 for line in lines)


def test_a_slice_without_layers_is_told_where_layers_are_missing() -> None:
    lines = problems(offer("a", (0, 10)), offer("b"))
    assert "no egg gives it layers" in lines[-1]


def test_no_slice_at_all_says_what_to_do() -> None:
    assert problems() == ("no slice answers: start one, or name its endpoint in [[slices]]",)
    assert "10:30" in problems(offer("a", (0, 10)))[0]


def test_a_stranger_does_not_spoil_a_declared_route() -> None:
    stranger = offer("z", None, layers=(0, 90), fingerprint="0" * 16)
    route = plan(SMALL, [offer("a", (0, 30)), stranger], DECLARED)
    assert held(route) == [("a", (0, 30))]
    assert any("slice z" in note for note in route.notes)


# By memory


def test_one_slice_is_enough_where_it_holds_all_and_the_nearest_is_taken() -> None:
    offers = [
        offer("far", round_trip=0.05, memory=1 << 40),
        offer("near", round_trip=0.0104, memory=1 << 30),
        offer("same", round_trip=0.0096, memory=1 << 31),
    ]
    route = plan(SMALL, offers, want())
    assert held(route) == [("same", (0, 30))]
    assert [note for note in route.notes if "slice far" in note and "fewer" in note]


def test_layers_are_shared_by_memory() -> None:
    many = model(90)
    beside = working(many, want())
    offers = [
        offer("a", memory=beside + 31 * MIB),
        offer("b", memory=beside + 62 * MIB),
    ]
    assert held(plan(many, offers, want())) == [("a", (0, 30)), ("b", (30, 90))]


def test_the_output_counts_where_it_is() -> None:
    """The last slice would be filled to the brim without it."""
    beside = working(SMALL, want())
    each = 2_216_448 + 768 * 1024
    offers = [
        offer("a", memory=beside + 16 * each),
        offer("b", memory=beside + 16 * each + SMALL.output),
    ]
    assert len(plan(SMALL, offers, want(head="last")).shares) == 2
    small = [offers[0], offer("b", memory=beside + 16 * each)]
    assert len(plan(SMALL, small, want(head="local")).shares) == 2
    with pytest.raises(RouteError, match="layers 0:30 need"):
        plan(SMALL, small, want(head="last"))


def test_slices_that_are_bound_keep_their_layers_and_the_rest_is_filled() -> None:
    offers = [offer("m", (10, 20)), offer("a"), offer("b", round_trip=0.1)]
    route = plan(SMALL, offers, want(local=(0, 2)))
    assert held(route) == [("a", (2, 10)), ("m", (10, 20)), ("b", (20, 30))]


def test_a_lost_slice_is_replaced_and_left_out_by_name() -> None:
    lost = offer("a", (0, 15), state=SliceState.FAILED)
    route = plan(SMALL, [lost, offer("b"), offer("c")], want())
    assert held(route) in ([("b", (0, 30))], [("c", (0, 30))])
    assert any(note.startswith("slice a") and "has failed" in note for note in route.notes)


def test_what_is_too_small_together_is_told_with_sizes_and_names() -> None:
    offers = [offer(f"s{n}", memory=100 * MIB, endpoint=f"h:{n}") for n in range(7)]
    big = model(30, 40 * MIB)
    with pytest.raises(RouteError) as caught:
        plan(big, [*offers, offer("off", state=SliceState.FAILED)], want())
    line, why = caught.value.problems
    assert line.startswith("layers 0:30 need 1.2 GiB and ")
    assert "slice s0 at h:0 with 100 MiB" in line
    assert "and 2 more have: add a slice" in line
    assert why.startswith("slice off at ")


def test_a_plan_does_not_depend_on_the_order_in_which_slices_answer() -> None:
    offers = [offer(f"s{n}", memory=(80 + 7 * n) * MIB, endpoint=f"h:{n}") for n in range(9)]
    assert len({str(held(plan(SMALL, order, want()))) for order in (offers, offers[::-1])}) == 1


ROOMS = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 30), st.integers(0, 3)), min_size=1, max_size=20
)


@given(ROOMS, st.integers(1, 40), st.booleans(), st.integers(0, 3))
@settings(max_examples=250, deadline=None)
def test_a_plan_by_memory_is_whole_and_found_whenever_there_is_one(
    rooms: list[tuple[int, int, int]], count: int, last: bool, local: int
) -> None:
    """Layers of one size: whole slots decide, so a plan is there if the slots suffice."""
    local = min(local, count)
    many = model(count, output=SMALL.output, embedding=SMALL.embedding)
    wish = want(head="last" if last else "local", local=(0, local), policy="by-memory")
    offers = [
        offer(
            f"s{n}",
            memory=working(many, wish) + slots * MIB + odd * 1000,
            round_trip=far / 100,
            endpoint=f"h:{n}",
        )
        for n, (slots, odd, far) in enumerate(rooms)
    ]
    slots = sorted((capacity(many, wish, one) // MIB for one in offers), reverse=True)
    enough = sum(slots[:MOST_SLICES]) >= count - local
    try:
        route = plan(many, offers, wish)
    except RouteError:
        if enough and not last:
            raise
        return
    assert enough or route.shares == ()
    at = local
    for share in route.shares:
        assert share.layers[0] == at < share.layers[1]
        assert share.weights + share.kv <= capacity(many, wish, share.offer)
        at = share.layers[1]
    assert at == count
    assert [share.output for share in route.shares if share.output] == (
        [True] if last and route.shares else []
    )
    assert len(route.shares) <= MOST_SLICES
    if not last:
        fewest = next(n for n in range(16) if sum(slots[:n]) >= count - local)
        assert len(route.shares) == fewest


# The head


@pytest.mark.parametrize(
    ("memory", "head", "why"),
    [
        (None, "local", "196,608 bytes less"),
        (1 << 30, "local", "196,608 bytes less"),
        (20 * MIB, "last", "the coordinator has 20 MiB"),
    ],
)
def test_the_head_is_local_if_the_memory_is_there(memory: int, head: str, why: str) -> None:
    route = plan(SMALL, [offer("a")], want(local_memory=memory))
    assert route.head == head
    assert why in route.why_head
    assert route.shares[-1].output == (head == "last")
    assert f"head: {route.why_head}" in route.lines()


def test_the_egg_may_say_where_the_head_is() -> None:
    assert plan(SMALL, [offer("a")], want(head="last")).head == "last"
    with pytest.raises(RouteError, match="the coordinator has 20 MiB and its own part needs"):
        plan(SMALL, [offer("a")], want(head="local", local_memory=20 * MIB))
    with pytest.raises(RouteError, match="fewer layers in .split. local"):
        plan(SMALL, [offer("a")], want(local=(0, 20), local_memory=60 * MIB))


# The map


def test_the_map_is_a_line_a_slice_with_columns() -> None:
    offers = [offer("first", (2, 10)), offer("b", (10, 30), memory=3 << 30)]
    route = plan(SMALL, offers, want(policy="declared", head="last", local=(0, 2)))
    title, heads, one, two, own, *rest = route.lines()
    assert title.startswith("SmolLM2 135M: 30 layers, 2 turns of 512 tokens, fingerprint ffff")
    at = [heads.index(word) for word in ("endpoint", "owner", "RPC", "memory", "layers", "KV")]
    for line in (one, two, own):
        assert all(line[n - 1] == " " != line[n] for n in at)
    assert one.split() == (
        f"first {offers[0].endpoint} hid-first 11434-abc 7.0.0 1 GiB 2:10 16.9 MiB 6 MiB".split()
    )
    assert "3 GiB" in two
    assert "10:30 + output" in two
    assert "0:2 + embedding" in own
    assert rest == ["head: last, as [split] head says"]


def test_the_map_of_what_is_no_route_shows_all_slices_and_the_problems() -> None:
    with pytest.raises(RouteError) as caught:
        plan(SMALL, [offer("a", (0, 10)), offer("b", state=SliceState.FAILED)], DECLARED)
    lines = caught.value.lines()
    assert [line for line in lines if line.startswith("b ") and line.split()[-3:] == ["-"] * 3]
    assert not [line for line in lines if line.startswith("head:") or "output" in line]
    assert [line for line in lines if line.startswith("problem: no slice holds layers 10:30")]
