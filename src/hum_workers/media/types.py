"""Media types: what kind a declared type is, and what the first bytes of a file say (pure)."""

from __future__ import annotations

import re

KINDS = ("image", "audio", "video")
"""What a model may take beside text, in the order in which it is told."""
_TYPE = re.compile(r"([a-z]+)/([a-z0-9][a-z0-9.+-]{0,62})")
_STARTS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"fLaC", "audio/flac"),
    (b"OggS", "audio/ogg"),
    (b"ID3", "audio/mpeg"),
    (b"\x1aE\xdf\xa3", "video/webm"),
)
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav", b"AVI ": "video/avi"}
_FORMATS = {"mpeg": "mp3", "wave": "wav", "vnd.wave": "wav", "x-wav": "wav", "mp4": "m4a"}
SNIFFED = 16
"""Bytes that `sniff` looks at."""


def clean(declared: str) -> str:
    """Returns a media type without parameters, in small letters; empty when it is none."""
    bare = declared.partition(";")[0].strip().lower()
    return bare if _TYPE.fullmatch(bare) else ""


def kind(media_type: str) -> str:
    """Returns what comes before the slash; `pdf` for PDFs, which come as an application."""
    return "pdf" if media_type == "application/pdf" else media_type.partition("/")[0]


def sniff(head: bytes) -> str:
    """Returns the media type that the first bytes of a file show; empty when they show none."""
    for start, media_type in _STARTS:
        if head.startswith(start):
            return media_type
    if head.startswith(b"RIFF"):
        return _RIFF.get(head[8:12], "")
    return "video/mp4" if head[4:8] == b"ftyp" else ""


def audio_format(media_type: str) -> str:
    """Returns what OpenAI calls the `format` of audio: `wav`, `mp3`."""
    subtype = media_type.partition("/")[2]
    return _FORMATS.get(subtype, subtype.removeprefix("x-"))
