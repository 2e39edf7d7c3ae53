"""A humd for tests and rehearsal: one listening socket, its clients, and ways to misbehave.

Owns the socket, every client's connection and the state files. Leaving it closes all connections;
the files stay behind, as humd's do.
"""

from __future__ import annotations

import asyncio
import os
import socket as sockets
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Self
from uuid import uuid4

from hum_workers.fake_humd.link import Link
from hum_workers.fake_humd.manifest import Manifest
from hum_workers.fake_humd.router import Router, Seat
from hum_workers.fake_humd.state import State, listen
from hum_workers.fake_humd.wire import BadLine, NotUtf8, Tone, decode

QUEUE = 1024
"""Outbound tones that humd holds for one client."""


class FakeHumd:
    """One humd: `async with await FakeHumd.start(socket, state_home) as humd`.

    Names of hives are those of the clients' hellos; an empty name means every client.
    """

    def __init__(
        self, socket: Path, state_home: Path, *, queue: int = QUEUE, home: str | None = None
    ) -> None:
        self.socket = Path(socket)
        self._state = State(Path(state_home))
        self._queue = queue
        self._home = home if home is not None else os.environ.get("HOME", "/")
        self._links: dict[str, Link] = {}
        self._dirty: list[Link] = []
        self._listener: sockets.socket | None = None
        self._stalled = False
        self._change = asyncio.Event()
        self._dropped = 0
        self._router = Router(home=self._home)
        self.bad_lines: Counter[str] = Counter()
        """Lines dropped as unreadable, by reason."""
        self.tap: Callable[[str, Tone], None] | None = None
        """Called with the sender's hive and each tone humd reads, before it is routed."""

    @classmethod
    async def start(
        cls,
        socket: Path | str,
        state_home: Path | str,
        queue: int = QUEUE,
        *,
        home: str | None = None,
    ) -> Self:
        """Returns a humd that listens at `socket` and keeps `bees.json` below `state_home`.

        Raises:
            UsageError: the socket or the state folder is in use or can't be used.
        """
        humd = cls(Path(socket), Path(state_home), queue=queue, home=home)
        humd.listen()
        return humd

    async def __aenter__(self) -> Self:
        if self._listener is None:
            self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()

    @property
    def manifests(self) -> list[Manifest]:
        """Manifests of the connected bees, by name."""
        seats = self._router.seats.values()
        kept = [seat.manifest for seat in seats if seat.manifest is not None]
        return sorted(kept, key=lambda manifest: str(manifest["name"]))

    @property
    def dropped(self) -> int:
        """Tones that did not fit into a client's queue, since the start."""
        return self._dropped + sum(link.dropped for link in self._links.values())

    @property
    def clients(self) -> list[str]:
        """Hives of the connected clients, in order of connection; empty before a hello."""
        return [link.seat.name for link in self._links.values()]

    def serves(self, model: str) -> bool:
        """Whether a prompt for this model would find a worker."""
        return any(model in manifest.get("models", ()) for manifest in self.manifests)

    async def until(self, condition: Callable[[], bool], timeout: float = 5.0) -> None:
        """Waits until something that humd has read, accepted or lost makes the condition true.

        Raises:
            TimeoutError: it has not come true in time.
        """
        async with asyncio.timeout(timeout):
            while not condition():
                self._change.clear()
                await self._change.wait()

    def listen(self) -> None:
        """Starts with a clean memory; `bees.json` shows the old bees until the next hello."""
        self._state.claim(self.socket)
        self._router = self._new_router()
        self._listener = listen(self.socket)
        asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)

    def kill(self) -> None:
        """Ends as if killed: connections break, nothing queued is delivered, the files stay."""
        if self._listener is not None:
            if not self._stalled:
                asyncio.get_running_loop().remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None
        self._stalled = False
        self._router = Router(home=self._home)  # the old one would tell bees.json who leaves
        for link in list(self._links.values()):
            link.close()

    async def restart(self, down_for: float = 0.0) -> None:
        """Is killed, away for `down_for` seconds, and back with no memory."""
        self.kill()
        await asyncio.sleep(down_for)
        self.listen()

    def stall(self) -> None:
        """Stops accepting, reading and writing; the kernel goes on taking what fits."""
        if not self._stalled and self._listener is not None:
            self._stalled = True
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
            for link in self._links.values():
                link.stall()

    def resume(self) -> None:
        """Ends a stall."""
        if self._stalled and self._listener is not None:
            self._stalled = False
            asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)
            for link in list(self._links.values()):
                link.resume()

    def half_close(self, hive: str = "") -> int:
        """Ends what these clients hear, not what they say. Returns how many there were."""
        return self._each(hive, Link.half_close)

    def drop(self, hive: str = "") -> int:
        """Closes the connections of these clients. Returns how many there were."""
        return self._each(hive, Link.close)

    def cut_lines(self, hive: str = "", pause: float = 0.05) -> int:
        """The next line to each of these clients comes in two pieces, `pause` seconds apart."""
        return self._each(hive, lambda link: link.cut(pause))

    def inject(self, hive: str, data: bytes) -> int:
        """Writes raw bytes to these clients, whatever they are. Returns how many there were."""
        return self._each(hive, lambda link: link.inject(data))

    def read(self, link: Link, lines: list[bytes]) -> None:
        """Part of `Hub`: routes what a client said."""
        seat, hear, tap = link.seat, self._router.hear, self.tap
        for line in lines:
            if not line or line == b"\r":
                continue
            try:
                tone = decode(line)
            except BadLine as reason:
                self.bad_lines[str(reason)] += 1
                continue
            except NotUtf8:
                self.bad_lines["not UTF-8"] += 1
                link.close()
                return
            if tap is not None:
                tap(seat.name, tone)
            hear(seat, tone)

    def flush(self) -> None:
        """Part of `Hub`: writes what the last read has queued."""
        dirty, self._dirty = self._dirty, []
        for link in dirty:
            link.write()
        self._change.set()

    def gone(self, link: Link) -> None:
        """Part of `Hub`: forgets a client."""
        self._dropped += link.dropped
        self._links.pop(link.seat.client, None)
        self._router.close(link.seat)
        self._change.set()

    def _accept(self) -> None:
        while self._listener is not None and not self._stalled:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                break
            link = Link(sock, self, queue=self._queue, dirty=self._dirty_link)
            client = str(uuid4())
            self._links[client] = link
            link.seat = self._router.open(client, link)
            link.resume()
        self.flush()

    def _dirty_link(self, link: Link) -> None:
        self._dirty.append(link)

    def _each(self, hive: str, action: Callable[[Link], None]) -> int:
        chosen = [link for link in self._links.values() if hive in ("", link.seat.name)]
        for link in chosen:
            action(link)
        return len(chosen)

    def _new_router(self) -> Router:
        def manifests_changed() -> None:
            seats: list[Seat] = list(router.seats.values())
            self._state.keep_bees({s.client: s.manifest for s in seats if s.manifest})

        router = Router(home=self._home, manifests_changed=manifests_changed)
        return router
