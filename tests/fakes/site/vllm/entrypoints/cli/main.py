"""Where vLLM's command line starts."""

from __future__ import annotations


def main() -> None:
    """Runs `vllm serve`."""
    from vllm.scripted.program import run

    run()
