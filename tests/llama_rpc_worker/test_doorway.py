"""A door whose address is not there yet, or held by another for a moment."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from hum_workers.errors import EngineError, NotYet, UsageError
from hum_workers.llama_rpc_worker.door import Door
from hum_workers.llama_rpc_worker.doorway import Doorway
from hum_workers.llama_rpc_worker.raiser import free_port
from hum_workers.llama_rpc_worker.trust import Trust
from tests.llama_rpc_worker.doors import SLICE, WAIT, Desk

NOBODYS = "192.0.2.1"
"""For documentation: no machine has it."""


def quickly() -> Iterator[float]:
    return itertools.repeat(0.01)


class Way:
    """A doorway to one address, and what it has opened."""

    def __init__(self, host: str, port: int) -> None:
        self.tries = 0
        self.tried = asyncio.Event()
        self.opened = asyncio.Event()
        self._at = host, port
        self.way = Doorway(self._make, lambda _: self.opened.set(), quickly)

    async def _make(self) -> Door:
        self.tries += 1
        if self.tries > 2:
            self.tried.set()
        return await Door.open(SLICE, self._at, Trust([], Path("/nonexistent")), Desk())


async def test_a_door_that_can_listen_is_open_at_once() -> None:
    it = Way("127.0.0.1", 0)
    await it.way.open()
    assert it.opened.is_set()
    assert it.way.port
    await it.way.close()


async def test_a_port_that_is_held_is_tried_until_it_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        it = Way("127.0.0.1", port)
        await it.way.open()
        await asyncio.wait_for(it.tried.wait(), WAIT)
        assert it.way.port is None
    await asyncio.wait_for(it.opened.wait(), WAIT)
    assert it.way.port == port
    await it.way.close()


async def test_an_address_that_is_not_there_is_waited_for_until_the_end() -> None:
    it = Way(NOBODYS, 7300)
    await it.way.open()
    await asyncio.wait_for(it.tried.wait(), WAIT)
    await it.way.close()
    assert it.way.port is None


async def test_a_name_that_nobody_knows_ends_the_start() -> None:
    it = Way("no.such.host.invalid", 7300)
    with pytest.raises(UsageError, match="change \\[rpc\\] listen"):
        await it.way.open()
    await it.way.close()


def test_rpc_server_on_an_address_that_is_not_there_is_tried_later() -> None:
    with pytest.raises(NotYet, match="waits for that address"):
        free_port(NOBODYS)
    with pytest.raises(EngineError):
        free_port("no.such.host.invalid")
