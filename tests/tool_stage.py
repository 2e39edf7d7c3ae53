"""A bee whose engine calls tools as it is told, an asker and a forager: what tool tests share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hum_workers.fake_humd import Answer, Asker, FakeHumd
from hum_workers.fake_humd.wire import Tone
from tests.forager import Forager
from tests.rig import WAIT, Bee, egg, fake, served

PARSER = 'tool_call_parser = "hermes"'
LENT = ("read", "write")
READY = "ready"


@dataclass(frozen=True)
class Stage:
    """What the tests of one file share."""

    humd: FakeHumd
    bee: Bee
    asker: Asker
    forager: Forager
    socket: Path

    def prompt(self, *steps: Mapping[str, Any], sid: str | None = None, **fields: Any) -> str:
        """Sends a prompt whose engine does one step after the other, and returns its sid."""
        return self.asker.prompt(sid=sid, modelId="echo", text=script(*steps), **fields)

    async def ask(self, *steps: Mapping[str, Any], **fields: Any) -> Answer:
        """Sends such a prompt and returns its answer."""
        return await self.asker.collect(self.prompt(*steps, **fields), WAIT)

    def result(self, call: Tone, text: Any, sid: str | None = None, **fields: Any) -> str:
        """Sends what the asker's tool said and returns the sid; another one is claimed first."""
        if sid is not None:
            self.asker.send({"chi": "attach", "sid": sid})
        sid = sid or call["sid"]
        self.asker.send(
            {"chi": "tool-result", "sid": sid, "callId": call["callId"], "result": text, **fields}
        )
        return sid

    async def resumed(self, call: Tone, text: Any, sid: str | None = None) -> Answer:
        """Sends a result and returns the answer of the turn that goes on with it."""
        return await self.asker.collect(self.result(call, text, sid), WAIT)


@asynccontextmanager
async def staged(*, tools: str = "", lent: tuple[str, ...] = LENT) -> AsyncIterator[Stage]:
    """Yields the stage; `tools` are lines of the egg's `[tools]`."""
    folder = Path(tempfile.mkdtemp(prefix="hum-", dir="/tmp"))
    try:
        one = egg(folder, model=PARSER, extra=f"[tools]\n{tools}")
        async with served(folder, one) as (humd, bee, asker):
            async with await Forager.lend(humd.socket, *lent) as forager:
                yield Stage(humd, bee, asker, forager, humd.socket)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def script(*steps: Mapping[str, Any]) -> str:
    """Returns a prompt that scripts the engine's answers of one turn.

    Each step but the last is followed by as many tool messages as it has calls.
    """
    found, results = {}, 0
    for step in steps:
        found[str(results)] = dict(step)
        results += len(step.get("tool_calls") or [])
    return fake(steps=found)


def calls(*made: tuple[str, Any], text: str = "") -> dict[str, Any]:
    """Returns a step that calls these tools with these arguments, after some text."""
    step: dict[str, Any] = {"tool_calls": [{"name": n, "arguments": a} for n, a in made]}
    return {**step, "text": [text]} if text else step


def tool(name: str) -> dict[str, Any]:
    """Returns a tool of the asker."""
    return {"name": name, "description": name, "inputSchema": {"type": "object"}}


QUOTE = {"quote": True}
ECHO = {"echo": True}


def shape(tones: list[Tone]) -> list[str]:
    """Returns what a turn said, a line a tone; deltas of one block are joined."""
    lines: list[str] = []
    for tone in tones:
        line = _line(tone)
        if "delta" in tone and lines and lines[-1].startswith(line):
            lines[-1] += tone["delta"]
        else:
            lines.append(line + tone["delta"] if "delta" in tone else line)
    return lines


def _line(tone: Tone) -> str:
    chi = tone["chi"]
    if chi == "session-ready":
        return READY
    if chi == "finish":
        return f"finish {tone['finishReason']}"
    if chi == "error":
        return f"error {tone['code']}"
    if chi == "tool-call":
        assert tone["toolName"] == tone["name"]
        return f"call {tone['name']} {tone['args']}"
    kind = tone["chunkType"]
    if kind == "tool_executed":
        wrong = " wrong" if tone["isError"] else ""
        return f"executed {tone['toolName']} {tone['arguments']} -> {tone['output']}{wrong}"
    if kind == "tool_use":
        return f"use {tone['part']['toolCall']['name']}"
    return f"{kind} {tone['blockIdx']}{' ' if 'delta' in tone else ''}"


def said(block: int, text: str) -> list[str]:
    """Returns the lines of one block of text."""
    return [f"text_start {block}", f"text_delta {block} {text}", f"content_block_stop {block}"]


def last_call(answer: Answer) -> Tone:
    """Returns the one tool call of an answer."""
    (call,) = [tone for tone in answer.tones if tone["chi"] == "tool-call"]
    return call
