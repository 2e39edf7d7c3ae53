"""The command line that all workers share: one parser, one table of exit codes.

Imports next to nothing until it knows what is asked: `--help` must come at once.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, NoReturn

from hum_workers import __version__
from hum_workers.errors import EngineError, UsageError
from hum_workers.program import arguments, standard_files
from hum_workers.program.worker import Worker


class Exit(IntEnum):
    """What the exit code tells; 130 and 143 are a SIGINT or SIGTERM that did not end in order."""

    OK = 0
    TURN_FAILED = 1
    USAGE = 2
    ENGINE = 3


OF_THE_BEE = frozenset(("socket", "identity", "folder", "log", "metrics", "door", "cells"))
"""Subjects of findings about the bee itself: an error there ends its start with code 2. Any other
is about an engine, which would not come up in a bee that does."""

USAGE = """%(prog)s [--egg FILE ...]
           [--prompt TEXT | --check | --show-command | --egg-schema {looks}| --version]
       %(prog)s status [--watch] [--json]"""
EPILOG = """exit codes: 0 stopped as asked; 1 the turn of --prompt failed; 2 the command line, an
egg or the identity is wrong; 3 the bee would start, but not the engine, or its model, devices or
memory are not to be had (--prompt, --check and --show-command only){exits}; 130 or 143 ended by a
second SIGINT or SIGTERM, with --prompt by the first one before the whole answer."""


def run(worker: Worker, argv: Sequence[str] | None = None) -> int:
    """Does what the command line asks and returns the exit code."""
    standard_files.fill()
    words = sys.argv[1:] if argv is None else list(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a path is any bytes
    try:
        try:
            return _run(worker, words)
        finally:
            _flush()
    except BrokenPipeError:
        _forget_output()
        return Exit.OK if words[:1] == ["status"] else Exit.TURN_FAILED
    except Unwritten as error:
        _forget_output()
        print(f"standard output can't be written: {error}", file=sys.stderr)  # noqa: T201
        return Exit.TURN_FAILED


def _run(worker: Worker, words: Sequence[str]) -> int:
    if words[:1] == ["status"]:
        from hum_workers.figures.status import main

        return main(worker.hive, words[1:], _say)
    if os.getpid() == 1:
        # The kernel gives pid 1 no default action: a stop before the loop runs would be lost.
        signal.signal(signal.SIGTERM, _leave)
    parser = _parser(worker)
    args, strays = parser.parse_known_args(words)
    if strays:
        parser.error(f"unrecognized arguments: {' '.join(strays)}{_meant(parser, strays[0])}")
    _refuse_strays(parser, args)
    try:
        return _do(worker, args)
    except UsageError as error:
        _complain(error)
        if _serves(args):
            _hold(worker, args)
        return Exit.USAGE
    except EngineError as error:
        _complain(error)
        return Exit.ENGINE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT  # before there was anything to stop


def _complain(error: Exception) -> None:
    logs = sys.modules.get("hum_workers.program.logs")
    if logs is not None:  # it was loaded, so there may be lines that wait
        logs.say_last(str(error))
    else:
        print(error, file=sys.stderr)  # noqa: T201


class Unwritten(Exception):
    """Standard output takes nothing: a full disk, say."""


def _say(text: object) -> None:
    try:
        print(text, flush=True)  # noqa: T201
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Unwritten(error.strerror) from error


def _flush() -> None:
    """Writes what argparse has left in the buffer, while a failure can still be told."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Unwritten(error.strerror) from error


def _forget_output() -> None:
    # What is still buffered must not fail a second time at the end of the process.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _leave(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


class _Parser(argparse.ArgumentParser):
    def print_help(self, file: Any = None) -> None:
        """As argparse does, which keeps silent when nobody can read it."""
        if file is None:
            _say(self.format_help().removesuffix("\n"))
        else:
            super().print_help(file)


def _meant(parser: argparse.ArgumentParser, word: str) -> str:
    """Returns what was most likely meant by a word that nobody knows, as the end of a sentence."""
    from difflib import get_close_matches

    known = ["status", *parser._option_string_actions]
    found = get_close_matches(word.partition("=")[0], known, n=1)
    if not found:
        return ""
    return f"; did you mean {f'{parser.prog} status' if found == ['status'] else found[0]}?"


def _parser(worker: Worker) -> argparse.ArgumentParser:
    looks = "".join(f"| {look.flag} " for look in worker.looks)
    exits = "".join(f"; {look.exits}" for look in worker.looks)
    parser = _Parser(
        prog=worker.hive,
        usage=USAGE.format(looks=looks),
        description=f"{worker.about} '{worker.hive} status' shows the bees that run.",
        epilog=EPILOG.format(exits=exits),
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
        "--prompt",
        type=arguments.utf8,
        metavar="TEXT",
        help="answer one prompt and exit; - reads standard input",
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
    for look in worker.looks:
        modes.add_argument(look.flag, dest="look", action="store_const", const=look, help=look.help)
    modes.add_argument("--version", action="store_true", help="print the versions and exit")
    asking = parser.add_argument_group("with --prompt")
    asking.add_argument("--system", type=arguments.utf8, metavar="TEXT", help="system prompt")
    asking.add_argument(
        "--image",
        action="append",
        type=Path,
        metavar="FILE",
        help="PNG, JPEG, GIF or WebP for a model that takes images; may be given more than once",
    )
    asking.add_argument(
        "--max-tokens", type=arguments.count, metavar="N", help="length of the answer at most"
    )
    asking.add_argument("--temperature", type=arguments.temperature, metavar="T", help="0 to 2")
    asking.add_argument("--json", action="store_true", help="print the tones instead of the text")
    asking.add_argument(
        "--quiet", action="store_true", help="errors alone on standard error, no log, no reasoning"
    )
    return parser


def _refuse_strays(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    if args.prompt is None:
        strays = {
            "--system": args.system,
            "--image": args.image,
            "--max-tokens": args.max_tokens,
            "--temperature": args.temperature,
            "--json": args.json or None,
            "--quiet": args.quiet or None,
        }
        for flag, value in strays.items():
            if value is not None:
                parser.error(f"{flag} goes with --prompt only")


def _do(worker: Worker, args: argparse.Namespace) -> int:
    if args.version:
        from hum_workers.thrum.tones import THRUM_VERSION

        engine = worker.engine_version()
        _say(f"{worker.hive} {__version__}, thrum {THRUM_VERSION}, {engine}")
        return Exit.OK
    if args.egg_schema:
        return _print_schema(worker)
    found = None if args.egg else _find_egg(worker)
    import hum_workers.program.quick_imports  # noqa: F401  before the first structlog and pydantic
    from hum_workers.egg import load_eggs

    paths = [found] if found else args.egg
    eggs = load_eggs(paths, worker.egg())
    if look := getattr(args, "look", None):
        return int(look.run(eggs, _say))
    if args.check:
        return _check(worker, eggs)
    if args.show_command:
        return _show(worker, eggs)
    import uvloop

    if args.prompt is not None:
        from hum_workers.media.files import read_image
        from hum_workers.program.asking import Question, ask

        images = [read_image(path) for path in args.image or ()]
        question = Question(
            text=_standard_input() if args.prompt == "-" else args.prompt,
            system=args.system,
            max_tokens=args.max_tokens,
            temperature=args.temperature,
            images=images,
        )
        asked = ask(worker, eggs[0], question, as_json=args.json, quiet=args.quiet)
        return uvloop.run(asked)
    from hum_workers.program.serving import serve

    return uvloop.run(serve(worker, eggs, paths, found=found))


def _standard_input() -> str:
    if sys.stdin is None:
        raise UsageError("--prompt -: standard input is closed")
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"--prompt -: standard input is no UTF-8: {error.reason}") from error


def _find_egg(worker: Worker) -> Path:
    from hum_workers.program.places import default_egg

    egg = default_egg(os.environ, worker.hive)
    if not os.path.lexists(egg):
        raise UsageError(f"{worker.hive}: no egg: name one with --egg FILE or put one at {egg}")
    return egg


def _serves(args: argparse.Namespace) -> bool:
    return args.prompt is None and not (
        args.check or args.show_command or getattr(args, "look", None)
    )


def _hold(worker: Worker, args: argparse.Namespace) -> None:
    from hum_workers.program.held import hold
    from hum_workers.program.places import default_egg

    hold(args.egg or [default_egg(os.environ, worker.hive)], os.environ)


def _print_schema(worker: Worker) -> int:
    import json

    from hum_workers.egg import schema

    _say(json.dumps(schema(worker.egg()), indent=2, ensure_ascii=False))
    return Exit.OK


def _check(worker: Worker, eggs: Sequence[Any]) -> int:
    findings = worker.check(eggs, os.environ)
    for finding in findings:
        _say(finding)
    errors = [finding for finding in findings if finding.level == "error"]
    if not errors:
        return Exit.OK
    stops_bee = any(finding.subject in OF_THE_BEE for finding in errors)
    return Exit.USAGE if stops_bee else Exit.ENGINE


def _show(worker: Worker, eggs: Sequence[Any]) -> int:
    from hum_workers.program.places import cells_folder, leave, private_folder

    cells = cells_folder(os.environ, os.getuid())
    try:
        for egg in eggs:
            _say(_shown(worker, egg, private_folder(cells, "00000000", egg.name)))
    finally:
        leave(cells)
    return Exit.OK


def _shown(worker: Worker, egg: Any, private: Path) -> str:
    try:
        return worker.show(egg, private, os.environ)
    except UsageError as error:
        # The egg was read: it is what it names that can't be used, as a cell's start would find.
        raise EngineError(str(error)) from error
