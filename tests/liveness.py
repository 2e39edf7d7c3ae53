"""Proof of death: every member of a scripted tree holds a connection, its end is the member's.

No test asks "is it still there?" in a loop: it waits for the end of file.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Self

WAIT = 20.0
"""Seconds before a test gives up on an event; a loaded machine may need some of them."""


@dataclass(frozen=True)
class Life:
    """One connected member: its pid as this process sees it, and the role it claims."""

    pid: int
    role: str
    link: socket.socket


class Liveness:
    """A socket that members of a tree connect to."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "alive"
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(self.path))
        self._server.listen(32)
        self._server.setblocking(False)
        # Members may run as another user.
        folder.chmod(0o755)
        self.path.chmod(0o777)
        self.lives: list[Life] = []

    async def appear(self, count: int) -> list[Life]:
        """Waits until `count` members have connected and returns them, the roles in order."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(WAIT):
            while len(self.lives) < count:
                link, _ = await loop.sock_accept(self._server)
                role = (await loop.sock_recv(link, 64)).decode().strip()
                credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                self.lives.append(Life(struct.unpack("3i", credentials)[0], role, link))
        return sorted(self.lives, key=lambda life: life.role)

    def role(self, role: str) -> Life:
        """Returns the member that connected as `role`."""
        return next(life for life in self.lives if life.role == role)

    async def tell(self, role: str) -> None:
        """Tells a member to go on: for the main process, to leave."""
        await asyncio.get_running_loop().sock_sendall(self.role(role).link, b".")

    async def all_dead(self, seconds: float = WAIT) -> None:
        """Returns when every member that connected is dead.

        Raises:
            TimeoutError: one is still alive after `seconds`.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(seconds):
            for life in self.lives:
                try:
                    while await loop.sock_recv(life.link, 64):
                        pass
                except ConnectionResetError:
                    pass

    def close(self) -> None:
        """Closes all sockets."""
        for life in self.lives:
            life.link.close()
        self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def process_end(pid: int) -> None:
    """Returns when the process `pid`, a child of ours or not, has ended."""
    loop = asyncio.get_running_loop()
    fd = os.pidfd_open(pid)
    ended = asyncio.Event()
    loop.add_reader(fd, ended.set)
    try:
        async with asyncio.timeout(WAIT):
            await ended.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)
