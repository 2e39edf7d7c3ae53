"""A tool of an asker with the real llama-server, which reads calls by the chat template.

The small model calls one only after it has seen others call it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hum_workers.fake_humd.asker import Asker
from hum_workers.fake_humd.server import FakeHumd
from tests.real_llama.conftest import START, write_egg
from tests.rig import LLAMA, ended, running_bee

TEMPLATE = Path(__file__).parent / "templates" / "tools.jinja"
WEATHER = {
    "name": "get_weather",
    "description": "weather",
    "inputSchema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"],
        "additionalProperties": False,
    },
}

pytestmark = [pytest.mark.llama, pytest.mark.xdist_group("llama"), pytest.mark.timeout(300)]


def seen(number: int, city: str) -> list[dict[str, Any]]:
    """Returns a question and the call that answered it."""
    function = {"name": "get_weather", "arguments": json.dumps({"city": city})}
    call = {"id": f"c{number}", "type": "function", "function": function}
    return [
        {"role": "user", "content": f"weather in {city}?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]


async def test_an_askers_tool_is_called_and_its_result_answered(short_dir: Path) -> None:
    messages = [
        *(
            message
            for number, city in enumerate(("Rome", "Oslo"))
            for message in seen(number, city)
        ),
        {"role": "user", "content": "weather in Paris?"},
    ]
    egg = write_egg(short_dir, extra=f"chat_template = {json.dumps(str(TEMPLATE))}")
    async with await FakeHumd.start(short_dir / "thrum.sock", short_dir / "state") as humd:
        async with running_bee(short_dir, egg, program=LLAMA):
            await humd.until(lambda: humd.serves("smollm2"), timeout=START)
            async with await Asker.connect(short_dir / "thrum.sock") as asker:
                answer = await asker.ask(
                    "",
                    "smollm2",
                    messages=messages,
                    tools=[WEATHER],
                    sampling={"maxTokens": 40, "temperature": 0},
                    timeout=120,
                )
                assert ended(answer)["finishReason"] == "tool_use", ended(answer)
                call = next(tone for tone in answer.tones if tone["chi"] == "tool-call")
                assert call["args"] == {"city": "Paris"}
                asker.send(
                    {
                        "chi": "tool-result",
                        "sid": call["sid"],
                        "callId": call["callId"],
                        "result": {"content": "snow"},
                    }
                )
                resumed = await asker.collect(call["sid"], timeout=120)
    assert ended(resumed)["chi"] in ("finish", "error")
    assert ended(resumed)["usage"]["output_tokens"] > 0
