"""Ids of tool calls: unique in the world, and known again by the bee that made them (pure).

humd routes by them, and a result may come back after a restart of the bee; so an id is random bits
and a tag of them, keyed by the bee's seed. It also says whose tool was called.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from enum import StrEnum
from secrets import token_hex

PREFIX = "hw-"
_RANDOM = 24
_TAG = 16
_PURPOSE = b"hum_workers tool calls"


class Owner(StrEnum):
    """Who runs a tool."""

    FORAGER = "forager"
    ASKER = "asker"


_LETTERS = {Owner.FORAGER: "f", Owner.ASKER: "a"}
_OWNERS = {letter: owner for owner, letter in _LETTERS.items()}


class CallIds:
    """Makes the ids of one bee and knows them again. The seed is kept in no form."""

    __slots__ = ("_key", "_random")

    def __init__(self, seed: bytes, random: Callable[[int], str] = token_hex) -> None:
        # A key of its own: what is learnt of a tag says nothing of the identity's seed.
        self._key = hmac.digest(seed, _PURPOSE, "sha256")
        self._random = random

    def __repr__(self) -> str:
        return "CallIds()"

    def new(self, owner: Owner) -> str:
        """Returns the id of a new call."""
        body = _LETTERS[owner] + self._random(_RANDOM // 2)
        return f"{PREFIX}{body}{self._tag(body)}"

    def owner(self, call_id: str) -> Owner | None:
        """Returns whose tool was called, None when the id was never ours."""
        body, tag = call_id[len(PREFIX) : -_TAG], call_id[-_TAG:]
        if not call_id.startswith(PREFIX) or len(body) != 1 + _RANDOM or not call_id.isascii():
            return None
        return _OWNERS.get(body[0]) if hmac.compare_digest(tag, self._tag(body)) else None

    def _tag(self, body: str) -> str:
        return hmac.digest(self._key, body.encode(), "sha256").hex()[:_TAG]
