"""Fast engines and many turns before an asker that pauses: the default pace loses nothing.

humd holds 1,024 tones for an asker and drops the rest without a word, so a test that loses nothing
says little by itself: the last one shows that without pacing text is lost in the same scene.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from hum_workers.fake_humd import Answer, Asker, FakeHumd
from tests.raw_humd import turns
from tests.rig import WAIT, egg, fake, served

TURNS = 1_000
BURST = fake(tokens=5)
WORDS = "w0 w1 w2 w3 w4"
PAUSE, EVERY = 0.3, 1.0


async def burst(humd: FakeHumd, asker: Asker) -> list[Answer]:
    """Starts all turns at once; the asker pauses for the first time while their tones come.

    An answer whose ending did not arrive is empty.
    """
    endings: set[str] = set()
    humd.tap = lambda hive, tone: endings.add(tone["sid"]) if tone["chi"] == "finish" else None
    sids = [f"turn {n}" for n in range(TURNS)]
    for sid in sids:
        asker.prompt(sid=sid, modelId="echo", text=BURST)
    await humd.until(lambda: asker.received > 100, timeout=WAIT)
    asker.pauses(PAUSE, EVERY)
    await humd.until(lambda: len(endings) == TURNS, timeout=WAIT)
    while not await arrives(asker):
        pass
    return await asyncio.gather(*(there(asker, sid) for sid in sids))


async def arrives(asker: Asker) -> bool:
    """Whether a whole short answer does: then all that humd held for the asker has come."""
    try:
        return (await asker.ask(fake(tokens=1), "echo", timeout=2)).complete
    except TimeoutError:
        return False


async def there(asker: Asker, sid: str) -> Answer:
    """Returns an answer that has come, if it has."""
    try:
        return await asker.collect(sid, timeout=0.1)
    except TimeoutError:
        return Answer(sid=sid)


async def test_20000_tokens_as_fast_as_they_come_all_arrive(short_dir: Path) -> None:
    async with served(short_dir, egg(short_dir), dev=False) as (humd, _, asker):
        sid = asker.prompt(modelId="echo", text=fake(tokens=20_000))
        asker.pauses(PAUSE, EVERY)
        answer = await asker.collect(sid)
        assert answer.complete
        assert answer.text == " ".join(f"w{n}" for n in range(20_000))
        assert len(turns(answer.tones)) == 1
        assert humd.dropped == 0


async def test_1000_turns_at_once_lose_no_character_and_end_last(short_dir: Path) -> None:
    async with served(short_dir, egg(short_dir), dev=False) as (humd, _, asker):
        answers = await burst(humd, asker)
        assert [answer.text for answer in answers] == [WORDS] * TURNS
        assert all(answer.complete for answer in answers)
        assert all(len(turns(answer.tones)) == 1 for answer in answers)
        assert humd.dropped == 0


async def test_without_a_pace_the_same_turns_lose_text(short_dir: Path) -> None:
    async with served(short_dir, egg(short_dir, bee="pace = 0"), dev=False) as (humd, _, asker):
        answers = await burst(humd, asker)
        assert not all(answer.complete for answer in answers)
        assert humd.dropped > 0


async def test_turns_of_one_sid_do_not_mix_when_the_pace_holds_the_first_back(
    short_dir: Path,
) -> None:
    slow = egg(short_dir, bee="pace = 100\nburst = 1")
    async with served(short_dir, slow) as (_, _, asker):
        texts = [fake(reasoning=2, tokens=n) for n in (3, 4, 5)]
        for text in texts:
            asker.prompt(sid="one", modelId="echo", text=text)
        asker.prompt(sid="one", modelId="echo", text="hi", sampling={"temperature": 9})
        answers = [await asker.collect("one") for _ in range(4)]
    assert [len(answer.text.split()) for answer in answers] == [3, 4, 5, 0]
    assert all(answer.complete for answer in answers[:3])
    assert len(turns([tone for answer in answers for tone in answer.tones])) == 4
