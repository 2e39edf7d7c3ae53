"""A bee that is killed: the next one with its identity ends what was open, and then advertises."""

from __future__ import annotations

import signal
from pathlib import Path

from hum_workers.fake_humd import Asker, FakeHumd
from hum_workers.fake_humd.wire import Tone
from tests.raw_humd import RawHumd, Seat
from tests.rig import WAIT, egg, fake, running_bee

ENDLESS = fake(tokens=1_000_000, rate=100)


def journals(folder: Path) -> list[bytes]:
    found = (folder / "state" / "hum" / "workers").rglob("*.journal")
    return [path.read_bytes() for path in found]


async def test_open_sids_get_bee_restarted_before_anything_is_advertised(short_dir: Path) -> None:
    path = egg(short_dir, bee='raise = "on-prompt"')
    heard: list[Tone] = []
    async with await FakeHumd.start(short_dir / "thrum.sock", short_dir / "state") as humd:
        humd.tap = lambda hive, tone: (
            heard.append(tone) if hive == "vllm-worker" or tone["chi"] == "hello" else None
        )
        async with await Asker.connect(humd.socket) as asker:
            async with running_bee(short_dir, path) as bee:
                await humd.until(lambda: humd.serves("echo"), WAIT)
                done = await asker.ask(fake(tokens=3, text=["secret"]), "echo", timeout=WAIT)
                assert done.complete
                sids = [asker.prompt(modelId="echo", text=ENDLESS) for _ in range(3)]
                # Two wait behind the first of their sid: each is a turn that is owed an ending.
                sids += [asker.prompt(sid=sids[0], modelId="echo", text="later") for _ in range(2)]
                await humd.until(lambda: len(heard) > 40, WAIT)
                await bee.stop(signal.SIGKILL)
            assert b"secret" not in b"".join(journals(short_dir))
            await humd.until(lambda: not humd.serves("echo"), WAIT)
            heard.clear()
            async with running_bee(short_dir, path) as bee:
                answers = [await asker.collect(sid, WAIT) for sid in sids]
                endings = [answer.ending or {} for answer in answers]
                assert [ending.get("code") for ending in endings] == ["bee_restarted"] * 5
                assert "restarted" in endings[0]["message"]
                await humd.until(lambda: humd.serves("echo"), WAIT)
                again = await asker.ask(fake(tokens=2), "echo", timeout=WAIT)
                assert again.complete
                assert [tone["chi"] for tone in heard[:7]] == ["hello", *["error"] * 5, "hello"]
                assert heard[0]["models"] == []
                assert heard[6]["models"] == ["echo"]
                assert bee.events("worker.journal.owed")[0]["turns"] == 5
            assert journals(short_dir) == []


async def test_without_echoes_the_bee_advertises_after_a_while_and_owes_still(
    short_dir: Path,
) -> None:
    path = egg(short_dir, bee='raise = "on-prompt"')
    seats: list[Seat] = []

    def deaf() -> Seat:
        seats.append(Seat(echoes=False))
        return seats[-1]

    async with RawHumd(short_dir / "thrum.sock", deaf) as humd:
        async with running_bee(short_dir, path) as bee:
            seat = await humd.seat("echo")
            seat.say({"chi": "prompt", "sid": "s", "modelId": "echo", "text": fake(tokens=2)})
            await seat.until(lambda: seat.endings["s"] == 1)
            await bee.stop(signal.SIGKILL)
        async with running_bee(short_dir, path) as bee:
            seat = await humd.seat("echo")
            assert seat is seats[1]
            assert [tone["models"] for tone in seat.tones[""]] == [[], ["echo"]]
            assert [tone["code"] for tone in seat.tones["s"]] == ["bee_restarted"]
            assert bee.events("worker.journal.settled")[0]["unread"] == 1
            await bee.stop(signal.SIGKILL)
    assert b'"s"' in journals(short_dir)[0]


async def test_endings_that_humd_did_not_hear_at_an_orderly_stop_are_said_by_the_next_bee(
    short_dir: Path,
) -> None:
    path = egg(short_dir, extra='[lifecycle]\ndrain_timeout = "100ms"')
    async with await FakeHumd.start(short_dir / "thrum.sock", short_dir / "state") as humd:
        async with running_bee(short_dir, path) as bee:
            await humd.until(lambda: humd.serves("echo"), WAIT)
            async with await Asker.connect(humd.socket) as before:
                sid = before.prompt(modelId="echo", text=ENDLESS)
                await humd.until(lambda: before.received > 5, WAIT)
                humd.kill()
            assert await bee.stop() == 0
        humd.listen()
        async with await Asker.connect(humd.socket) as after, running_bee(short_dir, path):
            answer = await after.collect(sid, WAIT)
            assert answer.ending is not None
            assert answer.ending["code"] == "bee_restarted"
