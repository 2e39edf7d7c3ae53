"""A bee whose engine can't start: what is tried again, how often, and what the asker is told."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hum_workers.cells.blame import AT_ONCE, START_TRIES
from hum_workers.fake_humd.asker import Asker
from hum_workers.fake_humd.server import FakeHumd
from tests.rig import WAIT, Bee, egg, ended, running_bee

IN_USE = "OSError: [Errno 98] Address already in use"
NO_REPO = (
    "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or "
    "'namespace/repo_name': '/x'."
)


def leaves(line: str) -> dict[str, Any]:
    return {"exit_at": {"stage": "config", "code": 1, "line": line}}


async def withdrawn(bee: Bee) -> str:
    """Returns why the models were withdrawn, once they are; the log says how to go on."""
    async with asyncio.timeout(WAIT):
        while True:
            if events := bee.events("worker.model.withdrawn"):
                assert "SIGHUP" in events[0]["again"]
                return str(events[0]["reason"])
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("fake", "starts", "pauses", "death", "words"),
    [
        (leaves(IN_USE), AT_ONCE + 1, [0] * AT_ONCE, "port", "[Errno 98] Address already in use"),
        (leaves(NO_REPO), 1, [], "model", "correct [model]"),
        ({"failure": "kv_too_big"}, 1, [], "room", "[kv] size"),
        (
            *({"request": {"die": "before"}}, START_TRIES, [1, 2], "killed"),
            "was killed by SIGKILL while it started",
        ),
    ],
    ids=["port", "model", "room", "crash"],
)
async def test_the_class_of_a_failed_start_says_whether_it_is_tried_again(
    fake: dict[str, Any],
    starts: int,
    pauses: list[int],
    death: str,
    words: str,
    short_dir: Path,
) -> None:
    async with await FakeHumd.start(short_dir / "thrum.sock", short_dir / "state"):
        async with running_bee(short_dir, egg(short_dir, fake=fake)) as bee:
            reason = await withdrawn(bee)
            assert words in reason
            assert [e["death"] for e in bee.events("worker.cell.emerged")] == [death] * starts
            # What the record of a death says is not said again.
            again = bee.events("worker.cell.start_failed")
            assert [set(e) & {"reason", "again"} for e in again] == [{"again"}] * (starts - 1)
            waited = [int(e["seconds"]) for e in bee.events("worker.cell.restart")]
            assert waited == pauses
            async with await Asker.connect(short_dir / "thrum.sock") as asker:
                late = ended(await asker.ask("hi", "echo"))
            assert late["chi"] == "error"
            assert await bee.stop() == 0


async def test_a_command_that_is_not_there_has_no_log_and_nobody_is_sent_to_it(
    short_dir: Path,
) -> None:
    path = egg(short_dir)
    path.write_text(path.read_text().replace("[engine]\n", '[engine]\ncommand = ["/nowhere/x"]\n'))
    async with running_bee(short_dir, path) as bee:
        reason = await withdrawn(bee)
        (spawned,) = bee.events("worker.cell.spawned")
        (emerged,) = bee.events("worker.cell.emerged")
        assert await bee.stop() == 0
    assert not Path(spawned["engine_log"]).exists()
    assert reason.startswith("can't run /nowhere/x: No such file or directory; ")
    assert "log has the rest" not in reason + emerged["advice"]
    assert not {"code", "signal", "peak_mib"} & set(emerged)
