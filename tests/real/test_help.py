"""What is read of the installed vLLM's parser, held to that parser itself. Nothing is started."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from hum_workers.process.asked_process import ask
from hum_workers.vllm_worker import environment
from hum_workers.vllm_worker.engine_help import known_help
from hum_workers.vllm_worker.flag_values import Help, unknown_flags, wrong_values
from hum_workers.vllm_worker.probe import probe

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("real"), pytest.mark.timeout(400)]

CASES = [
    line.split()
    for line in """\
--seed
--seed abc
--seed -1
--seed 1 2
--seed=1.5
--se 3
--max 3
--foo
--enable-lo
--enforce-eager
--enforce-eager true
--enforce-eager=1
--no-enforce-eager
--disable-log-stats x
--enable_prompt_tokens_details
-O3
-O 2
-O=1
-cc.mode=3
-cc {"mode":3}
--compilation-config.mode 3
--max-num-seqs None
--block-size None
--block-size 16
--max-num-queued-reqs None
--max-num-queued-tokens 16k
--max-num-queued-tokens 16.5K
--max-num-queued-tokens 16x
--watermark 0.1
--watermark 1e-1
--watermark x
--uvicorn-log-level warn
--uvicorn-log-level warning
--tokenizer-mode own
--lora-modules a=b c=d
--lora-modules
--max-lora-rank 7
--max-lora-rank 8
--middleware a --middleware b
--middleware
--limit-mm-per-prompt {"image":1}
--cudagraph-capture-sizes 1 2 x
--cudagraph-capture-sizes 1 2
--stream-interval 4.0
--max-logprobs 1_000
--hf-token
--collect-detailed-traces all model
--spec-method eagle
--spec-method egle
--override-generation-config.temperature 0.5
""".splitlines()
]
"""Arguments without a blank in them, right and wrong."""
JUDGE = """
import contextlib, io, json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser, verdicts = make_arg_parser(FlexibleArgumentParser()), []
for case in json.loads(sys.argv[1]):
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            parser.parse_args(["model", *case])
        verdicts.append(True)
    except (SystemExit, ValueError):
        verdicts.append(False)
print()
print(json.dumps(verdicts))
"""


ENV = environment.base(os.environ, {}, python=sys.executable, download=False)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Help:
    found = known_help(probe(sys.executable, ENV), ENV, tmp_path_factory.mktemp("cache"))
    assert found is not None
    return found


def test_arguments_are_judged_as_the_engines_own_parser_judges_them(
    known: Help, tmp_path: Path
) -> None:
    ours = [
        not list(unknown_flags(case, known.names()))
        and not any(surely for _, surely in wrong_values(case, known))
        for case in CASES
    ]
    argv = [sys.executable, "-c", JUDGE, json.dumps(CASES)]
    done = ask(argv, env=ENV, cwd=str(tmp_path), timeout=120)
    theirs = json.loads(done.out.decode().splitlines()[-1])
    verdicts = zip(CASES, ours, theirs, strict=True)
    assert [" ".join(case) for case, our, their in verdicts if our != their] == []
    assert any(theirs)
    assert not all(theirs)


def test_the_names_that_the_help_does_not_list_are_learned_as_well(known: Help) -> None:
    assert {"hermes", "qwen3_coder"} <= set(known.choices("--tool-call-parser"))
    assert "fp8_e4m3" in known.choices("--kv-cache-dtype")
    assert "qwen3" in known.methods["reasoning_parser"]
    assert {"awq", "gptq"} <= set(known.methods["quantization"])
