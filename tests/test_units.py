from __future__ import annotations

import pytest

from hum_workers.egg.units import parse_cpus, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1B", 1),
        ("1KiB", 1024),
        ("1.5GiB", 3 << 29),
        ("4GiB", 4 << 30),
        ("2TiB", 2 << 40),
        ("20GB", 20 * 10**9),
    ],
)
def test_a_size_is_a_number_and_a_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("4G", "4GiB"),
        ("4gib", "4GiB"),
        ("4 GiB", "4GiB"),
        ("512m", "512MiB"),
        ("100", "100B"),
        ("100 bytes", "100B"),
        ("1GiB\n", "1GiB"),
    ],
)
def test_a_near_size_is_refused_with_what_was_meant(text: str, meant: str) -> None:
    with pytest.raises(ValueError, match=rf'did you mean "{meant}"\?$'):
        parse_size(text)


@pytest.mark.parametrize("text", [4096, 1.5, True, None, "", "GiB", "-1GiB", "1e3GiB"])
def test_a_size_without_unit_or_number_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match='^is no size: write a number and a unit, like "4GiB"$'):
        parse_size(text)


def test_a_size_beyond_all_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="larger than any machine"):
        parse_size("9999999TiB")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("300s", 300), ("5m", 300), ("1h", 3600), ("1h30m", 5400), ("250ms", 0.25), ("1.5s", 1.5)],
)
def test_a_duration_is_numbers_with_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "meant"),
    [(300, "300s"), ("300", "300s"), ("10 min", "10m"), ("2 Hours", "2h"), ("5 seconds", "5s")],
)
def test_a_near_duration_is_refused_with_what_was_meant(text: object, meant: str) -> None:
    with pytest.raises(ValueError, match=rf'did you mean "{meant}"\?$'):
        parse_duration(text)


@pytest.mark.parametrize("text", [True, None, "", "soon", "m", "-5s", "5m\n"])
def test_what_is_no_duration_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="^is no duration"):
        parse_duration(text)


def test_a_duration_of_decades_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than ten years"):
        parse_duration("4000d")


@pytest.mark.parametrize(
    ("text", "cpus"), [("0", "0"), ("8,0-3", "0-3,8"), ("0-2,1-4", "0-4"), ("5,5", "5")]
)
def test_cpus_come_out_sorted_and_without_overlaps(text: str, cpus: str) -> None:
    assert parse_cpus(text) == cpus


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("all", "is no list of CPUs"),
        ("0-", "is no list of CPUs"),
        ("0, 1", "is no list of CPUs"),
        (3, "is no list of CPUs"),
        ("3-0", 'did you mean "0-3"'),
        ("0-99999999", "Linux counts them up to"),
    ],
)
def test_what_is_no_list_of_cpus_is_refused(text: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_cpus(text)
