"""Tools with the real engine: a small model is brought to call one by a choice that must be met.

That the engine refuses tools without a parser is shown with the scripted one, which refuses in the
real one's words: it would take a second start here.
"""

from __future__ import annotations

from typing import Any

import pytest

from hum_workers.fake_humd.asker import Answer
from tests.forager import Forager
from tests.real.conftest import Real
from tests.rig import ended

pytestmark = [
    pytest.mark.real,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.xdist_group("real"),
    pytest.mark.timeout(400),
]

CITIES = ["Oslo", "Rome"]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": CITIES}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = {"name": "weather", "description": "Tells the weather.", "inputSchema": SCHEMA}
QUESTION = "What will the weather be in Oslo in the next 3 days?"


def sampling(choice: Any) -> dict[str, Any]:
    return {"maxTokens": 150, "temperature": 0, "toolChoice": choice}


def checked(args: Any) -> None:
    """Fails unless the arguments follow the schema."""
    assert args.keys() == {"city", "days"}
    assert args["city"] in CITIES
    assert isinstance(args["days"], int)


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
async def test_an_askers_tool_is_called_by_the_schema_and_its_result_answered(
    real: Real, choice: Any
) -> None:
    async with await real.asker() as asker:
        answer = await asker.ask(
            QUESTION, "smollm2", tools=[WEATHER], sampling=sampling(choice), timeout=120
        )
        assert ended(answer)["finishReason"] == "tool_use", ended(answer)
        call = next(tone for tone in answer.tones if tone["chi"] == "tool-call")
        checked(call["args"])
        assert ended(answer)["usage"]["output_tokens"] > 5
        asker.send(
            {
                "chi": "tool-result",
                "sid": call["sid"],
                "callId": call["callId"],
                "result": {"content": "snow, 4 degrees below zero"},
            }
        )
        resumed = await asker.collect(call["sid"], timeout=120)
    assert ended(resumed)["finishReason"] in ("stop", "length")
    assert resumed.text
    assert resumed.complete


async def test_a_foragers_tool_is_called_within_the_turn(real: Real) -> None:
    async with await Forager.lend(real.socket, "weather") as forager:
        forager.answers = lambda call: {
            "chi": "tool-result",
            "sid": call["sid"],
            "callId": call["callId"],
            "output": "snow, 4 degrees below zero",
        }
        async with await real.asker() as asker:
            answer: Answer = await asker.ask(
                QUESTION, "smollm2", sampling=sampling("required"), timeout=200
            )
        assert forager.calls
    executed = [tone for tone in answer.tones if tone.get("chunkType") == "tool_executed"]
    assert [tone["output"] for tone in executed] == ["snow, 4 degrees below zero"] * len(executed)
    assert isinstance(executed[0]["arguments"], dict)
    assert ended(answer)["finishReason"] in ("stop", "length")
    assert answer.text
    assert answer.complete
    assert not real.bee.events("worker.tools.left_out")


async def test_a_tool_that_may_be_called_is_offered_and_a_plain_answer_stays_one(
    real: Real,
) -> None:
    async with await real.asker() as asker:
        answer = await asker.ask(
            "What is the capital of France?",
            "smollm2",
            tools=[WEATHER],
            sampling=sampling("auto"),
            timeout=120,
        )
    assert answer.tones[0]["tools"] == [{"name": "weather"}]
    assert "Paris" in answer.text
