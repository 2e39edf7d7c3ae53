"""The answer as bytes: server-sent events in vLLM's shapes, each a chunk of its own. Pure."""

from __future__ import annotations

import json
from typing import Any

from vllm.scripted.plan import Plan

FINGERPRINT = "vllm-0.32.0-scripted"
LAST_CHUNK = b"0\r\n\r\n"
_BLOCK = 256
_KEPT_BLOCKS = 256


def chunked(data: bytes) -> bytes:
    """Returns `data` as one chunk of HTTP/1.1."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def _json(value: Any, *, escaped: bool = False) -> str:
    return json.dumps(value, ensure_ascii=escaped, separators=(",", ":"))


class Answer:
    """Bytes of one planned answer, by token. `head` comes first, `tail` last."""

    _blocks: dict[tuple[Any, ...], bytes] = {}

    def __init__(self, plan: Plan, ident: str, created: int, *, details: bool) -> None:
        self.plan = plan
        self._ident = ident
        self._created = created
        self._details = details
        self.frame = (lambda data: data) if plan.fake.plain else chunked
        self._start = (
            f'data: {{"id":{_json(ident)},"object":"chat.completion.chunk","created":{created},'
            f'"model":{_json(plan.model)},"choices":'
        )

    @property
    def separate(self) -> bool:
        """Whether its events must be written one by one, a moment apart."""
        return self.plan.fake.split_utf8

    def head(self) -> bytes:
        """Returns the event with the role."""
        choice = (
            '[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,'
            '"finish_reason":null}]'
        )
        return self._event(choice, 0, ',"prompt_token_ids":null,"prompt_text":null')

    def take(self, first: int, last: int) -> bytes:
        """Returns the events of the tokens `first` up to, without, `last`."""
        plan = self.plan
        odd = plan.fake.comments or plan.fake.crlf or plan.fake.plain
        if plan.pieces is not None or odd:
            return b"".join(self._token(n) for n in range(first, last))
        # All but the last one, which carries the finish reason, are alike in all such answers.
        middle = min(last, plan.words - 1)
        parts = []
        while first < middle:
            stop = min(middle, (first // _BLOCK + 1) * _BLOCK)
            parts.append(self._block(first, stop))
            first = stop
        parts += [self._token(n) for n in range(first, last)]
        return b"".join(parts)

    def tail(self) -> bytes:
        """Returns what follows the last token: usage and [DONE]."""
        plan, fake = self.plan, self.plan.fake
        parts = []
        if self._bare_finish:
            parts.append(self._finish({}, plan.tokens))
        if plan.include_usage and fake.end != "no_usage":
            parts.append(self._usage_event())
        if fake.end != "no_done":
            parts.append(self._send("data: [DONE]\n\n"))
        if not fake.plain:
            parts.append(LAST_CHUNK)
        return b"".join(parts)

    def error(self) -> bytes:
        """Returns an error in the stream and the end that follows it all the same."""
        error = {
            "message": "EngineCore encountered an issue. See stack trace for the root cause.",
            "type": "InternalServerError",
            "param": None,
            "code": 500,
        }
        text = f"data: {_json({'error': error})}\n\n"
        return self._send(text) + self._send("data: [DONE]\n\n") + LAST_CHUNK

    def abort(self, tokens: int) -> bytes:
        """Returns the end of an aborted request."""
        choice = (
            '[{"index":0,"delta":{},"logprobs":null,"finish_reason":"abort","stop_reason":null,'
            '"token_ids":null}]'
        )
        return self._event(choice, tokens) + self._send("data: [DONE]\n\n") + LAST_CHUNK

    def whole(self, created: int) -> bytes:
        """Returns the answer to a request without `stream`."""
        plan = self.plan
        pieces = plan.pieces
        if pieces is None:
            pieces = [("content", f" w{n}" if n else "w0") for n in range(plan.words)]
        text = "".join(piece for kind, piece in pieces if kind == "content")
        thought = "".join(piece for kind, piece in pieces if kind == "reasoning")
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text or None if plan.fake.tool_calls else text,
            "reasoning": thought or None,
        }
        if plan.fake.tool_calls:
            message["tool_calls"] = _joined(pieces)
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": plan.finish,
            "stop_reason": plan.stop_reason,
        }
        answer = {
            "id": self._ident,
            "object": "chat.completion",
            "created": created,
            "model": plan.model,
            "choices": [choice],
            "system_fingerprint": FINGERPRINT,
            "usage": self._usage(plan.tokens),
        }
        return _json(answer).encode("utf-8", "backslashreplace")

    @property
    def _bare_finish(self) -> bool:
        """Whether the finish reason comes in an event of its own."""
        plan = self.plan
        if plan.fake.end in ("no_finish", "abort"):
            return False
        return not plan.tokens or (plan.pieces is not None and plan.pieces[-1][0] == "tool_calls")

    def _token(self, number: int) -> bytes:
        plan = self.plan
        if plan.pieces is None:
            kind, piece = "content", f" w{number}" if number else "w0"
        else:
            kind, piece = plan.pieces[number]
        delta = {kind: piece}
        if kind == "tool_calls":
            delta = {"content": None, "tool_calls": piece}
        last = number == plan.tokens - 1
        if last and not self._bare_finish and plan.fake.end not in ("no_finish", "abort"):
            return self._finish(delta, number + 1)
        choice = (
            f'[{{"index":0,"delta":{self._delta(delta)},"logprobs":null,"finish_reason":null,'
            '"token_ids":null}]'
        )
        return self._event(choice, number + 1)

    def _finish(self, delta: dict[str, Any], tokens: int) -> bytes:
        plan = self.plan
        choice = (
            f'[{{"index":0,"delta":{self._delta(delta)},"logprobs":null,'
            f'"finish_reason":{_json(plan.finish)},"stop_reason":{_json(plan.stop_reason)},'
            '"token_ids":null}]'
        )
        more = "" if plan.include_usage else f',"system_fingerprint":"{FINGERPRINT}"'
        return self._event(choice, tokens, more)

    def _delta(self, delta: dict[str, Any]) -> str:
        fake = self.plan.fake
        return _json(delta, escaped=fake.escaped or fake.surrogates)

    def _block(self, first: int, last: int) -> bytes:
        plan = self.plan
        key = (self._start, plan.continuous and plan.prompt_tokens, first, last)
        block = self._blocks.get(key)
        if block is None:
            block = self._words(first, last)
            if len(self._blocks) >= _KEPT_BLOCKS:
                self._blocks.clear()
            self._blocks[key] = block
        return block

    def _words(self, first: int, last: int) -> bytes:
        """The same bytes as by `_token`, ten times as fast: the fake must not be the bottleneck."""
        plan = self.plan
        if not first:
            return self._token(0) + self._words(1, last)
        head = f'{self._start}[{{"index":0,"delta":{{"content":" w'
        middle = '"},"logprobs":null,"finish_reason":null,"token_ids":null}]'
        hidden = len(head.encode()) - len(head)
        if plan.continuous:
            prompt = plan.prompt_tokens
            middle += f',"usage":{{"prompt_tokens":{prompt},"total_tokens":'
            end = ',"completion_tokens_details":null}}\n\n'
            texts = [
                f'{head}{n}{middle}{prompt + n + 1},"completion_tokens":{n + 1}{end}'
                for n in range(first, last)
            ]
        else:
            texts = [f"{head}{n}{middle}}}\n\n" for n in range(first, last)]
        return "".join([f"{len(t) + hidden:x}\r\n{t}\r\n" for t in texts]).encode()

    def _event(self, choices: str, tokens: int, more: str = "") -> bytes:
        plan = self.plan
        usage = ""
        if plan.continuous:
            total = plan.prompt_tokens + tokens
            usage = (
                f',"usage":{{"prompt_tokens":{plan.prompt_tokens},"total_tokens":{total},'
                f'"completion_tokens":{tokens},"completion_tokens_details":null}}'
            )
        return self._send(f"{self._start}{choices}{usage}{more}}}\n\n")

    def _usage_event(self) -> bytes:
        usage = _json(self._usage(self.plan.tokens))
        return self._send(
            f'{self._start}[],"usage":{usage},"system_fingerprint":"{FINGERPRINT}"}}\n\n'
        )

    def _usage(self, tokens: int) -> dict[str, Any]:
        prompt = self.plan.prompt_tokens
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + tokens,
            "completion_tokens": tokens,
        }
        if self._details:
            cached = min(self.plan.fake.cached, prompt)
            usage["prompt_tokens_details"] = {"cached_tokens": cached, "created_cache_tokens": 0}
        return usage

    def _send(self, text: str) -> bytes:
        fake = self.plan.fake
        if fake.comments:
            text = ": keep-alive\n\n" + text
        if fake.crlf:
            text = text.replace("\n", "\r\n")
        return self.frame(text.encode("utf-8", "surrogatepass"))


def _joined(pieces: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    calls: dict[int, dict[str, Any]] = {}
    for kind, deltas in pieces:
        if kind != "tool_calls":
            continue
        for delta in deltas:
            call = calls.setdefault(delta["index"], {"type": "function", "function": {}})
            call["id"] = delta.get("id", call.get("id"))
            function = call["function"]
            function["name"] = delta["function"].get("name", function.get("name"))
            more = delta["function"].get("arguments", "")
            function["arguments"] = function.get("arguments", "") + more
    return list(calls.values())
