"""A coordinator's link to one slice: its facts, its lease, and a loopback port to its rpc-server.

Keeps the lease for as long as the slice gives it: a connection that breaks is made anew with the
same token. A network that only stalls breaks nothing before `ssh.DEAD_PEER_TIME`; after that the
byte streams break, and llama-server ends with them. Then the lease is what keeps the slice from
other coordinators until this one is up again. `close` leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Callable
from functools import partial
from time import perf_counter

import structlog

from hum_workers.errors import SliceError, SliceProblem
from hum_workers.llama_rpc_worker.facts import Layers, SliceFacts, SliceState
from hum_workers.llama_rpc_worker.lease import LEASE_TIME
from hum_workers.llama_rpc_worker.loopback import NOBODY, Address, peer_uid
from hum_workers.llama_rpc_worker.near import Near
from hum_workers.llama_rpc_worker.questions import STOPPED, Describe, Release, Renew, Take
from hum_workers.llama_rpc_worker.trust import Trust
from hum_workers.llama_rpc_worker.visit import Visit

log = structlog.get_logger()

RENEW_EVERY = 5.0
"""Seconds between two renewals."""
RETRY = (0.1, 0.25, 0.5, 1.0)
"""Seconds before each new try to connect; the last one goes on."""
MOST_STREAMS = 8
LIFE = secrets.token_hex(8)
"""Tells this run of the bee from an earlier one, whose leases are over."""


class SliceLink:
    """One slice as a coordinator holds it.

    While it is leased, `on_cut` is told of each stream that broke, and `on_lost`, once, that the
    lease is over against this side's will.
    """

    def __init__(
        self,
        seed: bytes,
        endpoint: tuple[str, int],
        hid: str | None,
        trust: Trust,
        *,
        on_lost: Callable[[str], None] = lambda reason: None,
        on_cut: Callable[[str], None] = lambda reason: None,
        life: str = LIFE,
        lease_time: float = LEASE_TIME,
        renew_every: float = RENEW_EVERY,
    ) -> None:
        """`hid` is whose door it must be; None: any that `trust` knows. `life` names this run.

        `on_cut` is called when a byte stream ends that this side had not ended, while the slice is
        leased: llama-server, which notices only with its next token, can't go on with it.
        """
        self.endpoint = f"{endpoint[0]}:{endpoint[1]}"
        self.facts: SliceFacts | None = None
        """As the slice last said."""
        self.round_trip = 0.0
        """Seconds that the last question took."""
        self._seed = seed
        self._address = endpoint
        self._hid = hid
        self._trust = trust
        self._on_lost = on_lost
        self._on_cut = on_cut
        self._life = life
        self._lease_time = lease_time
        self._renew_every = renew_every
        self._visit: Visit | None = None
        self._going = asyncio.Lock()
        self._token: str | None = None
        self._until = 0.0
        self._broken = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._port: asyncio.Server | None = None
        self._ends: set[Near] = set()
        self._carried = 0, 0
        self._asked_at = 0.0
        self._answered_at = 0.0
        self._opening: set[asyncio.Task[None]] = set()

    @property
    def hid(self) -> str | None:
        """Whose door it is; None: not known yet, or named by nobody."""
        return self._visit.hid if self._visit else self._hid

    @property
    def leased(self) -> bool:
        """This side holds the lease, as far as it knows."""
        return self._token is not None

    async def connect(self) -> None:
        """Goes to the door and proves both sides; at once where that is done.

        Raises:
            SliceError: that can't be had; see its `problem`.
        """
        async with self._going:  # the keeper of the lease may be on its way
            if self._visit is not None:
                return
            self._broken.clear()
            self._visit = await Visit.arrive(
                self._seed, self._address, self._hid, self._trust, self._break, self._stopped
            )

    async def describe(self) -> SliceFacts:
        """Asks what the slice is now, and how far.

        Raises:
            SliceError: it does not say.
        """
        began = perf_counter()
        answer = await self._at_the_door().ask(lambda number: Describe(id=number))
        self.round_trip = perf_counter() - began
        return self._learn(answer.facts)

    async def lease(self, layers: Layers, fingerprint: str) -> None:
        """Takes the slice, and keeps it until `release`.

        Raises:
            SliceError: it won't be leased.
        """
        if self._token is not None:
            raise RuntimeError(f"this link holds the lease of {self.endpoint} already")
        now = asyncio.get_running_loop().time()
        answer = await self._at_the_door().ask(
            lambda number: Take(id=number, layers=layers, fingerprint=fingerprint, life=self._life)
        )
        self._learn(answer.facts)
        self._token = answer.token
        self._until = now + self._lease_time
        self._keeper = asyncio.create_task(self._keep(), name=f"lease {self.endpoint}")

    async def release(self) -> None:
        """Gives the slice back; where that can't be said, the lease ends by itself."""
        token, self._token = self._token, None
        await self._no_keeper()
        self._cut()
        if token is None or self._visit is None:
            return
        with contextlib.suppress(SliceError):
            answer = await self._visit.ask(lambda number: Release(id=number, token=token))
            self._learn(answer.facts)

    async def forward(self) -> int:
        """Returns a loopback port: while the slice is leased, it leads to rpc-server."""
        if self._port is None:
            loop = asyncio.get_running_loop()
            self._port = await loop.create_server(partial(Near, self), "127.0.0.1", 0)
        port: int = self._port.sockets[0].getsockname()[1]
        return port

    @property
    def unanswered(self) -> float | None:
        """When rpc-server was sent something that it has not answered yet, by the loop's clock."""
        return self._asked_at if self._asked_at > self._answered_at else None

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes of all streams so far, to the slice and from it."""
        carried = [self._carried, *(end.carried for end in self._ends)]
        return sum(there for there, _ in carried), sum(back for _, back in carried)

    async def close(self) -> None:
        """Releases the slice and leaves the door; the loopback port is gone with it."""
        await self.release()
        if self._port is not None:
            self._port.close()
            await self._port.wait_closed()
        visit, self._visit = self._visit, None
        if visit is not None:
            await visit.leave()

    def admit(self, end: Near, peer: Address, own: Address) -> None:
        """Takes a connection of the loopback port, if it may have one."""
        uid = peer_uid(peer, own)
        if uid not in (None, os.geteuid()):
            if uid != NOBODY:
                log.warning("worker.slice.foreign", slice=self.endpoint, uid=uid)
            end.abort()
        elif self._token is None or self._visit is None or len(self._ends) >= MOST_STREAMS:
            end.abort()
        else:
            self._ends.add(end)
            end.over.add_done_callback(partial(self._over, end))
            task = asyncio.create_task(self._stream(self._visit, self._token, end))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    def _over(self, end: Near, _: asyncio.Future[None]) -> None:
        there, back = end.carried
        self._carried = self._carried[0] + there, self._carried[1] + back
        self._ends.discard(end)

    def moved(self, *, answer: bool) -> None:
        """Takes note that bytes go by: an answer, or what asks for one."""
        now = asyncio.get_running_loop().time()
        self._asked_at = self._asked_at if answer else now
        self._answered_at = now if answer else self._answered_at

    def cut(self, end: Near) -> None:
        """Takes note of a stream that the far side ended."""
        if end in self._ends:
            # Streams go before the connection that takes them along.
            asyncio.get_running_loop().call_soon(self._say_cut, self._token)

    def _say_cut(self, token: str | None) -> None:
        if token is not None and token == self._token:
            lost = self._visit is None
            self._on_cut("its connection broke" if lost else "rpc-server closed its stream")

    async def _stream(self, visit: Visit, token: str, end: Near) -> None:
        try:
            await visit.stream(token, end)
        except SliceError as error:
            log.warning("worker.slice.no_stream", slice=self.endpoint, reason=str(error))
            end.abort()

    def _at_the_door(self) -> Visit:
        if self._visit is None:
            raise SliceError(SliceProblem.LOST, f"there is no connection to {self.endpoint}")
        return self._visit

    def _learn(self, facts: SliceFacts | None) -> SliceFacts:
        if facts is None:
            raise SliceError(SliceProblem.NOT_A_DOOR, f"{self.endpoint} says nothing of itself")
        self.facts = facts
        return facts

    def _break(self) -> None:
        """The connection is lost, and every stream with it."""
        self._visit = None
        self._cut()
        self._broken.set()

    def _stopped(self) -> None:
        """The slice is being stopped: what breaks from now on is no fault."""
        if self._token is not None:
            self._token = None
            self._cut()
            self._on_lost(STOPPED)

    def _cut(self) -> None:
        for end in list(self._ends):
            end.abort()

    async def _keep(self) -> None:
        """Renews the lease until it is over, and says so once."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._renew_every):
                    await self._broken.wait()
            if self._token is None:
                return
            try:
                await self._renew()
            except Exception as error:  # a lease whose keeper is gone must be said to be over
                if not isinstance(error, SliceError):
                    log.exception("worker.slice.keeper_failed", slice=self.endpoint)
                self._token = None
                self._cut()
                self._on_lost(str(error) or type(error).__name__)
                return

    async def _renew(self) -> None:
        """Renews once, over a new connection where the old one is lost.

        Raises:
            SliceError: the lease is over, or its time is.
        """
        loop = asyncio.get_running_loop()
        tries = 0
        while True:
            now = loop.time()
            try:
                await self.connect()
                answer = await self._at_the_door().ask(
                    partial(_renewal, self._token or ""), self._lease_time / 2
                )
            except SliceError as error:
                # Nobody listens: its bee is dead, and rpc-server with it.
                gone = isinstance(error.__cause__, ConnectionRefusedError)
                if gone or error.problem is SliceProblem.REFUSED or now >= self._until:
                    raise
                log.info("worker.slice.reconnecting", slice=self.endpoint, reason=str(error))
            else:
                self._until = now + self._lease_time
                facts = self._learn(answer.facts)
                if facts.state is not SliceState.LEASED:
                    raise SliceError(
                        SliceProblem.REFUSED, f"the slice at {self.endpoint} is {facts.state}"
                    )
                return
            await asyncio.sleep(RETRY[min(tries, len(RETRY) - 1)])
            tries += 1

    async def _no_keeper(self) -> None:
        keeper, self._keeper = self._keeper, None
        for task in [keeper, *self._opening]:
            if task is not None and task is not asyncio.current_task():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


def _renewal(token: str, number: int) -> Renew:
    return Renew(id=number, token=token)
