"""Which known word a misspelt one was most likely meant to be (pure).

Promise: nothing is named that only shares its common words: `--enable-foo` is not meant to be
`--enable-lora`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

LONGEST = 64
"""Letters; a longer word is nobody's misspelling."""
LIKE = 0.6
LIKE_PART = 0.5
"""Of the words that differ, when `-`, `_` and `.` part them."""


def nearest(word: str, choices: Iterable[str], cutoff: float = LIKE) -> str:
    """Returns the choice that `word` is a misspelling of, or an empty string."""
    if len(word) > LONGEST:
        return ""
    found = get_close_matches(word, list(choices), 5, cutoff)
    return next((choice for choice in found if _alike(word, choice)), "")


def _alike(word: str, choice: str) -> bool:
    one, other = _parts(word), _parts(choice)
    while one and other and one[0] == other[0]:
        del one[0], other[0]
    while one and other and one[-1] == other[-1]:
        del one[-1], other[-1]
    if not one or not other:
        return True
    return SequenceMatcher(None, "".join(one), "".join(other)).ratio() >= LIKE_PART


def _parts(word: str) -> list[str]:
    return [part for part in re.split(r"[-_.]+", word) if part]
