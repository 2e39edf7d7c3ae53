"""Those who have no business at a slice's door, one after the other, each told what became of it.

    python -m bench.strangers HOST PORT [--greeting FILE]
    python -m bench.strangers HOST PORT --record FILE --port PORT

The first form knocks in every way it knows and prints a JSON line for each: what it was, how it
ended, in how many seconds. The second is a wire between a bee and a door that keeps the bytes of
the bee's side; it ends with the connection.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter

import asyncssh

from hum_workers.llama_rpc_worker import ssh
from hum_workers.llama_rpc_worker.questions import SUBSYSTEM, VERSION

LONGEST = 20.0
"""Seconds for one of them; the door has 2 for who is silent and 5 for who proves nothing."""
Address = tuple[str, int]


async def dropped(address: Address, words: bytes) -> str:
    """Says these words and waits for the end; returns how it came."""
    reader, writer = await asyncio.open_connection(*address)
    heard = bytearray()
    try:
        writer.write(words)
        while data := await reader.read(1 << 16):
            heard += data
        how = "closed"
    except ConnectionError:
        how = "reset"
    finally:
        writer.transport.abort()
    return f"{how} after {len(heard)} bytes"


async def knock(address: Address, keys: list[asyncssh.SSHKey], version: str = VERSION) -> str:
    """Comes as a bee does, with these keys; returns why it was not let in."""
    ssh.name_the_user()
    try:
        connection = await asyncssh.connect(
            *address,
            known_hosts=None,
            client_version=version,
            client_keys=keys or None,
            username=SUBSYSTEM,
            agent_path=None,
            preferred_auth=["publickey"],
            **ssh.narrowed(),
        )
    except (asyncssh.Error, OSError) as error:
        return f"{type(error).__name__}: {error}"
    connection.abort()
    return "LET IN"


def ways(address: Address, greeting: bytes) -> dict[str, Callable[[], Awaitable[str]]]:
    """Returns every way to knock, by name."""
    found: dict[str, Callable[[], Awaitable[str]]] = {
        "without a key": lambda: knock(address, []),
        "with another key": lambda: knock(address, [ssh.key_of(os.urandom(32))]),
        "of another version": lambda: knock(
            address, [ssh.key_of(os.urandom(32))], f"{VERSION.rstrip('0123456789')}99"
        ),
        "of another protocol": lambda: dropped(address, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
        "with llama.cpp's HELLO": lambda: dropped(
            address, b"\x0e" + (24).to_bytes(8, "little") + bytes(24) + b"\n"
        ),
        "with rubbish": lambda: dropped(address, os.urandom(4096) + b"\n" + os.urandom(4096)),
        "with rubbish behind a greeting": lambda: dropped(
            address, f"SSH-2.0-{VERSION}\r\n".encode() + os.urandom(8192)
        ),
        "silent": lambda: dropped(address, b""),
        "silent after its greeting": lambda: dropped(address, f"SSH-2.0-{VERSION}\r\n".encode()),
    }
    if greeting:
        found["with a replayed greeting"] = lambda: dropped(address, greeting)
    return found


async def knock_all(address: Address, greeting: bytes) -> None:
    """Tries every way and prints what became of it."""
    for name, way in ways(address, greeting).items():
        began = perf_counter()
        try:
            async with asyncio.timeout(LONGEST):
                how = await way()
        except TimeoutError:
            how = "NO END"
        except OSError as error:
            how = f"not reached: {error}"
        seconds = round(perf_counter() - began, 3)
        print(json.dumps({"stranger": name, "how": how, "seconds": seconds}), flush=True)


async def record(address: Address, port: int) -> bytes:
    """Stands between one bee and the door; returns what the bee sent."""
    over = asyncio.Event()
    kept = bytearray()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, keep: bool) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                if keep:
                    kept.extend(data)
                writer.write(data)
        writer.close()

    async def come(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*address)
        await asyncio.gather(pump(reader, far_writer, True), pump(far_reader, writer, False))
        over.set()

    server = await asyncio.start_server(come, "0.0.0.0", port)
    print("listens", flush=True)
    async with server:
        await over.wait()
    return bytes(kept)


def main() -> int:
    """Returns 0 when every way was tried, whatever became of it."""
    parser = argparse.ArgumentParser(prog="strangers", description=__doc__.partition("\n")[0])
    parser.add_argument("host")
    parser.add_argument("door", type=int, metavar="PORT")
    parser.add_argument("--greeting", type=Path, help="a real one, recorded, to say again")
    parser.add_argument("--record", type=Path, metavar="FILE")
    parser.add_argument("--port", type=int, help="where to listen with --record")
    options = parser.parse_args()
    address = options.host, options.door
    if options.record:
        options.record.write_bytes(asyncio.run(record(address, options.port)))
    else:
        greeting = options.greeting.read_bytes() if options.greeting else b""
        asyncio.run(knock_all(address, greeting))
    return 0


if __name__ == "__main__":
    sys.exit(main())
