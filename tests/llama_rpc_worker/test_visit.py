"""Going to a slice's door: what is said of each thing that can be wrong there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest.mock import patch

import pytest

from hum_workers.errors import SliceError, SliceProblem
from hum_workers.llama_rpc_worker.slice_link import SliceLink
from hum_workers.llama_rpc_worker.trust import Trust
from hum_workers.thrum.identity import hid_of
from tests.llama_rpc_worker.doors import (
    ANN,
    BEN,
    NOWHERE,
    SLICE,
    WAIT,
    Desk,
    Peer,
    Wire,
    a_link,
    linked,
    opened,
    unused_port,
)


async def problem_of(link: SliceLink) -> tuple[SliceProblem, str]:
    """What is wrong when this link goes to its door."""
    with pytest.raises(SliceError) as caught:
        await asyncio.wait_for(link.connect(), WAIT)
    await link.close()
    message = str(caught.value)
    assert message.count("\n") == 0
    assert link.endpoint in message
    return caught.value.problem, message


async def test_where_nobody_listens_is_unreachable() -> None:
    problem, message = await problem_of(a_link(unused_port()))
    assert problem is SliceProblem.UNREACHABLE
    assert message.endswith("Connection refused; start the slice's bee or mend the endpoint")


@pytest.mark.parametrize("host", ["slice..lan", "a" * 300, "\0x", "\ud800"])
async def test_what_can_be_no_hosts_name_is_unreachable(host: str) -> None:
    link = SliceLink(ANN, (host, 7300), None, Trust([], NOWHERE))
    problem, message = await problem_of(link)
    assert problem is SliceProblem.UNREACHABLE
    assert "mend the endpoint" in message


@pytest.mark.parametrize(
    "words",
    [
        b"",
        b"\n" * 100_000,
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"SSH-2.0-\xff\xfe\r\n",
    ],
)
async def test_what_hangs_up_or_talks_otherwise_is_no_door(words: bytes) -> None:
    async with Peer() as other:
        going = asyncio.create_task(problem_of(a_link(other.address[1])))
        _, writer = await other.accept()
        writer.write(words)
        writer.close()
        problem, message = await going
    assert problem is SliceProblem.NOT_A_DOOR
    assert "is no slice's door" in message


async def test_what_says_nothing_is_told_apart_when_its_time_is_over() -> None:
    async with Peer() as silent:
        with patch("hum_workers.llama_rpc_worker.visit.GREETING_TIME", 0.2):
            problem, message = await problem_of(a_link(silent.address[1]))
    assert problem is SliceProblem.NOT_A_DOOR
    assert "is no slice's door" in message


@pytest.mark.parametrize(
    ("greeting", "said"),
    [
        (b"SSH-2.0-OpenSSH_9.9\r\n", "is no slice's door but OpenSSH_9.9"),
        (b"SSH-2.0-hum_slice_2\r\n", "another version, hum_slice_2, and this bee speaks"),
    ],
)
async def test_another_ssh_is_named(greeting: bytes, said: str) -> None:
    async with Peer() as other:
        going = asyncio.create_task(problem_of(a_link(other.address[1])))
        reader, writer = await other.accept()
        writer.write(greeting)
        await reader.readuntil(b"\n")
        writer.close()
        problem, message = await going
    assert problem is SliceProblem.NOT_A_DOOR
    assert said in message


async def test_a_door_of_another_bee_is_not_believed() -> None:
    async with opened(Desk()) as door:
        problem, message = await problem_of(a_link(door.port, hid=hid_of(BEN)))
    assert problem is SliceProblem.UNKNOWN_KEY
    assert f"is that of {hid_of(SLICE)}, and the egg says {hid_of(BEN)}" in message


async def test_a_door_that_nobody_named_is_believed_if_its_key_lies_here(tmp_path: Path) -> None:
    async with opened(Desk()) as door:
        link = SliceLink(ANN, ("127.0.0.1", door.port), None, Trust([], tmp_path))
        problem, message = await problem_of(link)
        assert problem is SliceProblem.UNKNOWN_KEY
        assert f'say hid = "{hid_of(SLICE)}" in its [[slices]]' in message
        (tmp_path / "hum" / "bees").mkdir(parents=True)
        (tmp_path / "hum" / "bees" / "slice.key").write_bytes(SLICE)
        await link.connect()
        assert link.hid == hid_of(SLICE)
        await link.close()


async def test_a_door_that_falls_silent_is_said() -> None:
    async with opened(Desk()) as door, Wire(door.port) as wire, linked(wire.port) as link:
        wire.stall.clear()
        with (
            patch("hum_workers.llama_rpc_worker.visit.ANSWER_TIME", 0.2),
            pytest.raises(SliceError, match="has not answered for 0.2 s") as caught,
        ):
            await link.describe()
        assert caught.value.problem is SliceProblem.UNREACHABLE


async def test_a_link_needs_no_state_folder_where_hids_are_named() -> None:
    async with opened(Desk()) as door:
        link = SliceLink(ANN, ("127.0.0.1", door.port), hid_of(SLICE), Trust([], NOWHERE))
        await link.connect()
        await link.close()
