"""A gathering: what fails at one door, and in whoever listens, is not the end of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from structlog.testing import capture_logs

from hum_workers.llama_rpc_worker.gathering import Gathering, Known
from hum_workers.llama_rpc_worker.slice_link import SliceLink
from hum_workers.llama_rpc_worker.trust import Trust
from hum_workers.thrum.identity import hid_of
from tests.llama_rpc_worker.doors import ANN, NOWHERE, SLICE, WAIT, Desk, opened


def a_link(known: Known, lost: Callable[[str], None]) -> SliceLink:
    door = known.host, known.port
    return SliceLink(ANN, door, known.hid, Trust([], NOWHERE), on_lost=lost)


@contextlib.asynccontextmanager
async def running(gathering: Gathering, pause: float = 0.01) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(gathering.run(pause))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
        await gathering.close()


async def test_a_door_that_fails_in_any_way_is_absent_and_the_others_are_there() -> None:
    def link(known: Known, lost: Callable[[str], None]) -> SliceLink:
        if known.port == 1:
            raise LookupError("what nobody thought of")
        return a_link(known, lost)

    async with opened(Desk()) as door:
        good = Known("127.0.0.1", door.port, hid_of(SLICE))
        known = [Known("slice..lan", 7300), Known("127.0.0.1", 1), good]
        gathering = Gathering(lambda: known, link)
        with capture_logs() as entries:
            async with running(gathering) as task:
                for _ in range(3):
                    await asyncio.wait_for(gathering.fresh(), WAIT)
                assert not task.done()
    assert [offer.endpoint for offer in gathering.offers] == [good.endpoint]
    reasons = [absent.reason for absent in gathering.absent]
    assert "slice..lan:7300" in reasons[0]
    assert "127.0.0.1:1 can't be asked: LookupError" in reasons[1]
    assert [entry["event"] for entry in entries] == ["worker.gathering.door_failed"]
    assert "what nobody thought of" in str(entries[0]["exc_info"])


async def test_whoever_listens_and_fails_does_not_end_it() -> None:
    def changed() -> None:
        raise OverflowError("too large")

    gathering = Gathering(list, a_link, changed)
    with capture_logs() as entries:
        async with running(gathering) as task:
            await asyncio.wait_for(gathering.fresh(), WAIT)
            await asyncio.wait_for(gathering.fresh(), WAIT)
            assert not task.done()
    assert [entry["event"] for entry in entries] == ["worker.gathering.changed_failed"]


async def test_a_round_that_fails_is_told_and_begun_anew() -> None:
    rounds = []

    def known() -> list[Known]:
        rounds.append(1)
        if len(rounds) < 3:
            raise LookupError("a fault of our own")
        return []

    gathering = Gathering(known, a_link)
    with capture_logs() as entries:
        async with running(gathering) as task:
            while len(rounds) < 4:
                await asyncio.wait_for(gathering.fresh(), WAIT)
            assert not task.done()
    assert [entry["event"] for entry in entries] == ["worker.gathering.failed"] * 2
