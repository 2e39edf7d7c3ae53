"""The end of a stream at a coordinator's loopback port: what a process of this host connects to."""

from __future__ import annotations

from typing import Any, Protocol

from hum_workers.llama_rpc_worker.loopback import Address
from hum_workers.llama_rpc_worker.stream import End


class Owner(Protocol):
    """The link whose port it is."""

    def admit(self, end: Near, peer: Address, own: Address) -> None:
        """Takes a connection of the loopback port, if it may have one."""

    def moved(self, *, answer: bool) -> None:
        """Takes note that bytes go by: an answer, or what asks for one."""

    def cut(self, end: Near) -> None:
        """Takes note of a stream that the far side ended."""


class Near(End):
    """See the module."""

    def __init__(self, link: Owner) -> None:
        super().__init__()
        self._link = link
        self._cut = False

    def data_received(self, data: bytes, datatype: int | None = None) -> None:
        """See `End.data_received`."""
        self._link.moved(answer=False)
        super().data_received(data, datatype)

    def _write(self, data: bytes) -> None:
        self._link.moved(answer=True)
        super()._write(data)

    def close(self) -> None:
        """See `End.close`."""
        self._ended()
        super().close()

    def abort(self) -> None:
        """See `End.abort`."""
        self._ended()
        super().abort()

    def _write_eof(self) -> None:
        # rpc-server never ends half a stream, and a process that is idle would not notice.
        self._ended()
        super()._write_eof()

    def _ended(self) -> None:
        # One that never led to rpc-server carried nothing that anybody could miss.
        if self.other is not None and not self._eof and not self._cut:
            self._cut = True
            self._link.cut(self)

    def connection_made(self, transport: Any) -> None:
        """A process has connected, and may be gone again."""
        super().connection_made(transport)
        peer, own = (transport.get_extra_info(name) for name in ("peername", "sockname"))
        if peer and own:
            self._link.admit(self, peer, own)
        else:
            self.abort()
