"""What a running bee shows of itself: the page of figures, if its egg asks for it, and its status.

Lives as long as the block it stands around; afterwards nothing listens and no file is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from hum_workers.bee import Bee
from hum_workers.egg.units import split_listen
from hum_workers.figures.status_file import StatusFile


@asynccontextmanager
async def shown(
    bee: Bee, *, state: Path, tag: str, name: str | None, listen: str | None
) -> AsyncIterator[None]:
    """Shows the bee while the block runs.

    Raises:
        UsageError: the address can't be used.
    """
    async with AsyncExitStack() as stack:
        address = None
        if listen is not None:
            # Imported here: 20 ms that only a bee with figures has to pay.
            from hum_workers.figures.metrics import page
            from hum_workers.figures.server import MetricsServer

            host, port = split_listen(listen)
            server = await MetricsServer.start(host, port, page(bee.view))
            await stack.enter_async_context(server)
            address = f"{listen.rpartition(':')[0]}:{server.port}"
        status = StatusFile(state, tag=tag, name=name, view=bee.view, metrics=address)
        keeping = asyncio.create_task(status.keep(), name="status")
        try:
            yield
        finally:
            keeping.cancel()
            status.remove()
            await asyncio.wait({keeping})
