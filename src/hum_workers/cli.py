"""The command line that all workers share: one parser, one table of exit codes.

Imports next to nothing until it knows what is asked: `--help` must come at once.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, NoReturn

from hum_workers import __version__, standard_files
from hum_workers.errors import EngineError, UsageError
from hum_workers.worker import Worker


class Exit(IntEnum):
    """What the exit code tells; 130 and 143 are a second SIGINT or SIGTERM."""

    OK = 0
    TURN_FAILED = 1
    USAGE = 2
    ENGINE = 3


EPILOG = """exit codes: 0 stopped as asked; 1 the turn of --prompt failed; 2 the command line, an
egg or the identity is wrong; 3 the engine can't be started (--prompt and --check only); 130 or 143
ended by a second SIGINT or SIGTERM."""


def run(worker: Worker, argv: Sequence[str] | None = None) -> int:
    """Does what the command line asks and returns the exit code."""
    standard_files.fill()
    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] == ["status"]:
        return _status(worker, words[1:])
    if os.getpid() == 1:
        # The kernel gives pid 1 no default action: a stop before the loop runs would be lost.
        signal.signal(signal.SIGTERM, _leave)
    parser = _parser(worker)
    args = parser.parse_args(words)
    _refuse_strays(parser, args)
    try:
        return _do(worker, args)
    except UsageError as error:
        print(error, file=sys.stderr)  # noqa: T201
        if _serves(args):
            _hold(worker, args)
        return Exit.USAGE
    except EngineError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return Exit.ENGINE
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return Exit.TURN_FAILED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT  # before there was anything to stop


def _leave(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _status(worker: Worker, words: Sequence[str]) -> int:
    from hum_workers.status import main

    try:
        return main(worker.hive, words)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return Exit.OK


def _parser(worker: Worker) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=worker.hive,
        description=f"{worker.about} '{worker.hive} status' shows the bees that run.",
        epilog=EPILOG,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--egg",
        action="append",
        type=Path,
        metavar="FILE",
        help="egg to raise; may be given more than once, or name a folder of eggs; without it "
        f"hum/{worker.hive}.toml in $XDG_CONFIG_HOME or ~/.config",
    )
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument(
        "--prompt", metavar="TEXT", help="answer one prompt and exit; - reads standard input"
    )
    modes.add_argument(
        "--check", action="store_true", help="say all that is wrong, without starting anything"
    )
    modes.add_argument(
        "--show-command",
        action="store_true",
        help="print the engine's command line, secrets hidden",
    )
    modes.add_argument(
        "--egg-schema", action="store_true", help="print the JSON Schema of an egg, for editors"
    )
    modes.add_argument("--version", action="store_true", help="print the versions and exit")
    asking = parser.add_argument_group("with --prompt")
    asking.add_argument("--system", metavar="TEXT", help="system prompt")
    asking.add_argument(
        "--image",
        action="append",
        type=Path,
        metavar="FILE",
        help="PNG, JPEG, GIF or WebP for a model that takes images; may be given more than once",
    )
    asking.add_argument(
        "--max-tokens", type=_count, metavar="N", help="length of the answer at most"
    )
    asking.add_argument("--temperature", type=_temperature, metavar="T", help="0 to 2")
    asking.add_argument("--json", action="store_true", help="print the tones instead of the text")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 2:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to 2")
    return value


def _refuse_strays(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    if args.prompt is None:
        strays = {
            "--system": args.system,
            "--image": args.image,
            "--max-tokens": args.max_tokens,
            "--temperature": args.temperature,
            "--json": args.json or None,
        }
        for flag, value in strays.items():
            if value is not None:
                parser.error(f"{flag} goes with --prompt only")


def _do(worker: Worker, args: argparse.Namespace) -> int:
    if args.version:
        from hum_workers.thrum.tones import THRUM_VERSION

        engine = worker.engine_version()
        print(f"{worker.hive} {__version__}, thrum {THRUM_VERSION}, {engine}")  # noqa: T201
        return Exit.OK
    if args.egg_schema:
        return _print_schema(worker)
    found = None if args.egg else _find_egg(worker)
    import hum_workers.quick_imports  # noqa: F401  before the first structlog and pydantic
    from hum_workers.egg import load_eggs

    paths = [found] if found else args.egg
    eggs = load_eggs(paths, worker.egg())
    if args.check:
        return _check(worker, eggs)
    if args.show_command:
        return _show(worker, eggs)
    import uvloop

    if args.prompt is not None:
        from hum_workers.asking import Question, ask
        from hum_workers.image_files import read_image

        images = [read_image(path) for path in args.image or ()]
        question = Question(
            text=_standard_input() if args.prompt == "-" else args.prompt,
            system=args.system,
            max_tokens=args.max_tokens,
            temperature=args.temperature,
            images=images,
        )
        return uvloop.run(ask(worker, eggs[0], question, as_json=args.json))
    from hum_workers.serving import serve

    return uvloop.run(serve(worker, eggs, paths, found=found))


def _standard_input() -> str:
    if sys.stdin is None:
        raise UsageError("--prompt -: standard input is closed")
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"--prompt -: standard input is no UTF-8: {error.reason}") from error


def _find_egg(worker: Worker) -> Path:
    from hum_workers.places import default_egg

    egg = default_egg(os.environ, worker.hive)
    if not egg.exists():
        raise UsageError(f"{worker.hive}: no egg: name one with --egg FILE or put one at {egg}")
    return egg


def _serves(args: argparse.Namespace) -> bool:
    return args.prompt is None and not (args.check or args.show_command)


def _hold(worker: Worker, args: argparse.Namespace) -> None:
    from hum_workers.held import hold
    from hum_workers.places import default_egg

    hold(args.egg or [default_egg(os.environ, worker.hive)], os.environ)


def _print_schema(worker: Worker) -> int:
    import json

    from hum_workers.egg import schema

    print(json.dumps(schema(worker.egg()), indent=2, ensure_ascii=False))  # noqa: T201
    return Exit.OK


def _check(worker: Worker, eggs: Sequence[Any]) -> int:
    findings = worker.check(eggs, os.environ)
    for finding in findings:
        print(finding)  # noqa: T201
    errors = [finding for finding in findings if finding.level == "error"]
    if not errors:
        return Exit.OK
    only_engine = all(finding.subject.split()[-1] == "engine" for finding in errors)
    return Exit.ENGINE if only_engine else Exit.USAGE


def _show(worker: Worker, eggs: Sequence[Any]) -> int:
    from hum_workers.places import cells_folder, leave, private_folder

    cells = cells_folder(os.environ, os.getuid())
    try:
        for egg in eggs:
            print(worker.show(egg, private_folder(cells, "00000000", egg.name), os.environ))  # noqa: T201
    finally:
        leave(cells)
    return Exit.OK
