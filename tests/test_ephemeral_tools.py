"""Ephemeral cells and tools: a turn keeps its cell through its steps; a parked call keeps none."""

from __future__ import annotations

from pathlib import Path

from tests.forager import Forager
from tests.leftovers import all_end
from tests.rig import WAIT, egg, ended, served
from tests.test_ephemeral import cell_of, members, peak
from tests.tool_stage import PARSER, QUOTE, calls, last_call, script, tool

BEE = 'propensity = "ephemeral"\nraise = "on-prompt"'


async def test_a_turn_with_a_foragers_tool_keeps_its_cell_to_its_end(short_dir: Path) -> None:
    one = egg(short_dir, bee=BEE, model=PARSER)
    async with served(short_dir, one) as (humd, bee, asker):
        async with await Forager.lend(humd.socket, "read"):
            asked = script(calls(("read", {"path": "a"})), QUOTE)
            answer = await asker.collect(asker.prompt(modelId="echo", text=asked), WAIT)
            assert answer.text == "heard read:a"
            assert cell_of(answer) == "echo-1"
            assert [entry["cell"] for entry in bee.events("worker.cell.spawned")] == ["echo-1"]


async def test_the_cell_goes_when_a_call_is_parked_and_the_result_has_another(
    short_dir: Path,
) -> None:
    one = egg(short_dir, bee=BEE, model=PARSER)
    async with served(short_dir, one) as (_, bee, asker):
        sid = asker.prompt(
            modelId="echo", text=script(calls(("mine", {})), QUOTE), tools=[tool("mine")]
        )
        async for tone in asker.stream(sid):
            if tone["chi"] == "session-ready":
                tree = members(short_dir)
                break
        parked = await asker.collect(sid, WAIT)
        assert ended(parked)["finishReason"] == "tool_use"
        await all_end(tree)
        call = last_call(parked)
        asker.send({"chi": "tool-result", "sid": sid, "callId": call["callId"], "result": "dry"})
        answer = await asker.collect(sid, WAIT)
        assert (answer.text, cell_of(answer)) == ("heard dry", "echo-2")
        assert peak(bee) == 1
