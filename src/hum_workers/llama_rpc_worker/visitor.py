"""A visitor at a slice's door: one connection, from its first byte to its last stream.

Owns what came in by it: its sessions of questions and its streams to rpc-server. Who it is is
proven by its key; what it may do is what the desk allows that bee.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol

import asyncssh
import structlog

from hum_workers.errors import FrameError
from hum_workers.llama_rpc_worker import ssh
from hum_workers.llama_rpc_worker.lease import LeaseRefused
from hum_workers.llama_rpc_worker.loopback import origin
from hum_workers.llama_rpc_worker.questions import (
    MOST_BYTES,
    STOPPED,
    SUBSYSTEM,
    VERSION,
    Lines,
    Release,
    SliceDesk,
    answer_to,
    line_of,
)
from hum_workers.llama_rpc_worker.stream import End
from hum_workers.llama_rpc_worker.trust import Trust

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class DoorLimits:
    """What a door allows. Seconds and counts."""

    visitors: int = 32
    """Connections whose bees are proven."""
    strangers: int = 8
    """Connections that are being proven; one more, and the oldest of them has to go."""
    arrivals: float = 20.0
    """New connections a second, of each origin; `visitors` of them at once."""
    speak: float = 2.0
    """Seconds until a stranger's first line."""
    prove: float = 5.0
    """Seconds until it is proven."""
    tries: int = 3
    """Keys, or names, that a stranger may try."""
    sessions: int = 2
    """Of questions, for each connection."""
    streams: int = 8
    """To rpc-server, for each connection."""
    connect: float = 2.0
    """Seconds for a connection to rpc-server."""


class Porter(Protocol):
    """The door, as a visitor needs it."""

    hid: str
    """Whose door it is."""
    trust: Trust
    desk: SliceDesk
    limits: DoorLimits

    def arrived(self, visitor: Visitor) -> bool:
        """Takes note of a new connection; says whether it may stay."""
        ...

    def proven(self, visitor: Visitor) -> bool:
        """Says whether one more proven visitor may stay."""
        ...

    def left(self, visitor: Visitor) -> None:
        """Forgets a connection that is gone."""

    def refused(self, visitor: Visitor, reason: str) -> None:
        """Tells of one that is gone and was never let in."""

    def end_streams(self) -> None:
        """Cuts every stream to rpc-server."""


class Visitor(asyncssh.SSHServer):
    """One connection. What the library asks and is not answered here is refused by default."""

    def __init__(self, door: Porter) -> None:
        self.door = door
        self.hid: str | None = None
        """Who it is, once proven."""
        self.origin = "?"
        """See `loopback.origin`."""
        self.peer = "?"
        self.sessions = 0
        self.gone = asyncio.Event()
        self._candidate: str | None = None
        self._shown: str | None = None
        """Whose key was shown last and is unknown."""
        self._why = ""
        """Why it had to leave."""
        self._tries = 0
        self._streams: set[End] = set()
        self._opening = 0
        self._connection: asyncssh.SSHServerConnection | None = None
        self._speak: asyncio.TimerHandle | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        peer, own = conn.get_extra_info("peername"), conn.get_extra_info("sockname")
        if not peer or not own:
            self.leave("it is gone again")
            return
        self.origin = origin(peer, own)
        self.peer = f"{peer[0]}:{peer[1]}"
        if self.door.arrived(self):
            loop = asyncio.get_running_loop()
            self._speak = loop.call_later(self.door.limits.speak, self._must_have_spoken)
        else:
            self.leave("too many connections come from there")

    def connection_lost(self, exc: Exception | None) -> None:
        if self._speak is not None:
            self._speak.cancel()
        self.door.left(self)
        if self.hid is None:
            self.door.refused(self, self._reason(exc))
        else:
            log.debug("worker.door.left", peer=self.peer, hid=self.hid, why=str(exc or ""))
        self._connection = None
        self.gone.set()

    def begin_auth(self, username: str) -> bool:
        if self._is_of_our_version():
            self._try()
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        hid = ssh.hid_of_key(key)
        if hid is None or not self.door.trust.knows(hid):
            self._shown = hid or "no bee's"
            self._try()
            return False
        self._candidate = hid
        return True

    def auth_completed(self) -> None:
        # The library says this in one step with the check of the last key's signature.
        self.hid = self._candidate
        if self.hid is None:
            self.leave("nothing proves which bee it is")
        elif not self.door.proven(self):
            log.warning("worker.door.full", peer=self.peer, hid=self.hid)
            self.leave()

    def session_requested(self) -> _Questions | bool:
        if self.sessions >= self.door.limits.sessions:
            return False
        self.sessions += 1
        return _Questions(self)

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> tuple[asyncssh.SSHTCPChannel[bytes], Awaitable[asyncssh.SSHTCPSession[bytes]]]:
        """Opens a stream to rpc-server; in place of the host's name stands the lease's token."""
        if self.hid is None or self._connection is None:
            raise _prohibited("not proven")
        if len(self._streams) + self._opening >= self.door.limits.streams:
            raise _prohibited(f"more than {self.door.limits.streams} streams at once")
        try:
            address = self.door.desk.address(self.hid, dest_host)
        except LeaseRefused as refusal:
            raise _prohibited(str(refusal)) from None
        channel = self._connection.create_tcp_channel(
            window=ssh.WINDOW_BYTES, max_pktsize=ssh.PACKET_BYTES
        )
        self._opening += 1
        return channel, self._stream(*address)

    async def _stream(self, host: str, port: int) -> asyncssh.SSHTCPSession[bytes]:
        try:
            async with asyncio.timeout(self.door.limits.connect):
                loop = asyncio.get_running_loop()
                _, near = await loop.create_connection(End, host, port)
        except (OSError, TimeoutError) as error:
            reason = f"rpc-server does not answer: {error or 'no time left'}"
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, reason) from None
        finally:
            self._opening -= 1
        if self._connection is None:
            near.abort()
            raise _prohibited("the connection is gone")
        far = _Far(near)
        self._streams.add(near)
        near.over.add_done_callback(lambda _: self._streams.discard(near))
        return far

    def end_streams(self) -> None:
        """Cuts its streams to rpc-server."""
        for end in list(self._streams):
            end.abort()

    def take_leave(self) -> None:
        """Says that the slice is being stopped; the connection stays."""
        if self._connection is not None and self.hid is not None:
            self._connection.send_debug(STOPPED)

    def leave(self, why: str = "") -> None:
        """Ends the connection."""
        if self._connection is not None:
            self._why = self._why or why
            self._connection.abort()

    def _try(self) -> None:
        self._tries += 1
        if self._tries > self.door.limits.tries:
            self.leave()

    def _must_have_spoken(self) -> None:
        if self._version is None:
            self.leave(f"it said nothing for {self.door.limits.speak:g} s")
        elif self.hid is None:
            self._is_of_our_version()

    @property
    def _version(self) -> str | None:
        """What it named itself; None: it has not yet."""
        if self._connection is None:
            return None
        greeting: str | None = self._connection.get_extra_info("client_version")
        return greeting and greeting.removeprefix("SSH-2.0-")

    def _is_of_our_version(self) -> bool:
        if (version := self._version) == VERSION:
            return True
        self.leave(f"it is {version!r} and no bee that speaks {VERSION}")
        return False

    def _reason(self, exc: Exception | None) -> str:
        """Why it was not let in, in a few words."""
        if self._why:
            return self._why
        if self._shown is not None:
            return f"its key, {self._shown}, is none of {self.door.trust}"
        if isinstance(exc, asyncssh.HostKeyNotVerifiable):
            return (
                f"it does not trust this slice's key: name {self.door.hid} in the [[slices]] of "
                "its egg"
            )
        match str(exc or ""):  # the library has one class for all of them
            case "" | "Connection lost":
                return "it left before it had proven itself"
            case "Login timeout expired":
                return f"it had not proven itself after {self.door.limits.prove:g} s"
            case words:
                return f"it does not speak as a bee does: {words}"


class _Far(End, asyncssh.SSHTCPSession[bytes]):
    """The channel's end of a stream; `near` is the socket's."""

    takes_turns = False

    def __init__(self, near: End) -> None:
        super().__init__()
        self._near = near

    def session_started(self) -> None:
        """The channel is open."""
        self.join(self._near)


class _Questions(asyncssh.SSHServerSession[bytes]):
    """One session of questions, each answered when it comes."""

    def __init__(self, visitor: Visitor) -> None:
        self._visitor = visitor
        self._lines = Lines()
        self._channel: asyncssh.SSHServerChannel[bytes] | None = None

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        self._channel = chan

    def connection_lost(self, exc: Exception | None) -> None:
        self._visitor.sessions -= 1
        self._channel = None

    def subsystem_requested(self, subsystem: str) -> bool:
        return subsystem == SUBSYSTEM

    def data_received(self, data: bytes, datatype: int | None) -> None:
        try:
            lines = self._lines.feed(data)
        except FrameError as error:
            log.warning("worker.door.rubbish", hid=self._visitor.hid, why=str(error))
            self._end()
            return
        for line in lines:
            self._answer(line)

    def _answer(self, line: bytes) -> None:
        hid = self._visitor.hid
        if hid is None or self._channel is None:
            return
        question, answer = answer_to(line, hid, self._visitor.door.desk)
        self._channel.write(line_of(answer))
        if isinstance(question, Release) and answer.refused is None:
            self._visitor.door.end_streams()
        # A visitor that asks and does not read the answers.
        if self._channel.get_write_buffer_size() > 4 * MOST_BYTES:
            self._end()

    def _end(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.abort()


def _prohibited(reason: str) -> asyncssh.ChannelOpenError:
    return asyncssh.ChannelOpenError(asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, reason)
