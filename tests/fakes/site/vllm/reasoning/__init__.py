"""Where vLLM keeps the names of its reasoning parsers, which its help does not list."""

from __future__ import annotations


class ReasoningParserManager:
    """The registry."""

    @classmethod
    def list_registered(cls) -> list[str]:
        """Returns all names."""
        return ["deepseek_r1", "granite", "qwen3"]
