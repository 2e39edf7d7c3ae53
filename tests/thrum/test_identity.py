"""The key file, its lock and the hid, against the vectors of thrum section 4."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hum_workers.errors import IdentityError
from hum_workers.thrum import identity
from hum_workers.thrum.identity import Identity, hid_of, key_path

HOLDER = """
import sys
from pathlib import Path
from hum_workers.thrum.identity import Identity
held = Identity.load("vllm-worker", None, Path(sys.argv[1]))
print(held.hid, flush=True)
sys.stdin.read()
"""


@contextmanager
def another_bee(state_home: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A process that holds the key; yields its hid once it does."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(state_home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()


def drafts(state_home: Path) -> list[str]:
    return sorted(path.name for path in (state_home / "hum" / "bees").iterdir())


@pytest.mark.parametrize(
    ("seed", "hid"),
    [
        (bytes(32), "139e3940e64b5491722088d9a0d741628fc826e09475d341a780acde3c4b8070"),
        (bytes(range(32)), "56475aa75463474c0285df5dbf2bcab73da651358839e9b77481b2eab107708c"),
        (b"\xff" * 32, "af822958f2d75afb91f8a8f4da253230d63bebf8c3ce8fa9a2e275c2cd35456e"),
    ],
    ids=["zeros", "counting", "ones"],
)
def test_hid_vectors(seed: bytes, hid: str) -> None:
    assert hid_of(seed) == f"wbee_{hid}"


def test_a_named_bee_has_a_key_of_its_own(tmp_path: Path) -> None:
    assert key_path("h", None, tmp_path) == tmp_path / "hum/bees/h.key"
    assert key_path("h", "", tmp_path) == tmp_path / "hum/bees/h.key"
    assert key_path("h", "two", tmp_path) == tmp_path / "hum/bees/h.two.key"


@pytest.mark.parametrize("name", ["a/b", "../x", " a", "a\n", "a\0b"])
def test_a_name_that_is_no_part_of_a_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(IdentityError, match=r"bee\.name"):
        Identity.load("h", name, tmp_path)


def test_a_missing_key_is_made_private_and_complete(tmp_path: Path) -> None:
    bee = Identity.load("h", None, tmp_path)
    assert bee.path.stat().st_mode & 0o777 == 0o600
    assert bee.path.read_bytes() == bee.seed
    assert len(bee.seed) == 32
    assert drafts(tmp_path) == ["h.key"]
    assert bee.seed.hex() not in repr(bee)
    bee.close()


def test_the_hid_stays_over_restarts(tmp_path: Path) -> None:
    first = Identity.load("h", None, tmp_path)
    first.close()
    first.close()
    second = Identity.load("h", None, tmp_path)
    assert second.hid == first.hid
    second.close()


def test_two_names_are_two_bees(tmp_path: Path) -> None:
    one, two = Identity.load("h", "one", tmp_path), Identity.load("h", "two", tmp_path)
    assert one.hid != two.hid
    one.close()
    two.close()


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_a_key_of_another_size_is_named_and_never_overwritten(tmp_path: Path, size: int) -> None:
    path = key_path("h", None, tmp_path)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x" * size)
    for look in (Identity.load, Identity.peek):
        with pytest.raises(IdentityError, match=f"{path} has {size} bytes and not 32"):
            look("h", None, tmp_path)
    assert path.read_bytes() == b"x" * size


def test_a_key_that_is_a_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = key_path("h", None, tmp_path)
    path.mkdir(parents=True)
    for look in (Identity.load, Identity.peek):
        with pytest.raises(IdentityError, match=str(path)):
            look("h", None, tmp_path)


def test_a_state_home_that_is_a_file_is_an_error_that_names_the_key(tmp_path: Path) -> None:
    (tmp_path / "hum").write_text("")
    for look in (Identity.load, Identity.peek):
        with pytest.raises(IdentityError, match=r"bees/h\.key can't be used: Not a directory"):
            look("h", None, tmp_path)


def test_a_second_process_with_the_key_is_refused_and_told_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "LOCK_PATIENCE", 0.0)
    with another_bee(tmp_path) as (hid, _):
        assert hid.startswith("wbee_")
        with pytest.raises(IdentityError, match=r"set `bee\.name`"):
            Identity.load("vllm-worker", None, tmp_path)
        other = Identity.load("vllm-worker", "two", tmp_path)
        assert other.hid != hid
        other.close()


def test_the_lock_goes_with_a_process_that_is_killed(tmp_path: Path) -> None:
    with another_bee(tmp_path) as (hid, process):
        process.kill()
        process.wait()
        bee = Identity.load("vllm-worker", None, tmp_path)
        assert bee.hid == hid
        bee.close()


def test_a_bee_that_is_on_its_way_out_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaving = Identity.load("h", None, tmp_path)
    monkeypatch.setattr(time, "sleep", lambda seconds: leaving.close())
    bee = Identity.load("h", None, tmp_path)
    bee.close()


def test_peek_neither_creates_nor_keeps(tmp_path: Path) -> None:
    assert Identity.peek("h", None, tmp_path).hid is None
    assert list(tmp_path.iterdir()) == []
    bee = Identity.load("h", None, tmp_path)
    peeked = Identity.peek("h", None, tmp_path)
    assert (peeked.hid, peeked.held, peeked.path) == (bee.hid, True, bee.path)
    bee.close()
    assert not Identity.peek("h", None, tmp_path).held
    Identity.load("h", None, tmp_path).close()


def test_of_two_that_create_at_once_the_first_key_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, theirs = os.link, b"t" * 32

    def slower(draft: str, path: Path) -> None:
        path.write_bytes(theirs)
        real(draft, path)

    monkeypatch.setattr(os, "link", slower)
    bee = Identity.load("h", None, tmp_path)
    assert bee.seed == theirs
    assert drafts(tmp_path) == ["h.key"]
    bee.close()


def test_where_the_file_system_has_no_links_the_draft_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(draft: str, path: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    bee = Identity.load("h", None, tmp_path)
    assert drafts(tmp_path) == ["h.key"]
    bee.close()
