"""What the thrum tests share: both event loops, a clock that is set by hand, a scripted humd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.thrum.listener import Listener


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def humd(short_dir: Path) -> AsyncIterator[Listener]:
    async with Listener(short_dir / "thrum.sock") as listener:
        yield listener


def tone(chi: str = "session-ready", **body: Any) -> dict[str, Any]:
    return {"chi": chi, "sid": "s", **body}
