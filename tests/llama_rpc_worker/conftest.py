"""The door's tests run on both event loops: asyncio's, which checks more, and the bee's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

ON_BOTH = {
    "test_door.py",
    "test_doorway.py",
    "test_gate.py",
    "test_slice_link.py",
    "test_strangers.py",
    "test_stream.py",
    "test_visit.py",
}


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.path.name in ON_BOTH:
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}
