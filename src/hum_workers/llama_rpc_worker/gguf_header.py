"""A GGUF header as bytes: metadata and tensor table (pure).

Bounded by what the bytes themselves can hold: a count is believed only as far as that many of the
smallest entries fit into the rest of the file. Values that nobody here asks for, vocabulary above
all, are stepped over and never become objects. What llama.cpp refuses, as a key twice, an array of
arrays or a name of 64 bytes, is refused here too.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from math import prod

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MOST_KEYS = 65_536
MOST_TENSORS = 65_536
"""Of one file; the largest models known have some thousand."""
MOST_STRINGS = 4_000_000
"""Strings in all arrays of a header; 256k tokens with their merges are 0.8 million."""
MOST_KEPT = 4096
"""Entries of an array that is kept: those of layers are; a vocabulary's scores are not."""
LONGEST_KEPT = 4096
"""Bytes of a string that is kept; a chat template is not."""
LONGEST_KEY = 65_535
LONGEST_NAME = 63
DIMENSIONS = 4
ALIGNMENT = 32
UNKNOWN = -1
"""Size of a tensor whose type has no known one."""

Value = int | float | bool | str | tuple[int | float | bool, ...] | None
"""One value of the metadata; None: it is there and was stepped over."""

_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"
}  # fmt: skip
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_START = struct.Struct("<4sIQQ")

_BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
    9: (32, 36), 10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210),
    15: (256, 292), 16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18),
    21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8),
    28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17),
    40: (64, 36), 41: (128, 18), 42: (64, 18),
}  # fmt: skip
"""Elements and bytes of one block of each tensor type."""


class Malformed(Exception):
    """The bytes are no usable header; the text is what a sentence says after the file's name."""


class Short(Exception):
    """The header goes on behind the bytes that are there, inside the file."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One entry of the tensor table."""

    name: str
    shape: tuple[int, ...]
    """Elements, the innermost dimension first."""
    kind: int
    offset: int
    """Bytes behind the start of the data."""
    size: int
    """Bytes of its data."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of itself. `end` is where its data starts."""

    values: dict[str, Value]
    tensors: tuple[Tensor, ...]
    end: int


def parse(data: bytes, size: int) -> Header:
    """Reads the header at the start of a file of `size` bytes, of which `data` are the first.

    Raises:
        Malformed: it is no header, or not that of a file this long.
        Short: `data` ends inside the header although the file goes on.
    """
    cursor = _Cursor(data, size)
    tensors, keys = _opening(cursor)
    values = _values(cursor, keys)
    alignment = _alignment(values)
    table = [_entry(cursor) for _ in range(tensors)]
    end = -(-cursor.at // alignment) * alignment if table else cursor.at
    return Header(values, _placed(table, size - end, alignment), end)


@dataclass(slots=True)
class _Cursor:
    """A place in the bytes, and what is left to be believed."""

    data: bytes
    size: int
    at: int = 0
    strings: int = field(default=MOST_STRINGS)

    def need(self, count: int, what: str) -> int:
        """Returns the place of the next `count` bytes and steps over them."""
        start = self.at
        if count > self.size - start:
            raise Malformed(
                f"is cut off or damaged: {what} at byte {start:,} is longer than the file"
            )
        if count > len(self.data) - start:
            raise Short
        self.at = start + count
        return start

    def u32(self, what: str) -> int:
        return int(_U32.unpack_from(self.data, self.need(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64.unpack_from(self.data, self.need(8, what))[0])

    def text(self, what: str, most: int) -> str:
        """Reads a name: a string that must be there whole, of few bytes and UTF-8."""
        length = self.u64(what)
        if not 0 < length <= most:
            raise Malformed(f"has {what} of {length:,} bytes at byte {self.at:,}; {most:,} at most")
        start = self.need(length, what)
        try:
            return self.data[start : self.at].decode()
        except UnicodeDecodeError as error:
            raise Malformed(f"has {what} at byte {start:,} that is no UTF-8") from error

    def skip_strings(self, count: int, key: str) -> None:
        """Steps over strings without making one; the loop is all that a large vocabulary costs."""
        self.strings -= count
        if self.strings < 0 or count > (self.size - self.at) // 8:
            raise Malformed(f"says that {key} has {count:,} strings, which it can't hold")
        data, at, length_at = self.data, self.at, _U64.unpack_from
        try:
            for _ in range(count):
                at += 8 + length_at(data, at)[0]
        except (struct.error, IndexError, OverflowError):
            # The place of the next length is behind the bytes: of the file, or of what was read.
            if at + 8 > self.size:
                raise Malformed(f"is cut off or damaged: {key} is longer than the file") from None
            raise Short from None
        self.need(at - self.at, key)


def _opening(cursor: _Cursor) -> tuple[int, int]:
    if cursor.size < _START.size:
        raise Malformed(f"is no GGUF file ({cursor.size:,} bytes)")
    start = cursor.need(_START.size, "its start")
    magic, version, tensors, keys = _START.unpack_from(cursor.data, start)
    if magic != MAGIC:
        raise Malformed("is no GGUF file: it starts with other bytes than GGUF")
    if version & 0xFFFF == 0:
        raise Malformed("is a big-endian GGUF file; get the little-endian one")
    if version not in VERSIONS:
        raise Malformed(f"is GGUF version {version}; this worker reads 2 and 3")
    left, says = cursor.size - cursor.at, f"{keys:,} keys and {tensors:,} tensors"
    if keys > MOST_KEYS or tensors > MOST_TENSORS:
        raise Malformed(f"says that it has {says}, too many for any model")
    if keys > left // 13 or tensors > left // 24:
        raise Malformed(f"is cut off or damaged: {says} are longer than its {cursor.size:,} bytes")
    return tensors, keys


def _values(cursor: _Cursor, count: int) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for _ in range(count):
        key = cursor.text("a key", LONGEST_KEY)
        if key in values:
            raise Malformed(f"has the key {key[:80]!r} twice")
        values[key] = _value(cursor, cursor.u32("a type"), key[:80])
    return values


def _value(cursor: _Cursor, kind: int, key: str) -> Value:
    if kind == _STRING:
        length = cursor.u64(key)
        start = cursor.need(length, key)
        if length > LONGEST_KEPT:
            return None
        return cursor.data[start : cursor.at].decode(errors="replace")
    if kind == _ARRAY:
        return _array(cursor, cursor.u32(key), cursor.u64(key), key)
    (value,) = _scalars(cursor, kind, 1, key)
    return value


def _array(cursor: _Cursor, kind: int, count: int, key: str) -> Value:
    if kind == _STRING:
        cursor.skip_strings(count, key)
        return None
    if kind == _ARRAY:
        raise Malformed(f"has an array of arrays at {key!r}, which llama.cpp does not read")
    if count <= MOST_KEPT:
        return _scalars(cursor, kind, count, key)
    cursor.need(count * struct.calcsize(_format(kind, 1, key)), key)
    return None


def _scalars(cursor: _Cursor, kind: int, count: int, key: str) -> tuple[int | float | bool, ...]:
    layout = _format(kind, count, key)
    return struct.unpack_from(layout, cursor.data, cursor.need(struct.calcsize(layout), key))


def _format(kind: int, count: int, key: str) -> str:
    if kind not in _SCALARS:
        raise Malformed(f"has a value of the unknown type {kind} at {key!r}")
    return f"<{count}{_SCALARS[kind]}"


def _alignment(values: dict[str, Value]) -> int:
    alignment = values.get("general.alignment", ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise Malformed("has a general.alignment that is no power of two")
    return alignment


def _entry(cursor: _Cursor) -> Tensor:
    """Reads one entry of the table."""
    name = cursor.text("a tensor's name", LONGEST_NAME)
    dimensions = cursor.u32(name)
    if dimensions > DIMENSIONS:
        raise Malformed(f"says that {name!r} has {dimensions:,} dimensions; {DIMENSIONS} at most")
    start = cursor.need(8 * dimensions, name)
    shape = struct.unpack_from(f"<{dimensions}Q", cursor.data, start)
    kind = cursor.u32(name)
    return Tensor(name, shape, kind, cursor.u64(name), _size(name, shape, kind))


def _size(name: str, shape: tuple[int, ...], kind: int) -> int:
    if kind not in _BLOCKS:
        return UNKNOWN
    elements, size = _BLOCKS[kind]
    row = shape[0] if shape else 1
    if row % elements:
        raise Malformed(f"has a shape for {name!r} that its type can't have")
    return prod(shape) // elements * size


def _placed(table: list[Tensor], room: int, alignment: int) -> tuple[Tensor, ...]:
    """Checks that all tensors lie in `room` bytes side by side.

    One of a type that is newer than this worker is as long as the way to the next.
    """
    if len({tensor.name for tensor in table}) < len(table):
        raise Malformed("has two tensors of one name")
    table = sorted(table, key=lambda tensor: (tensor.offset, tensor.size))
    placed = []
    for tensor, end in zip(table, [t.offset for t in table[1:]] + [room], strict=False):
        size = end - tensor.offset if tensor.size == UNKNOWN else tensor.size
        if tensor.offset + size > room or size < 0:
            raise Malformed(f"is cut off at {tensor.name!r}; fetch it again")
        if tensor.offset % alignment or tensor.offset + size > end:
            raise Malformed(f"has a tensor table where {tensor.name!r} lies over another")
        placed.append(replace(tensor, size=size))
    return tuple(placed)
