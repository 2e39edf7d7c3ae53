"""Machines of a network: a link that goes and comes back, and strangers at a slice's door."""

from __future__ import annotations

import pytest

from bench.llama_net_run import cut, strangers
from bench.llama_net_stage import stage
from bench.network import why_not

pytestmark = [
    pytest.mark.llama,
    pytest.mark.xdist_group("llama"),
    pytest.mark.timeout(180),
]


async def test_machines_of_a_network_serve_through_cut_links_and_strangers() -> None:
    if reason := why_not():
        pytest.skip(reason)
    async with stage() as at:
        answer = await at.ask()
        assert answer.complete
        assert len(answer.text) > 20

        short = await cut(at, 5.0, answer.text)
        assert short.faults == []
        assert short.ending == "finish"

        found = await strangers(at)
        assert found.faults == []
        assert len(found.knocks) >= 10

        until_freed = await cut(at, 20.0, answer.text)
        assert until_freed.faults == []
