"""The one useful line of a llama.cpp program that did not start or that died (pure).

Its first error is the cause, and what follows repeats it in words that say less; but memory that
could not be had is told in several lines of which each has a part, and a lost slice aborts the
process with a line of another form. Endpoints stay in the line: who holds them knows their names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hum_workers.cells.blame import Diagnosis
from hum_workers.figures.counts import Death

LONGEST = 300
NOTHING = "the engine ended and said nothing"
SLICE_FAILED = "a slice failed"
GIB = 1 << 30

_STAMP = re.compile(r"^\d+\.\d\d\.\d{3}\.\d{3} (?P<level>[A-Z]) ")
_SOURCE = re.compile(r"^(?:[a-z]{3,4} +)?[A-Za-z_]\w*(?:\(\))?: +")
_ARGUMENT = re.compile(r'^error while handling argument "(?P<flag>[^"]+)": (?:error: )?(?P<why>.+)')
_UNKNOWN = re.compile(r"^error: (?P<why>(?:invalid argument|unknown device): .+)")
_ABORT = re.compile(r"ggml-rpc\.cpp:\d+: (?P<why>.+)")
_TEMPLATE = re.compile(r"common_chat_templates_init: error: (?P<why>.+)")
_NO_BUFFER = re.compile(
    r"(?:failed|unable) to allocate (?P<device>\S+) buffer(?: of size (?P<size>\d+))?"
)
_FOR = re.compile(r"failed to allocate (?:buffer for )?(?P<what>kv cache|compute \w+)")
_FILE = re.compile(r"failed to load model from (?P<file>.+)$")
_PORT = re.compile(r"couldn't bind HTTP server socket|Failed to create server socket|in use")
_GENERIC = re.compile(
    r"^(?:error loading model: llama_model_loader: )?failed to (?:load model|create.context"
    r"|initialize the context)|^exiting due to|^failed to apply template"
)
_SCARCE = re.compile(r"Resource temporarily unavailable|Cannot allocate memory|bad_alloc|OOM")
_NOISE = re.compile(r"^\s*$|^to show complete usage|cleaning up before exit|^usage:|^\s+\(env: ")
_MODEL = re.compile(
    r"gguf|GGUF|magic|tensor|architecture|vocab|tokenizer|key-value|model|No such file"
)
_NETWORK = ("Failed to connect", "handshake failed", "Remote RPC", "recv failed", "send failed")


def diagnosis(lines: Sequence[str]) -> Diagnosis:
    """Returns the line that tells an operator why it ended, and its class if it tells.

    At most 300 letters.
    """
    told = [line.rstrip() for line in lines]
    for find in (_usage, _slice_lost, _template, _memory, _port, _error):
        if found := find(told):
            return Diagnosis(_cut(found[0]), found[1])
    last = [line for line in told if not _NOISE.search(line)]
    return Diagnosis(_cut(_plain(last[-1]) if last else NOTHING), None, vague=True)


def _usage(lines: Sequence[str]) -> tuple[str, Death | None] | None:
    for line in lines:
        if match := _ARGUMENT.match(line):
            return f"{match['flag']}: {match['why']}", Death.USAGE
        if match := _UNKNOWN.match(line):
            return match["why"], Death.USAGE
    if any(line.startswith("Usage: ") for line in lines):
        return "it printed its usage: a flag is not known to it", Death.USAGE
    return None


def _slice_lost(lines: Sequence[str]) -> tuple[str, Death | None] | None:
    """Every failure of a slice ends llama-server by an abort, whose first line says which way."""
    for line in lines:
        if match := _ABORT.search(line):
            why = match["why"].strip()
            bad = not any(words in why for words in _NETWORK)
            return f"{SLICE_FAILED}: {why}", Death.USAGE if bad else Death.SLICE
    return None


def _template(lines: Sequence[str]) -> tuple[str, Death | None] | None:
    if not any("chat template is not supported" in line for line in lines):
        return None
    why = next((match["why"] for line in lines if (match := _TEMPLATE.search(line))), "")
    return f"the chat template can't be used{': ' if why else ''}{why}", Death.MODEL


def _memory(lines: Sequence[str]) -> tuple[str, Death | None] | None:
    for line in lines:
        match = _NO_BUFFER.search(line)
        if match is None:
            continue
        what = next((found["what"] for one in lines if (found := _FOR.search(one))), "")
        size = f"{int(match['size']) / GIB:.3g} GiB of " if match["size"] else ""
        line = f"no room for {size}{_named(what)} on {match['device']}"
        if what:
            return line, Death.ROOM
        return line, Death.MEMORY if match["device"].startswith("CPU") else Death.GPU_MEMORY
    return None


def _named(what: str) -> str:
    return {"kv cache": "KV cache", "": "weights"}.get(what, what)


def _port(lines: Sequence[str]) -> tuple[str, Death | None] | None:
    for line in lines:
        if _PORT.search(line):
            return _plain(line), Death.PORT
    return None


def _error(lines: Sequence[str]) -> tuple[str, Death | None] | None:
    """Returns the first error that says something."""
    file = next((match["file"] for line in lines if (match := _FILE.search(line))), "")
    for line in lines:
        stamp = _STAMP.match(line)
        if stamp is None or stamp["level"] != "E":
            continue
        text = _plain(line)
        if _GENERIC.search(text):
            continue
        text = text.removeprefix("error loading model: ")
        if _SCARCE.search(text):
            return text, Death.MEMORY
        if file and file not in text:
            text = f"{file}: {text}"
        return text, Death.MODEL if _MODEL.search(text) else None
    return None


def _plain(line: str) -> str:
    """Returns a line without its time, its level and the function that it comes from."""
    return _SOURCE.sub("", _STAMP.sub("", line)).strip()


def _cut(message: str) -> str:
    message = " ".join(message.split())
    return message if len(message) <= LONGEST else message[: LONGEST - 1] + "…"
