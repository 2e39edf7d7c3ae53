"""Which doors a coordinator knocks at, and what it says of slices that no door is known of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hum_workers.llama_rpc_worker import bees_file, known_doors
from hum_workers.program.annex import Home
from tests.llama_rpc_worker.nursery import coordinator

ONE, TWO = (f"wbee_{number * 64}" for number in "12")
BY_HID = f'[[slices]]\nhid = "{ONE}"\n'
EVERYBODY = "[[slices]]\ndiscover = true\n"
NOWHERE = Path("/nonexistent")
NAMED = '[[slices]]\nendpoint = "10.0.0.7:7300"\n'


def at_home(folder: Path, *hids: str) -> Home:
    """A home whose humd lists slices of these hids."""
    (folder / "hum").mkdir()
    bees = {
        hid: {
            "name": bees_file.HIVE,
            "hid": hid,
            "bind": {"host": "10.0.0.1", "port": at, "scheme": bees_file.SCHEME},
        }
        for at, hid in enumerate(hids, 1)
    }
    (folder / "hum" / "bees.json").write_text(json.dumps(bees))
    return homeless(folder)


def homeless(folder: Path) -> Home:
    """A home without a humd."""
    return Home(seed=bytes(32), hid="wbee_own", state=folder, changed=lambda: None)


@pytest.mark.parametrize(
    ("text", "hids"),
    [(BY_HID, [ONE]), (EVERYBODY, [ONE, TWO]), (EVERYBODY + BY_HID, [ONE, TWO]), (NAMED, [None])],
)
def test_slices_are_named_or_found_under_humd(
    tmp_path: Path, text: str, hids: list[str | None]
) -> None:
    home = at_home(tmp_path, ONE, TWO)
    egg = coordinator(tmp_path, text)
    assert [one.hid for one in known_doors.known(egg, home)] == hids
    assert list(known_doors.unknown(egg, home)) == []


def test_a_humd_that_is_not_there_is_said(tmp_path: Path) -> None:
    (absent,) = known_doors.unknown(coordinator(tmp_path, EVERYBODY), homeless(NOWHERE))
    assert absent.reason.startswith("humd is not there, or knows no bee: there is no /nonexistent/")
    assert "discover" not in absent.reason


def test_a_humd_without_slices_is_said(tmp_path: Path) -> None:
    (absent,) = known_doors.unknown(coordinator(tmp_path, EVERYBODY), at_home(tmp_path))
    assert absent.reason.startswith(f"humd lists no slice in {tmp_path}")


def test_a_hid_that_humd_does_not_list_is_named_with_its_layers(tmp_path: Path) -> None:
    text = f'[split]\npolicy = "declared"\n{BY_HID}layers = "0:4"\n'
    home, egg = at_home(tmp_path, TWO), coordinator(tmp_path, text)
    (absent,) = known_doors.unknown(egg, home)
    assert absent.reason.startswith(f"the slice {ONE} of [[slices]] is not listed by humd")
    assert absent.layers == (0, 4)
    assert list(known_doors.known(egg, home)) == []
