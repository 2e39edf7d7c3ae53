"""Stand-ins for rpc-server and llama-server in `bench.rpc_door`: plain sockets, no event loop."""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
from time import perf_counter

from bench.figures import p50_p99

MESSAGE = 3500
BLOCK = 1 << 20


def serve() -> None:
    """Serves until its input ends; prints its port first."""
    server = socket.create_server(("127.0.0.1", 0))
    print(server.getsockname()[1], flush=True)
    threading.Thread(target=_accept, args=(server,), daemon=True).start()
    sys.stdin.read()


def _accept(server: socket.socket) -> None:
    while True:
        link, _ = server.accept()
        threading.Thread(target=_answer, args=(link,), daemon=True).start()


def _answer(link: socket.socket) -> None:
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with link:
        kind, size = struct.unpack("<cQ", _read(link, 9))
        if kind == b"e":
            while data := _read(link, MESSAGE):
                link.sendall(data)
        elif kind == b"t":
            _drain(link, size)
            link.sendall(b"k")
        else:
            _fill(link, size)


def ask() -> None:
    """Answers each line `echo|to|from PORT COUNT` of its input with a line of figures."""
    for line in sys.stdin:
        kind, port, count = line.split()
        with socket.create_connection(("127.0.0.1", int(port))) as link:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            print(json.dumps(_asked(link, kind, int(count))), flush=True)


def _asked(link: socket.socket, kind: str, count: int) -> tuple[float, float] | float:
    link.sendall(struct.pack("<cQ", kind[0].encode(), count))
    if kind == "echo":
        return p50_p99([_trip(link) for _ in range(count)])
    began = perf_counter()
    if kind == "to":
        _fill(link, count)
        _read(link, 1)
    else:
        _drain(link, count)
    return count / (perf_counter() - began) / 1e6


def _trip(link: socket.socket) -> float:
    """Returns the microseconds of one message there and back."""
    began = perf_counter()
    link.sendall(bytes(MESSAGE))
    _read(link, MESSAGE)
    return (perf_counter() - began) * 1e6


def _read(link: socket.socket, size: int) -> bytes:
    """Returns so many bytes; fewer at the end only."""
    data = b""
    while len(data) < size and (more := link.recv(size - len(data))):
        data += more
    return data


def _drain(link: socket.socket, size: int) -> None:
    block = bytearray(BLOCK)
    while size > 0 and (got := link.recv_into(block, min(size, BLOCK))):
        size -= got


def _fill(link: socket.socket, size: int) -> None:
    block = memoryview(bytes(BLOCK))
    while size > 0:
        size -= link.send(block[: min(size, BLOCK)])
