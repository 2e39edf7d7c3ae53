"""One small image, sound and video, with which an engine is asked what its model takes (pure).

Small, but of a usual shape. An image of one pixel would be cheaper and lie: image processors that
guess which axis holds the colours fail on it, and those that cut into patches want some. Half a
second of silence is above the shortest that speech models take. A video of four JPEG frames needs
no container and no decoder.
"""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

_SIDE = 64
_RATE = 16_000
# 64 × 64 in one grey, three colours, as the standard library can't write JPEG.
_JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAP//////////////////////////////////////////////////////////////"
    "////////////////////////2wBDAf//////////////////////////////////////////////////////////////////"
    "////////////////////wAARCABAAEADASIAAhEBAxEB/8QAFAABAAAAAAAAAAAAAAAAAAAAAP/EABQQAQAAAAAAAAAAAAAA"
    "AAAAAAD/xAAUAQEAAAAAAAAAAAAAAAAAAAAA/8QAFBEBAAAAAAAAAAAAAAAAAAAAAP/aAAwDAQACEQMRAD8AAAAAAAAAAAAA"
    "AAAAAAAAAAAAAAAAAAAA/9k="
)
_FRAMES = 4


def _png() -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    head = struct.pack(">IIBBBBB", _SIDE, _SIDE, 8, 2, 0, 0, 0)
    rows = (b"\0" + b"\x80" * 3 * _SIDE) * _SIDE
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows, 9))
        + chunk(b"IEND", b"")
    )


def _wav() -> bytes:
    data = bytes(_RATE)  # half a second of 16-bit samples
    head = struct.pack("<IHHIIHH", 16, 1, 1, _RATE, 2 * _RATE, 2, 16)
    body = b"WAVEfmt " + head + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


SAMPLES: dict[str, tuple[str, bytes]] = {
    "image": ("image/png", _png()),
    "audio": ("audio/wav", _wav()),
    "video": ("image/jpeg", _JPEG),
}
"""Kind to media type and bytes; for video, those of one frame."""


def probes(model: str) -> dict[str, dict[str, Any]]:
    """Returns, by kind, the chat requests that show what a model takes; one token each."""
    data = {kind: base64.b64encode(made).decode() for kind, (_, made) in SAMPLES.items()}
    frames = ",".join([data["video"]] * _FRAMES)
    parts: dict[str, dict[str, Any]] = {
        "image": {"image_url": {"url": f"data:image/png;base64,{data['image']}"}},
        "audio": {"input_audio": {"data": data["audio"], "format": "wav"}},
        "video": {"video_url": {"url": f"data:video/jpeg;base64,{frames}"}},
    }
    return {
        kind: {
            "model": model,
            "messages": [{"role": "user", "content": [{"type": next(iter(part)), **part}, _ASKED]}],
            "temperature": 0,
            "max_tokens": 1,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        for kind, part in parts.items()
    }


_ASKED = {"type": "text", "text": "Say ok."}
