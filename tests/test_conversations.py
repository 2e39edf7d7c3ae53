"""Conversations: what runs and waits is bounded by number and by weight."""

from __future__ import annotations

import asyncio
from typing import cast

from hum_workers.errors import TurnError
from hum_workers.turns.conversations import MIB, Conversations
from hum_workers.turns.ending import Ending
from hum_workers.turns.turn import Turn


class Asked:
    """Stands in for a turn: it runs until it is stopped."""

    def __init__(self, sid: str) -> None:
        self.sid = sid
        self.refusal: TurnError | None = None
        self.stopped = asyncio.Event()

    def refuse(self, error: TurnError) -> None:
        self.refusal = error

    def stop(self, ending: Ending) -> None:
        self.stopped.set()

    async def run(self, place: asyncio.Future[None] | None) -> None:
        await self.stopped.wait()


def add(conversations: Conversations, sid: str, weight: int) -> Asked:
    asked = Asked(sid)
    conversations.add(cast(Turn, asked), max_waiting=4, weight=weight)
    return asked


async def test_prompts_that_together_hold_too_much_are_refused_until_others_end() -> None:
    conversations = Conversations(most_weight=10 * MIB)
    first = add(conversations, "a", 6 * MIB)
    refused = add(conversations, "b", 6 * MIB)
    assert refused.refusal is not None
    assert str(refused.refusal) == (
        "1 prompts hold 6 MiB already, and 10 is the most; ask again later"
    )
    first.stopped.set()
    assert await conversations.ended(5)
    heard = add(conversations, "b", 6 * MIB)
    assert heard.refusal is None
    await conversations.close()


async def test_one_prompt_alone_may_weigh_what_a_line_holds() -> None:
    conversations = Conversations(most_weight=MIB)
    assert add(conversations, "a", 40 * MIB).refusal is None
    await conversations.close()
