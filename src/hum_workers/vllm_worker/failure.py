"""The one useful line of a vLLM that did not start, picked from its last output (pure).

Both output streams in one list. After the error come leak notes of its libraries and tracker
warnings, so the tail says nothing; and the parent process repeats the failure of its child in words
that say less, so the deepest process is believed (Worker over EngineCore over API server): of it
the first error, as the later ones follow from it; of the API server the last.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from hum_workers.cells.blame import Diagnosis
from hum_workers.figures.counts import Death

LONGEST = 300
NOTHING = "the engine ended and said nothing"

_PROCESS = re.compile(r"^\((?P<name>[A-Za-z]\w*) pid=\d+\) ?")
_STAMP = re.compile(r"^(?P<level>[A-Z]+) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?")
_ARGPARSE = re.compile(r"^\S+(?: [a-z-]+)*: error: (?P<message>.+)")
_RAISED = re.compile(
    r"^(?P<kind>[A-Za-z_][\w.]*(?:Error|Exception|Timeout|Expired|Interrupt))"
    r"(?:: (?P<message>.*))?$"
)
_CRASHED = "Fatal Python error: "
_CONVERTER = re.compile(r"<function loads at 0x[0-9a-f]+>")
_PYDANTIC = re.compile(r"^\d+ validation errors? for ")
_GENERIC = re.compile(
    r"engine core initialization failed|workerproc initialization failed|executor failed"
    r"|encountered an issue|\bcancell?ed\b|see root cause above|see stack trace above",
    re.IGNORECASE,
)
_DIED = re.compile(r"died unexpectedly|(?:workerproc|engine core) initialization failed", re.I)
DIED = "a process of the engine died without a word while it started; was it killed for memory?"
_NOISE = re.compile(r"nanobind|resource_tracker|leaked|warnings\.warn|^usage:|^\s*$", re.IGNORECASE)
_SPEAK_FOR_THEMSELVES = (
    "ValueError RuntimeError AssertionError Exception ValidationError VLLMValidationError "
    "PydanticUserError OSError TypeError"
).split()

_CLASSES = [
    (re.compile(pattern, re.IGNORECASE), death)
    for pattern, death in (
        (r"out of memory|OutOfMemoryError|free memory on device", Death.GPU_MEMORY),
        (r"address already in use|EADDRINUSE|\[Errno 98\]", Death.PORT),
        (
            r"KV cache|cache blocks|estimated maximum model length|gpu_memory_utilization",
            Death.ROOM,
        ),
        (
            (
                r"repo id must|repository|safetensor|not supported for now|architecture"
                r"|no such file|does not appear to have|can't load|unable to load|config\.json"
                r"|tokenizer|max_model_len|divisible|quantiz|unknown model|unrecognized model"
                r"|snapshot folder|cached files|chat template|chat_template"
            ),
            Death.MODEL,
        ),
        (
            (
                r"invalid choice|invalid .* value|invalid tool call parser|reasoning parser"
                r"|not supported on|should be a valid|NUMA nodes"
            ),
            Death.USAGE,
        ),
    )
]
"""The first that fits counts. CUDA's words for memory stand in messages about the cache as well."""


@dataclass(frozen=True)
class _Line:
    depth: int
    """0 API server, 1 EngineCore, 2 Worker."""
    level: str
    text: str


def reason(lines: Sequence[str]) -> str:
    """Returns the line that tells an operator why the engine did not start; at most 300 letters."""
    return diagnosis(lines).line


def diagnosis(lines: Sequence[str]) -> Diagnosis:
    """Returns that line and the class of death that it stands for, if it tells."""
    read = [_read(line) for line in lines]
    for line in read:
        if match := _ARGPARSE.match(line.text):
            return Diagnosis(_cut(match["message"]), Death.USAGE)
        if line.text.startswith(_CRASHED):
            return Diagnosis(_cut(line.text))
    found = list(_errors(read))
    if found:
        deepest = max(depth for depth, _ in found)
        messages = [message for depth, message in found if depth == deepest]
        told = _cut(messages[0] if deepest else messages[-1])
        return Diagnosis(told, _class(told))
    told = _cut(_fallback(read))
    return Diagnosis(told, _class(told), vague=True)


def _class(line: str) -> Death | None:
    return next((death for pattern, death in _CLASSES if pattern.search(line)), None)


def _read(raw: str) -> _Line:
    text, depth, level = raw.rstrip("\r\n"), 0, ""
    if match := _PROCESS.match(text):
        text = text[match.end() :]
        name = match["name"]
        depth = 2 if "Worker" in name else 1 if name.startswith("EngineCore") else 0
    if match := _STAMP.match(text):
        text, level = text[match.end() :], match["level"]
    return _Line(depth, level, text)


def _errors(lines: Sequence[_Line]) -> Iterator[tuple[int, str]]:
    """Yields depth and message of every exception that says something."""
    for index, line in enumerate(lines):
        match = _RAISED.match(line.text.strip())
        if match is None:
            continue
        kind, message = match["kind"].rpartition(".")[2], (match["message"] or "").strip()
        if _PYDANTIC.match(message):
            message = _pydantic(lines[index + 1 :])
        elif message.endswith(":"):
            message = f"{message} {_next(lines[index + 1 :], line.depth)}"
        if kind in ("CancelledError", "KeyboardInterrupt"):
            continue
        if not message:
            yield line.depth, f"{kind}: {_asserted(lines[:index])}".removesuffix(": ")
        elif not _GENERIC.search(message):
            plain = kind in _SPEAK_FOR_THEMSELVES
            yield line.depth, message if plain else f"{kind}: {message}"


def _pydantic(following: Sequence[_Line]) -> str:
    """Returns the first complaint of a validation error; a field's name stands before it."""
    field = ""
    for line in following[:3]:
        text = line.text.strip()
        plain = text.removeprefix("Value error, ").removeprefix("Assertion failed, ")
        if plain != text or " [type=" in text:
            message = plain.partition(" [type=")[0]
            return f"{field}: {message}" if field and plain == text else message
        field = text
    return ""


def _next(following: Sequence[_Line], depth: int) -> str:
    """Returns the lines of the same process that go on with a message."""
    going_on = takewhile(lambda line: line.depth == depth and line.text.strip(), following[:4])
    return " ".join(line.text.strip() for line in going_on)


def _asserted(before: Sequence[_Line]) -> str:
    """Returns the statement that failed, where a bare AssertionError follows its traceback."""
    source = next((line for line in reversed(before[-2:]) if set(line.text.strip()) - {"^"}), None)
    text = source.text.strip() if source else ""
    return text if text.startswith(("assert ", "raise ")) else ""


def _fallback(lines: Sequence[_Line]) -> str:
    """Returns what is left without an exception: a death, an error line, the last words."""
    if any(_DIED.search(line.text) for line in lines):
        return DIED
    for line in lines:
        if line.level in ("ERROR", "CRITICAL") and line.text.strip():
            return line.text.strip()
    last = [line.text.strip() for line in lines if not _NOISE.search(line.text)]
    return last[-1] if last else NOTHING


def _cut(message: str) -> str:
    message = " ".join(_CONVERTER.sub("JSON", message).split())
    return message if len(message) <= LONGEST else message[: LONGEST - 1] + "…"
