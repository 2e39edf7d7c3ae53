"""A flood of one reason is a few log lines a minute."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hum_workers.program.seldom import LINES, MOST_REASONS, WINDOW, Seldom
from tests.rig import egg, ended, fake, served


def test_a_flood_is_a_few_lines_a_minute_and_a_count() -> None:
    now = 0.0
    seldom = Seldom(lambda: now, lines=3)
    assert [seldom.left_out("late") for _ in range(10)] == [0, 0, 0, *[None] * 7]
    assert seldom.left_out("other") == 0
    now = WINDOW
    assert [seldom.left_out("late") for _ in range(4)] == [7, 0, 0, None]


def test_a_flood_of_reasons_shares_one_count() -> None:
    seldom = Seldom(lambda: 0.0, lines=1)
    said = [seldom.left_out(str(n)) for n in range(10 * MOST_REASONS)]
    assert said.count(0) == MOST_REASONS + 1


@pytest.mark.parametrize(
    ("event", "why"),
    [
        ("worker.tool.result_unexpected", "reason='no call of ours'"),
        ("worker.turn.failed", "code='no_capacity'"),
    ],
)
def test_what_a_peer_can_cause_is_logged_a_few_times_and_the_rest_counted(
    event: str, why: str
) -> None:
    script = """
import structlog, time
from hum_workers.program import logs
now = 0.0
time.monotonic, real = (lambda: now), time.monotonic
logs.configure()
time.monotonic = real
log = structlog.get_logger()
for n in range(1000):
    log.info("{event}", call=str(n), {why})
log.info("worker.stopping")
now = 61.0
log.info("{event}", call="last", {why})
""".replace("{event}", event).replace("{why}", why)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=30)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in lines].count(event) == 11
    assert lines[-1]["left_out"] == 990
    assert lines[-2]["event"] == "worker.stopping"


async def test_a_flood_of_results_that_nobody_awaits_is_a_few_lines(short_dir: Path) -> None:
    async with served(short_dir, egg(short_dir), dev=False) as (humd, bee, asker):
        flood = []
        for n in range(500):
            flood.append({"chi": "tool-result", "callId": f"call-{n}", "sid": "s", "output": "x"})
            flood.append({"chi": "prompt", "modelId": "echo", "content": str(n)})
        humd.inject("vllm-worker", b"".join(json.dumps(tone).encode() + b"\n" for tone in flood))
        assert ended(await asker.ask(fake(tokens=1), "echo"))["chi"] == "finish"
        assert len(bee.events("worker.tool.result_unexpected")) == LINES
        assert len(bee.events("worker.tone.dropped")) == LINES
