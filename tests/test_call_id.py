"""Ids of tool calls: unique, and known again by the bee whose seed made them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hum_workers.tools.call_id import CallIds, Owner

SEED = bytes(range(32))


@pytest.mark.parametrize("owner", list(Owner))
def test_an_id_tells_its_own_bee_whose_tool_was_called(owner: Owner) -> None:
    call_id = CallIds(SEED).new(owner)
    assert call_id.startswith("hw-")
    assert CallIds(SEED).owner(call_id) is owner, "also after a restart"
    assert CallIds(bytes(32)).owner(call_id) is None


def test_ids_differ() -> None:
    ids = CallIds(SEED)
    assert len({ids.new(Owner.ASKER) for _ in range(1000)}) == 1000


@given(st.text(max_size=60))
def test_a_foreign_id_is_never_ours(text: str) -> None:
    assert CallIds(SEED).owner(text) is None
    assert CallIds(SEED).owner(f"hw-{text}") is None


@given(st.integers(0, 43), st.characters(codec="utf-8"))
def test_an_id_with_one_other_character_is_not_ours(place: int, character: str) -> None:
    ids = CallIds(SEED)
    call_id = ids.new(Owner.FORAGER)
    changed = call_id[:place] + character + call_id[place + 1 :]
    assert (ids.owner(changed) is None) == (changed != call_id)


def test_nothing_of_the_seed_shows() -> None:
    ids = CallIds(SEED)
    shown = repr(ids) + str(ids) + ids.new(Owner.ASKER)
    assert SEED.hex()[:8] not in shown
    assert not hasattr(ids, "__dict__")
