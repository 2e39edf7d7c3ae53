"""GGUF files: the headers of a model's files, read and nothing else of them.

At most `LIMIT` bytes of each file are read, in two steps; the weights are never touched. Files that
were split (`-00001-of-00003.gguf`) are one model, and all of them must be there.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from hum_workers.errors import GgufError
from hum_workers.llama_rpc_worker import gguf_model
from hum_workers.llama_rpc_worker.facts import ModelFacts
from hum_workers.llama_rpc_worker.gguf_header import Header, Malformed, Short, parse
from hum_workers.program.plain_files import open_plain

FIRST = 16 << 20
"""Bytes that nearly every header is shorter than."""
LIMIT = 128 << 20
"""Bytes of a header at most; that of a vocabulary of 256k tokens with its merges has 15 million."""
MOST_FILES = 1000

_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


Stamp = tuple[int, ...]
"""What is another one as soon as a file is."""


class Headers:
    """The headers of the model that was asked for last: read once, and again when it is another."""

    def __init__(self) -> None:
        self._stamps: Sequence[Stamp] = ()
        self._facts: ModelFacts | None = None

    def facts(self, path: Path) -> ModelFacts:
        """Returns what `read` does.

        Raises:
            GgufError: see `read`.
        """
        facts = self._facts
        if facts is None or facts.path != str(path) or _stamps(facts.files) != self._stamps:
            facts, self._stamps = _read(path)
            self._facts = facts
        return facts


def read(path: Path) -> ModelFacts:
    """Returns what the headers of a model's files say.

    Raises:
        GgufError: a file is not there, cut off, damaged or no language model in GGUF.
    """
    return _read(path)[0]


def _read(path: Path) -> tuple[ModelFacts, list[Stamp]]:
    digest = hashlib.sha256()
    files = [str(path)]
    header, stamp = _header(path, digest)
    headers, stamps = [header], [stamp]
    for part in _others(path, header):
        files.append(str(part))
        header, stamp = _header(part, digest)
        headers.append(header)
        stamps.append(stamp)
        _check_part(part, header, len(headers) - 1, headers[0])
    try:
        return gguf_model.model(headers, files, digest.hexdigest()[:16]), stamps
    except Malformed as error:
        raise GgufError(str(path), advised(error)) from error


def _header(path: Path, digest: hashlib._Hash) -> tuple[Header, Stamp]:
    try:
        with open_plain(path) as file:
            at = os.fstat(file.fileno())
            data = file.read(FIRST)
            try:
                header = parse(data, at.st_size)
            except Short:
                data += file.read(LIMIT - FIRST)
                header = parse(data, at.st_size)
    except OSError as error:
        raise GgufError(str(path), f"can't be read: {error.strerror}") from error
    except Malformed as error:
        raise GgufError(str(path), advised(error)) from error
    except Short as error:
        raise GgufError(str(path), f"has a header of more than {LIMIT:,} bytes") from error
    digest.update(memoryview(data)[: header.end])
    return header, _stamp(at)


def _stamp(at: os.stat_result) -> Stamp:
    return at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns


def _stamps(files: Sequence[str]) -> Sequence[Stamp]:
    try:
        return [_stamp(os.stat(file)) for file in files]
    except OSError:
        return ()


def advised(error: Malformed) -> str:
    """Returns what is wrong with a file and what to do, where that is not said already."""
    text = str(error)
    return text if "; " in text else f"{text}; fetch it again, or name another file"


def _others(path: Path, first: Header) -> list[Path]:
    """Returns the other files of a model that was split; none for one that was not."""
    count = first.values.get("split.count", 0)
    if type(count) is not int or count <= 1:
        return []
    if count > MOST_FILES:
        raise GgufError(str(path), f"says it is one of {count:,} files; {MOST_FILES:,} at most")
    found = _PART.fullmatch(path.name)
    if found is None or int(found[3]) != count:
        want = f"-00001-of-{count:05d}.gguf"
        raise GgufError(str(path), f"is one of {count} files but its name does not end in {want}")
    parts = [path.with_name(f"{found[1]}-{n + 1:05d}-of-{count:05d}.gguf") for n in range(count)]
    if path != parts[0]:
        raise GgufError(str(path), f"is file {int(found[2])} of {count}; give {parts[0].name}")
    absent = [part.name for part in parts if not part.is_file()]
    if absent:
        more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        raise GgufError(str(path), f"lacks {absent[0]}{more} beside it; all {count} must be there")
    return parts[1:]


def _check_part(path: Path, header: Header, number: int, first: Header) -> None:
    said = header.values.get("split.no"), header.values.get("split.count")
    if said != (number, first.values["split.count"]):
        raise GgufError(str(path), f"says it is file {said[0]} of {said[1]}; fetch it again")
