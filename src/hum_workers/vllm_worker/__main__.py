"""`vllm-worker`: the worker whose cells are vLLM servers."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hum_workers.program.cli import run
from hum_workers.program.worker import Worker

if TYPE_CHECKING:
    from hum_workers.cells.plan import Raiser
    from hum_workers.program.findings import Finding
    from hum_workers.vllm_worker.egg import VllmEgg

DEFAULT_SEQS = 256
"""vLLM's own `--max-num-seqs` where the egg names none."""


def _egg() -> type[VllmEgg]:
    from hum_workers.vllm_worker.egg import VllmEgg

    return VllmEgg


def _raiser(
    egg: VllmEgg, private: Path, log_file: Path | None, inherited: Mapping[str, str]
) -> Raiser:
    from hum_workers.vllm_worker.raiser import VllmRaiser

    return VllmRaiser(egg, private=private, log_file=log_file, inherited=inherited)


def _slots(egg: VllmEgg) -> int:
    seqs = egg.batching.max_num_seqs or DEFAULT_SEQS
    # A few beyond what runs at once, so that the engine never waits for the bee.
    return seqs + max(4, seqs // 4)


def _max_tokens(egg: VllmEgg) -> int | None:
    return egg.model.max_tokens


def _tool_parser(egg: VllmEgg) -> bool:
    return egg.model.tool_call_parser is not None


def _check(eggs: Sequence[VllmEgg], env: Mapping[str, str]) -> list[Finding]:
    from hum_workers.vllm_worker.check import check

    return check(eggs, env)


def _show(egg: VllmEgg, private: Path, inherited: Mapping[str, str]) -> str:
    from hum_workers.vllm_worker.command import describe
    from hum_workers.vllm_worker.raiser import VllmRaiser

    raiser = VllmRaiser(egg, private=private, log_file=None, inherited=inherited)
    return describe(raiser.spec(f"{egg.name}-1"))


def _engine_version() -> str:
    from hum_workers.errors import EngineError
    from hum_workers.vllm_worker.probe import probe

    try:
        engine = probe(sys.executable, dict(os.environ))
    except EngineError:
        return "vLLM not installed here"
    return f"vLLM {engine.version} ({engine.distribution})"


WORKER = Worker(
    hive="vllm-worker",
    about="Raises vLLM engines from eggs and serves their models to hum's daemon.",
    egg=_egg,
    raiser=_raiser,
    slots=_slots,
    default_max_tokens=_max_tokens,
    tool_parser=_tool_parser,
    check=_check,
    show=_show,
    engine_version=_engine_version,
)


def main(argv: Sequence[str] | None = None) -> Any:
    """Runs the command line and leaves with its exit code."""
    sys.exit(run(WORKER, argv))


if __name__ == "__main__":
    main()
