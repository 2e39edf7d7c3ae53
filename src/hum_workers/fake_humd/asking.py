"""A question of a person at a terminal: one prompt, its answer on standard output.

Every wait ends: with the ending, at `timeout`, when no bee serves the model for `patience` seconds,
or by a signal. The first one cancels the prompt and leaves after its ending, a second one at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hum_workers.errors import UsageError
from hum_workers.fake_humd.asker import ENDINGS, Asker, spoken
from hum_workers.fake_humd.state import advertised

STOPS = (signal.SIGTERM, signal.SIGINT)
LOOK = 0.5
"""Seconds between two looks at who serves the model."""
MISSED = 5.0
"""Seconds without a bee and without a tone after which that is said."""
LAST_WORD = 2.0
"""Seconds for the ending of a prompt that was cancelled."""
CUT = {
    "length": "the answer was cut at its greatest length",
    "content_filter": "the answer was cut by a filter",
    "tool_use": "the answer ends with a call of a tool, which nobody here runs",
    "cancelled": "the prompt was cancelled",
}
"""What a finish other than `stop` means to who reads the answer."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked, of whom, and how long it is waited for, in seconds."""

    text: str
    socket: Path
    home: Path
    """Where humd keeps its state: who advertises which model."""
    model: str | None = None
    system: str | None = None
    max_tokens: int | None = None
    timeout: float = 600.0
    patience: float = 60.0

    def models(self) -> list[str] | None:
        """Returns the models that are advertised, None when that can't be known."""
        return advertised(self.home, self.socket)


async def ask(question: Question) -> int:
    """Prints the answer and returns the exit code.

    Raises:
        UsageError: no model is named, and there is not just one.
    """
    loop = asyncio.get_running_loop()
    signalled: asyncio.Future[int] = loop.create_future()

    def note(number: int) -> None:
        for each in STOPS:
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)  # a second one does not wait
        signalled.set_result(number)

    for number in STOPS:
        loop.add_signal_handler(number, note, number)
    work = loop.create_task(_converse(question))
    try:
        await asyncio.wait({work, signalled}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        return 128 + signalled.result()
    finally:
        work.cancel()
        await asyncio.wait({work})
        for number in STOPS:
            loop.remove_signal_handler(number)


async def _converse(question: Question) -> int:
    socket = question.socket
    try:
        asker = await Asker.connect(socket)
    except OSError as error:  # a TimeoutError is one, without strerror
        complain(f"{socket}: no humd answers here ({error.strerror or 'silence'}); start one")
        return 1
    async with asker:
        talk = _Talk(asker, question)
        try:
            async with asyncio.timeout(question.timeout):
                return await talk.run()
        except TimeoutError:
            complain(f"{socket}: no whole answer in {question.timeout:g} s")
            return 1


class _Talk:
    """One prompt and its answer."""

    def __init__(self, asker: Asker, question: Question) -> None:
        self._asker = asker
        self._question = question
        self._model = question.model or _only(question.models())
        self._loop = asyncio.get_running_loop()
        self._heard = self._loop.time()
        """When the last tone came, or a bee that serves the model was seen."""

    async def run(self) -> int:
        """Returns the exit code; a cancel takes the prompt back."""
        sid = self._asker.prompt(**self._prompt())
        printing = self._loop.create_task(self._print(sid))
        missing = self._loop.create_task(self._miss())
        try:
            await asyncio.wait({printing, missing}, return_when=asyncio.FIRST_COMPLETED)
            return (printing if printing.done() else missing).result()
        except asyncio.CancelledError:
            with contextlib.suppress(ConnectionResetError):
                self._asker.cancel(sid)
            await asyncio.wait({printing}, timeout=LAST_WORD)
            raise
        finally:
            for task in (printing, missing):
                task.cancel()
            await asyncio.wait({printing, missing})

    def _prompt(self) -> dict[str, Any]:
        asked = self._question
        fields = {
            "modelId": self._model,
            "systemPrompt": asked.system,
            "sampling": {"maxTokens": asked.max_tokens} if asked.max_tokens else None,
        }
        return {"text": asked.text} | {key: value for key, value in fields.items() if value}

    async def _print(self, sid: str) -> int:
        async for tone in self._asker.stream(sid):
            self._heard = self._loop.time()
            kind, delta = spoken(tone)
            if kind == "text":
                sys.stdout.write(delta)
                sys.stdout.flush()
            if tone["chi"] in ENDINGS:
                sys.stdout.write("\n")
                sys.stdout.flush()
                return _verdict(tone)
        complain("humd closed the connection before the answer ended")
        return 1

    async def _miss(self) -> int:
        """Returns when no bee has served the model, nor anybody said anything, for too long."""
        said = False
        while True:
            models = self._question.models()
            now = self._loop.time()
            if models is None or self._model is None or self._model in models:
                self._heard, said = now, False
            alone = now - self._heard
            if alone >= self._question.patience:
                complain(f"no bee has served {self._model} for {alone:.0f} s; ask again later")
                return 1
            if alone >= MISSED and not said:
                said = True
                left = self._question.patience - alone
                complain(
                    f"no bee serves {self._model} any more; one may come back for {left:.0f} s"
                )
            await asyncio.sleep(LOOK)


def _only(models: list[str] | None) -> str | None:
    """Returns the one model there is; None leaves the choice to humd.

    Raises:
        UsageError: there are several, or none.
    """
    if models is None:
        return None
    if len(models) != 1:
        there = f"there are {', '.join(models)}" if models else "no bee advertises any"
        raise UsageError(f"name the model with --model ID: {there}")
    return models[0]


def _verdict(ending: dict[str, Any]) -> int:
    if ending["chi"] == "finish":
        reason = ending.get("finishReason")
        if told := CUT.get(str(reason)):
            complain(f"{told} (finishReason {reason})")
        return 1 if reason == "cancelled" else 0
    code = f"{ending['code']}: " if "code" in ending else ""
    complain(f"{code}{ending.get('message', 'an error without a message')}")
    return 1


def complain(line: str) -> None:
    """Writes a line for a person to standard error."""
    sys.stderr.write(f"fake_humd: {line}\n")
    sys.stderr.flush()
