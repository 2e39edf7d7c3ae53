"""Hatching: from an engine that was just spawned to one that has answered a prompt.

Lives in the tender. Every wait ends with the engine's death or after `start_timeout` seconds
without a sign of progress: a new line of output, a stage, an answer.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from hum_workers.errors import StartFailed
from hum_workers.frames import Cause, Mmm
from hum_workers.spec import CellSpec
from hum_workers.tender.upstream import Upstream

HEALTH_POLL = 0.05
HEALTH_TIMEOUT = 10.0
DETAIL = 100
"""Letters of a line of output that go with a stage."""
LINES_REMEMBERED = 64
"""Last lines of output that are no progress when they come again: a stuck vLLM repeats itself."""
_CLOCK = re.compile(r"\d\d-\d\d \d\d:\d\d:\d\d|\d\d:\d\d:\d\d")


class Hatching:
    """Waits for one engine to become ready; `progress()` moves its deadline."""

    def __init__(
        self, spec: CellSpec, upstream: Upstream, on_stage: Callable[[str, str], None]
    ) -> None:
        self._spec = spec
        self._upstream = upstream
        self._on_stage = on_stage
        self._loop = asyncio.get_running_loop()
        self._stage = "spawned"
        self._last_sign = self._loop.time()
        self._said: deque[str] = deque(maxlen=LINES_REMEMBERED)

    def progress(self) -> None:
        """Notes a sign of life."""
        self._last_sign = self._loop.time()

    def line(self, text: str) -> None:
        """Reads a line of the engine's output for a mark of progress."""
        plain = _CLOCK.sub("", text)
        if plain in self._said:
            return
        self._said.append(plain)
        self.progress()
        for mark, stage in self._spec.marks:
            if mark in text:
                if stage != self._stage:
                    self._enter(stage, text[text.index(mark) :][:DETAIL])
                return

    async def run(self) -> dict[str, Any]:
        """Returns what the engine says of itself: `models`, `max_model_len`, and what it showed:
        `media`, the kinds that its model takes.

        Raises:
            StartFailed: no progress, the wrong model, or a canary prompt that failed.
        """
        work = asyncio.ensure_future(self._wait_and_try())
        try:
            while not work.done():
                left = self._last_sign + self._spec.start_timeout - self._loop.time()
                if left <= 0:
                    raise StartFailed(
                        f"no progress for {self._spec.start_timeout:g} s at stage "
                        f"'{self._stage}'; raise [lifecycle] start_timeout if it needs longer",
                        Cause.START_TIMEOUT,
                    )
                await asyncio.wait({work}, timeout=left)
            return work.result()
        finally:
            work.cancel()
            await asyncio.wait({work})

    async def _wait_and_try(self) -> dict[str, Any]:
        await self._healthy()
        self._enter("listening", "")
        facts = await self._models()
        for number, canary in enumerate(self._spec.canaries, 1):
            stage = f"canary {number} of {len(self._spec.canaries)}"
            self._enter(stage, "")
            problem = await self._canary(canary)
            if problem is not None and number == 1:
                raise StartFailed(f"ready by its own word, but a first prompt failed: {problem}")
            if problem is not None:
                self._enter(stage, f"failed, such prompts will too: {problem}")
        facts["media"] = await self._media()
        return facts

    async def _media(self) -> list[str]:
        """Returns the kinds of media that the model takes: those whose probe was answered."""
        takes = []
        for kind, probe in self._spec.media_probes.items():
            stage = f"media: {kind}"
            self._enter(stage, "")
            problem = await self._canary(probe)
            if problem is None:
                takes.append(kind)
                continue
            self._enter(stage, f"not taken: {problem}")
            if self._spec.text_only and self._spec.text_only in problem:
                break
        return takes

    def _enter(self, stage: str, detail: str) -> None:
        self._stage = stage
        self.progress()
        self._on_stage(stage, detail)

    async def _healthy(self) -> None:
        while True:
            try:
                answer = await self._upstream.request(
                    "GET", self._spec.health_path, timeout=HEALTH_TIMEOUT
                )
                if answer.status == 200:
                    return
            except (OSError, TimeoutError):
                # ENOENT before the bind, ECONNREFUSED before the listen: still loading.
                pass
            await asyncio.sleep(HEALTH_POLL)

    async def _models(self) -> dict[str, Any]:
        try:
            answer = await self._upstream.request(
                "GET", self._spec.models_path, timeout=self._spec.start_timeout
            )
        except OSError as error:
            raise StartFailed(
                f"the engine says it is healthy, but not which models it has: {error}"
            ) from error
        try:
            cards = msgspec.json.decode(answer.body)["data"]
            models = [card["id"] for card in cards]
            longest = context_of(cards[0]) if cards else None
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
            raise StartFailed(
                f"the engine's list of models can't be read (status {answer.status}): {error}"
            ) from error
        if self._spec.model not in models:
            raise StartFailed(
                f"the engine serves {', '.join(map(str, models)) or 'no model'}, "
                f"not '{self._spec.model}'"
            )
        return {"models": models, "max_model_len": longest}

    async def _canary(self, body: dict[str, Any]) -> str | None:
        """Returns why the prompt failed, None if it did not."""
        ended: asyncio.Future[str | None] = self._loop.create_future()

        def sink(kind: Mmm, data: Any) -> None:
            self.progress()
            if kind in (Mmm.FINISH, Mmm.ERROR) and not ended.done():
                ended.set_result(data["message"] if kind is Mmm.ERROR else None)

        stream = self._upstream.stream(self._spec.chat_path, msgspec.json.encode(body), sink)
        try:
            return await ended
        finally:
            stream.close()


def context_of(card: dict[str, Any]) -> int | None:
    """Returns the tokens of one turn's context, as vLLM or as llama.cpp tells them; None if not."""
    meta = card.get("meta")
    told = card.get("max_model_len") or (meta.get("n_ctx") if isinstance(meta, dict) else None)
    return told if isinstance(told, int) else None
