"""Random layouts of a real model over real slices, held against llama-server's own report.

    python -m bench.llama_layouts [--count N] [--seed N]

Each layout is planned as a coordinator would, raised by the flags that follow from it, and its
report of devices, bytes and layers compared with the plan. Prints a line each, a table and one JSON
line; exit code 1 when one differs.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hum_workers.llama_rpc_worker.facts import Build, Device, Layers, ModelFacts, Offer, SliceFacts
from hum_workers.llama_rpc_worker.facts import SliceState as State
from hum_workers.llama_rpc_worker.gguf import read
from hum_workers.llama_rpc_worker.layout import flags
from hum_workers.llama_rpc_worker.proof import Proof
from hum_workers.llama_rpc_worker.route import Route, RouteWant, plan
from scripts.llama_cpp import HOME
from scripts.smollm2 import GGUF

BIN = HOME / "current" / "bin"
MODEL = HOME / "model" / Path(GGUF).name
BUILD = Build(commit="same", digest="0" * 16, protocol=(7, 0, 0))
SLICES = 4
LOAD = 60.0
"""Seconds for one load."""
READY = b"model loaded"


@contextmanager
def slices(count: int) -> Iterator[list[str]]:
    """Yields the endpoints of so many rpc-servers."""
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            command = [str(BIN / "ggml-rpc-server"), "-H", "127.0.0.1", "-p", str(port), "-t", "1"]
            # SIGPIPE stays ignored, as it is here: a client that is killed would kill its slice.
            process = stack.enter_context(
                subprocess.Popen(
                    command,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    restore_signals=False,
                )
            )
            stack.callback(process.kill)
            found.append(f"127.0.0.1:{port}")
        time.sleep(0.3)  # a greeting would be a client more than they take
        yield found


def random_route(model: ModelFacts, endpoints: list[str], dice: random.Random) -> Route:
    """Returns a route over one to all of the slices."""
    layers, count = len(model.layers), dice.randint(1, len(endpoints))
    cuts = sorted(dice.sample(range(1, layers), count))
    first = 0 if dice.random() < 0.5 else cuts[0]
    inner = cuts[1:] if first else cuts[: count - 1]
    bounds = [first, *inner, layers]
    ranges = list(zip(bounds, bounds[1:], strict=False))
    offers = [
        _offer(number, endpoint, part)
        for number, (endpoint, part) in enumerate(zip(endpoints, ranges, strict=False))
    ]
    want = RouteWant(
        policy="declared",
        local=(0, first) if first else None,
        head=dice.choice(["last", "local"]),
        ctx=512,
        parallel=1,
        batch=64,
        own=BUILD,
        own_hid="wbee_" + "f" * 64,
    )
    return plan(model, offers, want)


def _offer(number: int, endpoint: str, layers: Layers) -> Offer:
    facts = SliceFacts(
        hid=f"wbee_{number:064x}",
        name=f"slice-{number}",
        build=BUILD,
        devices=(Device(name="CPU", free=1 << 34, total=1 << 34),),
        memory=1 << 34,
        state=State.FREE,
    )
    return Offer(endpoint=endpoint, facts=facts, declared=layers)


def differences(route: Route, endpoints: list[str]) -> list[str]:
    """Loads the model by the route's flags; returns what its report says otherwise."""
    used = endpoints[: len(route.shares)]
    proof = Proof(route, used)
    command = [str(BIN / "llama-server"), "-m", str(MODEL), *flags(route, used)]
    command += ["-c", "512", "-np", "1", "-b", "64", "-ub", "64", "--cache-ram", "0", "--no-ui"]
    command += ["--host", "127.0.0.1", "--port", "0", "-lv", "5", "-t", "1"]
    loaded = False
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as server:
        late = threading.Timer(LOAD, server.kill)
        late.start()
        assert server.stdout is not None
        for line in server.stdout:
            proof.line(line.decode(errors="replace"))
            if loaded := READY in line:
                break
        late.cancel()
        server.kill()
    return proof.differences() if loaded else ["llama-server did not load it"]


def main() -> int:
    """Runs the bench and returns its exit code."""
    parser = argparse.ArgumentParser(prog="llama_layouts", description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    model, dice, wrong = read(MODEL), random.Random(args.seed), 0
    print(f"seed {args.seed}, {args.count} layouts of {len(model.layers)} layers")
    with slices(SLICES) as endpoints:
        for number in range(1, args.count + 1):
            route = random_route(model, endpoints, dice)
            found = differences(route, endpoints)
            wrong += bool(found)
            parts = [f"{first}:{end}" for first, end in (share.layers for share in route.shares)]
            shape = f"local {route.local[0]}:{route.local[1]}, slices {' '.join(parts)}"
            print(f"{number:3} {shape}, head {route.head}: {'; '.join(found) or 'as planned'}")
    print(json.dumps({"bench": "llama_layouts", "layouts": args.count, "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
