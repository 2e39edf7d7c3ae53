"""Images, audio and video in a request: refused in vLLM's words, or counted. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

_KINDS = {
    "image_url": "image",
    "input_image": "image",
    "input_audio": "audio",
    "audio_url": "audio",
    "video_url": "video",
}
_TEXT = (None, "text", "refusal", "thinking")


def refusal(messages: Sequence[Any], model: str, takes: Sequence[str]) -> str:
    """Returns vLLM's words for the first part that the model does not take; empty if it does."""
    for part in _parts(messages):
        if part.get("type") in _TEXT:
            continue
        if not takes:
            return f"{model} is not a multimodal model"
        kind = _KINDS.get(str(part.get("type")))
        if kind is None:
            return f"Unknown part type: {part.get('type')}"
        if kind not in takes:
            return f"At most 0 {kind}(s) may be provided in one prompt."
    return ""


def told(messages: Sequence[Any]) -> list[str] | None:
    """Returns the answer that says how many of each kind came, a word an event; None: none came."""
    kinds = Counter(_KINDS[t] for part in _parts(messages) if (t := part.get("type")) in _KINDS)
    if not kinds:
        return None
    return ["got", *(f" {count} {kind}" for kind, count in sorted(kinds.items()))]


def _parts(messages: Sequence[Any]) -> Iterator[dict[str, Any]]:
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            yield from (part for part in content if isinstance(part, dict))
