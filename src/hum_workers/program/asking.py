"""Asking: one prompt on the command line, through the same turn as a prompt from humd."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hum_workers import lifecycle
from hum_workers.egg import log_settings
from hum_workers.errors import EngineError, TurnError, UsageError
from hum_workers.process import orphans
from hum_workers.program import logs, places
from hum_workers.program.annex import Lodging
from hum_workers.program.assembly import NestMaker, Stops, media_rules, raise_open_files
from hum_workers.program.worker import Worker
from hum_workers.thrum.paths import state_home
from hum_workers.thrum.tones import Kind
from hum_workers.turns.ending import Finish
from hum_workers.turns.prompt import parse_prompt
from hum_workers.turns.reply import Reply
from hum_workers.turns.talk import Talk
from hum_workers.turns.turn import Turn

SID = "prompt"
KILL_WAIT = 10.0
"""Seconds for a killed cell to be dead; the kernel or the guard needs milliseconds."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What the command line asks."""

    text: str
    system: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    images: Sequence[Mapping[str, str]] = ()
    """Attachments, each with kind, mediaType and data."""

    def tone(self) -> dict[str, Any]:
        """Returns the prompt tone that humd would bring."""
        sampling = {"maxTokens": self.max_tokens, "temperature": self.temperature}
        tone = {
            "chi": "prompt",
            "sid": SID,
            "content": self.text,
            "attachments": [dict(image) for image in self.images],
            "sampling": {key: value for key, value in sampling.items() if value is not None},
        }
        return tone | ({"systemPrompt": self.system} if self.system else {})


class Console:
    """An outbox that prints: the text as it comes, or every tone as a line of JSON.

    When standard output takes no more, `on_broken` is called, once, and nothing is printed any
    more.
    """

    def __init__(
        self, *, as_json: bool, on_broken: Callable[[], None], quiet: bool = False
    ) -> None:
        self.ending: Mapping[str, Any] | None = None
        self.broken: OSError | None = None
        self._as_json = as_json
        self._quiet = quiet
        self._on_broken = on_broken
        self._wrote = False
        if isinstance(sys.stdout, io.TextIOWrapper):
            # An engine may say what a terminal's encoding has no sign for.
            sys.stdout.reconfigure(errors="replace")

    @property
    def answered(self) -> bool:
        """Whether all of the answer was printed."""
        ending = self.ending or {"chi": "none"}
        whole = ending["chi"] == "finish" and ending["finishReason"] != "cancelled"
        return whole and self.broken is None

    def tone(self, tone: Mapping[str, Any]) -> None:
        """Prints a control tone, where tones are asked for."""
        if self._as_json:
            self._write(json.dumps(tone, ensure_ascii=False) + "\n")

    def delta(self, kind: Kind, block: int, text: str) -> None:
        """Prints text; reasoning goes to standard error."""
        if self._as_json:
            delta = {"chunkType": f"{kind}_delta", "blockIdx": block, "delta": text}
            self.tone({"chi": "chunk", "sid": SID, **delta})
        elif kind == "text":
            self._wrote = True
            self._write(text)
        elif not self._quiet:
            with contextlib.suppress(OSError):
                print(text, end="", file=sys.stderr, flush=True)  # noqa: T201

    def end(self, tone: Mapping[str, Any]) -> None:
        """Keeps the ending."""
        self.ending = tone
        self.tone(tone)
        if self._wrote:
            self._write("\n")

    def late(
        self, make: Callable[[], bytes | None], size: int, tones: int, otherwise: Mapping[str, Any]
    ) -> None:
        """Is never needed: a prompt of the command line brings no tools."""

    def discard(self) -> None:
        """Has nothing that waits."""

    def _write(self, text: str) -> None:
        if self.broken is not None:
            return
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError as error:
            self.broken = error
            # What is still buffered must not fail a second time at the end of the process.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, sys.stdout.fileno())
            os.close(null)
            self._on_broken()


async def ask(
    worker: Worker, egg: Any, question: Question, *, as_json: bool, quiet: bool = False
) -> int:
    """Raises the egg's cell, prints the answer, ends the cell and returns the exit code.

    `quiet`: standard error gets errors alone, neither the log's other lines nor reasoning.

    Raises:
        UsageError: the prompt itself can't be used.
        EngineError: the engine can't be started.
    """
    settings = log_settings([egg])
    calm = quiet and settings.file is None
    logs.configure("error" if calm else settings.level, settings.file)
    try:
        prompt = parse_prompt(question.tone())
        media_rules(egg).admit(prompt.media)
    except TurnError as error:
        raise UsageError(f"--prompt: {error.message}") from error
    if not egg.models():
        raise UsageError(f"--prompt: {egg.source} is an egg that answers no prompts")
    lifecycle.become_subreaper()
    raise_open_files()
    cells = places.cells_folder(os.environ, os.getuid())
    stops = Stops()
    lodging = Lodging(worker.hive, worker.annex, [egg], state_home(os.environ))
    maker = NestMaker(
        worker=worker,
        cells=cells,
        tag=f"p{os.getpid()}",
        log_tag="prompt",
        start_slot=asyncio.Semaphore(1),
        on_change=lambda: None,
        on_prompt=True,
        advertises=False,
        annex=lodging.annex,
    )
    nest = maker.nest(egg)
    cancelled = Finish("cancelled")
    console = Console(as_json=as_json, quiet=quiet, on_broken=lambda: turn.stop(cancelled))
    loop = asyncio.get_running_loop()
    turn = Turn(SID, Talk(prompt=prompt), nest, Reply(SID, console), now=loop.time())
    stops.asked.add_done_callback(lambda _: turn.stop(cancelled))
    try:
        await lodging.open()
        await turn.run(None)
        await nest.stop(egg.lifecycle.stop_grace, _why(stops, console))
    except asyncio.CancelledError:
        if stops.forced is None:
            raise
    finally:
        nest.kill()
        await nest.buried(KILL_WAIT)
        await lodging.close()
        orphans.kill_below()
        places.leave(cells)
    if stops.forced is not None:
        return stops.forced
    if stops.asked.done() and not console.answered:
        return 128 + signal.Signals[stops.asked.result()]
    if nest.failure is not None:
        raise EngineError(nest.failure)
    return _verdict(console)


def _why(stops: Stops, console: Console) -> str:
    """Returns why the cell ends, once the turn has."""
    if console.answered:
        return "the prompt was answered"
    if stops.asked.done():
        return stops.asked.result()
    return "the prompt failed" if console.broken is None else "nobody reads the answer"


def _verdict(console: Console) -> int:
    ending = console.ending
    if console.broken is not None:
        if not isinstance(console.broken, BrokenPipeError):
            logs.say_last(f"the answer can't be written: {console.broken.strerror}")
        return 1
    if ending is None or ending["chi"] == "error":
        message = ending["message"] if ending else "no ending"
        logs.say_last(f"the prompt failed: {message}")
        return 1
    return 0 if console.answered else 1
