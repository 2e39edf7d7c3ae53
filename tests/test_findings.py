"""A finding's line, and sizes as a person and an egg write them."""

from __future__ import annotations

import pytest

from hum_workers.egg.units import parse_size
from hum_workers.program.findings import Finding, amount, safely, size_value

KIB, MIB, GIB = 1024, 1024**2, 1024**3


def test_a_finding_is_one_line() -> None:
    assert str(Finding("ok", "socket", "alive")) == "ok       socket: alive"


def test_a_look_that_breaks_is_a_finding() -> None:
    def broken() -> list[Finding]:
        raise LookupError("gone")

    (found,) = safely("memory", broken)
    assert (found.level, found.message) == ("warning", "could not be looked at: LookupError: gone")


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (MIB, "1 MiB"),
        (1.5 * GIB, "1.5 GiB"),
        (1000 * MIB, "1 GiB"),
        (22 * GIB, "22 GiB"),
        (22.4 * GIB, "22.4 GiB"),
        (300.4 * GIB, "300 GiB"),
        (5000 * 1024 * GIB, "5000 TiB"),
    ],
)
def test_an_amount_has_the_unit_that_suits_it(size: float, shown: str) -> None:
    assert amount(size) == shown


@pytest.mark.parametrize("size", [1, KIB, 28 * MIB + 1, GIB, GIB + 1, 2.5 * GIB, 90 * GIB - 5])
def test_a_size_for_an_egg_is_one_and_is_enough(size: float) -> None:
    value = parse_size(size_value(size).strip('"'))
    assert size <= value <= max(size * 1.02, size + MIB)
