"""Who is let in at a slice's door, and what strangers cost."""

from __future__ import annotations

import asyncio
import hashlib
from unittest.mock import patch

import asyncssh
import pytest
from structlog.testing import capture_logs

from hum_workers.errors import SliceError
from hum_workers.llama_rpc_worker import ssh
from hum_workers.llama_rpc_worker.facts import SliceState
from hum_workers.llama_rpc_worker.questions import VERSION
from hum_workers.thrum.identity import hid_of
from tests.llama_rpc_worker.doors import (
    ANN,
    BEN,
    SLICE,
    Desk,
    Wire,
    a_link,
    ended,
    linked,
    opened,
    proven,
    stranger,
)


async def test_hids_are_the_hashes_of_the_keys_that_are_shown() -> None:
    for seed in (SLICE, ANN):
        key = ssh.key_of(seed).convert_to_public()
        assert ssh.hid_of_key(key) == hid_of(seed)
    assert ssh.hid_of_key(asyncssh.generate_private_key("ecdsa-sha2-nistp256")) is None
    assert hid_of(SLICE) == "wbee_" + hashlib.sha256(key_bytes(SLICE)).hexdigest()


def key_bytes(seed: bytes) -> bytes:
    return ssh.key_of(seed).convert_to_public().public_data[-32:]


@pytest.mark.parametrize(
    "words",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x0e" + (24).to_bytes(8, "little") + bytes(24) + b"\n",
        b"SSH-1.5-old\r\n",
        b"SSH-2.0-x\r\n" + b"\xff" * 4096,
        b"SSH-2.0-x\r\n" + bytes(4096),
        b"SSH-2.0-\xff\xfe\r\n",
        b"x" * 10_000,
        b"\n" * 10_000,
    ],
    ids=["http", "rpc", "old", "huge", "zeros", "latin", "long", "empty"],
)
async def test_whoever_speaks_rubbish_is_out_at_once(words: bytes) -> None:
    async with opened(Desk(), prove=1000, speak=1000) as door:
        async with stranger(door.port) as (reader, writer):
            writer.write(words)
            await ended(reader)
        async with linked(door.port) as link:
            assert await link.describe()


async def test_whoever_says_nothing_is_out_soon() -> None:
    async with opened(Desk(), prove=1000, speak=0.05) as door:
        async with stranger(door.port) as (reader, _):
            await ended(reader)


async def test_whoever_is_of_another_version_is_out_soon() -> None:
    async with opened(Desk(), prove=1000, speak=0.05) as door:
        async with stranger(door.port) as (reader, writer):
            writer.write(b"SSH-2.0-hum_slice_99\r\n")
            await ended(reader)
    async with opened(Desk(), prove=1000, speak=1000) as door:
        with pytest.raises(asyncssh.Error):
            async with proven(door, client_version="hum_slice_99"):
                pass


async def test_each_stranger_is_told_of_in_one_line_and_a_storm_in_few() -> None:
    with capture_logs() as entries:
        async with opened(Desk(), speak=0.05, arrivals=0.01, visitors=1) as door:
            for _ in range(40):
                reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
                await ended(reader)
                writer.transport.abort()
    told = [entry for entry in entries if entry["event"] == "worker.door.refused"]
    assert told[0]["reason"] == "it said nothing for 0.05 s"
    assert {entry["reason"] for entry in told[1:]} == {"too many connections come from there"}
    assert 16 <= len(told) <= 20


async def test_whoever_greets_and_proves_nothing_is_out_later() -> None:
    async with opened(Desk(), prove=0.2, speak=0.05) as door:
        async with stranger(door.port) as (reader, writer):
            writer.write(f"SSH-2.0-{VERSION}\r\n".encode())
            await ended(reader)


async def test_a_replayed_greeting_opens_nothing() -> None:
    desk = Desk()
    async with opened(desk) as door, Wire(door.port) as wire:
        async with linked(wire.port) as link:
            await link.lease((0, 4), "f00d")
            await link.release()
        desk.book.recycled()
        async with stranger(door.port) as (reader, writer):
            writer.write(bytes(wire.sent))
            await ended(reader)
        assert desk.book.state is SliceState.FREE


async def test_another_key_is_refused_and_the_hid_to_add_is_named() -> None:
    async with opened(Desk()) as door:
        with pytest.raises(SliceError, match=f"add {hid_of(BEN)} to .rpc. coordinators") as caught:
            await a_link(door.port, BEN).connect()
        assert caught.value.problem == "not_let_in"


async def test_a_visitor_that_does_not_trust_the_door_is_told_of_with_the_mend() -> None:
    with capture_logs() as entries:
        async with opened(Desk()) as door:
            with pytest.raises(SliceError):
                await a_link(door.port, hid=hid_of(BEN)).connect()
            while door.visitors:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    (told,) = (one["reason"] for one in entries if one["event"] == "worker.door.refused")
    assert told == (
        f"it does not trust this slice's key: name {hid_of(SLICE)} in the [[slices]] of its egg"
    )


@pytest.mark.parametrize("method", ["password", "keyboard-interactive", "hostbased"])
async def test_there_is_no_other_way_to_prove_oneself(method: str) -> None:
    async with opened(Desk()) as door:
        with pytest.raises(asyncssh.PermissionDenied):
            async with proven(door, preferred_auth=[method], password="hum"):
                pass


async def test_keys_of_other_kinds_are_refused() -> None:
    async with opened(Desk()) as door:
        other = asyncssh.generate_private_key("ecdsa-sha2-nistp256")
        with pytest.raises(asyncssh.PermissionDenied):
            async with proven(door, client_keys=[other], signature_algs=()):
                pass


async def test_who_tries_many_keys_is_out() -> None:
    async with opened(Desk(), tries=3) as door:
        keys = [ssh.key_of(bytes([number]) * 32) for number in range(100, 110)] + [ssh.key_of(ANN)]
        with pytest.raises((asyncssh.ConnectionLost, asyncssh.PermissionDenied)):
            async with proven(door, client_keys=keys):
                pass


async def test_the_oldest_stranger_makes_room_for_a_new_one() -> None:
    async with opened(Desk(), strangers=2, speak=1000, prove=1000) as door:
        async with stranger(door.port) as (oldest, _), stranger(door.port) as (newer, _):
            async with linked(door.port) as link:
                assert await link.describe()
                assert await ended(oldest) == b""
                assert not newer.at_eof()


async def test_a_storm_of_strangers_is_turned_away_before_it_costs_anything() -> None:
    async with opened(Desk(), arrivals=0.001, visitors=2) as door:
        async with stranger(door.port), stranger(door.port):
            reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
            assert await ended(reader) == b""
            writer.close()
            with pytest.raises(SliceError, match="busy with strangers, and is asked again"):
                await a_link(door.port).connect()


async def test_a_storm_of_one_user_keeps_no_other_out() -> None:
    async with opened(Desk(), arrivals=0.001, visitors=2, strangers=2) as door:
        with patch("hum_workers.llama_rpc_worker.visitor.origin", return_value="uid 65534"):
            async with stranger(door.port), stranger(door.port):
                reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
                assert await ended(reader) == b""
                writer.close()
                with patch("hum_workers.llama_rpc_worker.visitor.origin", return_value="uid 0"):
                    async with linked(door.port) as link:
                        assert await link.describe()


async def test_more_proven_visitors_than_there_is_room_for_are_turned_away() -> None:
    async with opened(Desk(), visitors=2) as door:
        async with linked(door.port) as first, linked(door.port) as second:
            with pytest.raises(SliceError):
                await a_link(door.port).connect()
            assert await first.describe()
            assert await second.describe()
