"""The journal of open turns: what the next bee reads in it, whatever lies there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hum_workers.program import journal
from hum_workers.program.journal import Journal

HID = "wbee_" + "1" * 64


def opened(path: Path, *, hid: str = HID, now: Callable[[], float] = lambda: 1e9) -> Journal:
    return Journal(path, hid, now=now)


def owed(path: Path, *, now: float = 1e9) -> list[str]:
    """Reads as the next bee does, without closing: as after a SIGKILL."""
    return [sid for _, sid in opened(path, now=lambda: now).owed]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return journal.path(tmp_path, "vllm-worker", "abcd1234")


def test_turns_without_an_ending_are_owed_in_their_order(path: Path) -> None:
    first = opened(path)
    assert first.owed == []
    numbers = [first.begin(sid) for sid in ("a", "b", "ü\n\0", "b")]
    first.end(numbers[1])
    first.end(numbers[1])
    assert owed(path) == ["a", "ü\n\0", "b"]


def test_what_is_owed_stays_until_it_was_told(path: Path) -> None:
    opened(path).begin("a")
    second = opened(path)
    new = second.begin("new")
    third = opened(path)
    assert [sid for _, sid in third.owed] == ["a", "new"]
    for number, _ in third.owed:
        third.end(number)
    second.end(new)
    assert owed(path) == []


def test_an_hour_is_the_age_of_an_entry(path: Path) -> None:
    opened(path, now=lambda: 1000.0).begin("old")
    opened(path, now=lambda: 2000.0).begin("young")
    assert owed(path, now=4601.0) == ["young"]


def test_nothing_but_the_sid_is_written(path: Path) -> None:
    opened(path).begin("s")
    assert path.read_bytes() == b'hum_workers journal 1 %b\n+1 1000000000000 "s"\n' % HID.encode()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_torn_record_and_garbage_between_cost_themselves_alone(path: Path) -> None:
    first = opened(path)
    first.begin("whole")
    with path.open("ab") as file:
        file.write(b'garbage\n+7 1 no json\n+8 1000000000000 "\xff"\n-99\n\n\x00\n')
    first.begin("after")
    with path.open("ab") as file:
        file.write(b'+9 1000000000000 "tor')
    assert owed(path) == ["whole", "after"]


@pytest.mark.parametrize(
    "data", [b"", b"something else\n", b'hum_workers journal 1 wbee_other\n+1 1 "x"\n']
)
def test_a_foreign_file_is_kept_beside(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    assert owed(path) == []
    assert path.with_name(path.name + ".odd").read_bytes() == data


def test_a_pipe_a_link_or_a_folder_in_its_place_stops_nothing(path: Path) -> None:
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    assert owed(path) == []
    path.unlink()
    target = path.with_name("precious")
    target.write_text("kept")
    path.symlink_to(target)
    assert owed(path) == []
    assert target.read_text() == "kept"
    path.unlink()
    path.mkdir()
    without = opened(path)
    without.end(without.begin("s"))
    without.close()


def test_a_folder_that_cannot_be_made_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "hum").write_text("a file")
    without = opened(journal.path(tmp_path, "vllm-worker", "x"))
    without.end(without.begin("s"))
    without.close()


def test_it_stays_small_however_many_turns_there_were(path: Path) -> None:
    first = opened(path)
    first.begin("stays")
    for n in range(20_000):
        first.end(first.begin(f"sid-{n}"))
    assert path.stat().st_size < 2 * journal.SLACK
    assert owed(path) == ["stays"]


def test_long_sids_and_too_many_turns_are_left_out(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MOST", 2)
    first = opened(path)
    numbers = [first.begin(sid) for sid in ("x" * 2000, "\ud800", "a", "b", "c")]
    assert owed(path) == ["a", "b"]
    for number in numbers:
        first.end(number)
    assert first.begin("again") > numbers[-1]


def test_a_bee_that_leaves_without_open_turns_leaves_no_file(path: Path) -> None:
    first = opened(path)
    first.end(first.begin("s"))
    first.close()
    first.close()
    assert not path.exists()
    second = opened(path)
    second.begin("s")
    second.close()
    assert owed(path) == ["s"]
