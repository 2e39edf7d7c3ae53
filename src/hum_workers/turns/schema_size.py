"""How much of an engine a JSON schema takes before it answers a word (pure).

A schema becomes a grammar whose alternatives are weighed at every token; llama-server does that
between two steps of all its turns, so that one prompt's schema can hold up everybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hum_workers.turns.sampling import refuse

CHOICES = ("enum", "oneOf", "anyOf", "type")
MOST_DEPTH = 64
"""Levels of objects and lists."""


def check_schemas(request: Mapping[str, Any], most: int) -> None:
    """Refuses a chat request whose schemas are larger than its engine can bear.

    Args:
        most: alternatives in one schema: that of the response format, or of a tool; 0 is without
            limit.

    Raises:
        TurnError: `bad_prompt`; the message has the number and the limit.
    """
    if not most:
        return
    box = request.get("response_format", {}).get("json_schema", {})
    _check("sampling.responseFormat", box.get("schema"), most)
    for tool in request.get("tools", ()):
        function = tool["function"]
        _check(f"the tool {function['name']}", function.get("parameters"), most)


def _check(whose: str, schema: Any, most: int) -> None:
    alternatives, depth = _size(schema)
    if alternatives > most:
        raise refuse(
            f"the schema of {whose} has {alternatives} alternatives (values of enum, oneOf and "
            f"anyOf, optional properties), and this engine takes at most {most}: ask for fewer"
        )
    if depth > MOST_DEPTH:
        raise refuse(
            f"the schema of {whose} is {depth} levels deep, and this engine takes at most "
            f"{MOST_DEPTH}: make it flatter"
        )


def _size(schema: Any) -> tuple[int, int]:
    """Returns how many alternatives and levels there are; without recursion: nothing bounds it."""
    alternatives = depth = 0
    level = [schema]
    while level := [x for x in level if isinstance(x, dict | list) and x]:
        depth += 1
        below: list[Any] = []
        for item in level:
            alternatives += _alternatives(item) if isinstance(item, dict) else 0
            below += item.values() if isinstance(item, dict) else item
        level = below
    return alternatives, depth


def _alternatives(schema: Mapping[str, Any]) -> int:
    lists = (schema.get(key) for key in CHOICES)
    count = sum(len(found) for found in lists if isinstance(found, list))
    properties, required = schema.get("properties"), schema.get("required")
    if isinstance(properties, dict):
        named = required if isinstance(required, list) else []
        count += len(properties.keys() - {name for name in named if isinstance(name, str)})
    return count
