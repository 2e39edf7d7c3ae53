"""Trust: the hids that an egg names, or else the bees of the same state folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hum_workers.llama_rpc_worker.trust import MOST_KEYS, Trust
from hum_workers.thrum.identity import Identity, hid_of

SEED = bytes(range(32))


@pytest.fixture
def bees(tmp_path: Path) -> Path:
    folder = tmp_path / "hum" / "bees"
    folder.mkdir(parents=True)
    return folder


def test_with_none_named_the_bees_of_the_same_folder_are_known(tmp_path: Path) -> None:
    trust = Trust([], tmp_path)
    identity = Identity.load("llama-rpc-worker", "slice", tmp_path)
    try:
        assert trust.knows(identity.hid)
    finally:
        identity.close()
    assert not trust.knows(hid_of(SEED))


def test_a_new_bee_is_known_at_once_and_one_that_is_gone_no_longer(
    bees: Path, tmp_path: Path
) -> None:
    trust = Trust([], tmp_path)
    assert not trust.knows(hid_of(SEED))
    (bees / "new.key").write_bytes(SEED)
    assert trust.knows(hid_of(SEED))
    (bees / "new.key").unlink()
    assert not trust.knows(hid_of(SEED))


def test_whoever_is_named_replaces_the_folder(bees: Path, tmp_path: Path) -> None:
    (bees / "near.key").write_bytes(SEED)
    trust = Trust(["wbee_far"], tmp_path)
    assert trust.knows("wbee_far")
    assert not trust.knows(hid_of(SEED))


def test_what_is_no_key_is_passed_over(bees: Path, tmp_path: Path) -> None:
    (bees / "long.key").write_bytes(SEED + b"!")
    (bees / "short.key").write_bytes(b"")
    (bees / "folder.key").mkdir()
    (bees / "dangling.key").symlink_to("nowhere")
    os.mkfifo(bees / "pipe.key")
    (bees / "z.key").write_bytes(SEED)
    assert Trust([], tmp_path).knows(hid_of(SEED))


def test_a_folder_that_is_not_there_knows_nobody(tmp_path: Path) -> None:
    assert not Trust([], tmp_path / "none").knows(hid_of(SEED))


def test_a_folder_full_of_files_is_not_read_to_its_end(bees: Path, tmp_path: Path) -> None:
    for number in range(MOST_KEYS):
        (bees / f"{number:04}.key").touch()
    (bees / "z.key").write_bytes(SEED)
    assert not Trust([], tmp_path).knows(hid_of(SEED))


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_a_key_that_another_user_laid_down_is_no_bee_of_ours(bees: Path, tmp_path: Path) -> None:
    (bees / "strange.key").write_bytes(SEED)
    os.chown(bees / "strange.key", 65534, 65534)
    assert not Trust([], tmp_path).knows(hid_of(SEED))


def test_it_says_who_is_trusted(tmp_path: Path) -> None:
    assert str(Trust(["wbee_far"], tmp_path)) == "the bees that its egg names"
    assert str(Trust([], tmp_path)) == f"the bees whose keys lie in {tmp_path}/hum/bees"
