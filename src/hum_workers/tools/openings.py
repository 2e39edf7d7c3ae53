"""Openings: turns whose question comes in two tones, an asker's result and a prompt without text.

anthropic-server sends both on a new sid, in either order (thrum, section 7). A result waits a
moment for a prompt; a prompt that says nothing waits a little for a result. Owns their timers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from hum_workers.media.pollen import Pollen
from hum_workers.turns.sampling import refuse
from hum_workers.turns.turn import Asked

PROMPT_WAIT = 0.05
"""Seconds that a result waits for a prompt on its sid."""
RESULT_WAIT = 2.0
"""Seconds that a prompt without text waits for a result on its sid."""
MOST = 256
"""Prompts without text that may wait."""
NO_TEXT = "the prompt has no text: content, text and messages are empty"


class _Opening:
    """One question that may not be whole yet."""

    def __init__(self, asked: Asked | None) -> None:
        self.whole: asyncio.Future[Asked] = asyncio.get_running_loop().create_future()
        self.asked = asked
        self.timer: asyncio.TimerHandle | None = None

    def settle(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self.whole.done():
            return
        if self.asked is not None:
            self.whole.set_result(self.asked)
        else:
            self.whole.set_exception(refuse(NO_TEXT))
            self.whole.exception()  # seen: a turn that is stopped before it looks asks no more


class Openings:
    """Those of one bee, by sid."""

    def __init__(
        self,
        *,
        prompt_wait: float = PROMPT_WAIT,
        result_wait: float = RESULT_WAIT,
        most: int = MOST,
    ) -> None:
        self._prompt_wait = prompt_wait
        self._result_wait = result_wait
        self._most = most
        self._open: dict[str, _Opening] = {}
        self._loop = asyncio.get_running_loop()

    def takes_prompt(self, sid: str) -> bool:
        """Whether a result waits for a prompt on this sid."""
        opening = self._open.get(sid)
        return opening is not None and opening.asked is not None

    def prompt(
        self, sid: str, messages: Sequence[Mapping[str, Any]], media: Sequence[Pollen] = ()
    ) -> None:
        """Gives the prompt to the result that waits for it; without messages it adds nothing."""
        opening = self._open[sid]
        assert opening.asked is not None
        nest, talk = opening.asked
        opening.asked = nest, talk.told(messages, media)
        self._settle(sid, opening)

    def bare(self, sid: str) -> asyncio.Future[Asked] | None:
        """Returns what a prompt without text will have been asked; None when it must not wait."""
        if sid in self._open or len(self._open) >= self._most:
            return None
        return self._begin(sid, None, self._result_wait)

    def result(self, sid: str, asked: Asked) -> asyncio.Future[Asked] | None:
        """Gives a result to the prompt that waits for it; else returns what a new turn is asked."""
        opening = self._open.get(sid)
        if opening is None:
            return self._begin(sid, asked, self._prompt_wait)
        if opening.asked is not None:  # two results at once on one sid: the second waits for none
            whole = self._loop.create_future()
            whole.set_result(asked)
            return whole
        opening.asked = asked
        self._settle(sid, opening)
        return None

    def _begin(self, sid: str, asked: Asked | None, seconds: float) -> asyncio.Future[Asked]:
        opening = self._open[sid] = _Opening(asked)
        opening.timer = self._loop.call_later(seconds, self._settle, sid, opening)
        # A turn that is stopped cancels what it waits for.
        opening.whole.add_done_callback(lambda _: self._forget(sid, opening))
        return opening.whole

    def _settle(self, sid: str, opening: _Opening) -> None:
        self._forget(sid, opening)
        opening.settle()

    def _forget(self, sid: str, opening: _Opening) -> None:
        if self._open.get(sid) is opening:
            del self._open[sid]
        if opening.timer is not None:
            opening.timer.cancel()
