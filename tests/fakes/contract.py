"""What we rely on in an engine, as functions over a running one: real and scripted must keep it.

Speaks HTTP/1.1 by itself, so that a mistake of our own client can't hide one of the engine.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hum_workers.media.samples import probes
from hum_workers.vllm_worker.signs import TEXT_ONLY

_WAIT = 60.0
"""Seconds one promise may take: the real one runs on a CPU."""


@dataclass(frozen=True)
class Target:
    """A running engine."""

    uds: Path
    model: str
    api_key: str | None = None


@dataclass(frozen=True)
class Answer:
    """One whole answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """Returns the body's value."""
        return json.loads(self.body)

    def events(self) -> list[str]:
        """Returns the data of each event; anything but `data` lines is an error here."""
        blocks = self.body.decode().split("\n\n")
        assert blocks.pop() == ""
        assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
        return [block[6:] for block in blocks]


async def ask(target: Target, method: str, path: str, body: Any = None, *, key: str = "") -> Answer:
    """Sends one request on a connection of its own."""
    async with asyncio.timeout(_WAIT):
        reader, writer = await _send(target, method, path, body, key)
        try:
            return _parsed(await reader.read())
        finally:
            writer.close()
            await writer.wait_closed()


async def _send(
    target: Target, method: str, path: str, body: Any = None, key: str = ""
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_unix_connection(str(target.uds))
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: engine", "Connection: close"]
    lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    if key or target.api_key:
        lines.append(f"Authorization: Bearer {key or target.api_key}")
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
    return reader, writer


def _parsed(raw: bytes) -> Answer:
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    if headers.get("transfer-encoding") == "chunked":
        body = _unchunked(body)
    return Answer(int(first.split()[1]), headers, body)


def _unchunked(body: bytes) -> bytes:
    parts: list[bytes] = []
    while True:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            return b"".join(parts)
        parts.append(body[:length])
        body = body[length + 2 :]


def _request(target: Target, text: str = "Count to a hundred.", **more: Any) -> dict[str, Any]:
    return {"model": target.model, "messages": [{"role": "user", "content": text}], **more}


_COUNTED = {"include_usage": True, "continuous_usage_stats": True}


async def gauge(target: Target, name: str) -> float:
    """Returns one value of /metrics."""
    text = (await ask(target, "GET", "/metrics")).body.decode()
    found = re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
    assert found, name
    return sum(map(float, found))


async def _running(target: Target, count: int) -> None:
    while await gauge(target, "vllm:num_requests_running") != count:  # noqa: ASYNC110 (polled)
        await asyncio.sleep(0.01)


async def says_that_it_is_ready(target: Target) -> None:
    """Health has no body; the model card names model and length."""
    health = await ask(target, "GET", "/health")
    assert (health.status, health.body) == (200, b"")
    cards = (await ask(target, "GET", "/v1/models")).json()["data"]
    assert target.model in [card["id"] for card in cards]
    assert all(card["max_model_len"] > 0 for card in cards)
    assert "version" in (await ask(target, "GET", "/version")).json()


async def streams_role_text_finish_usage_done(target: Target) -> None:
    """The shapes and the order of a stream, and what each event carries."""
    request = _request(target, max_tokens=6, ignore_eos=True, stream=True, stream_options=_COUNTED)
    answer = await ask(target, "POST", "/v1/chat/completions", request)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, done = answer.events()
    assert done == "[DONE]"
    role, *texts, usage = [json.loads(event) for event in events]
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert role["usage"]["completion_tokens"] == 0
    for chunk in texts:
        assert chunk["object"] == "chat.completion.chunk"
        assert set(chunk["choices"][0]["delta"]) <= {"content"}
        assert chunk["usage"]["completion_tokens"] > 0
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in texts]
    assert reasons == [None] * (len(texts) - 1) + ["length"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 6
    assert usage["usage"]["total_tokens"] == usage["usage"]["prompt_tokens"] + 6


async def sends_no_usage_unasked(target: Target) -> None:
    """Without stream_options no event carries usage."""
    request = _request(target, max_tokens=2, stream=True)
    answer = await ask(target, "POST", "/v1/chat/completions", request)
    assert all("usage" not in json.loads(event) for event in answer.events()[:-1])


async def answers_whole_without_stream(target: Target) -> None:
    """The same in one piece, with a length."""
    request = _request(target, max_tokens=3, ignore_eos=True)
    answer = await ask(target, "POST", "/v1/chat/completions", request)
    assert int(answer.headers["content-length"]) == len(answer.body)
    choice = answer.json()["choices"][0]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"]
    assert choice["finish_reason"] == "length"
    assert answer.json()["usage"]["completion_tokens"] == 3


async def repeats_itself_with_a_seed(target: Target) -> None:
    """Alone in its batch, one seed gives one text."""
    request = _request(target, max_tokens=8, seed=7)
    first, second = [
        (await ask(target, "POST", "/v1/chat/completions", request)).json() for _ in range(2)
    ]
    assert first["choices"] == second["choices"]


async def stops_before_a_stop_string(target: Target) -> None:
    """The text ends before the stop string, which is named."""
    request = _request(target, max_tokens=30, seed=7, temperature=0, ignore_eos=True)
    path = "/v1/chat/completions"
    text = (await ask(target, "POST", path, request)).json()["choices"][0]["message"]["content"]
    stop = text[len(text) // 2 :][:3]
    choice = (await ask(target, "POST", path, {**request, "stop": [stop]})).json()["choices"][0]
    assert choice["message"]["content"] == text[: text.index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)


async def refuses_what_it_cannot_do(target: Target) -> None:
    """Mistakes are plain JSON with a status, a stream asked for or not."""
    cases: list[tuple[Any, int]] = [
        (_request(target, temperature=9, stream=True), 400),
        (_request(target, max_tokens=-3), 400),
        ({"model": target.model}, 400),
        (b'{"model":', 400),
        ({**_request(target), "model": "no-such-model"}, 404),
    ]
    for body, status in cases:
        answer = await ask(target, "POST", "/v1/chat/completions", body)
        error = answer.json()["error"]
        assert (answer.status, error["code"]) == (status, status)
        assert isinstance(error["message"], str)
        assert error["message"]
    assert (await ask(target, "GET", "/no-such-path")).json() == {"detail": "Not Found"}


async def refuses_media_in_the_words_that_mean_all_of_them(target: Target) -> None:
    """A text model says of any kind that it takes none; the worker makes no further probe."""
    for probe in probes(target.model).values():
        answer = await ask(target, "POST", "/v1/chat/completions", probe)
        assert answer.status == 400
        assert TEXT_ONLY in answer.json()["error"]["message"]


async def asks_for_its_key_under_v1(target: Target) -> None:
    """Only /v1 is guarded."""
    if target.api_key is None:
        return
    answer = await ask(target, "GET", "/v1/models", key="wrong")
    assert (answer.status, answer.json()) == (401, {"error": "Unauthorized"})
    assert (await ask(target, "GET", "/health", key="wrong")).status == 200


async def stops_when_the_client_leaves(target: Target) -> None:
    """Closing the connection frees the sequence; the running gauge tells."""
    slow = json.dumps({"fake": {"rate": 20, "tokens": 1000}})
    request = _request(target, slow, max_tokens=1000, ignore_eos=True, stream=True)
    async with asyncio.timeout(_WAIT):
        reader, writer = await _send(target, "POST", "/v1/chat/completions", request)
        await reader.readuntil(b'"content":"')
        await _running(target, 1)
        writer.close()
        await writer.wait_closed()
        await _running(target, 0)


async def counts_its_work(target: Target) -> None:
    """Tokens and engine steps move with a request."""
    names = ["vllm:generation_tokens_total", "vllm:iteration_tokens_total_count"]
    before = [await gauge(target, name) for name in names]
    request = _request(target, max_tokens=5, ignore_eos=True)
    await ask(target, "POST", "/v1/chat/completions", request)
    after = [await gauge(target, name) for name in names]
    assert after[0] == before[0] + 5
    assert after[1] > before[1]


CONTRACT: list[Callable[[Target], Awaitable[None]]] = [
    says_that_it_is_ready,
    streams_role_text_finish_usage_done,
    sends_no_usage_unasked,
    answers_whole_without_stream,
    repeats_itself_with_a_seed,
    stops_before_a_stop_string,
    refuses_what_it_cannot_do,
    refuses_media_in_the_words_that_mean_all_of_them,
    asks_for_its_key_under_v1,
    stops_when_the_client_leaves,
    counts_its_work,
]
