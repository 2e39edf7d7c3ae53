"""The real engine keeps what the scripted one promises in its place."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import pytest

from tests.fakes.contract import CONTRACT, Target
from tests.real.conftest import Real

pytestmark = [
    pytest.mark.real,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.xdist_group("real"),
    pytest.mark.timeout(400),
]


@pytest.mark.parametrize("promise", CONTRACT, ids=lambda promise: promise.__name__)
async def test_the_real_engine(real: Real, promise: Callable[[Target], Awaitable[None]]) -> None:
    (config,) = (real.folder / "run").glob("hum_workers/*/cell.yaml")
    (key,) = json.loads(config.read_text("utf-8"))["api-key"]
    (socket,) = (real.folder / "run").glob("hum_workers/*/engine.sock")
    await promise(Target(socket, "smollm2", key))
