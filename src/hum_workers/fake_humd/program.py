"""The program: a humd to rehearse with, or a question to one that runs.

Serving, it reads commands from standard input (`help` lists them) and says what they did on
standard output. Exit codes: 0, 1 when a question got no answer, 2 when it can't be used like this,
130 and 143 when a signal ended a question.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import threading
from pathlib import Path

from hum_workers.errors import UsageError
from hum_workers.fake_humd.asking import Question, ask, complain
from hum_workers.fake_humd.console import Console
from hum_workers.fake_humd.server import QUEUE, FakeHumd
from hum_workers.fake_humd.state import default_socket
from hum_workers.thrum.paths import find_socket, state_home


def main(argv: list[str] | None = None) -> int:
    """Runs the program and returns its exit code."""
    args = _parser().parse_args(argv)
    work = ask(_question(args)) if args.ask is not None else _serve(args)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            return runner.run(work)
        except UsageError as error:
            complain(str(error))
            return 2
        except KeyboardInterrupt:
            return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hum_workers.fake_humd",
        description="A humd to rehearse with; --ask asks one that runs, fake or real.",
    )
    add = parser.add_argument
    add("--socket", type=Path, help="default: where humd listens")
    add("--state-home", type=Path, help="default: XDG_STATE_HOME")
    add("--queue", type=int, default=QUEUE, help="tones held for a client (%(default)s)")
    add("--ask", metavar="TEXT", help="send a prompt and print the answer")
    add("--model", metavar="ID", help="model of the prompt; default: the only one advertised")
    add("--system", metavar="TEXT", help="system prompt")
    add("--max-tokens", type=int, help="greatest number of tokens of the answer")
    add("--timeout", type=float, default=600, help="seconds to wait for an answer (%(default)s)")
    add(
        "--patience",
        type=float,
        default=60,
        help="seconds to wait for a bee that went in the middle of an answer (%(default)s)",
    )
    return parser


def _question(args: argparse.Namespace) -> Question:
    return Question(
        text=args.ask,
        socket=args.socket or find_socket(os.environ, os.getuid()),
        home=args.state_home or state_home(os.environ),
        model=args.model,
        system=args.system,
        max_tokens=args.max_tokens,
        timeout=args.timeout,
        patience=args.patience,
    )


async def _serve(args: argparse.Namespace) -> int:
    socket = args.socket or default_socket(os.environ)
    home = args.state_home or state_home(os.environ)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    async with await FakeHumd.start(socket, home, queue=args.queue) as humd:
        _say(f"fake humd listens at {humd.socket}")
        commands = asyncio.create_task(_commands(Console(humd, ended.set)))
        await ended.wait()
        commands.cancel()
        await asyncio.gather(commands, return_exceptions=True)
    return 0


async def _commands(console: Console) -> None:
    lines: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        # A file, a terminal, a pipe or /dev/null: only a thread reads all of them. Not sys.stdin,
        # whose lock a thread that never returns would hold at the interpreter's end.
        held = b""
        while data := os.read(0, 4096):
            *whole, held = (held + data).split(b"\n")
            for line in whole:
                loop.call_soon_threadsafe(lines.put_nowait, line.decode(errors="replace"))

    threading.Thread(target=read, daemon=True).start()
    while True:
        if answer := await console.run(await lines.get()):
            _say(answer)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    loop: type[asyncio.AbstractEventLoop] = uvloop.Loop
    return loop
