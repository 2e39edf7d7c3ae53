"""Whose process is at the other end of a loopback connection, as far as the kernel says cheaply."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

TABLE = Path("/proc/net/tcp")
_LOCAL, _REMOTE, _UID = 1, 2, 7


def peer_uid(peer: tuple[str, int], own: tuple[str, int], table: Path = TABLE) -> int | None:
    """Returns the user that owns the socket of an IPv4 peer of this host.

    `peer` and `own` are the connection's addresses as this side sees them. None: the kernel has no
    such table, or the peer has closed its socket already.
    """
    local, remote = _as_the_kernel_writes(peer), _as_the_kernel_writes(own)
    try:
        text = table.read_text()
    except OSError:
        return None
    for line in text.splitlines()[1:]:
        if local in line:
            fields = line.split()
            if fields[_LOCAL] == local and fields[_REMOTE] == remote:
                return int(fields[_UID])
    return None


def _as_the_kernel_writes(address: tuple[str, int]) -> str:
    host, port = address
    (number,) = struct.unpack("=I", socket.inet_aton(host))
    return f"{number:08X}:{port:04X}"
