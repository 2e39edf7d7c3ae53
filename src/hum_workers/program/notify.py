"""systemd's notification protocol, without its library: one datagram each."""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping


class Notifier:
    """Speaks to the service manager that started us; without one it does nothing.

    Takes its variables out of `env`, so that no child takes itself for the service.
    """

    def __init__(self, env: MutableMapping[str, str]) -> None:
        self._address = env.pop("NOTIFY_SOCKET", "")
        micros, pid = env.pop("WATCHDOG_USEC", ""), env.pop("WATCHDOG_PID", "")
        mine = self._address and pid in ("", str(os.getpid())) and micros.isdecimal()
        self.watchdog = int(micros) / 1e6 if mine else None
        """Seconds in which a `WATCHDOG=1` is expected; None: not at all."""

    def __bool__(self) -> bool:
        return bool(self._address)

    def say(self, **fields: str | int) -> None:
        """Sends fields such as `READY=1`; a manager that can't be reached is not our trouble."""
        if not self._address:
            return
        text = "\n".join(f"{name}={value}" for name, value in fields.items())
        address = self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
            link.setblocking(False)
            try:
                link.connect("\0" + address[1:] if address.startswith("@") else address)
                link.send(text.encode())
            except OSError:
                return
