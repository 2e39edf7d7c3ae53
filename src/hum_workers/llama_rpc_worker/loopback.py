"""Whose process is at the other end of a connection of this host, as the kernel says cheaply.

A socket is asked for by its two addresses (sock_diag(7)), which costs microseconds however many
there are; where the kernel can't be asked so, its table is read. Only a socket that a process still
holds says whose it is: one that was closed is listed as root's.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from pathlib import Path
from typing import Any

TABLE = Path("/proc/net/tcp")
NOBODY = -1
"""In place of a user: no process of this host holds that end, or none any more."""

Address = tuple[Any, ...]
"""Host and port, and what IPv6 has beside them."""

_LOCAL, _REMOTE, _STATE, _UID, _INODE = 1, 2, 3, 7, 9
_ESTABLISHED = 1
_SOCK_DIAG, _BY_FAMILY, _REQUEST = 4, 20, 1
_NO_COOKIE = 0xFFFFFFFF
_HEAD = struct.Struct("=IHHII")
_ASK = struct.Struct("=BBBBI")
_PORTS = struct.Struct("!HH")
_ANSWER = struct.Struct("=BBBB48xIIIII")
"""Family, state, timer, retransmissions; ports, addresses; expiry, queues, user, inode."""


def peer_uid(peer: Address, own: Address) -> int | None:
    """Returns the user whose process holds the other end of a connection, or `NOBODY`.

    `peer` and `own` are the connection's addresses as this side sees them. None: this kernel says
    of no socket whose it is.
    """
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
            uid = _asked(kernel, peer, own)
            # Where it can't tell, it knows of no socket: not of our own either.
            if uid is not None or _asked(kernel, own, peer) is not None:
                return NOBODY if uid is None else uid
    except (OSError, ValueError, AttributeError):
        pass
    return uid_in_table(peer, own)


def uid_in_table(peer: Address, own: Address, table: Path = TABLE) -> int | None:
    """Returns the same from the kernel's table of IPv4; None: there is no such table."""
    if not os.path.exists(table):
        return None
    try:
        local, remote = _as_the_kernel_writes(peer), _as_the_kernel_writes(own)
        text = table.read_text()
    except (OSError, ValueError):
        return NOBODY
    for line in text.splitlines()[1:]:
        if local in line:
            fields = line.split()
            if fields[_LOCAL] == local and fields[_REMOTE] == remote:
                held = int(fields[_STATE], 16) == _ESTABLISHED and int(fields[_INODE])
                return int(fields[_UID]) if held else NOBODY
    return NOBODY


def origin(peer: Address, own: Address) -> str:
    """Returns who a connection comes from: a user of this host, else a host or a network.

    A process here has all of 127.0.0.0/8 to come from, and a host with IPv6 all of a /64.
    """
    uid = peer_uid(peer, own)
    if uid not in (None, NOBODY):
        return f"uid {uid}"
    try:
        host = _ip(peer)
    except ValueError:
        return str(peer[0])
    if host.is_loopback:
        return "this host"
    return str(host) if host.version == 4 else str(ipaddress.ip_network((host, 64), strict=False))


def _asked(kernel: socket.socket, local: Address, remote: Address) -> int | None:
    """Returns whose socket with these addresses is; None: the kernel knows of no such socket."""
    here, there = _ip(local), _ip(remote)
    family = socket.AF_INET if here.version == 4 else socket.AF_INET6
    body = (
        _ASK.pack(family, socket.IPPROTO_TCP, 0, 0, _NO_COOKIE)
        + _PORTS.pack(local[1], remote[1])
        + here.packed.ljust(16, b"\0")
        + there.packed.ljust(16, b"\0")
        + struct.pack("=III", 0, _NO_COOKIE, _NO_COOKIE)
    )
    kernel.send(_HEAD.pack(_HEAD.size + len(body), _BY_FAMILY, _REQUEST, 0, 0) + body)
    answer = kernel.recv(4096, socket.MSG_DONTWAIT)
    if _HEAD.unpack_from(answer)[1] != _BY_FAMILY:
        return None
    _, state, _, _, _, _, _, uid, inode = _ANSWER.unpack_from(answer, _HEAD.size)
    # Without such a connection it names who listens at that port.
    ports = _PORTS.unpack_from(answer, _HEAD.size + 4)
    held = state == _ESTABLISHED and inode and ports == (local[1], remote[1])
    return int(uid) if held else NOBODY


def _ip(address: Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    ip = ipaddress.ip_address(str(address[0]).partition("%")[0])
    return getattr(ip, "ipv4_mapped", None) or ip


def _as_the_kernel_writes(address: Address) -> str:
    (number,) = struct.unpack("=I", socket.inet_aton(address[0]))
    return f"{number:08X}:{address[1]:04X}"
