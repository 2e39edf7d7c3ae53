"""`llama-rpc-worker`: the worker whose cells are llama.cpp's servers and the slices of a model."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hum_workers.program.cli import run
from hum_workers.program.worker import Look, Worker

if TYPE_CHECKING:
    from hum_workers.cells.plan import Raiser
    from hum_workers.llama_rpc_worker.egg import LlamaEgg
    from hum_workers.program.annex import Annex, Home
    from hum_workers.program.findings import Finding


def _egg() -> type[LlamaEgg]:
    from hum_workers.llama_rpc_worker.egg import LlamaEgg

    return LlamaEgg


def _raiser(
    egg: LlamaEgg, private: Path, log_file: Path | None, inherited: Mapping[str, str]
) -> Raiser:
    from hum_workers.llama_rpc_worker.raiser import LlamaRaiser

    return LlamaRaiser(egg, private=private, log_file=log_file, inherited=inherited)


def _slots(egg: LlamaEgg) -> int:
    # Not one more: what waits inside llama-server can't be cancelled before it runs.
    return egg.model.parallel


def _max_tokens(egg: LlamaEgg) -> int | None:
    return egg.model.max_tokens


def _tool_parser(egg: LlamaEgg) -> bool:
    # For a template without tools llama-server has a form of its own.
    return True


def _check(eggs: Sequence[LlamaEgg], env: Mapping[str, str]) -> list[Finding]:
    from hum_workers.llama_rpc_worker.check import check

    return check(eggs, env)


def _show(egg: LlamaEgg, private: Path, inherited: Mapping[str, str]) -> str:
    from hum_workers.llama_rpc_worker.raiser import LlamaRaiser
    from hum_workers.program.shell_words import describe

    raiser = LlamaRaiser(egg, private=private, log_file=None, inherited=inherited)
    shown = describe(raiser.spec(f"{egg.name}-1"))
    if egg.cell.role == "coordinator" and egg.slices:
        shown += "\n# the flags of the route follow from the slices at the start; --route plans it"
    return shown


def _engine_version() -> str:
    from hum_workers.errors import EngineError
    from hum_workers.llama_rpc_worker.binaries import find

    try:
        found = find(None, dict(os.environ))
    except EngineError:
        return "llama.cpp not installed here"
    return f"llama.cpp {found.described()}"


def _need_ssh() -> None:
    from importlib.util import find_spec

    from hum_workers.errors import UsageError

    if find_spec("asyncssh") is None:
        raise UsageError(
            "slices' doors need asyncssh, which is not installed here: "
            "install hum-workers with the extra [llama]"
        )
    import hum_workers.llama_rpc_worker.quiet_ssh  # noqa: F401  before the first asyncssh


def _annex(home: Home, eggs: Sequence[LlamaEgg]) -> Annex:
    _need_ssh()
    from hum_workers.llama_rpc_worker.annex import LlamaAnnex

    return LlamaAnnex(home, eggs)


def _route(eggs: Sequence[LlamaEgg], say: Callable[[object], None]) -> int:
    _need_ssh()
    from hum_workers.llama_rpc_worker.route_look import look

    return look(eggs, say, WORKER.hive)


WORKER = Worker(
    hive="llama-rpc-worker",
    about="Raises llama.cpp servers and slices of models from eggs, and serves the models to hum's "
    "daemon.",
    egg=_egg,
    raiser=_raiser,
    slots=_slots,
    default_max_tokens=_max_tokens,
    tool_parser=_tool_parser,
    check=_check,
    show=_show,
    engine_version=_engine_version,
    annex=_annex,
    looks=[
        Look(
            flag="--route",
            help="print who would hold which layers; loads nothing",
            run=_route,
            exits="3 the route of --route or --prompt is not complete",
        ),
    ],
)


def main(argv: Sequence[str] | None = None) -> Any:
    """Runs the command line and leaves with its exit code."""
    sys.exit(run(WORKER, argv))


if __name__ == "__main__":
    main()
