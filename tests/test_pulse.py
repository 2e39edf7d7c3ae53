"""Pulse tones of a cell's life, as askers hear them through a fake humd."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from hum_workers.fake_humd.asker import Answer, Asker
from tests.rig import WAIT, Bee, egg, fake, served

ON_PROMPT = 'raise = "on-prompt"'


def kinds(answer: Answer) -> list[str]:
    """The tones in order: the kind of a pulse, the chi of any other, pieces of text left out."""
    named = [tone.get("kind") if tone["chi"] == "pulse" else tone["chi"] for tone in answer.tones]
    return [str(name) for name in named if name != "chunk"]


def pulses(answer: Answer) -> list[dict[str, Any]]:
    return [tone for tone in answer.tones if tone["chi"] == "pulse"]


async def until_text(asker: Asker, sid: str) -> None:
    """Returns when the turn has said something; what came is given up."""
    async for tone in asker.stream(sid):
        if tone.get("chunkType") == "text_delta":
            return


def engine_pid(bee: Bee) -> int:
    return int(bee.events("worker.cell.ready")[-1]["engine_pid"])


async def test_turns_that_wait_for_a_cell_hear_that_it_was_spawned_and_is_ready(
    short_dir: Path,
) -> None:
    path = egg(short_dir, bee=ON_PROMPT, fake={"ready_after": 0.3})
    async with served(short_dir, path) as (humd, bee, asker):
        first, second = await asyncio.gather(
            asker.ask(fake(tokens=3), "echo", timeout=WAIT),
            asker.ask(fake(tokens=3), "echo", timeout=WAIT),
        )
        (spawned,) = bee.events("worker.cell.spawned")
        for answer in (first, second):
            assert kinds(answer) == ["cell-spawned", "cell-ready", "session-ready", "finish"]
            assert answer.complete
            for pulse in pulses(answer):
                assert (pulse["cellId"], pulse["pid"]) == ("echo-1", spawned["pid"])
                assert pulse["sid"] == answer.sid
        third = await asker.ask(fake(tokens=3), "echo")
        assert kinds(third) == ["session-ready", "finish"]


async def test_turns_in_flight_hear_a_death_before_their_error(short_dir: Path) -> None:
    async with served(short_dir, egg(short_dir)) as (humd, bee, asker):
        sids = [asker.prompt(text=fake(tokens=9999, rate=20), modelId="echo") for _ in range(3)]
        for sid in sids:
            await until_text(asker, sid)
        os.kill(engine_pid(bee), signal.SIGKILL)
        answers = await asyncio.gather(*(asker.collect(sid, WAIT) for sid in sids))
        for answer in answers:
            assert kinds(answer) == ["cell-died", "error"]
            assert answer.ending is not None
            assert answer.ending["code"] == "cell_died"


async def test_a_turn_behind_full_slots_hears_death_spawn_and_readiness_and_is_answered(
    short_dir: Path,
) -> None:
    path = egg(short_dir, extra="[batching]\nmax_num_seqs = 1")
    async with served(short_dir, path) as (humd, bee, asker):
        # One sequence runs in the engine, four more may wait there; the sixth waits in the bee.
        sids = [asker.prompt(text=fake(tokens=9999, rate=20), modelId="echo") for _ in range(5)]
        await until_text(asker, sids[0])
        waits = asker.prompt(text=fake(tokens=3), modelId="echo")
        # The bee takes its tones in order: it has the sixth once it refuses the seventh.
        refused = await asker.ask("hi", "echo", sampling={"n": 2})
        assert kinds(refused) == ["error"]
        os.kill(engine_pid(bee), signal.SIGKILL)
        assert kinds(await asker.collect(sids[0], WAIT)) == ["cell-died", "error"]
        for sid in sids[1:]:
            asker.cancel(sid)  # those without text would go ahead of it, in the next cell
        answer = await asker.collect(waits, WAIT)
        assert kinds(answer) == [
            *("cell-died", "cell-spawned", "cell-ready"),
            *("session-ready", "finish"),
        ]
        assert [pulse["cellId"] for pulse in pulses(answer)] == ["echo-1", "echo-2", "echo-2"]


async def test_a_start_that_fails_is_told_before_its_error(short_dir: Path) -> None:
    broken = {"exit_at": {"stage": "load", "code": 1, "line": "ValueError: no weights"}}
    path = egg(short_dir, bee=ON_PROMPT, fake=broken)
    async with served(short_dir, path) as (humd, bee, asker):
        answer = await asker.ask("hi", "echo", timeout=WAIT)
        assert kinds(answer) == ["cell-spawned", "cell-died", "error"]
        assert answer.ending is not None
        assert answer.ending["code"] == "cell_start_failed"


async def test_a_turn_that_was_cancelled_while_it_waited_hears_nothing_more(
    short_dir: Path,
) -> None:
    path = egg(short_dir, bee=ON_PROMPT, fake={"ready_after": 0.5})
    async with served(short_dir, path) as (humd, bee, asker):
        gone = asker.prompt(text="hi", modelId="echo")
        stays = asker.prompt(text=fake(tokens=3), modelId="echo")
        async for tone in asker.stream(gone):
            assert tone.get("kind") == "cell-spawned"
            break
        asker.cancel(gone)
        cancelled = await asker.collect(gone, WAIT)
        assert kinds(cancelled) == ["finish"]
        assert (await asker.collect(stays, WAIT)).complete
        with pytest.raises(TimeoutError):
            await asker.collect(gone, timeout=0.05)


async def test_an_orderly_stop_sends_no_pulse_after_an_ending(short_dir: Path) -> None:
    path = egg(short_dir, extra='[lifecycle]\ndrain_timeout = "0s"')
    async with served(short_dir, path) as (humd, bee, asker):
        sid = asker.prompt(text=fake(tokens=9999, rate=20), modelId="echo")
        await until_text(asker, sid)
        stopping = asyncio.create_task(bee.stop())
        answer = await asker.collect(sid, WAIT)
        assert kinds(answer)[-1] == "error"
        assert await stopping == 0
        with pytest.raises(TimeoutError):
            await asker.collect(sid, timeout=0.05)
