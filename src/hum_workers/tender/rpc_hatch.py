"""Hatching of an rpc-server: from a process that was just spawned to one that answers a greeting.

Its output is no sign of readiness: in a pipe the banner appears only with the first client, and it
is printed before the port is bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from hum_workers.errors import StartFailed
from hum_workers.frames import Cause
from hum_workers.spec import CellSpec
from hum_workers.tender.rpc import RpcError, probe

POLL = 0.05
PROBE_TIMEOUT = 2.0


class RpcHatching:
    """Waits for one rpc-server; the only client it ever has before it is leased."""

    def __init__(self, spec: CellSpec, on_stage: Callable[[str, str], None]) -> None:
        self._spec = spec
        self._on_stage = on_stage

    def progress(self) -> None:
        """A sign of life; nothing here takes long enough to need one."""

    def line(self, text: str) -> None:
        """Reads a line of its output, which says nothing of use."""

    async def run(self) -> dict[str, Any]:
        """Returns what it says of itself: `protocol`, three numbers; `devices`, name, free, total.

        Raises:
            StartFailed: it gave no answer in time, or one that no rpc-server gives.
        """
        host, _, port = self._spec.uds.rpartition(":")
        last = "nothing listens yet"
        try:
            async with asyncio.timeout(self._spec.start_timeout):
                while True:
                    try:
                        found = await probe(host, int(port), PROBE_TIMEOUT)
                        break
                    except RpcError as error:
                        last = str(error)
                    await asyncio.sleep(POLL)
        except TimeoutError:
            raise StartFailed(
                f"rpc-server answered no greeting within {self._spec.start_timeout:g} s: {last}; "
                "raise [lifecycle] start_timeout if its devices need longer",
                Cause.START_TIMEOUT,
            ) from None
        self._on_stage("listening", "")
        devices = [[one.name, one.free, one.total] for one in found.devices]
        return {"models": [], "media": [], "protocol": list(found.protocol), "devices": devices}
