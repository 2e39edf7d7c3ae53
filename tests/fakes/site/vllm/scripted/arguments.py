"""Command line of `vllm serve` 0.32: its real flags, config file, usage errors and help."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path
from typing import Any, NoReturn

_COMMANDS = (
    "chat complete serve launch bench collect-env download-kernels preload run-batch snapshot"
)
_WHOLE = {"shutdown_timeout", "max_num_seqs", "max_model_len", "port", "max_num_queued_reqs"}
_PARSERS = "{granite,hermes,mistral,qwen3_coder} or name registered in --tool-parser-plugin"
_DESCRIPTION = """Launch a local OpenAI-compatible API server to serve LLM
completions via HTTP. Defaults to Qwen/Qwen3-0.6B if no model is specified.
"""
_LONG_USAGE = 292


class _Parser(argparse.ArgumentParser):
    long_usage = False

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        if self.long_usage:
            # The module entry point of vLLM prints every flag before its error.
            flags = [row[2][0] for row in _rows()]
            lines = (f"                [{flag} VALUE]" for flag in flags[:_LONG_USAGE])
            sys.stderr.write("\n".join(lines) + "\n")
        self.exit(2, f"{self.prog}: error: {message}\n")


def _rows() -> list[list[Any]]:
    rows: list[list[Any]] = json.loads(Path(__file__).with_name("flags.json").read_text())
    return rows


def parse(argv: list[str], *, long_usage: bool = False) -> argparse.Namespace:
    """Returns the options; prints help or a usage error and leaves as vLLM does."""
    _Parser.long_usage = long_usage
    top, serve = _parsers()
    if argv and argv[0] == "serve":
        argv = _model_first(argv)
        if "--config" in argv:
            argv = _with_config(argv, serve)
        for arg in argv:
            if arg.startswith("--help"):
                _help(serve, arg.partition("=")[2])
    argv = [re.sub(r"(?<=--)[^.=]*", lambda m: m[0].replace("_", "-"), a, count=1) for a in argv]
    options = top.parse_args(argv)
    if options.command != "serve":
        top.print_help()
        top.exit(0)
    options.model = options.model_tag or options.model
    return options


def _parsers() -> tuple[_Parser, _Parser]:
    top = _Parser(description="vLLM CLI")
    top.add_argument("-v", "--version", action="version", version="0.32.0")
    commands = top.add_subparsers(required=False, dest="command", metavar=None)
    for name in _COMMANDS.split():
        if name != "serve":
            commands.add_parser(name)
    serve = commands.add_parser(
        "serve", usage="vllm serve [model_tag] [options]", description=_DESCRIPTION
    )
    serve.add_argument("model_tag", nargs="?", help="The model tag to serve")
    groups: dict[str, Any] = {"options": serve}
    for title, kind, names, choices in _rows():
        if title not in groups:
            groups[title] = serve.add_argument_group(title)
        groups[title].add_argument(*names, **_keywords(kind, names, choices))
    return top, serve


def _keywords(kind: str, names: list[str], choices: list[str]) -> dict[str, Any]:
    text = "What the real one does with it. (default: None)"
    if kind == "switch":
        return {"action": argparse.BooleanOptionalAction, "help": text}
    if kind == "true":
        return {"action": "store_true", "help": text}
    keywords: dict[str, Any] = {"help": text}
    if kind == "append":
        return {**keywords, "action": "append"}
    if kind in ("list", "maybe"):
        keywords["nargs"] = {"list": "+", "maybe": "?"}[kind]
    if choices:
        keywords["choices"] = choices
    if names[0] == "--tool-call-parser":
        keywords["metavar"] = _PARSERS
    if names[0][2:].replace("-", "_") in _WHOLE:
        keywords["type"] = int
    return keywords


def _help(serve: _Parser, topic: str) -> NoReturn:
    text = serve.format_help()
    if not topic:
        titles = dict.fromkeys(row[0] for row in _rows())
        text = text.partition("positional arguments:")[0] + "Config Groups:\n"
        text += "".join(f"  {title}\n" for title in titles)
        text += "\nFor full list:            vllm serve --help=all\n"
    elif topic.lower() != "all":
        blocks = re.split(r"\n(?=  -)", text)
        wanted = topic.lower().replace("_", "-")
        text = "\n".join(b for b in blocks if wanted in b.split("  ")[1])
    sys.stdout.write(text)
    raise SystemExit(0)


def _model_first(argv: list[str]) -> list[str]:
    for at, arg in enumerate(argv):
        if arg == "--model" and at + 1 < len(argv):
            sys.stderr.write(
                "With `vllm serve`, you should provide the model as a positional argument or in a "
                "config file instead of via the `--model` option. The `--model` option will be "
                "removed in a future version.\n"
            )
            return ["serve", argv[at + 1], *argv[1:at], *argv[at + 2 :]]
    return argv


def _with_config(argv: list[str], serve: _Parser) -> list[str]:
    at = argv.index("--config")
    if at == len(argv) - 1:
        raise ValueError("No config file specified! Please check your command-line arguments.")
    path = argv[at + 1]
    extension = path.split(".")[-1]
    if extension not in ("yaml", "yml"):
        raise ValueError(f"Config file must be of a yaml/yml type. {extension} supplied")
    try:
        config = json.loads(Path(path).read_text())
    except (OSError, ValueError):
        sys.stderr.write(
            f"Unable to read the config file at {os.fspath(path)}. Check path correctness\n"
        )
        raise
    flags = _flags(config, serve)
    given = len(argv) > 1 and not argv[1].startswith("-")
    if not given and "--model" not in flags:
        raise ValueError(
            "No model specified! Please specify model either as a positional argument or in a "
            "config file."
        )
    cut = 2 if given else 1
    return argv[:cut] + flags + argv[cut:at] + argv[at + 2 :]


def _flags(config: dict[str, Any], serve: _Parser) -> list[str]:
    flags: list[str] = []
    for key, value in config.items():
        if value is True:
            flags.append(f"--{key}")
        elif value is False:
            # As in vLLM: a flag without a negative form is left out.
            if f"--no-{key}" in serve._option_string_actions:
                flags.append(f"--no-{key}")
        elif isinstance(value, list):
            flags += [f"--{key}", *map(str, value)] if value else []
        elif isinstance(value, dict):
            flags += [f"--{key}", json.dumps(value)]
        else:
            flags += [f"--{key}", str(value)]
    return flags
