"""Questions that come in two tones: what waits for what, how long, and how many may."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from hum_workers.cells.nest import Nest
from hum_workers.errors import ErrorCode, TurnError
from hum_workers.tools.openings import Openings
from hum_workers.turns.prompt import Prompt
from hum_workers.turns.talk import Talk
from hum_workers.turns.turn import Asked

SOON, NEVER = 0.01, 60.0


def asked() -> Asked:
    return cast(Nest, None), Talk(prompt=Prompt(sid="s", messages=[]))


def said(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


async def test_a_result_waits_a_moment_and_goes_on_alone() -> None:
    openings = Openings(prompt_wait=SOON)
    question = asked()
    whole = openings.result("s", question)
    assert whole is not None
    assert openings.takes_prompt("s")
    assert await whole == question
    assert not openings.takes_prompt("s")


async def test_a_prompt_behind_a_result_ends_the_wait() -> None:
    openings = Openings(prompt_wait=NEVER)
    for messages, words in (((), ()), (said("more"), tuple(said("more")))):
        whole = openings.result("s", asked())
        assert whole is not None
        openings.prompt("s", messages)
        _, talk = await whole
        assert talk.words == words
        assert not openings.takes_prompt("s"), "it takes one"


async def test_a_prompt_that_came_first_is_asked_what_its_result_brings() -> None:
    openings = Openings(result_wait=NEVER)
    whole = openings.bare("s")
    assert whole is not None
    assert not openings.takes_prompt("s")
    question = asked()
    assert openings.result("s", question) is None
    assert await whole == question


async def test_a_prompt_without_its_result_is_refused() -> None:
    whole = Openings(result_wait=SOON).bare("s")
    assert whole is not None
    with pytest.raises(TurnError, match="no text") as caught:
        await whole
    assert caught.value.code is ErrorCode.BAD_PROMPT


async def test_few_prompts_may_wait_and_one_on_each_sid() -> None:
    openings = Openings(result_wait=NEVER, most=2)
    waiting = [openings.bare("a"), openings.bare("a"), openings.bare("b"), openings.bare("c")]
    assert [whole is None for whole in waiting] == [False, True, False, True]
    assert waiting[0] is not None
    waiting[0].cancel()
    await asyncio.sleep(0)
    assert openings.bare("c") is not None, "a turn that was stopped leaves its place"


async def test_two_results_on_one_sid_are_two_questions() -> None:
    openings = Openings(prompt_wait=SOON)
    first, second = asked(), asked()
    wholes = [openings.result("s", one) for one in (first, second)]
    assert all(wholes)
    assert [await whole for whole in wholes if whole is not None] == [first, second]
