"""One real model over slices: the text is that of a machine that holds it alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.leftovers import assert_nothing_left
from tests.real_llama.route_stage import routed
from tests.rig import ended

pytestmark = [pytest.mark.llama, pytest.mark.xdist_group("llama"), pytest.mark.timeout(300)]


async def test_the_text_is_the_same_over_any_number_of_slices(short_dir: Path) -> None:
    texts = {}
    for count, memory, head in (
        (0, "1GiB", ""),
        (1, "1GiB", 'head = "local"'),
        (1, "1GiB", 'head = "last"'),
        (2, "110MiB", 'head = "last"'),
        (3, "85MiB", 'head = "local"'),
    ):
        folder = short_dir / f"{count}{head[-5:-1]}"
        folder.mkdir()
        split = f"[split]\n{head}\n" if head else ""
        async with routed(folder, count, memory=memory, front=split) as stage:
            answer = await stage.ask()
            assert ended(answer)["chi"] == "finish"
            texts[count, head] = answer.text
            used = [len(bee.events("worker.slice.leased")) for bee in stage.slices]
            assert used == [1] * count
        assert_nothing_left(folder)
    assert len(set(texts.values())) == 1, texts
    assert len(texts[0, ""]) > 20
