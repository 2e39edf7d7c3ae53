"""Weights in safetensors files, looked at by their headers alone: no torch, no data read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hum_workers.errors import one_line
from hum_workers.program.plain_files import open_plain, read_plain

MOST_FILES = 4096
MOST_PROBLEMS = 20
HEADER_LIMIT = 100 * 1024 * 1024
"""Bytes of a header at most, as the format itself says."""


@dataclass(frozen=True)
class Weights:
    """What a model's folder holds. `problems` are sentences that name a file."""

    files: int
    size: int
    """Bytes of all files."""
    problems: tuple[str, ...]


class Tensor(msgspec.Struct):
    """An entry of a header; one of another form, the metadata, has no offsets."""

    data_offsets: tuple[int, int] | None = None


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class Damaged(Exception):
    """A file is not what its header says; the text names no file."""


def read_header(path: Path) -> dict[str, Tensor]:
    """Returns the tensors of a file by name.

    Raises:
        Damaged: the file is cut off or no safetensors file.
        OSError: it can't be read.
    """
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > HEADER_LIMIT:
            raise Damaged(f"is no safetensors file ({size:,} bytes)")
        if size < 8 + length:
            raise Damaged(f"is cut off in its header: {size:,} of {8 + length:,} bytes or more")
        try:
            header = msgspec.json.decode(file.read(length), type=dict[str, Tensor])
            header.pop("__metadata__", None)
            whole = 8 + length + max(map(_end, header.values()), default=0)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise Damaged("has a header that can't be read") from error
    if size < whole:
        raise Damaged(f"is cut off: {size:,} of {whole:,} bytes; fetch it again")
    return header


def _end(tensor: Tensor) -> int:
    if tensor.data_offsets is None:
        raise ValueError
    return tensor.data_offsets[1]


def look(folder: Path) -> Weights:
    """Returns what is there of a model's weights, and what is wrong with it."""
    index = folder / "model.safetensors.index.json"
    problems: list[str] = []
    if index.exists():
        wanted = _index(index, problems)
        names = _inside(index, sorted(set(wanted.values())), problems)
    else:
        wanted, names = {}, sorted(path.name for path in folder.glob("*.safetensors"))
    if len(names) > MOST_FILES:
        problems.append(f"{folder} has {len(names):,} files of weights; {MOST_FILES:,} are read")
    there: set[str] = set()
    size = 0
    for name in names[:MOST_FILES]:
        path = folder / name
        try:
            size += path.stat().st_size
            there.update(read_header(path))
        except Damaged as error:
            problems.append(f"{one_line(str(path))} {error}")
        except OSError as error:
            problems.append(f"{one_line(str(path))} can't be read: {error.strerror}")
    if not problems:
        problems += _absent(index, wanted, there)
    if len(problems) > MOST_PROBLEMS:
        more = len(problems) - MOST_PROBLEMS
        problems[MOST_PROBLEMS:] = [f"{folder}: {more:,} more files are damaged or not there"]
    return Weights(len(names), size, tuple(problems))


def _inside(index: Path, names: list[str], problems: list[str]) -> list[str]:
    """Returns the names that stay in the folder; a model has no business with other files."""
    inside = []
    for name in names:
        strange = "\0" in name or name != name.encode("utf-8", "replace").decode()
        if strange or os.path.isabs(name) or ".." in name.split("/") or not name:
            problems.append(f"{index} names a file outside its folder: {one_line(ascii(name))}")
        else:
            inside.append(name)
    return inside


def _index(path: Path, problems: list[str]) -> dict[str, str]:
    """Returns tensor to file."""
    try:
        return msgspec.json.decode(read_plain(path, HEADER_LIMIT), type=_Index).weight_map
    except OSError as error:
        problems.append(f"{path} can't be read: {error.strerror}")
        return {}
    except (ValueError, msgspec.MsgspecError, RecursionError):
        problems.append(f"{path} can't be read as an index of weights")
        return {}


def _absent(index: Path, wanted: dict[str, str], there: set[str]) -> Iterator[str]:
    absent = sorted(set(wanted) - there)
    if absent:
        yield f"{index} names {len(absent)} tensors that no file holds, {one_line(absent[0])} first"
