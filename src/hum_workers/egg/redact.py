"""Which names hold secrets, and the same data without their values. Pure; used before any log."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

HIDDEN = "***"

_NAMES = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL")
_WORDS = frozenset({"key", "apikey", "token", "secret", "password", "passwd", "credential"})


def is_secret(name: str) -> bool:
    """Whether a variable of this name may hold a secret: `HF_TOKEN`, `apikey`, `DB_PASSWORD`."""
    upper = name.upper()
    return any(word in upper for word in _NAMES)


def redact_env(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables with the values of secrets replaced by `***`."""
    return {name: HIDDEN if is_secret(name) else value for name, value in env.items()}


def redact_args(args: Sequence[str]) -> list[str]:
    """Returns the arguments with the values of flags such as `--hf-token` replaced by `***`.

    Whole words count, so `--max-num-batched-tokens` stays readable.
    """
    clean: list[str] = []
    hiding = False
    for arg in args:
        if arg.startswith("-"):
            flag, equals, _ = arg.partition("=")
            secret = not _WORDS.isdisjoint(re.split(r"[-_]+", flag.lower()))
            clean.append(f"{flag}={HIDDEN}" if secret and equals else arg)
            hiding = secret and not equals
        else:
            clean.append(HIDDEN if hiding else arg)
    return clean
