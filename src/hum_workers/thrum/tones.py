"""Tones as bytes and back, and the helpers that are the same in every language (thrum, section 3).

Strict in what it writes, lenient in what it reads: a line that is no tone is `None`, never an
exception; a tone that humd would drop without a word is never written.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

THRUM_VERSION = "0.7.0"
MAX_DEPTH = 127
"""humd drops a deeper tone without a word (section 2)."""

Kind = Literal["text", "reasoning"]
Dialect = Literal["both", "delta"]

_BASE36 = "0123456789abcdefghijklmnopqrstuvwxyz"
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode


def decode(line: bytes | bytearray) -> dict[str, Any] | None:
    """Returns the tone on this line: an object whose `chi` is a non-empty string, else None."""
    try:
        tone = _decode(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(tone, dict):
        return None
    chi = tone.get("chi")
    return tone if isinstance(chi, str) and chi else None


def encode(tone: Mapping[str, Any]) -> bytes:
    """Returns the tone as one line, keys in the order given; NaN and Infinity become null.

    Raises:
        ValueError: it holds what JSON has no form for, or is nested deeper than humd reads.
    """
    return _line(_encode, tone)


def encode_sorted(tone: Mapping[str, Any]) -> bytes:
    """As `encode`, with sorted keys: the form of hum's golden tones."""
    return _line(_encode_sorted, tone)


def _line(dump: Callable[[Any], bytes], tone: Mapping[str, Any]) -> bytes:
    try:
        body = dump(tone)
    except UnicodeEncodeError:
        body = dump(_cleaned(tone))
    except RecursionError:
        raise ValueError(f"tone {tone.get('chi')!r} is nested too deep for humd") from None
    except TypeError as error:
        raise ValueError(f"tone {tone.get('chi')!r} can't be written as JSON: {error}") from None
    # Brackets bound the depth from above, so the walk is for suspicious tones only.
    if body.count(b"{") + body.count(b"[") > MAX_DEPTH and _deeper_than(body, MAX_DEPTH):
        raise ValueError(
            f"tone {tone.get('chi')!r} is nested deeper than {MAX_DEPTH}, which humd drops"
        )
    return body + b"\n"


def _deeper_than(body: bytes, limit: int) -> bool:
    depth = 0
    for bracket in re.finditer(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', body):
        match bracket[0]:
            case b"[" | b"{":
                depth += 1
                if depth > limit:
                    return True
            case b"]" | b"}":
                depth -= 1
    return False


def clean(text: str) -> str:
    """Returns `text` without lone surrogates (each becomes U+FFFD): humd drops their tone."""
    return _LONE_SURROGATE.sub("\ufffd", text)


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {_cleaned(key): _cleaned(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_cleaned(item) for item in value]
    return value


def delta_encoder(
    sid: str, kind: Kind, block: int, dialect: Dialect = "both"
) -> Callable[[str], bytes]:
    """Returns a function that writes the `text_delta` or `reasoning_delta` line of this block.

    A text delta in dialect "both" carries its text twice, as `delta` and as `part`, since hum's
    foragers read the one or the other (section 6).
    """
    chunk = {"chi": "chunk", "sid": sid, "chunkType": f"{kind}_delta", "blockIdx": block}
    head = encode(chunk)[:-2] + b',"delta":'
    join = b"".join

    if kind == "text" and dialect == "both":
        middle, tail = b',"part":{"type":"text","text":', b"}}\n"

        def both(text: str) -> bytes:
            try:
                body = _encode(text)
            except UnicodeEncodeError:
                body = _encode(clean(text))
            return join((head, body, middle, body, tail))

        return both

    def delta(text: str) -> bytes:
        try:
            body = _encode(text)
        except UnicodeEncodeError:
            body = _encode(clean(text))
        return join((head, body, b"}\n"))

    return delta


def sigil(sid: str, nest: str) -> str:
    """Returns the 12 hex digits that stand for a sid in this nest."""
    return hashlib.sha256(f"{nest}:{sid}".encode()).hexdigest()[:12]


def base36(number: int) -> str:
    """Returns a non-negative number in base 36, lower case."""
    digits = ""
    while True:
        number, digit = divmod(number, 36)
        digits = _BASE36[digit] + digits
        if not number:
            return digits


class RidSource:
    """Gives rids: base36(ms) + "-" + base36(counter from 0)."""

    def __init__(self, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._now_ms = now_ms
        self._count = 0

    def __call__(self) -> str:
        rid = f"{base36(self._now_ms())}-{base36(self._count)}"
        self._count += 1
        return rid


rid = RidSource()
"""The source of this process; its counter is shared by all who ask."""


class Wane:
    """Lamport counters, one a sigil."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def tick(self, sigil: str) -> int:
        """Adds one and returns the new count."""
        count = self._counts[sigil] = self._counts.get(sigil, 0) + 1
        return count

    def merge(self, sigil: str, wane: int) -> int:
        """Takes the greater of our count and `wane`, and returns it."""
        count = self._counts[sigil] = max(self._counts.get(sigil, 0), wane)
        return count

    def forget(self, sigil: str) -> None:
        """Drops the counter of a sid that is gone."""
        self._counts.pop(sigil, None)


def hum_id(raw: bytes) -> str:
    """Returns 32 bytes as a HumId: 52 characters of Crockford base32, four zero bits at the end.

    Raises:
        ValueError: `raw` is not 32 bytes.
    """
    if len(raw) != 32:
        raise ValueError(f"a HumId has 32 bytes, not {len(raw)}")
    bits = int.from_bytes(raw) << 4
    return "".join(_CROCKFORD[(bits >> shift) & 31] for shift in range(255, -1, -5))


def foreign_hum_id(text: str) -> str:
    """Returns the HumId that stands for an id of another system."""
    return hum_id(hashlib.sha256(f"hum-foreign-id:{text}".encode()).digest())
