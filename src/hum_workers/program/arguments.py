"""What the command line takes as a number or a text; a refusal is one sentence (pure)."""

from __future__ import annotations

import argparse

MOST_DIGITS = 9
"""Of --max-tokens."""


def count(text: str) -> int:
    """Returns a whole number above 0."""
    if not text.isdecimal() or len(text) > MOST_DIGITS or int(text) < 1:
        shown = _short(text)
        raise argparse.ArgumentTypeError(
            f"{shown} is no whole number above 0 of {MOST_DIGITS} digits at most"
        )
    return int(text)


def temperature(text: str) -> float:
    """Returns a number from 0 to 2."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 2:
        raise argparse.ArgumentTypeError(f"{_short(text)} is no number from 0 to 2")
    return value


def utf8(text: str) -> str:
    """Returns a text that can be sent on."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"is no UTF-8: {_short(text)}") from error
    return text


def _short(text: str) -> str:
    return ascii(text if len(text) <= 20 else text[:20] + "...")
