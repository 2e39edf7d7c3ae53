"""The door of a slice: what others reach in place of rpc-server, which knows no stranger.

Owns one listening socket and all that comes in by it. A visitor proves by its key which bee it is;
then it may ask, and if it holds the lease, reach rpc-server. A lost connection takes its streams
with it and leaves the lease alone. `close` leaves neither port nor task behind.
"""

from __future__ import annotations

import asyncio
from typing import Self

import asyncssh
import structlog

from hum_workers.errors import UsageError
from hum_workers.llama_rpc_worker import ssh
from hum_workers.llama_rpc_worker.knocks import Knocks, Seldom, has_to_go
from hum_workers.llama_rpc_worker.questions import VERSION, SliceDesk
from hum_workers.llama_rpc_worker.trust import Trust
from hum_workers.llama_rpc_worker.visitor import DoorLimits, Visitor
from hum_workers.thrum.identity import hid_of

log = structlog.get_logger()

LINES_A_SECOND, MOST_LINES = 1.0, 16
"""Of the log, on strangers; `MOST_LINES` of them at once."""


class Door:
    """One slice's door. Made by `open`."""

    def __init__(self, hid: str, trust: Trust, desk: SliceDesk, limits: DoorLimits) -> None:
        self.hid = hid
        self.trust = trust
        self.desk = desk
        self.limits = limits
        self.port = 0
        now = asyncio.get_running_loop().time
        self._knocks = Knocks(limits.arrivals, limits.visitors, now)
        self._lines = Seldom(LINES_A_SECOND, MOST_LINES, now)
        self._closing = False
        self.visitors: list[Visitor] = []
        """All connections, the oldest first."""
        self._acceptor: asyncssh.SSHAcceptor | None = None

    @classmethod
    async def open(
        cls,
        seed: bytes,
        listen: tuple[str, int],
        trust: Trust,
        desk: SliceDesk,
        limits: DoorLimits | None = None,
    ) -> Self:
        """Listens at `(host, port)`, port 0 for any; returns when others can come.

        Raises:
            UsageError: it can't listen there.
        """
        limits = limits or DoorLimits()
        door = cls(hid_of(seed), trust, desk, limits)
        host, port = listen
        try:
            door._acceptor = await asyncssh.listen(
                host,
                port,
                server_factory=lambda: Visitor(door),
                server_host_keys=[ssh.key_of(seed)],
                server_version=VERSION,
                login_timeout=limits.prove,
                window=ssh.WINDOW_BYTES,
                max_pktsize=ssh.PACKET_BYTES,
                encoding=None,
                line_editor=False,
                allow_pty=False,
                agent_forwarding=False,
                host_based_auth=False,
                kbdint_auth=False,
                password_auth=False,
                **ssh.narrowed(),
            )
        except OSError as error:
            raise UsageError(
                f"the slice's door can't listen at {host}:{port}: {error.strerror or error}; "
                "change [rpc] listen"
            ) from error
        door.port = door._acceptor.get_port()
        return door

    def take_leave(self) -> None:
        """Says to all who are there that the slice is being stopped, and lets nobody in any more.

        To be called before rpc-server ends: its holder can't tell an end from a crash.
        """
        self._closing = True
        if self._acceptor is not None:
            self._acceptor.close()
        for visitor in self.visitors:
            visitor.take_leave()

    async def close(self) -> None:
        """Ends all connections and gives the port back."""
        self._closing = True
        if self._acceptor is not None:
            self._acceptor.close()
        visitors = list(self.visitors)
        for visitor in visitors:
            visitor.leave()
        for visitor in visitors:
            await visitor.gone.wait()
        if self._acceptor is not None:
            await self._acceptor.wait_closed()

    def believe(self, trust: Trust) -> None:
        """Lets in whom this trust knows from now on; others have to go."""
        self.trust = trust
        for visitor in list(self.visitors):
            if visitor.hid is not None and not trust.knows(visitor.hid):
                visitor.leave("its bee is no longer let in")

    def end_streams(self) -> None:
        """Cuts every stream to rpc-server: the lease that allowed them is over."""
        for visitor in self.visitors:
            visitor.end_streams()

    def arrived(self, visitor: Visitor) -> bool:
        """Takes note of a new connection; says whether it may stay."""
        if not self._knocks.admit(visitor.origin):
            return False
        strangers = [known for known in self.visitors if known.hid is None]
        self.visitors.append(visitor)
        if len(strangers) >= self.limits.strangers:
            has_to_go(strangers).leave("it made room for a newer one")
        return True

    def proven(self, visitor: Visitor) -> bool:
        """Says whether one more proven visitor may stay."""
        return sum(known.hid is not None for known in self.visitors) <= self.limits.visitors

    def left(self, visitor: Visitor) -> None:
        """Forgets a connection that is gone."""
        if visitor in self.visitors:
            self.visitors.remove(visitor)

    def refused(self, visitor: Visitor, reason: str) -> None:
        """Tells of one that was never let in; of a storm of them, how many more there were."""
        untold = None if self._closing else self._lines.admit()
        if untold is not None:
            more = {"more": untold} if untold else {}
            log.warning("worker.door.refused", peer=visitor.peer, reason=reason, **more)
