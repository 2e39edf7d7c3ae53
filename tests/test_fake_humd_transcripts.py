"""The fake humd answers as the real one did: every scene of the transcript, tone by tone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hum_workers.fake_humd import FakeHumd
from tests.transcripts import Player, Scene, Tone, load

SCENES = load()


def bees_in(state_home: Path) -> list[Tone]:
    """Manifests in bees.json by name, with their keys in the order of the file."""
    kept = json.loads((state_home / "hum" / "bees.json").read_bytes())
    return sorted(kept.values(), key=lambda manifest: str(manifest["name"]))


@pytest.mark.parametrize("scene", SCENES, ids=[scene.case for scene in SCENES])
async def test_each_client_hears_what_it_heard_from_humd(
    scene: Scene, short_dir: Path, tmp_path: Path
) -> None:
    """Provenance: transcripts of humd v0.31.18."""
    async with await FakeHumd.start(short_dir / "thrum.sock", tmp_path, home="/srv/hum") as humd:
        player = Player(humd.socket, home="/srv/hum", bees=lambda: bees_in(tmp_path))
        await player.play(scene)


def test_there_are_fifteen_scenes() -> None:
    assert len(SCENES) == 15
