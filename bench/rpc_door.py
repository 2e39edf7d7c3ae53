"""What a slice's door costs: round trips, bytes a second, CPU, and how long a bee's loop stands.

    python -m bench.rpc_door [--short] [--cipher NAME ...] [--packet KIB] [--window KIB]

Four processes, as in life: a stand-in for rpc-server, the slice's bee with the door, the
coordinator's bee with the link (this program), and a stand-in for llama-server. All on loopback.
Prints a table and, last, one JSON line. Exit code 0 whatever the figures are, 1 when they could not
be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import median
from time import process_time, thread_time
from typing import Any

import uvloop

from bench.figures import Figure, as_json, percentile, table
from bench.rpc_ends import ask, serve
from hum_workers.errors import HumError
from hum_workers.llama_rpc_worker import ssh
from hum_workers.llama_rpc_worker.door import Door
from hum_workers.llama_rpc_worker.facts import Build, Layers, SliceFacts
from hum_workers.llama_rpc_worker.lease import LeaseBook
from hum_workers.llama_rpc_worker.slice_link import SliceLink
from hum_workers.llama_rpc_worker.trust import Trust
from hum_workers.thrum.identity import hid_of

MIB = 1024 * 1024
SLICE, COORDINATOR = b"s" * 32, b"c" * 32
NOWHERE = Path("/nonexistent")
CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "chacha20-poly1305@openssh.com")
TICK = 0.002
STALL_BUDGET = 5.0


class Pulse:
    """How long the loop is busy before others have their turn: ms of CPU in one round, sampled."""

    def __init__(self) -> None:
        self.stalls: list[float] = []
        self._loop = asyncio.get_running_loop()
        self._cpu = process_time()
        self._tick()

    def _tick(self) -> None:
        self._handle = self._loop.call_later(TICK, self._loop.call_soon, self._begin)

    def _begin(self) -> None:
        # What is called soon comes after all that is ready now: one round.
        self._loop.call_soon(self._end, thread_time())

    def _end(self, began: float) -> None:
        self.stalls.append((thread_time() - began) * 1000)
        self._tick()

    def read(self) -> dict[str, float]:
        """Returns the longest stall, the 99th percentile, and CPU seconds; starts anew."""
        stalls, self.stalls = self.stalls or [0.0], []
        cpu, self._cpu = process_time() - self._cpu, process_time()
        return {"max": max(stalls), "p99": percentile(stalls, 0.99), "cpu": cpu}

    def stop(self) -> None:
        """Ends it."""
        self._handle.cancel()


class Desk:
    """A slice that anybody with a key may lease."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._book = LeaseBook()
        self._book.ready()
        self._address = address

    def facts(self) -> SliceFacts:
        """See `SliceDesk`."""
        return SliceFacts(
            hid=hid_of(SLICE),
            name="bench",
            build=Build(commit="", digest="", protocol=(0, 0, 0)),
            devices=(),
            memory=0,
            state=self._book.state,
        )

    def lease(self, holder: str, layers: Layers, fingerprint: str, life: str) -> str:
        """See `SliceDesk`."""
        return self._book.grant(holder, layers, fingerprint, self._now(), life).token

    def renew(self, holder: str, token: str) -> None:
        """See `SliceDesk`."""
        self._book.renew(holder, token, self._now())

    def release(self, holder: str, token: str) -> None:
        """See `SliceDesk`."""
        self._book.release(holder, token, self._now())

    def address(self, holder: str, token: str) -> tuple[str, int]:
        """See `SliceDesk`."""
        self._book.held(holder, token, self._now())
        return self._address

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


async def slice_bee(engine: int) -> None:
    """Runs a door in front of the engine's port; answers each line of its input with its pulse."""
    trust = Trust([hid_of(COORDINATOR)], NOWHERE)
    door = await Door.open(SLICE, ("127.0.0.1", 0), trust, Desk(("127.0.0.1", engine)))
    pulse = Pulse()
    print(door.port, flush=True)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while await reader.readline():
        print(json.dumps(pulse.read()), flush=True)
    pulse.stop()
    await door.close()


class Child:
    """A process of this program in another role, which ends with its input."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._input, self._output = process, process.stdin, process.stdout

    async def line(self) -> Any:
        """Returns the next line of its output."""
        return json.loads(await asyncio.wait_for(self._output.readline(), 120))

    async def ask(self, line: str = "") -> Any:
        """Sends a line and returns the answer."""
        self._input.write(line.encode() + b"\n")
        return await self.line()

    async def end(self) -> None:
        """Closes its input and waits for its end."""
        self._input.close()
        await asyncio.wait_for(self._process.wait(), 10)


@contextlib.asynccontextmanager
async def child(role: str, *arguments: str) -> AsyncIterator[Child]:
    """Starts this program in a role."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.rpc_door", "--role", role, *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    started = Child(process)
    try:
        yield started
    finally:
        await started.end()


async def through_door(client: Child, engine: int, cipher: str, sizes: Sizes) -> list[Figure]:
    """Returns the figures of one cipher."""
    async with child("slice", f"--engine={engine}", f"--cipher={cipher}", *sizes.flags) as bee:
        port = int(await bee.line())
        link = SliceLink(COORDINATOR, ("127.0.0.1", port), hid_of(SLICE), Trust([], NOWHERE))
        await link.connect()
        await link.lease((0, 1), "bench")
        own, pulse = await link.forward(), Pulse()
        try:
            figures = []
            trips = await client.ask(f"echo {own} {sizes.trips}")
            figures.append(Figure(f"{cipher}: round trip of 3.5 kB, p50 / p99", tuple(trips), "µs"))
            for way in ("to", "from"):
                await bee.ask()
                pulse.read()
                speed = await client.ask(f"{way} {own} {sizes.bulk}")
                figures += bulk(
                    f"{cipher}: {way} slice", speed, sizes, await bee.ask(), pulse.read()
                )
        finally:
            pulse.stop()
            await link.close()
    return figures


def bulk(
    name: str, speed: float, sizes: Sizes, far: dict[str, float], near: dict[str, float]
) -> list[Figure]:
    """Returns the figures of one transfer."""
    giga = sizes.bulk / 1e9
    budget = (STALL_BUDGET, STALL_BUDGET)
    return [
        Figure(name, (speed,), "MB/s"),
        Figure(
            f"{name}, CPU, slice's and own bee", (far["cpu"] / giga, near["cpu"] / giga), "s/GB"
        ),
        Figure(f"{name}, p99 round of the loop, slice's and own", (far["p99"], near["p99"]), "ms"),
        Figure(f"{name}, longest round, slice's and own", (far["max"], near["max"]), "ms", budget),
    ]


class Sizes:
    """How much is sent."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.trips = 200 if options.short else 5000
        self.bulk = (options.mib or (16 if options.short else 1500)) * MIB
        self.flags = (f"--packet={options.packet}", f"--window={options.window}")


async def measure(options: argparse.Namespace) -> list[Figure]:
    """Returns all figures; straight first."""
    sizes = Sizes(options)
    async with child("engine") as engine, child("client") as client:
        port = int(await engine.line())
        trips = await client.ask(f"echo {port} {sizes.trips}")
        figures = [Figure("straight: round trip of 3.5 kB, p50 / p99", tuple(trips), "µs")]
        speeds = [await client.ask(f"to {port} {sizes.bulk}") for _ in range(3)]
        figures.append(Figure("straight: to slice", (median(speeds),), "MB/s"))
        for cipher in options.cipher or CIPHERS[: 1 if options.short else None]:
            ssh.CIPHER = cipher
            figures += await through_door(client, port, cipher, sizes)
    return figures


def main() -> int:
    """Prints the figures and returns the exit code."""
    parser = argparse.ArgumentParser(prog="rpc_door", description=__doc__.partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="few bytes, figures mean little")
    parser.add_argument("--cipher", action="append", help="instead of the three that are likely")
    parser.add_argument("--packet", type=int, default=ssh.PACKET_BYTES // 1024, help="KiB")
    parser.add_argument("--window", type=int, default=ssh.WINDOW_BYTES // 1024, help="KiB")
    parser.add_argument("--mib", type=int, help="of a bulk transfer")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--engine", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    ssh.PACKET_BYTES, ssh.WINDOW_BYTES = options.packet * 1024, options.window * 1024
    try:
        match options.role:
            case "engine":
                serve()
            case "client":
                ask()
            case "slice":
                ssh.CIPHER = options.cipher[0]
                uvloop.run(slice_bee(options.engine))
            case _:
                figures = uvloop.run(measure(options))
                print(table(figures))
                print(as_json("rpc_door", figures, short=options.short))
    except (HumError, OSError, ValueError) as error:
        print(f"rpc_door: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
