"""Weights in safetensors files, looked at by their headers alone: no torch, no data read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

HEADER_LIMIT = 100 * 1024 * 1024
"""Bytes of a header at most, as the format itself says."""


@dataclass(frozen=True)
class Weights:
    """What a model's folder holds. `problems` are sentences that name a file."""

    files: int
    size: int
    """Bytes of all files."""
    problems: tuple[str, ...]


class Damaged(Exception):
    """A file is not what its header says; the text names no file."""


def read_header(path: Path) -> dict[str, Any]:
    """Returns the tensors of a file by name.

    Raises:
        Damaged: the file is cut off or no safetensors file.
        OSError: it can't be read.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > HEADER_LIMIT:
            raise Damaged(f"is no safetensors file ({size:,} bytes)")
        if size < 8 + length:
            raise Damaged(f"is cut off in its header: {size:,} of {8 + length:,} bytes or more")
        try:
            header = msgspec.json.decode(file.read(length), type=dict[str, dict[str, Any]])
            header.pop("__metadata__", None)
            end = max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
            whole = 8 + length + int(end)
        except (msgspec.MsgspecError, LookupError, TypeError, ValueError) as error:
            raise Damaged("has a header that can't be read") from error
    if size < whole:
        raise Damaged(f"is cut off: {size:,} of {whole:,} bytes; fetch it again")
    return header


def look(folder: Path) -> Weights:
    """Returns what is there of a model's weights, and what is wrong with it."""
    index = folder / "model.safetensors.index.json"
    problems: list[str] = []
    if index.exists():
        wanted = _index(index, problems)
        names = sorted(set(wanted.values()))
    else:
        wanted, names = {}, sorted(path.name for path in folder.glob("*.safetensors"))
    there: set[str] = set()
    size = 0
    for name in names:
        path = folder / name
        try:
            size += path.stat().st_size
            there.update(read_header(path))
        except Damaged as error:
            problems.append(f"{path} {error}")
        except OSError as error:
            problems.append(f"{path} can't be read: {error.strerror}")
    if not problems:
        problems += _absent(index, wanted, there)
    return Weights(len(names), size, tuple(problems))


def _index(path: Path, problems: list[str]) -> dict[str, str]:
    """Returns tensor to file."""
    try:
        index = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        return msgspec.convert(index["weight_map"], dict[str, str])
    except (OSError, LookupError, msgspec.MsgspecError):
        problems.append(f"{path} can't be read as an index of weights")
        return {}


def _absent(index: Path, wanted: dict[str, str], there: set[str]) -> Iterator[str]:
    absent = sorted(set(wanted) - there)
    if absent:
        yield f"{index} names {len(absent)} tensors that no file holds, {absent[0]} first"
