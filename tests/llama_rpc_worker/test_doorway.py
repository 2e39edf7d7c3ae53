"""A door whose address is not there yet, or held by another for a moment."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Iterator

import pytest

from hum_workers.errors import EngineError, NotYet, UsageError
from hum_workers.llama_rpc_worker.door import Door
from hum_workers.llama_rpc_worker.doorway import Doorway
from hum_workers.llama_rpc_worker.raiser import free_port
from hum_workers.llama_rpc_worker.trust import Trust
from hum_workers.thrum.identity import hid_of
from tests.llama_rpc_worker.doors import ANN, BEN, NOWHERE, SLICE, WAIT, Desk, linked

NEVER = "fe80::1"
"""Of a link that is not named: nobody can listen there, now or later."""
NOBODYS = "192.0.2.1"
"""For documentation: no machine has it."""
BELIEVED = Trust([hid_of(ANN)], NOWHERE)


def quickly() -> Iterator[float]:
    return itertools.repeat(0.01)


class Way:
    """A doorway to one address, and what it has opened."""

    def __init__(self, host: str, port: int) -> None:
        self.tries = 0
        self.tried = asyncio.Event()
        self.opened = asyncio.Event()
        self._at = host, port
        self.way = Doorway(self._make, lambda _: self.opened.set(), BELIEVED, quickly)

    async def _make(self, trust: Trust) -> Door:
        self.tries += 1
        if self.tries > 2:
            self.tried.set()
        return await Door.open(SLICE, self._at, trust, Desk())


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


async def test_an_address_that_can_never_be_listened_at_ends_the_start() -> None:
    it = Way(NEVER, 7300)
    with pytest.raises(UsageError, match="change \\[rpc\\] listen"):
        await it.way.open()
    await it.way.close()


def test_rpc_server_on_an_address_that_is_not_there_is_tried_later() -> None:
    with pytest.raises(NotYet, match="waits for that address"):
        free_port(NOBODYS)
    with pytest.raises(EngineError):
        free_port(NEVER)


async def test_who_is_no_longer_believed_has_to_go_and_stays_outside() -> None:
    it = Way("127.0.0.1", 0)
    await it.way.open()
    assert it.way.port is not None
    lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with linked(
        it.way.port, on_lost=lost.set_result, renew_every=0.05, lease_time=0.2
    ) as link:
        await link.lease((0, 1), "model")
        it.way.believe(Trust([hid_of(BEN)], NOWHERE))
        assert await asyncio.wait_for(lost, WAIT)
    async with linked(it.way.port, BEN):
        pass
    await it.way.close()
