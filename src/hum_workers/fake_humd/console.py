"""Commands that drive a running fake humd: a line in, an answer out.

Owns nothing; a stall it began ends at its time or with the humd.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from hum_workers.errors import UsageError
from hum_workers.fake_humd.server import FakeHumd

HELP = """\
clients              hives of the connected clients, and tones dropped so far
restart [SECONDS]    be killed and come back after SECONDS (0)
stall SECONDS        read and write nothing for SECONDS
half-close [HIVE]    end what these clients hear, not what they say
drop [HIVE]          close the connections of these clients
cut [HIVE]           send the next line to these clients in two pieces
send HIVE JSON       write this line to these clients
help                 this list
quit                 end, as SIGTERM does
No HIVE means every client."""


class Console:
    """Understands the lines of `HELP`."""

    def __init__(self, humd: FakeHumd, quit: Callable[[], None]) -> None:
        self._humd = humd
        self._quit = quit
        self._commands: dict[str, Callable[[str], Awaitable[str]]] = {
            "clients": self._clients,
            "restart": self._restart,
            "stall": self._stall,
            "half-close": self._half_close,
            "drop": self._drop,
            "cut": self._cut,
            "send": self._send,
            "help": self._help,
            "quit": self._end,
        }

    async def run(self, line: str) -> str:
        """Does what a line says and returns one sentence about it."""
        name, _, rest = line.strip().partition(" ")
        if not name:
            return ""
        command = self._commands.get(name)
        if command is None:
            return f"{name}: no such command; type help"
        try:
            return await command(rest.strip())
        except (ValueError, UsageError) as error:
            return f"{name}: {error}; type help"

    async def _clients(self, _: str) -> str:
        names = [name or "(no hello)" for name in self._humd.clients]
        return (
            f"{len(names)} clients: {', '.join(names) or '-'}; {self._humd.dropped} tones dropped"
        )

    async def _restart(self, seconds: str) -> str:
        await self._humd.restart(down_for=float(seconds or 0))
        return "restarted"

    async def _stall(self, text: str) -> str:
        seconds = float(text)
        self._humd.stall()
        await asyncio.sleep(seconds)
        self._humd.resume()
        return "goes on"

    async def _half_close(self, hive: str) -> str:
        return f"{self._humd.half_close(hive)} half closed"

    async def _drop(self, hive: str) -> str:
        return f"{self._humd.drop(hive)} dropped"

    async def _cut(self, hive: str) -> str:
        return f"{self._humd.cut_lines(hive)} will be cut"

    async def _send(self, rest: str) -> str:
        hive, _, text = rest.partition(" ")
        line = text.encode() + b"\n"
        return f"sent to {self._humd.inject(hive, line)}"

    async def _help(self, _: str) -> str:
        return HELP

    async def _end(self, _: str) -> str:
        self._quit()
        return "ends"
