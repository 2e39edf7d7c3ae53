"""One chat request -> what is answered, or a refusal in vLLM's words. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from vllm.scripted import media

DEFAULT_TOKENS = 16


@dataclass
class Fake:
    """The directives of one request: `{"fake": {...}}` as its last user message."""

    tokens: int | None = None
    """Words of the answer; max_tokens still cuts."""
    rate: float = 0.0
    """Tokens a second; 0: as fast as they are read."""
    burst: int = 0
    """Events of one write."""
    prefill: float = 0.0
    """Seconds before the first event."""
    text: list[str] | None = None
    """The answer, a piece an event, instead of words."""
    reasoning: int = 0
    """Reasoning words ("r0 r1 ...") ahead of the answer."""
    tool_calls: list[dict[str, Any]] | None = None
    """[{"name", "arguments": str or object}]; ends with tool_calls."""
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Other directives for a request that holds at least so many tool messages."""
    quote: bool = False
    """The answer is "heard" and what the tool messages say."""
    finish: str = ""
    cached: int = 0
    """Tokens of the prompt that were cached."""
    event_bytes: int = 0
    """Bytes of text in each event (a token is one event)."""
    split_utf8: bool = False
    """Characters of several bytes, each event cut inside one over two writes."""
    surrogates: bool = False
    """An emoji as two escaped halves in two events."""
    escaped: bool = False
    """Characters beyond ASCII as \\u escapes."""
    comments: bool = False
    crlf: bool = False
    plain: bool = False
    """No chunked encoding: the answer ends with the connection."""
    echo: bool = False
    """The answer is the request itself as JSON, in words."""
    keep: bool = False
    """Counts as running after its client has left, as if the engine had not noticed."""
    at: int | None = None
    """Token at which die, hang, error, end and garbage happen (half of them)."""
    die: str = ""
    """"before", "mid_stream": SIGKILL of the process; "engine": its EngineCore only."""
    hang: str = ""
    """"before": no answer at all; "head": no event; "mid_stream"."""
    error: Any = ""
    """"before" or a status: refused so; "in_stream": an error event."""
    end: str = ""
    """no_finish, no_done, eof, abort, no_usage."""
    garbage: Any = ""
    """true or "json"; "type"; "http"; "head" (headers without an end)."""
    unknown: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, wishes: dict[str, Any]) -> Fake:
        """Builds from JSON; an unknown key is an error of the test."""
        return cls(**wishes)


@dataclass(frozen=True)
class Refusal(Exception):
    """An answer with a status other than 200."""

    status: int
    message: str
    kind: str = "BadRequestError"
    param: str | None = None

    def body(self) -> bytes:
        """Returns the JSON that vLLM sends."""
        error = {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.status,
        }
        return json.dumps({"error": error}, separators=(",", ":")).encode()


@dataclass
class Plan:
    """What is answered: `words` numbered words, or `pieces`; one token each."""

    fake: Fake
    model: str
    stream: bool
    include_usage: bool
    continuous: bool
    prompt_tokens: int
    words: int
    pieces: list[tuple[str, Any]] | None
    """("content" | "reasoning", text) or ("tool_calls", delta); None: numbered words."""
    finish: str
    stop_reason: str | None = None
    priority: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of the whole answer."""
        return self.words if self.pieces is None else len(self.pieces)


def word(number: int) -> str:
    """Returns the text of one numbered token."""
    return f" w{number}" if number else "w0"


def plan(
    request: Any,
    *,
    models: list[str],
    max_len: int,
    tools: bool,
    default: dict[str, Any],
    takes: list[str],
) -> Plan:
    """Reads a chat request.

    Raises:
        Refusal: as vLLM refuses it.
    """
    _check(request, models, tools, takes)
    messages = request["messages"]
    fake = _step(Fake.read(_directives(messages) or default), messages)
    _refuse_by_wish(fake)
    prompt_tokens = _count(messages)
    limit = _limit(request, prompt_tokens, max_len)
    if fake.quote:
        fake.text = ["heard", *(f" {text}" for text in _results(messages))]
    pieces = _pieces(request, fake)
    options = request.get("stream_options") or {}
    made = Plan(
        fake=fake,
        model=request.get("model") or models[0],
        stream=bool(request.get("stream")),
        include_usage=bool(options.get("include_usage")),
        continuous=bool(options.get("include_usage") and options.get("continuous_usage_stats")),
        prompt_tokens=prompt_tokens,
        words=fake.tokens if fake.tokens is not None else limit or DEFAULT_TOKENS,
        pieces=pieces,
        finish="length" if fake.tokens is None and pieces is None and limit else "stop",
        priority=int(request.get("priority") or 0),
    )
    _shape(made, request, limit)
    return made


def _shape(made: Plan, request: dict[str, Any], limit: int | None) -> None:
    """Cuts by max_tokens and stop strings, adds reasoning and calls, settles the finish reason."""
    fake = made.fake
    stops = request.get("stop") or []
    stops = [stops] if isinstance(stops, str) else stops
    if made.pieces is None and (stops or fake.reasoning or fake.tool_calls):
        made.pieces = [("content", word(n)) for n in range(made.words)]
        if fake.tool_calls and fake.tokens is None:
            made.pieces = []
    if made.pieces is not None:
        _stop(made, stops)
        made.pieces[:0] = [("reasoning", f"r{n} ") for n in range(fake.reasoning)]
        for index, call in enumerate(fake.tool_calls or ()):
            made.pieces += [("tool_calls", delta) for delta in _call(index, call)]
            named = isinstance(request.get("tool_choice"), dict)
            made.finish = "stop" if named else "tool_calls"
    if limit is not None and made.tokens > limit:
        made.words = limit
        made.pieces = made.pieces[:limit] if made.pieces is not None else None
        made.finish, made.stop_reason = "length", None
    made.finish = fake.finish or made.finish


def _check(request: Any, models: list[str], tools: bool, takes: list[str]) -> None:
    if not isinstance(request, dict) or not isinstance(request.get("messages"), list):
        raise Refusal(
            400,
            "1 validation error:\n  {'type': 'missing', 'loc': 'body.messages', "
            "'msg': 'Field required', 'input': '<dict of 1 items>'}",
            "Bad Request",
            "body.messages",
        )
    model = request.get("model")
    if model and model not in models:
        raise Refusal(
            404,
            f"The model `{model}` does not exist. Valid aliases: {', '.join(models)}.",
            "NotFoundError",
            "model",
        )
    heat = request.get("temperature")
    if heat is not None and not 0 <= heat <= 2:
        raise Refusal(
            400,
            f"temperature must be in [0, 2], got {float(heat)}. "
            f"(parameter=temperature, value={float(heat)})",
            param="temperature",
        )
    if request.get("tools") and request.get("tool_choice") != "none" and not tools:
        raise Refusal(
            400,
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser '
            "to be set",
        )
    if refused := media.refusal(request["messages"], model or models[0], takes):
        raise Refusal(400, refused)


def _limit(request: dict[str, Any], prompt_tokens: int, max_len: int) -> int | None:
    name = "max_completion_tokens" if "max_completion_tokens" in request else "max_tokens"
    limit: int | None = request.get(name)
    if limit is None:
        return None
    if limit < 1:
        raise Refusal(
            400,
            f"max_tokens must be at least 1, got {limit}. (parameter=max_tokens, value={limit})",
            param="max_tokens",
        )
    if prompt_tokens + limit > max_len:
        raise Refusal(
            400,
            f"max_tokens={limit} cannot be greater than max_model_len={max_len}. Please request "
            f"fewer output tokens. (parameter=max_tokens, value={limit})",
            param="max_tokens",
        )
    return limit


def _parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [part for part in content or [] if isinstance(part, dict)]


def _text(message: dict[str, Any]) -> str:
    return "".join(str(part.get("text", "")) for part in _parts(message))


def _count(messages: list[dict[str, Any]]) -> int:
    return sum(4 + len(_text(message).split()) for message in messages)


def _step(fake: Fake, messages: list[dict[str, Any]]) -> Fake:
    """Returns the directives for this request of a turn with tools."""
    results = _results(messages)
    fitting = [int(number) for number in fake.steps if int(number) <= len(results)]
    return Fake.read(fake.steps[str(max(fitting))]) if fitting else fake


def _results(messages: list[dict[str, Any]]) -> list[str]:
    return [_text(message) for message in messages if message.get("role") == "tool"]


def _directives(messages: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Returns those of the last user message; behind tool messages, of the last that has some."""
    users = [message for message in messages if message.get("role") == "user"]
    for message in reversed(users if _results(messages) else users[-1:]):
        if (wishes := _wishes(_text(message).strip())) is not None:
            return wishes
    return None


def _wishes(text: str) -> dict[str, Any] | None:
    if not text.startswith("{") or '"fake"' not in text:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    wishes = found.get("fake") if isinstance(found, dict) else None
    return wishes if isinstance(wishes, dict) else None


def _refuse_by_wish(fake: Fake) -> None:
    if fake.error == "before" or fake.error == 500:
        raise Refusal(500, "EngineCore encountered an issue", "InternalServerError")
    if fake.error == 503:
        raise Refusal(503, "The server is currently overloaded", "ServiceUnavailableError")
    if isinstance(fake.error, int) and fake.error:
        raise Refusal(fake.error, f"refused with {fake.error}", "BadRequestError")


def _pieces(request: dict[str, Any], fake: Fake) -> list[tuple[str, Any]] | None:
    texts = fake.text
    if fake.echo:
        whole = json.dumps(request, ensure_ascii=False, sort_keys=True)
        texts = re.findall(r"\s*\S+", whole)
    elif fake.event_bytes:
        texts = [f"{n}:".ljust(fake.event_bytes, "z") for n in range(fake.tokens or 3)]
    elif fake.split_utf8 and texts is None:
        texts = [f"é日本😀{n} " for n in range(fake.tokens or 8)]
    elif fake.surrogates and texts is None:
        texts = ["a ", "\ud83d", "\ude00", " b"]
    elif texts is None and fake.tokens is None:
        texts = media.told(request["messages"])
    return None if texts is None else [("content", text) for text in texts]


def _stop(made: Plan, stops: list[str]) -> None:
    """Cuts at the earliest stop string; its beginning may lie in an earlier piece."""
    assert made.pieces is not None
    text = "".join(piece for _, piece in made.pieces)
    found = [(text.find(stop), stop) for stop in stops if stop in text]
    if not found:
        return
    keep, made.stop_reason = min(found)
    made.finish = "stop"
    cut: list[tuple[str, Any]] = []
    for kind, piece in made.pieces:
        cut.append((kind, piece[:keep]))
        keep -= len(piece)
        if keep <= 0:
            break
    made.pieces = cut


def _call(index: int, call: dict[str, Any]) -> list[list[dict[str, Any]]]:
    arguments = call.get("arguments", "")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    name = {"name": call["name"]}
    ident = call.get("id", f"chatcmpl-tool-{index:016x}")
    head = {"id": ident, "type": "function", "index": index, "function": name}
    pieces = [arguments[at : at + 8] for at in range(0, len(arguments), 8)]
    tail = [{"index": index, "function": {"arguments": piece}} for piece in pieces]
    return [[delta] for delta in [head, *tail]]
