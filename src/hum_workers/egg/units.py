"""Sizes, durations, CPU lists and addresses as operators write them.

Pure; a `ValueError` is one sentence.
"""

from __future__ import annotations

import re

SIZE_PATTERN = r"^[0-9]+(\.[0-9]+)?(B|KiB|MiB|GiB|TiB|KB|MB|GB|TB)$"
DURATION_PATTERN = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$"
LISTEN_PATTERN = r"^([^:\s/]+:|\[[0-9A-Fa-f:.]+\]:)?[0-9]{1,5}$"
CPUS_PATTERN = r"^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$"

_SIZES = {
    "B": 1,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LAX_SIZE = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?)(?:b|bytes?)?\s*$", re.IGNORECASE)
_LAX_DURATION = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*$", re.IGNORECASE)
_MAX_SIZE = 1 << 60
_MAX_SECONDS = 10 * 365 * 86400.0
_MAX_CPU = 8191


def parse_size(text: object) -> int:
    """Returns the bytes of a size such as `"4GiB"`, `"512MiB"` or `"20GB"`.

    Raises:
        ValueError: not a number and a unit, or above 1024 PiB.
    """
    if not isinstance(text, str) or not re.fullmatch(SIZE_PATTERN, text):
        raise ValueError(f'is no size: write a number and a unit, like "4GiB"{_near_size(text)}')
    number, unit = re.split(r"(?<=\d)(?=[A-Z])", text)
    size = round(float(number) * _SIZES[unit])
    if size > _MAX_SIZE:
        raise ValueError("is larger than any machine's memory")
    return size


def parse_duration(text: object) -> float:
    """Returns the seconds of a duration such as `"5m"`, `"300s"`, `"1h30m"` or `"250ms"`.

    Raises:
        ValueError: not numbers with units, or above ten years.
    """
    if not isinstance(text, str) or not re.fullmatch(DURATION_PATTERN, text):
        raise ValueError(
            f'is no duration: write a number and a unit, like "300s" or "5m"{_near_duration(text)}'
        )
    parts = re.findall(r"([\d.]+)(ms|s|m|h|d)", text)
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if seconds > _MAX_SECONDS:
        raise ValueError("is longer than ten years")
    return seconds


def parse_cpus(text: object) -> str:
    """Returns a CPU list such as `"0-3,8"`, sorted and without overlaps.

    Raises:
        ValueError: not a list of numbers and ranges, or a range that runs backwards.
    """
    if not isinstance(text, str) or not re.fullmatch(CPUS_PATTERN, text):
        raise ValueError('is no list of CPUs: write numbers and ranges, like "0-3,8"')
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if low > high:
            raise ValueError(f'runs backwards at "{part}": did you mean "{high}-{low}"?')
        if high > _MAX_CPU:
            raise ValueError(f"names CPU {high}; Linux counts them up to {_MAX_CPU}")
        cpus.update(range(low, high + 1))
    return ranges(sorted(cpus))


def ranges(numbers: list[int]) -> str:
    """Returns sorted numbers as a list of CPUs: `0-3,8`."""
    return ",".join(f"{low}-{high}" if high > low else str(low) for low, high in _ranges(numbers))


def _ranges(numbers: list[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


def _near_size(text: object) -> str:
    if isinstance(text, str) and (match := _LAX_SIZE.match(text)):
        number, prefix, _ = match.groups()
        unit = f"{prefix.upper()}iB" if prefix else "B"
        return f'; did you mean "{number}{unit}"?'
    return ""


def _near_duration(text: object) -> str:
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        return ""
    match = _LAX_DURATION.match(str(text))
    if not match:
        return ""
    number, word = match.groups()
    word = word.lower()
    if word in ("", "sec", "secs", "second", "seconds", "s"):
        return f'; did you mean "{number}s"?'
    for name, unit in (("min", "m"), ("hour", "h"), ("hr", "h"), ("day", "d"), ("milli", "ms")):
        if word.startswith(name):
            return f'; did you mean "{number}{unit}"?'
    return ""


def parse_listen(value: object) -> str:
    """Returns `host:port` of an address to listen on; a port alone means 127.0.0.1.

    An IPv6 address stands in brackets. Port 0 means any that is free.

    Raises:
        ValueError: no port, or none below 65536.
    """
    text = str(value) if type(value) is int else value
    if not isinstance(text, str) or not re.fullmatch(LISTEN_PATTERN, text):
        raise ValueError('is no address: write "127.0.0.1:9464", or the port alone')
    host, _, port = text.rpartition(":")
    if int(port) > 65535:
        raise ValueError(f"has no port {port}: they end at 65535")
    return f"{host or '127.0.0.1'}:{int(port)}"


def split_listen(listen: str) -> tuple[str, int]:
    """Returns host and port of what `parse_listen` returned, the host without brackets."""
    host, _, port = listen.rpartition(":")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Returns whether only this machine can reach what listens there."""
    return (
        host == "localhost" or host == "::1" or re.fullmatch(r"127(\.[0-9]+){3}", host) is not None
    )
