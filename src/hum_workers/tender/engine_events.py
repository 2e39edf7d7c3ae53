"""The engine's chat stream: bytes of `text/event-stream` in, events of a turn out.

Pure. A turn's events end with exactly one FINISH or one ERROR. FINISH needs a finish reason of the
engine: `[DONE]`, `abort` or the end of the stream alone are no success. Decoding is lenient in what
it does not need (unknown fields) and strict in what it uses.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec

from hum_workers.errors import ErrorCode, TurnError, one_line
from hum_workers.frames import Mmm
from hum_workers.tender.sse import MAX_EVENT, EventStream

Event = tuple[Mmm, Any]

_MOST_TOKENS = 2**53
_NO_FINISH = "the engine's stream ended without a finish reason"


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct, gc=False):
    index: Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)] = 0
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Timings(msgspec.Struct, gc=False):
    """What llama.cpp counts with each token; its `usage` comes only at the end."""

    prompt_n: int | None = None
    cache_n: int | None = None
    predicted_n: int | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    timings: _Timings | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


class ChatStream:
    """One turn's stream. Text of one kind that arrives in one feed comes out as one event."""

    __slots__ = (
        "_decoded_loosely",
        "_events",
        "_held",
        "_kind",
        "_reason",
        "_texts",
        "_usage",
        "done",
    )

    def __init__(self, limit: int = MAX_EVENT) -> None:
        self.done = False
        """True once FINISH or ERROR was returned; nothing follows it."""
        self._events = EventStream(limit)
        self._kind = Mmm.TEXT
        self._texts: list[str] = []
        self._held: str = ""
        self._decoded_loosely = False
        self._reason: str | None = None
        self._usage: _Usage | None = None

    def feed(self, data: bytes) -> list[Event]:
        """Returns the events that `data` completes, in order."""
        out: list[Event] = []
        if self.done:
            return out
        try:
            for payload in self._events.feed(data):
                if payload == b"[DONE]":
                    self._end(out)
                    return out
                try:
                    chunk = _decode(payload)
                except (msgspec.MsgspecError, RecursionError):
                    if not payload.strip():
                        continue
                    chunk = self._decode_loosely(payload)
                if chunk.usage is not None:
                    self._usage = chunk.usage
                elif chunk.timings is not None:
                    self._usage = _counted(chunk.timings)
                if chunk.choices:
                    choice = chunk.choices[0]
                    if choice.delta is not None:
                        self._delta(choice.delta, out)
                    if choice.finish_reason is not None:
                        self._reason = choice.finish_reason
                elif chunk.error is not None:
                    raise TurnError(*described(chunk.error, "the engine reported an error"))
                elif self._reason is not None and chunk.usage is not None:
                    self._end(out)
                    return out
        except TurnError as error:
            self._fail(out, error.code, error.message)
        else:
            self._flush(out, hold=True)
        return out

    def eof(self, message: str = _NO_FINISH) -> list[Event]:
        """Returns what the end of the answer means: FINISH, or ERROR with `message`; once."""
        out: list[Event] = []
        if not self.done:
            self._end(out, message)
        return out

    def fail(self, code: ErrorCode, message: str) -> list[Event]:
        """Returns the ERROR, with the usage known so far, that ends a stream cut from outside."""
        out: list[Event] = []
        if not self.done:
            self._fail(out, code, message)
        return out

    @property
    def usage(self) -> dict[str, int] | None:
        """Tokens as the engine last counted them: `input` without `cached`, `output`, `cached`."""
        usage = self._usage
        if usage is None:
            return None
        details = usage.prompt_tokens_details
        cached = _count(details.cached_tokens) if details is not None else 0
        fresh = _count((usage.prompt_tokens or 0) - cached)
        return {"input": fresh, "output": _count(usage.completion_tokens), "cached": cached}

    def _delta(self, delta: _Delta, out: list[Event]) -> None:
        text = delta.content
        if text:
            if self._kind is not Mmm.TEXT:
                self._switch(Mmm.TEXT, out)
            self._texts.append(text)
        # vLLM before 0.12 and other servers call it reasoning_content; some send both.
        text = delta.reasoning or delta.reasoning_content
        if text:
            if self._kind is not Mmm.REASONING:
                self._switch(Mmm.REASONING, out)
            self._texts.append(text)
        if delta.tool_calls:
            self._flush(out)
            out.extend((Mmm.TOOL, _tool(call)) for call in delta.tool_calls)

    def _switch(self, kind: Mmm, out: list[Event]) -> None:
        self._flush(out)
        self._kind = kind

    def _flush(self, out: list[Event], *, hold: bool = False) -> None:
        """Moves the collected text to `out`; with `hold`, less half a surrogate pair at its end."""
        if self._decoded_loosely:
            text = self._held + "".join(self._texts)
            self._held = ""
            if hold and text and "\ud800" <= text[-1] <= "\udbff":
                self._held = text[-1]
                text = text[:-1]
            text = _mend(text)
            self._decoded_loosely = bool(self._held)
        elif self._texts:
            text = self._texts[0] if len(self._texts) == 1 else "".join(self._texts)
        else:
            return
        self._texts.clear()
        if text:
            out.append((self._kind, text))

    def _decode_loosely(self, payload: bytes) -> _Chunk:
        """Reads what msgspec refuses: lone surrogate escapes, stray bytes, NaN."""
        try:
            value = json.loads(payload.decode("utf-8", "replace"))
            chunk: _Chunk = msgspec.convert(value, _Chunk)
        except msgspec.ValidationError as error:
            raise TurnError(
                ErrorCode.ENGINE_ERROR, f"the engine sent an event of another shape: {error}"
            ) from error
        except (ValueError, RecursionError) as error:
            start = one_line(payload[:80].decode("utf-8", "replace"))
            raise TurnError(
                ErrorCode.ENGINE_ERROR, f"the engine sent an event that is not JSON: {start}"
            ) from error
        self._decoded_loosely = True
        return chunk

    def _end(self, out: list[Event], no_finish: str = _NO_FINISH) -> None:
        reason = self._reason
        if reason is None:
            self._fail(out, ErrorCode.STREAM_BROKEN, no_finish)
        elif reason == "abort":
            self._fail(out, ErrorCode.STREAM_BROKEN, "the engine aborted the request")
        elif reason == "error":
            self._fail(out, ErrorCode.ENGINE_ERROR, "the engine failed while it generated")
        else:
            self._flush(out)
            out.append((Mmm.FINISH, {"reason": one_line(_mend(reason)), "usage": self.usage}))
            self.done = True

    def _fail(self, out: list[Event], code: ErrorCode, message: str) -> None:
        self._flush(out)
        out.append((Mmm.ERROR, {"code": code, "message": message, "usage": self.usage}))
        self.done = True


def _counted(timings: _Timings) -> _Usage:
    cached = _count(timings.cache_n)
    return _Usage(
        prompt_tokens=_count(timings.prompt_n) + cached,
        completion_tokens=timings.predicted_n,
        prompt_tokens_details=_PromptDetails(cached),
    )


def _count(tokens: int | None) -> int:
    return min(max(0, tokens or 0), _MOST_TOKENS)


def _tool(call: _ToolCall) -> dict[str, Any]:
    function = call.function or _Function()
    return {
        "index": call.index,
        "id": _mend(call.id or ""),
        "name": _mend(function.name or ""),
        "arguments": _mend(function.arguments or ""),
    }


def refusal(status: int, body: bytes) -> tuple[ErrorCode, str]:
    """Returns code and one-line message of an answer that is no stream, in the engine's words."""
    try:
        answer = json.loads(body.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        answer = body[:4096].decode("utf-8", "replace")
    if isinstance(answer, dict):
        answer = answer.get("error") or answer
    # The status is the server's verdict; a `code` inside the body may count differently.
    code = _code(status)
    message = described(answer, "")[1]
    if code is not ErrorCode.BAD_PROMPT or not message:
        message = f"the engine answered {status}" + (f": {message}" if message else "")
    return code, message


def described(error: object, fallback: str) -> tuple[ErrorCode, str]:
    """Returns code and one-line message of an error object of an OpenAI-style server."""
    code = ErrorCode.ENGINE_ERROR
    message: object = error
    if isinstance(error, dict):
        code = _code(error.get("code"))
        message = error.get("message") or error.get("detail") or error.get("type")
    if not isinstance(message, str):
        message = json.dumps(error, default=str) if error else ""
    text = one_line(_mend(message))
    return code, text or fallback


def _code(status: object) -> ErrorCode:
    if status == 400:
        return ErrorCode.BAD_PROMPT
    if status in (429, 503):
        return ErrorCode.NO_CAPACITY
    return ErrorCode.ENGINE_ERROR


def _mend(text: str) -> str:
    """Joins surrogate pairs; a lone half becomes U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
