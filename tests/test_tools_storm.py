"""Two hundred conversations whose model, forager and asker do all that they may and may not."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

from hum_workers.fake_humd.wire import Tone
from tests.forager import failure, output
from tests.rig import WAIT, ended
from tests.tool_stage import QUOTE, Stage, calls, script, staged, tool

RULES = 'step_timeout = "1s"\nmax_steps = 4\nparked_max = 20'
CONVERSATIONS, AT_ONCE, HOPS = 200, 20, 12
MINE: dict[str, Any] = {"tools": [tool("mine"), tool("yours")]}


class Storm:
    """What happens, by a seed; `endings` counts how the turns ended."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage = stage
        self.endings: Counter[str] = Counter()
        self._rng = random.Random(seed)
        self._loop = asyncio.get_running_loop()
        self._late: list[asyncio.TimerHandle] = []
        stage.forager.answers = self._answer

    def calm(self) -> None:
        """Ends what would still come."""
        for timer in self._late:
            timer.cancel()

    async def converse(self, sid: str) -> None:
        """One conversation, from its prompt to an ending that is no call, or until it is left."""
        asker, rng = self.stage.asker, self._rng
        steps = [self._step() for _ in range(rng.randint(1, 4))]
        asker.prompt(sid=sid, modelId="echo", text=script(*steps, QUOTE), **MINE)
        for hop in range(HOPS):
            if rng.random() < 0.05:
                self._late.append(self._loop.call_later(rng.random() * 0.3, asker.cancel, sid))
            answer = await asker.collect(sid, WAIT)
            made = [tone for tone in answer.tones if tone["chi"] == "tool-call"]
            ending = ended(answer)
            self.endings[ending.get("finishReason") or ending["code"]] += 1
            assert bool(made) == (ending.get("finishReason") == "tool_use")
            if not made or rng.random() < 0.1:
                return
            sid = self._result(made[0], sid if rng.random() < 0.5 else f"{sid}-{hop}")

    def _step(self) -> dict[str, Any]:
        names, args = ["read", "write", "mine", "yours", "fly"], [{"q": 1}, {"path": "a"}, "[", ""]
        rng = self._rng
        made = [(rng.choice(names), rng.choice(args)) for _ in range(rng.randint(1, 3))]
        return calls(*made, text=rng.choice(["", "hm "]))

    def _answer(self, call: Tone) -> Tone | None:
        lot = self._rng.random()
        if lot < 0.1:
            return None
        if lot < 0.2:
            return failure(call)
        if lot < 0.4:
            later = self._rng.random() * 1.3
            send = self.stage.forager.send
            self._late.append(self._loop.call_later(later, send, output(call)))
            return None
        return output(call)

    def _result(self, call: Tone, sid: str) -> str:
        """Sends a result as one of hum's foragers does, with or without a prompt beside it."""
        asker, rng = self.stage.asker, self._rng
        prompt = {"sid": sid, "modelId": "echo"}
        result = {"chi": "tool-result", "sid": sid, "callId": call["callId"], "result": "r"}
        if sid == call["sid"]:
            asker.send(result)
        elif rng.random() < 0.5:
            asker.prompt(**prompt, text="")
            asker.send(result)
        else:
            asker.send({"chi": "attach", "sid": sid})
            asker.send(result)
            asker.prompt(**prompt, text=rng.choice(["", "more"]))
        return sid


async def test_every_turn_of_a_storm_has_one_ending_and_the_bee_is_well_after_it() -> None:
    async with staged(tools=RULES) as stage:
        storm = Storm(stage, seed=7)
        sids = [f"c{n}" for n in range(CONVERSATIONS)]

        async def one_by_one() -> None:
            while sids:
                await storm.converse(sids.pop())

        try:
            await asyncio.gather(*(one_by_one() for _ in range(AT_ONCE)))
        finally:
            storm.calm()
        stage.forager.answers = output
        calm = await stage.ask(calls(("read", {"path": "a"})), QUOTE)
        assert calm.text == "heard read:a"
        # Lines that are no JSON are Python's own: a slow callback on a loaded machine, a traceback.
        bad = [
            entry
            for entry in stage.bee.log()
            if entry.get("level") in ("warning", "error") or "Traceback" in entry.get("raw", "")
        ]
    assert bad == []
    assert storm.endings.keys() >= {"stop", "tool_use", "engine_error", "tool_timeout"}
    # A cancel drops what is parked: its result is late then, and an empty prompt beside it idle.
    allowed = {"cancelled", "tool_call_expired", "bad_prompt", "too_many_steps"}
    assert storm.endings.keys() - {"stop", "tool_use", "engine_error", "tool_timeout"} <= allowed
