"""engine.args, held to what llama-server says of its own flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from hum_workers.llama_rpc_worker.flags import refused
from hum_workers.llama_rpc_worker.server_help import complaints, parse

HELP = (Path(__file__).parent / "server_lines" / "help.txt").read_text()
KNOWN = parse(HELP)


def test_the_help_of_a_real_one_is_read_whole() -> None:
    assert len(KNOWN) > 400
    assert KNOWN["-ts"] is KNOWN["--tensor-split"]
    assert KNOWN["--no-kv-offload"].values == 0
    assert KNOWN["--docker-repo"].values == 1
    assert KNOWN["--control-vector-layer-range"].values == 2
    assert KNOWN["-fa"].choices == ("on", "off", "auto")
    assert "bf16" in KNOWN["-ctk"].choices
    assert parse("usage: something else\n-h  help\n") == {}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("-ctk q99", "-ctk is set to nothing it knows; it takes f32"),
        ("--nonsense 3", "--nonsense is not known to it"),
        ("--mlok", "--mlok is not known to it"),
        ("--flash-atn on", "did you mean --flash-attn?"),
        ("-b x", "-b takes a number"),
        ("-b -ub 64", "-b takes a number"),
        ("--cpu-strict yes", "--cpu-strict takes a number"),
        ("-t 2 -b", "-b has no value behind it"),
        ("--control-vector-layer-range 1", "takes 2 values"),
        ("--flash-attn maybe", "it takes on, off, auto"),
        ("--perf 1", "takes no more values"),
        ("--draft 5", "was removed: use --spec-draft-n-max or --spec-ngram-mod-n-max"),
        ("--top-k=3", "write them as two"),
    ],
)
def test_what_llama_server_refuses_is_told(args: str, words: str) -> None:
    told = list(complaints(args.split(), KNOWN))
    assert words in told[0][0]
    assert told[0][1]


def test_what_only_a_list_in_the_text_says_is_not_sure() -> None:
    ((_, surely),) = complaints(["--numa", "elsewhere"], KNOWN)
    assert not surely


@pytest.mark.parametrize(
    "args",
    [
        "--flash-attn 1 -ctk q8_0",
        "--reasoning-format auto",
        "--top_k 3 --temp -1 --seed -1",
        "-ub 64 --no-mmproj --cpu-strict 1 --poll 50",
        "--spec-draft-ngl auto",
    ],
)
def test_what_llama_server_takes_is_not_complained_of(args: str) -> None:
    assert list(complaints(args.split(), KNOWN)) == []


def test_underscores_hide_no_flag_that_is_refused() -> None:
    ((_, why),) = refused(["--ctx_size", "9"], role="coordinator")
    assert "use model.ctx" in why
