"""Steps of both kinds, slots while tools run, a humd that restarts, eggs without tools."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hum_workers.fake_humd import Asker
from tests.forager import Forager, failure, nothing, output
from tests.rig import WAIT, egg, ended, served
from tests.tool_stage import (
    ECHO,
    PARSER,
    QUOTE,
    READY,
    Stage,
    calls,
    last_call,
    said,
    script,
    shape,
    staged,
    tool,
)

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("tools_mixed")]

MINE: dict[str, Any] = {"tools": [tool("mine"), tool("yours")]}
READ, MY, YOUR = ("read", {"path": "a"}), ("mine", {"q": 1}), ("yours", {"q": 2})
ONE = "executed read {'path': 'a'} -> read:a"
CALL_MY = ["call mine {'q': 1}", "use mine", "finish tool_use"]
CALL_YOUR = ["call yours {'q': 2}", "use yours", "finish tool_use"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[Stage]:
    async with staged() as stage:
        yield stage


@pytest.fixture
def stage(shared: Stage) -> Stage:
    shared.forager.calls.clear()
    shared.forager.answers = output
    return shared


async def test_foragers_calls_run_first_then_the_askers_go_out_one_by_one(stage: Stage) -> None:
    answer = await stage.ask(calls(MY, READ, YOUR, text="both "), ECHO, **MINE)
    assert shape(answer.tones) == [READY, *said(0, "both "), ONE, *CALL_MY]
    second = await stage.resumed(last_call(answer), "mine said")
    assert shape(second.tones) == [READY, *CALL_YOUR]
    third = await stage.resumed(last_call(second), "yours said")
    messages = json.loads(third.text)["messages"]
    assert [c["function"]["name"] for c in messages[1]["tool_calls"]] == ["mine", "read", "yours"]
    assert [m["content"] for m in messages[2:]] == ["mine said", "read:a", "yours said"]
    ids = [c["id"] for c in messages[1]["tool_calls"]]
    assert [m["tool_call_id"] for m in messages[2:]] == ids


async def test_a_mixed_step_with_a_forager_that_fails(stage: Stage) -> None:
    stage.forager.answers = failure
    answer = await stage.ask(calls(READ, MY), QUOTE, **MINE)
    wrong = "executed read {'path': 'a'} -> error: no such file wrong"
    assert shape(answer.tones) == [READY, wrong, *CALL_MY]
    resumed = await stage.resumed(last_call(answer), "x")
    assert resumed.text == "heard error: no such file x"


async def test_a_resumed_turn_calls_a_forager(stage: Stage) -> None:
    answer = await stage.ask(calls(MY), calls(READ, text="now "), QUOTE, **MINE)
    resumed = await stage.resumed(last_call(answer), "x")
    assert shape(resumed.tones) == [
        READY,
        *said(0, "now "),
        ONE,
        *said(1, "heard x read:a"),
        "finish stop",
    ]


async def test_a_call_that_must_come_is_asked_for_once(stage: Stage) -> None:
    answer = await stage.ask(calls(MY), ECHO, sampling={"toolChoice": "required"}, **MINE)
    resumed = await stage.resumed(last_call(answer), "x")
    assert "tool_choice" not in json.loads(resumed.text)


async def test_held_turns_hold_no_slot(short_dir: Path) -> None:
    narrow = "[batching]\nmax_num_seqs = 1\n[limits]\nmax_waiting = 2\n"
    async with served(short_dir, egg(short_dir, model=PARSER, extra=narrow)) as (humd, _, asker):
        async with await Forager.lend(humd.socket, "read") as forager:
            forager.answers = nothing
            prompt = {"modelId": "echo", "text": script(calls(READ), QUOTE)}
            sids = [asker.prompt(**prompt) for _ in range(5)]  # as many as there are slots
            await forager.called(5)
            sids += [asker.prompt(**prompt) for _ in range(5)]
            held = await forager.called(10)
            answer = await asker.ask(script({"text": ["free"]}), "echo", timeout=WAIT)
            assert answer.text == "free"
            for call in held:
                forager.answer(call, output="x")
            answers = [await asker.collect(sid, WAIT) for sid in sids]
    assert [answer.text for answer in answers] == ["heard x"] * 10


async def test_a_humd_that_restarts_ends_held_turns_and_drops_parked_calls(
    short_dir: Path,
) -> None:
    async with served(short_dir, egg(short_dir, model=PARSER)) as (humd, bee, asker):
        forager = await Forager.lend(humd.socket, "read")
        forager.answers = nothing
        held = asker.prompt(modelId="echo", text=script(calls(READ), QUOTE))
        await forager.called(1)
        text = script(calls(MY), QUOTE)
        parked = await asker.ask(text, "echo", timeout=WAIT, **MINE)
        # This one is in the engine when humd goes, and calls a tool when it is back.
        slow = {**calls(MY), "text": [f"{n} " for n in range(100)], "rate": 25}
        streams = asker.prompt(modelId="echo", text=script(slow, QUOTE), **MINE)
        async for tone in asker.stream(streams):
            if tone.get("chunkType") == "text_delta":
                break
        await humd.restart()
        await forager.close()
        await asker.close()
        async with await Asker.connect(humd.socket) as again:
            for sid in (held, streams, parked.sid):
                again.send({"chi": "attach", "sid": sid})
            await humd.until(lambda: humd.serves("echo"), timeout=WAIT)
            first = await again.collect(held, WAIT)
            assert shape(first.tones) == ["error humd_lost"]
            second = await again.collect(streams, WAIT)
            assert shape(second.tones)[-1] == "error humd_lost"
            assert not [tone for tone in second.tones if tone["chi"] == "tool-call"]
            assert ended(second)["usage"]["output_tokens"] > 100
            # The way back went with humd, so the result is brought by hand.
            call = last_call(parked)
            late = {"chi": "tool-result", "sid": parked.sid, "callId": call["callId"]}
            humd.inject("vllm-worker", json.dumps(late).encode() + b"\n")
            assert shape((await again.collect(parked.sid, WAIT)).tones) == [
                "error tool_call_expired"
            ]
            answer = await again.ask(text, "echo", timeout=WAIT, **MINE)
            assert shape(answer.tones) == [READY, *CALL_MY], "new turns call tools again"
        assert not [entry for entry in bee.log() if entry.get("level") == "error"]


async def test_a_call_that_waits_is_not_sent_on_another_connection(short_dir: Path) -> None:
    slow = egg(short_dir, model=PARSER, bee="pace = 2\nburst = 1")
    async with served(short_dir, slow) as (humd, _, asker):
        sid = asker.prompt(modelId="echo", text=script(calls(MY), QUOTE), **MINE)
        async for tone in asker.stream(sid):
            if tone["chi"] == "session-ready":
                break
        await humd.restart()  # the next tone, the call, waits half a second for its token
        async with await Asker.connect(humd.socket) as again:
            again.send({"chi": "attach", "sid": sid})
            answer = await again.collect(sid, WAIT)
            assert shape(answer.tones) == ["error humd_lost"]
            assert ended(answer)["usage"]["output_tokens"] > 0


FORTY = tuple(f"fs_{n}" for n in range(40))


async def test_forty_tools_of_a_forager_without_a_parser_disturb_nobody(short_dir: Path) -> None:
    one = egg(short_dir, fake={"request": {"echo": True}})
    async with served(short_dir, one) as (humd, bee, asker):
        async with await Forager.lend(humd.socket, *FORTY):
            for _ in range(3):
                answer = await asker.ask("hi", "echo", timeout=WAIT)
                assert answer.complete
                assert "tools" not in json.loads(answer.text)
                assert answer.tones[0]["tools"] == []
            refused = await asker.ask("hi", "echo", timeout=WAIT, **MINE)
        warnings = [e for e in bee.log() if e.get("level") == "warning"]
    assert (ended(refused)["code"], len(refused.tones)) == ("bad_prompt", 1)
    assert "[model] tool_call_parser" in ended(refused)["message"]
    (told,) = bee.events("worker.tools.left_out")
    assert (told["level"], warnings) == ("info", [])
    assert "no [model] tool_call_parser" in told["reason"]


@pytest.mark.parametrize(
    ("foragers", "offered"), [("false", ["mine"]), ('["read", "other"]', ["read", "mine"])]
)
async def test_the_egg_says_which_foragers_tools_are_offered(
    short_dir: Path, foragers: str, offered: list[str]
) -> None:
    one = egg(short_dir, model=PARSER, extra=f"[tools]\nforagers = {foragers}")
    async with served(short_dir, one) as (humd, bee, asker):
        async with await Forager.lend(humd.socket, "read", "write"):
            text = script(ECHO)
            # An asker's tool of the name of a forager's would be called there.
            own = [tool("mine"), tool("write")]
            answer = await asker.ask(text, "echo", timeout=WAIT, tools=own)
        assert len(bee.events("worker.tools.left_out")) == 1
    assert [t["function"]["name"] for t in json.loads(answer.text)["tools"]] == offered
