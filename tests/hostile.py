"""Lines that no humd would send, or only a broken one: the same ones for the same seed.

Some are tones for all that, and a prompt with a usable sid must get exactly one ending, whatever
else is in it: `prompted` says which line is one.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

MIB = 1024 * 1024
OVER_THE_LIMIT = 64 * MIB + 1
"""Bytes of the one line that is too long for a bee."""
FIELDS = {
    "prompt": "sid modelId content text messages systemPrompt tools foragerTools attachments "
    "sampling disallowedTools allowedTools rid dusk ext cwd hive provided chi",
    "cancel": "sid rid ext",
    "cleanup": "sid rid ext",
    "curate": "sid rid",
    "hello": "hid hive bee models from propensity",
    "breath": "sessions protoVersion from",
    "echo": "rid ok error",
    "tool-result": "sid callId output result isError toolName",
    "tool-call": "sid callId toolName name args",
    "error": "sid callId message code",
    "chunk": "sid chunkType delta part blockIdx",
}
SAMPLING = (
    "temperature topP topK minP maxTokens minTokens stop seed frequencyPenalty presencePenalty "
    "repetitionPenalty logitBias responseFormat reasoningEffort n logprobs toolChoice stopTokenIds "
    "badWords chatTemplateKwargs ignoreEos thinkingTokenBudget unheardOf"
).split()
UNKNOWN = ("pulse", "session-ready", "log", "attach", "gossip-publish", "PROMPT", "prompt ", "\x00")
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1.5,
    1e308,
    10**30,
    -(10**400),
    "",
    "x",
    "two\nlines",
    "\u2028\x00\x7f😀",
    "y" * 3000,
    [],
    {},
    [None],
    [[]],
    [{}],
    [1, "a", None],
    {"type": "text"},
    [{"type": "text", "text": 5}],
    [{"type": "text", "text": "ok"}],
    [{"type": "image_url", "image_url": {"url": "x"}}],
    [{"role": "user", "content": "ok"}],
    [{"role": "user"}, {"role": "tool", "content": "x"}, {"role": 7}],
    [{"role": "assistant", "tool_calls": [{"function": {"name": "n\n", "arguments": {}}}]}],
    [{"name": "a\ntool"}, {"function": []}, "plain"],
    {"type": "json_schema", "json_schema": {"schema": []}},
    {"kind": "image", "data": "AA=="},
)
_decode = msgspec.json.Decoder().decode


def lines(seed: int, count: int) -> Iterator[bytes]:
    """Yields so many pieces, nearly all one line each; the last byte of all is an end of line."""
    rng = random.Random(seed)
    kinds = list(_KINDS)
    weights = [_KINDS[kind] for kind in kinds]
    for n in range(count):
        if n == count // 2:
            yield over_the_limit()
        yield rng.choices(kinds, weights)[0](rng) + b"\n"


def over_the_limit() -> bytes:
    """Returns a prompt that would be a good one if it were shorter."""
    head = b'{"chi":"prompt","sid":"too long","modelId":"m1","content":"'
    return head + b"z" * (OVER_THE_LIMIT - len(head) - 2) + b'"}\n'


def prompted(piece: bytes) -> list[str]:
    """Returns the sids of the prompts in a piece that are owed an ending."""
    sids = []
    for line in piece.split(b"\n"):
        if len(line) >= OVER_THE_LIMIT:
            continue
        try:
            tone = _decode(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(tone, dict) and tone.get("chi") == "prompt":
            sid = tone.get("sid")
            if isinstance(sid, str) and sid:
                sids.append(sid)
    return sids


def _sid(rng: random.Random) -> str:
    return f"h{rng.randrange(200)}"


def _tone(rng: random.Random) -> dict[str, Any]:
    """A tone of a known kind with some fields of a wrong type."""
    chi = "prompt" if rng.random() < 0.4 else rng.choice(list(FIELDS))
    tone: dict[str, Any] = {"chi": chi, "sid": _sid(rng)}
    if chi == "prompt":
        tone |= {"modelId": "m1", "content": "hi", "sampling": {"maxTokens": rng.randint(1, 4)}}
    names = FIELDS[chi].split()
    for name in rng.sample(names, rng.randint(0, min(3, len(names)))):
        tone[name] = rng.choice(VALUES)
    if chi == "prompt" and rng.random() < 0.3:
        tone["sampling"] = {name: rng.choice(VALUES) for name in rng.sample(SAMPLING, 2)}
    return tone


def _wrong_types(rng: random.Random) -> bytes:
    return json.dumps(_tone(rng), ensure_ascii=rng.random() < 0.5).encode("utf-8", "replace")


def _unknown_kind(rng: random.Random) -> bytes:
    return json.dumps({**_tone(rng), "chi": rng.choice([*UNKNOWN, *VALUES])}).encode()


def _random_bytes(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randint(0, 300))


def _half_a_line(rng: random.Random) -> bytes:
    line = _wrong_types(rng)
    return line[: rng.randrange(len(line) + 1)]


def _spoilt(rng: random.Random) -> bytes:
    """A tone with a few bytes overwritten, most often within a string or a number."""
    line = bytearray(_wrong_types(rng))
    for _ in range(rng.randint(1, 3)):
        line[rng.randrange(len(line))] = rng.randrange(256)
    return bytes(line)


def _deep(rng: random.Random) -> bytes:
    depth = rng.choice((100, 126, 127, 128, 500, 800, 1200, 20_000))
    opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}")))
    heart = b"0" if rng.random() < 0.8 else b""
    field = rng.choice((b"x", b"content", b"messages", b"ext", b"sampling"))
    inside = opening * depth + heart + closing * depth
    if rng.random() < 0.3:
        inside = b'{"chatTemplateKwargs":{"x":%b}}' % inside
        field = b"sampling"
    return b'{"chi":"prompt","sid":"deep","modelId":"m1","content":"hi","%b":%b}' % (field, inside)


def _huge(rng: random.Random) -> bytes:
    size = rng.randint(64 * 1024, MIB)
    chi = rng.choice((b"prompt", b"cancel", b"nonsense", b"hello"))
    field = rng.choice((b"content", b"modelId", b"sid", b"x"))
    return b'{"chi":"%b","%b":"%b"}' % (chi, field, b"q" * size)


def _odd_text(rng: random.Random) -> bytes:
    heads = (b"\xef\xbb\xbf", b"", b" ", b"\r", b"\x00", b"data: ")
    texts = (
        b'{"chi":"prompt","sid":"odd","content":"\\ud83d"}',
        b'{"chi":"prompt","sid":"odd","content":"\xff\xfe"}',
        b'{"chi":"prompt","sid":"odd","sampling":{"temperature":NaN}}',
        b'{"chi":"prompt","sid":"odd","sampling":{"temperature":1e999}}',
        b'{"chi":"prompt","sid":"odd","chi":"cancel"}',
        b'{"chi":"cancel","chi":"prompt","sid":"odd","content":"hi","content":[]}',
        b'{"chi":"prompt","sid":"odd","content":"hi","modelId":"m1"}\r',
        b'[{"chi":"prompt","sid":"odd"}]',
        b'"prompt"',
        b"null",
        b"{}",
        b"",
        b'{"chi":"prompt","sid":"odd","content":"hi"}{"chi":"cancel"}',
    )
    return rng.choice(heads) + rng.choice(texts)


_KINDS: dict[Callable[[random.Random], bytes], float] = {
    _wrong_types: 40,
    _unknown_kind: 10,
    _random_bytes: 15,
    _half_a_line: 12,
    _spoilt: 12,
    _deep: 3,
    _huge: 0.2,
    _odd_text: 8,
}
