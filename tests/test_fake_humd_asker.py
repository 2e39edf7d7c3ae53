"""The asker: what it makes of the tones of a turn, and how it reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hum_workers.fake_humd import Answer, Asker, FakeHumd
from hum_workers.fake_humd.asker import spoken
from hum_workers.fake_humd.state import default_socket
from tests.transcripts import DEADLINE, Tone, Wire


@pytest.fixture
async def humd(short_dir: Path, tmp_path: Path) -> AsyncIterator[FakeHumd]:
    async with await FakeHumd.start(short_dir / "thrum.sock", tmp_path) as humd:
        yield humd


@pytest.fixture
async def worker(humd: FakeHumd) -> AsyncIterator[Wire]:
    wire = await Wire.open(humd.socket)
    await wire.send({"chi": "hello", "hive": "w", "bee": ["worker"], "models": ["m1"]})
    assert [(await wire.next())["chi"] for _ in range(2)] == ["breath", "breath"]
    yield wire
    await wire.close()


@pytest.fixture
async def asker(humd: FakeHumd) -> AsyncIterator[Asker]:
    async with await Asker.connect(humd.socket) as asker:
        yield asker


def chunk(sid: str, kind: str, text: str) -> Tone:
    return {"chi": "chunk", "sid": sid, "chunkType": kind, "blockIdx": 0, "delta": text}


async def test_answers_are_kept_apart_by_sid(asker: Asker, worker: Wire) -> None:
    one, two = asker.prompt(text="1", modelId="m1"), asker.prompt(text="2", modelId="m1")
    assert [(await worker.next())["sid"] for _ in range(2)] == [one, two]
    await worker.send(
        chunk(two, "text_delta", "two"),
        chunk(one, "reasoning_delta", "hm"),
        chunk(one, "text_delta", "one"),
        {"chi": "error", "sid": two, "message": "no"},
        {"chi": "finish", "sid": one, "ext": {"w": {"chars": 3}}},
    )
    first, second = await asker.collect(one, DEADLINE), await asker.collect(two, DEADLINE)
    assert (first.text, first.reasoning, first.complete, first.chars) == ("one", "hm", True, 3)
    assert (second.text, second.complete) == ("two", False)
    assert [tone["chi"] for tone in first.tones] == ["chunk", "chunk", "finish"]
    assert first.first is not None
    assert first.took is not None
    assert 0 <= first.first <= first.took


async def test_two_turns_of_one_sid_are_two_answers(asker: Asker, worker: Wire) -> None:
    for text in ("first", "second"):
        asker.prompt(sid="s", text="x", modelId="m1")
        await worker.next()
        await worker.send(chunk("s", "text_delta", text), {"chi": "finish", "sid": "s"})
    assert [(await asker.collect("s", DEADLINE)).text for _ in range(2)] == ["first", "second"]


async def test_text_that_was_lost_makes_an_answer_incomplete() -> None:
    finish = {"chi": "finish", "sid": "s", "ext": {"w": {"chars": 4}}}
    assert not Answer(sid="s", text="abc", ending=finish).complete
    assert Answer(sid="s", text="abcd", ending=finish).complete
    assert Answer(sid="s", text="ab", ending={"chi": "finish", "ext": {"w": 1}}).complete
    assert not Answer(sid="s", text="ab").complete


async def test_an_answer_ends_with_the_connection(
    humd: FakeHumd, asker: Asker, worker: Wire
) -> None:
    sid = asker.prompt(text="x", modelId="m1")
    await worker.next()
    await worker.send(chunk(sid, "text_delta", "half an ans"))
    async for tone in asker.stream(sid):
        assert tone["delta"] == "half an ans"
        humd.kill()
    answer = await asker.collect(sid, DEADLINE)
    assert (answer.ending, answer.complete) == (None, False)
    with pytest.raises(ConnectionResetError):
        asker.cancel(sid)


async def test_cancel_and_cleanup_reach_the_worker(asker: Asker, worker: Wire) -> None:
    asker.cancel("s")
    asker.cleanup("s")
    assert [(await worker.next())["chi"] for _ in range(2)] == ["cancel", "cleanup"]


async def test_an_asker_that_pauses_hears_it_all_later(asker: Asker, worker: Wire) -> None:
    asker.pauses(pause=0.02, every=0.04)
    sid = asker.prompt(text="x", modelId="m1")
    await worker.next()
    for _ in range(50):
        await worker.send(*(chunk(sid, "text_delta", "x") for _ in range(10)))
        await worker.settle()
    await worker.send({"chi": "finish", "sid": sid, "ext": {"w": {"chars": 500}}})
    assert (await asker.collect(sid, DEADLINE)).complete


async def test_a_question_without_an_answer_has_a_deadline(asker: Asker, worker: Wire) -> None:
    with pytest.raises(TimeoutError):
        await asker.ask("x", "m1", timeout=0.01)
    assert (await worker.next())["text"] == "x"


async def test_a_listener_that_says_nothing_is_no_humd(short_dir: Path) -> None:
    ends: list[asyncio.StreamWriter] = []
    path = short_dir / "mute.sock"
    server = await asyncio.start_unix_server(lambda _, end: ends.append(end), str(path))
    with pytest.raises(TimeoutError):
        await Asker.connect(path, timeout=0.05)
    for end in ends:
        end.close()
        await end.wait_closed()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize(
    ("tone", "heard"),
    [
        (chunk("s", "text_delta", "a"), ("text", "a")),
        (chunk("s", "reasoning_delta", "a"), ("reasoning", "a")),
        ({"chi": "chunk", "part": {"type": "text", "text": "a"}}, ("text", "a")),
        ({"chi": "chunk", "chunkType": "text_start"}, ("", "")),
        ({"chi": "finish", "delta": "a"}, ("", "")),
    ],
)
def test_text_is_read_in_both_dialects(tone: Tone, heard: tuple[str, str]) -> None:
    assert spoken(tone) == heard


def test_the_first_place_that_the_environment_names_is_listened_at() -> None:
    env = {"XDG_RUNTIME_DIR": "/run/me"}
    assert default_socket(env) == Path("/run/me/hum/thrum.sock")
    env["HUM_SOCKET"] = "/two"
    assert default_socket(env) == Path("/two")
    env["HUM_THRUM_SOCK"] = "/one"
    assert default_socket(env) == Path("/one")
