"""Image files of the command line, read into attachments of a prompt."""

from __future__ import annotations

import base64
from pathlib import Path

from hum_workers.errors import UsageError
from hum_workers.media import types as media_types
from hum_workers.program.plain_files import open_plain

LARGEST = 48 * 1024**2
"""Bytes of a file at most: as base64 it must fit into one tone."""
TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")


def read_image(path: Path) -> dict[str, str]:
    """Returns an attachment of a PNG, JPEG, GIF or WebP file; its content tells which it is.

    Raises:
        UsageError: it can't be read, is something else, or is too large.
    """
    try:
        with open_plain(path) as file:
            head = file.read(media_types.SNIFFED)
            media_type = media_types.sniff(head)
            if media_type not in TYPES:
                raise UsageError(f"--image {path}: is no PNG, JPEG, GIF or WebP image")
            data = head + file.read(LARGEST)
    except OSError as error:
        raise UsageError(f"--image {path}: can't be read: {error.strerror}") from error
    if len(data) > LARGEST:
        raise UsageError(f"--image {path}: is larger than {LARGEST // 1024**2} MiB")
    return {
        "kind": "image",
        "mediaType": media_type,
        "data": base64.b64encode(data).decode("ascii"),
    }
