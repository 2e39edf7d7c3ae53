"""rpc-server's greeting: who listens at a port, and what it is (facts page, section 2).

The bytes are pure functions; `probe` is the one client of them. It costs rpc-server nothing: the
capability bytes are zero, each answer is read to its end, and whoever gives up resets the
connection, because an rpc-server that answers a closed one dies of SIGPIPE.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from hum_workers.errors import EngineError

DEVICE_MEMORY, HELLO, DEVICE_COUNT = 11, 14, 15
HELLO_BYTES = 28
"""Of the answer to a greeting: the version's three bytes, one of padding, 24 of capabilities."""
MOST_DEVICES = 64

Protocol = tuple[int, int, int]
Ask = Callable[[bytes, int], Awaitable[bytes]]
"""Sends a request and returns the body of its answer, which has to have that many bytes."""


class Fault(StrEnum):
    """What is wrong with a port."""

    REFUSED = "refused"
    BUSY = "busy"
    """Connected, and no answer: in use, frozen, or something that waits for us to say more."""
    UNREACHABLE = "unreachable"
    NOT_RPC = "not_rpc"
    INCOMPATIBLE = "incompatible"


class RpcError(EngineError):
    """An rpc-server can't be used, or there is none. `kind` is the class of it."""

    def __init__(self, kind: Fault, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class RpcDevice:
    """One device behind rpc-server, by its own figures in bytes; it tells its number alone."""

    name: str
    free: int
    total: int


@dataclass(frozen=True)
class Probed:
    """What an rpc-server said of itself."""

    protocol: Protocol
    devices: tuple[RpcDevice, ...]


def encode(command: int, body: bytes = b"") -> bytes:
    """Returns a request: one byte of command, the length of the body, the body."""
    return struct.pack("<BQ", command, len(body)) + body


def decode(data: bytes) -> tuple[int, bytes]:
    """Returns a request's command and body.

    Raises:
        ValueError: it is cut off or has more behind it.
    """
    if len(data) < 9:
        raise ValueError("a request has 9 bytes or more")
    command, length = struct.unpack_from("<BQ", data)
    if length != len(data) - 9:
        raise ValueError(f"a body of {len(data) - 9} bytes, {length} were announced")
    return command, data[9:]


def hello() -> bytes:
    """Returns a greeting without capabilities; others could switch the connection to RDMA."""
    return encode(HELLO, bytes(24))


def protocol_of(body: bytes) -> Protocol:
    """Returns the version in the answer to a greeting."""
    major, minor, patch = struct.unpack_from("<3B", body)
    return major, minor, patch


def device_count() -> bytes:
    return encode(DEVICE_COUNT)


def count_of(body: bytes) -> int:
    """Returns the number in the answer to `device_count`."""
    return int(struct.unpack("<I", body)[0])


def device_memory(index: int) -> bytes:
    return encode(DEVICE_MEMORY, struct.pack("<I", index))


def device_of(index: int, body: bytes) -> RpcDevice:
    """Returns the device in the answer to `device_memory`; it has no other name than its number."""
    free, total = struct.unpack("<QQ", body)
    return RpcDevice(name=f"RPC{index}", free=free, total=total)


async def probe(
    host: str, port: int, timeout: float = 2.0, *, own: Protocol | None = None
) -> Probed:
    """Greets what listens at a port, and asks for its devices. IPv4, as rpc-server itself.

    Never ask one that is leased: it answers nobody else, and the question waits in its backlog.
    With `own` only the very same version is taken: a patch may number the operators differently.
    A cancelled probe has reset its connection.

    Raises:
        RpcError: it can't be used; `kind` says in which way.
    """
    where = f"{host}:{port}"
    line = _Line(where)
    try:
        async with asyncio.timeout(timeout):
            await line.connect(host, port)
            found = await _questions(line.ask, where, own)
    except TimeoutError:
        line.give_up()
        raise line.silent(timeout) from None
    except BaseException:  # a cancel, too: a greeting left behind kills rpc-server by SIGPIPE
        line.give_up()
        raise
    line.close()
    return found


async def _questions(ask: Ask, where: str, own: Protocol | None) -> Probed:
    protocol = protocol_of(await ask(hello(), HELLO_BYTES))
    if own is not None and protocol != own:
        said, mine = (".".join(map(str, one)) for one in (protocol, own))
        raise RpcError(
            Fault.INCOMPATIBLE,
            f"{where} speaks RPC {said} and this side {mine}; install the same llama.cpp on both",
        )
    count = count_of(await ask(device_count(), 4))
    if count > MOST_DEVICES:
        raise _not_rpc(where, f"says that it has {count:,} devices")
    devices = [device_of(n, await ask(device_memory(n), 16)) for n in range(count)]
    return Probed(protocol, tuple(devices))


class _Line:
    """One connection, and how far it came. Its socket is our own: asyncio's would be gone with the
    peer, and could not be reset any more."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._connected = False
        self._received = 0
        self._answers = 0

    async def connect(self, host: str, port: int) -> None:
        try:
            await self._loop.sock_connect(self._socket, (host, port))
        except ConnectionRefusedError as error:
            raise RpcError(Fault.REFUSED, f"nothing listens at {self._where}") from error
        except TimeoutError:
            raise
        except OSError as error:
            why = error.strerror or "no such host"
            raise RpcError(Fault.UNREACHABLE, f"{self._where} can't be reached: {why}") from error
        self._connected = True

    async def ask(self, request: bytes, size: int) -> bytes:
        try:
            await self._loop.sock_sendall(self._socket, request)
            (length,) = struct.unpack("<Q", await self._exactly(8))
            if length != size:
                raise _not_rpc(self._where, "answers in another form")
            body = await self._exactly(size)
        except TimeoutError:
            raise
        except OSError as error:
            raise _not_rpc(self._where, "closes the connection without an answer") from error
        self._answers += 1
        return body

    async def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = await self._loop.sock_recv(self._socket, size - len(data))
            if not part:
                raise ConnectionResetError
            self._received += len(part)
            data += part
        return data

    def silent(self, timeout: float) -> RpcError:
        """Says what a deadline that passed means here."""
        if not self._connected:
            return RpcError(
                Fault.UNREACHABLE,
                f"{self._where} takes no connection within {timeout:g} s: nothing is at that "
                "address, a firewall is between, or too many clients wait there",
            )
        if self._received and not self._answers:
            return _not_rpc(self._where, "answers in another form")
        return RpcError(
            Fault.BUSY,
            f"{self._where} takes the connection but says nothing within {timeout:g} s: it serves "
            "another client, is frozen, or is no rpc-server",
        )

    def give_up(self) -> None:
        """Ends the connection so that rpc-server sees an error, not a client to be answered."""
        try:
            linger = struct.pack("ii", 1, 0)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        except OSError:  # never connected, or the descriptor is gone
            pass
        self._socket.close()

    def close(self) -> None:
        self._socket.close()


def _not_rpc(where: str, what: str) -> RpcError:
    return RpcError(Fault.NOT_RPC, f"{where} is no rpc-server that this worker knows: it {what}")
