"""The short form of `bench.soak`: 300 prompts, every kind of death, one ending each."""

from __future__ import annotations

import pytest

from bench.soak import found, result
from bench.soak_run import soaked


@pytest.mark.timeout(180)
async def test_300_prompts_through_deaths_of_every_kind_have_one_ending_each() -> None:
    async with soaked(seed=3, count=300) as soak:
        assert found(soak) == []
        figures = result(soak, [])
    assert figures["prompts"] >= 300
    assert set(figures["acts"]) == {"engine", "tender", "bee", "humd", "slow"}
    assert figures["endings"]["stop"] > 200
