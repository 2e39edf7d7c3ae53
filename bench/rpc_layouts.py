"""The small model in every layout: alone, over slices straight, through doors, and the whole bee.

Each is a context that owns its processes and yields where to ask. The same flags of llama-server in
all of them: what differs is the way to the layers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from bench.clients import Client, Direct, Tones
from bench.rpc_door import COORDINATOR, NOWHERE, SLICE, child
from hum_workers.llama_rpc_worker import ssh
from hum_workers.llama_rpc_worker.command import CPU_BATCH
from hum_workers.llama_rpc_worker.layout import HEAD_ON_CPU
from hum_workers.llama_rpc_worker.raiser import free_port
from hum_workers.llama_rpc_worker.slice_link import SliceLink
from hum_workers.llama_rpc_worker.trust import Trust
from hum_workers.tender.rpc import RpcError, probe
from hum_workers.tender.upstream import Upstream
from hum_workers.thrum.identity import hid_of
from scripts.llama_cpp import HOME
from scripts.rehearsal import Part, Rehearsal, RehearsalError
from scripts.smollm2 import GGUF

BIN, SMALL = HOME / "current" / "bin", HOME / "model" / Path(GGUF).name
NAME, WORKER = "bench", "hum_workers.llama_rpc_worker"
BLOCKS = 30
START = 120.0
COMMON = f"-fit off -c 2048 -np 1 -no-kvu -b {CPU_BATCH} -ub {CPU_BATCH}"
COMMON += " --cache-ram 0 --no-slots --no-ui -t"
ENV = {"GGML_NO_BACKTRACE": "1", "PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}


@dataclass(frozen=True)
class Layout:
    """Where the layers are, and how they are reached."""

    way: str
    """`alone`, `straight`, `door` or `bee`."""
    slices: int = 0
    head: str = "local"
    threads: int = 1
    """Of llama-server; each slice has one."""
    model: Path = SMALL

    def __str__(self) -> str:
        if self.way == "alone":
            return f"alone, {self.threads} threads" if self.threads > 1 else "alone, 1 thread"
        ways = {"straight": "straight", "door": "through the door", "bee": "whole bee"}
        slices = f"{self.slices} slices" if self.slices > 1 else "1 slice"
        return f"{slices}, {ways[self.way]}, head {self.head}"


@dataclass
class Running:
    """A layout that answers."""

    client: Client
    load: float
    """Seconds from the start of llama-server to its readiness."""
    links: Sequence[SliceLink] = ()
    """To each slice, where there are doors."""

    def traffic(self) -> list[tuple[int, int]]:
        """Returns bytes to and from each slice."""
        return [link.traffic for link in self.links]


@asynccontextmanager
async def running(layout: Layout) -> AsyncIterator[Running]:
    """Yields the layout when it is ready.

    Raises:
        RehearsalError: it does not become so.
    """
    if layout.way == "bee":
        async with _bee(layout) as ready:
            yield ready
        return
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="humb-", dir="/tmp")))
        ports = [await stack.enter_async_context(_slice()) for _ in range(layout.slices)]
        links = []
        if layout.way == "door":
            links = [await stack.enter_async_context(_door(port)) for port in ports]
            ports = [await link.forward() for link in links]
        began = perf_counter()
        client = await stack.enter_async_context(_server(layout, ports, folder))
        yield Running(client, perf_counter() - began, links)


def route(layout: Layout, ports: Sequence[int]) -> list[str]:
    """Returns llama-server's flags for equal shares; the output has the last place."""
    if not ports:
        return ["--device", "none", "-ngl", "0"]
    counts = [BLOCKS // len(ports)] * len(ports)
    counts[-1] += 1
    flags = ["--rpc", ",".join(f"127.0.0.1:{port}" for port in ports)]
    flags += ["--device", ",".join(f"RPC{n}" for n in range(len(ports)))]
    flags += ["-ngl", "all", "-sm", "layer", "-ts", ",".join(map(str, counts))]
    return [*flags, "-ot", HEAD_ON_CPU] if layout.head == "local" else flags


@asynccontextmanager
async def _part(name: str, command: list[str]) -> AsyncIterator[Part]:
    part = Part(name, command, ENV)
    try:
        yield part
    finally:
        part.kill()


@asynccontextmanager
async def _slice() -> AsyncIterator[int]:
    """Yields the port of an rpc-server."""
    port = free_port("127.0.0.1")
    command = [str(BIN / "ggml-rpc-server"), "-H", "127.0.0.1", "-p", str(port), "-t", "1"]
    async with _part("rpc-server", [*command, "-d", "CPU"]):
        async with asyncio.timeout(START):
            while True:
                with contextlib.suppress(RpcError):
                    await probe("127.0.0.1", port)
                    break
                await asyncio.sleep(0.02)
        yield port


@asynccontextmanager
async def _door(port: int) -> AsyncIterator[SliceLink]:
    """Yields a link to a slice's bee in front of an rpc-server, leased."""
    async with child("slice", f"--engine={port}", f"--cipher={ssh.CIPHER}") as bee:
        door = "127.0.0.1", int(await bee.line())
        link = SliceLink(COORDINATOR, door, hid_of(SLICE), Trust([], NOWHERE))
        try:
            await link.connect()
            await link.lease((0, BLOCKS), "bench")
            yield link
        finally:
            await link.close()


@asynccontextmanager
async def _server(layout: Layout, ports: Sequence[int], folder: Path) -> AsyncIterator[Direct]:
    """Yields a client of llama-server, when it is ready."""
    uds = folder / "engine.sock"
    command = [str(BIN / "llama-server"), "-m", str(layout.model), *route(layout, ports)]
    command += [*COMMON.split(), str(layout.threads), "--host", str(uds), "--alias", NAME]
    if layout.model != SMALL:
        command.append("--no-warmup")  # a load is measured, no step over a gigabyte of zeros
    async with _part("llama-server", command) as part:
        upstream = Upstream(uds)
        try:
            async with asyncio.timeout(START):
                while not await _healthy(upstream, part):  # noqa: ASYNC110 - another process's
                    await asyncio.sleep(0.01)
        finally:
            await upstream.close()
        client = Direct(uds, {}, NAME)
        try:
            yield client
        finally:
            await client.close()


async def _healthy(upstream: Upstream, part: Part) -> bool:
    if part.process.poll() is not None:
        raise RehearsalError(f"llama-server ended: {part.last_words()}")
    try:
        return (await upstream.request("GET", "/health", timeout=10)).status == 200
    except OSError:
        return False


def _eggs(layout: Layout, folder: Path) -> list[Path]:
    """Writes the eggs, the slices' first."""
    engine = f"[engine]\nbin = {json.dumps(str(BIN))}\n"
    eggs = []
    declared = ""
    for n in range(layout.slices):
        first, end = (BLOCKS * n // layout.slices, BLOCKS * (n + 1) // layout.slices)
        eggs.append(folder / f"slice-{n}.toml")
        eggs[-1].write_text(
            f'[bee]\nname = "slice-{n}"\n[cell]\nrole = "slice"\n{engine}'
            f'[rpc]\nthreads = 1\nlayers = "{first}:{end}"\n'
        )
        declared = '[[slices]]\ndiscover = true\n[split]\npolicy = "declared"\n'
    eggs.append(folder / "front.toml")
    eggs[-1].write_text(
        f'[bee]\nname = "front"\n[cell]\nrole = "coordinator"\n{engine}args = ["-t", "1"]\n'
        f'[model]\npath = {json.dumps(str(layout.model))}\nserved_name = "{NAME}"\nctx = 2048\n'
        f'{declared}head = "{layout.head}"\n'
    )
    return eggs


@asynccontextmanager
async def _bee(layout: Layout) -> AsyncIterator[Running]:
    """Yields slices and coordinator as bees of their own, under one humd."""
    load: list[float] = []

    def hear(event: dict[str, Any]) -> None:
        if event.get("event") == "worker.cell.ready":
            load.append(event["seconds"])

    async with Rehearsal() as rehearsal:
        await rehearsal.start_humd()
        rehearsal.on_event = hear
        for egg in _eggs(layout, rehearsal.folder):
            await rehearsal.start_bee(egg, module=WORKER)
        assert rehearsal.bee is not None
        await rehearsal.serves(NAME, START)
        await rehearsal.bee.until(lambda: len(load) > layout.slices, START)
        client = await Tones.connect(rehearsal.socket, NAME)
        try:
            yield Running(client, load[-1])
        finally:
            await client.close()
    if rehearsal.left:
        raise RehearsalError(f"left behind: {'; '.join(rehearsal.left)}")
