"""Folders of cells are told apart by who claimed them; only those of the dead are swept."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from hum_workers.cells import claims, ledger
from hum_workers.cells import folder as cell_folder
from hum_workers.program import places


async def test_folders_of_the_dead_are_swept_and_those_of_the_living_stay(tmp_path: Path) -> None:
    mine, dead, unclaimed = (tmp_path / name for name in ("tag-mine", "tag-dead", "other"))
    for folder in (mine, dead, unclaimed):
        folder.mkdir()
    claims.write(mine)
    code = (
        "import sys; from pathlib import Path; from hum_workers.cells import claims;"
        "claims.write(Path(sys.argv[1]))"
    )
    # The shell between is the owner's parent, and dead as well.
    process = await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", '"$@"; true', "sh", sys.executable, "-c", code, str(dead)
    )
    assert await process.wait() == 0
    assert (claims.abandoned(mine), claims.abandoned(dead)) == (False, True)
    assert claims.abandoned(unclaimed) is None
    assert cell_folder.sweep(tmp_path) == [dead]
    await ledger.end_leftovers(tmp_path / "cells.json", tmp_path, "tag")
    assert (mine.exists(), dead.exists(), unclaimed.exists()) == (True, False, True)


def test_each_raise_has_a_folder_of_its_own(tmp_path: Path) -> None:
    private = places.private_folder(tmp_path, "tag", "echo")
    first, second = places.fresh(private), places.fresh(private)
    assert first != second
    assert first.name.startswith(f"{private.name}~")
