"""`vllm serve`: start with the log marks of the real one, serve, stop as the real one does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
import time
from typing import Any

from vllm.scripted import arguments
from vllm.scripted.faults import Faults
from vllm.scripted.log import say

_SLICES = 10


def run() -> None:
    """Runs the program to its end."""
    faults = Faults.from_environment()
    faults.stage("start")
    options = arguments.parse(sys.argv[1:], long_usage=bool(faults.wishes.get("long_usage")))
    _swallow_signals(faults)
    listener = _load(options, faults)
    faults.stage("listen")

    import uvloop

    uvloop.run(_serve(listener, options, faults))
    faults.end_children()
    sys.stdout.flush()


def _swallow_signals(faults: Faults) -> None:
    """While it loads, the real one loses the first SIGTERM and ends with 1 on the second."""
    seen: list[int] = []

    def note(number: int, frame: Any) -> None:
        seen.append(number)
        if len(seen) > 1:
            faults.leave(1, "KeyboardInterrupt: MQLLMEngine terminated")

    signal.signal(signal.SIGTERM, note)


def _load(options: Any, faults: Faults) -> socket.socket:
    began = time.monotonic()
    say(f"vLLM server version 0.32.0, serving model {options.model}", "api_utils.py:347")
    say(f"non-default args: {_given(options)}", "api_utils.py:286")
    listener = _bind(options)
    faults.stage("config")
    say("Resolved architecture: LlamaForCausalLM", "model.py:733")
    say(f"Using max model len {options.max_model_len or 1_000_000}", "model.py:2152")
    faults.early()
    faults.stage("engine")
    say("Initializing a V1 LLM engine (v0.32.0) with config: ...", "core.py:133", "EngineCore")
    faults.stage("load")
    say(f"Starting to load model {options.model}...", "cpu_model_runner.py:68", "Worker")
    for step in range(1, _SLICES + 1 if faults.ready_after else 1):
        time.sleep(faults.ready_after / _SLICES)
        sys.stderr.write(
            f"Loading safetensors checkpoint shards: {step * 10:3}% Completed | {step}/{_SLICES}\r"
        )
        sys.stderr.flush()
    took = time.monotonic() - began
    say(f"Loading weights took {took:.2f} seconds", "default_loader.py:501", "Worker")
    faults.stage("kv")
    say(
        "CPU KV cache size: 46,592 tokens, Maximum concurrency for 2,048 tokens: 22.75x",
        "kv_cache_utils.py:2327",
        "EngineCore",
    )
    say(
        f"init engine (profile, create kv cache, warmup model) took {took:.2f} s",
        "core.py:402",
        "EngineCore",
    )
    say("Supported tasks: ['generate']")
    return listener


def _given(options: Any) -> dict[str, Any]:
    given = {k: v for k, v in vars(options).items() if v is not None and v is not False}
    if "api_key" in given:
        given["api_key"] = "***"
    return {k: v for k, v in given.items() if k != "command"}


def _bind(options: Any) -> socket.socket:
    """Binds without listening, as the real one does while it loads; never removes an old file."""
    try:
        if options.uds:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(options.uds)
        else:
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((options.host or "127.0.0.1", options.port or 8000))
    except OSError as error:
        sys.stderr.write(
            "Traceback (most recent call last):\n"
            '  File "vllm/entrypoints/launchers/api_server/entry.py", line 92, in setup_server\n'
            f"OSError: {error}\n"
        )
        raise SystemExit(1) from None
    return listener


async def _serve(listener: socket.socket, options: Any, faults: Faults) -> None:
    from vllm.scripted.engine import Engine
    from vllm.scripted.server import Connection, Site

    engine = Engine(
        models=options.served_model_name or [options.model],
        max_num_seqs=options.max_num_seqs or 256,
        max_queued=options.max_num_queued_reqs,
        priority=options.scheduling_policy == "priority",
    )
    site = Site(engine, faults, options)
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    _watch_children(faults, loop, engine, over)
    if not faults.wishes.get("ignore_sigterm"):
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, _on_signal, site, options, over)
    where = f"unix:{options.uds}" if options.uds else f"http://{options.host}:{options.port}"
    say(f"Starting vLLM server on {where}", "entry.py:140")
    if options.uds:
        server = await loop.create_unix_server(
            lambda: Connection(site), sock=listener, backlog=2048
        )
    else:
        server = await loop.create_server(lambda: Connection(site), sock=listener, backlog=2048)
    sys.stderr.write("INFO:     Application startup complete.\n")
    sys.stderr.flush()
    faults.stage("ready")
    faults.late()
    await over.wait()
    server.close()
    site.close_idle()
    # The real one waits for its clients without limit.
    await site.idle.wait()
    await asyncio.sleep(0)


def _on_signal(site: Any, options: Any, over: asyncio.Event) -> None:
    """One signal starts the stop; a second one is lost, as on the real one."""
    engine = site.engine
    if engine.draining:
        return
    engine.draining = True
    say("Shutting down", "launcher.py:210")
    over.set()

    def halt() -> None:
        engine.halted = True
        site.faults.end_children()

    if options.shutdown_timeout:
        asyncio.get_running_loop().call_later(options.shutdown_timeout, halt)
    else:
        halt()


def _watch_children(faults: Faults, loop: Any, engine: Any, over: asyncio.Event) -> None:
    """An EngineCore that dies takes the server with it, with exit code 0."""

    def died() -> None:
        if engine.draining:
            return
        say("Engine core proc died unexpectedly", "core_client.py:729", level="ERROR")
        engine.die()
        loop.call_later(float(faults.wishes.get("health_after_death", 0.3)), over.set)

    def watch(pid: int) -> None:
        descriptor = os.pidfd_open(pid)
        os.set_blocking(descriptor, False)
        import select

        select.select([descriptor], [], [])
        os.close(descriptor)
        # At the end of an orderly stop there is no loop any more, and a traceback of this thread
        # would abort the interpreter that is on its way out.
        if not engine.draining:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(died)

    for child in faults.children:
        threading.Thread(target=watch, args=(child.pid,), daemon=True).start()
