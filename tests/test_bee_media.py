"""Pollen through fake humd, bee, tender and an engine whose model takes images and audio."""

from __future__ import annotations

import base64
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hum_workers.fake_humd import Asker
from hum_workers.media.samples import SAMPLES
from tests.rig import WAIT, Bee, egg, ended, served, worker

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("bee_media")]

TAKES = {"media": ["image", "audio"]}
RULES = """[media]
max_count = 4
max_bytes = "1MiB"
domains = ["pictures.example", "*.cdn.example"]
"""
PNG = base64.b64encode(SAMPLES["image"][1]).decode()
WAV = base64.b64encode(SAMPLES["audio"][1]).decode()
IMAGE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
SOUND = {"type": "input_audio", "input_audio": {"data": WAV, "format": "wav"}}
CLIP = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}


@dataclass(frozen=True)
class Stage:
    """What the tests share."""

    bee: Bee
    asker: Asker

    async def refused(self, **fields: Any) -> str:
        """Sends a prompt that gets nothing but a bad_prompt, and returns its message."""
        sid = self.asker.prompt(**{"modelId": "seer", "text": "look", **fields})
        answer = await self.asker.collect(sid)
        assert [tone["chi"] for tone in answer.tones] == ["error"]
        assert ended(answer)["code"] == "bad_prompt"
        return str(ended(answer)["message"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage() -> AsyncIterator[Stage]:
    folder = Path(tempfile.mkdtemp(prefix="hum-", dir="/tmp"))
    try:
        seer = egg(folder, name="seer", fake=TAKES, extra=RULES)
        echo = egg(folder, name="echo", fake={**TAKES, "request": {"echo": True}}, extra=RULES)
        async with served(folder, seer, echo, model="seer") as (humd, bee, asker):
            await humd.until(lambda: humd.serves("echo"))
            yield Stage(bee, asker)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def test_what_the_model_takes_is_learnt_before_the_first_prompt(stage: Stage) -> None:
    told = [
        (entry["stage"], entry.get("detail", ""))
        for entry in stage.bee.events("worker.cell.stage")
        if entry["cell"] == "seer-1" and entry["stage"].startswith("media")
    ]
    assert told == [
        ("media: image", ""),
        ("media: audio", ""),
        ("media: video", ""),
        ("media: video", "not taken: At most 0 video(s) may be provided in one prompt."),
    ]
    (ready,) = (e for e in stage.bee.events("worker.cell.ready") if e["cell"] == "seer-1")
    assert ready["media"] == ["image", "audio"]


async def test_parts_and_attachments_reach_the_engine_in_order(stage: Stage) -> None:
    sid = stage.asker.prompt(
        modelId="echo",
        content=[IMAGE, {"type": "text", "text": "and"}, SOUND],
        attachments=[{"kind": "image", "mediaType": "image/png", "data": PNG}],
        systemPrompt="see",
    )
    answer = await stage.asker.collect(sid)
    messages = json.loads(answer.text)["messages"]
    assert messages == [
        {"role": "system", "content": "see"},
        {"role": "user", "content": [IMAGE, {"type": "text", "text": "and"}, SOUND, IMAGE]},
    ]


async def test_the_engine_gets_as_many_as_were_sent(stage: Stage) -> None:
    both = [{"kind": "image", "data": PNG}, {"kind": "audio", "data": WAV}]
    answer = await stage.asker.ask("look", "seer", attachments=[*both, both[0]])
    assert answer.text == "got 1 audio 2 image"
    assert answer.complete


async def test_an_image_alone_is_a_prompt(stage: Stage) -> None:
    answer = await stage.asker.ask("", "seer", attachments=[{"kind": "image", "data": PNG}])
    assert answer.text == "got 1 image"


async def test_a_url_of_an_allowed_host_is_left_to_the_engine(stage: Stage) -> None:
    urls = ["https://pictures.example/a.png", "http://eu.cdn.example:8080/b"]
    given = [{"kind": "image", "url": url} for url in urls]
    answer = await stage.asker.ask("look", "echo", attachments=given)
    parts = json.loads(answer.text)["messages"][0]["content"]
    assert [part["image_url"]["url"] for part in parts[1:]] == urls


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"content": [CLIP]}, "a video (content[0]); seer takes text, image and audio"),
        ({"attachments": [{"kind": "pdf", "data": "AAAA"}]}, "attachments[0] is a PDF"),
        ({"attachments": [{"kind": "image", "url": "https://example/a"}]}, "is not allowed"),
        ({"attachments": [{"kind": "image", "url": "file:///etc/passwd"}]}, "is a file: URL"),
        ({"attachments": [{"kind": "image", "data": PNG}] * 5}, "[media] max_count"),
        ({"attachments": [{"kind": "audio", "mediaType": "audio/wav", "data": "A" * 1_500_000}]},
         "[media] max_bytes"),
        ({"attachments": [{"kind": "image", "mediaType": "image/png", "data": "A"}]},
         "attachments[0]: its data is no valid base64"),
    ],
)  # fmt: skip
async def test_what_can_not_be_taken_never_reaches_the_engine(
    stage: Stage, fields: dict[str, Any], said: str
) -> None:
    assert said in await stage.refused(**fields)


async def test_a_refused_prompt_keeps_no_turn_from_the_next(stage: Stage) -> None:
    sids = [
        stage.asker.prompt(sid="mixed", modelId="seer", content=[part]) for part in (CLIP, IMAGE)
    ]
    first, second = [await stage.asker.collect(sid) for sid in sids]
    assert ended(first)["code"] == "bad_prompt"
    assert second.text == "got 1 image"


async def test_as_many_bytes_as_the_egg_allows_arrive_whole(short_dir: Path) -> None:
    data = SAMPLES["image"][1].ljust(32 * 1024**2, b"\0")
    image = {"kind": "image", "data": base64.b64encode(data).decode()}
    async with served(short_dir, egg(short_dir, fake=TAKES)) as (_, _, asker):
        answer = await asker.ask("look", "echo", timeout=WAIT, attachments=[image])
    assert answer.text == "got 1 image"


async def test_with_media_off_the_model_is_not_asked(short_dir: Path) -> None:
    none = egg(short_dir, fake=TAKES, extra="[media]\nmax_count = 0")
    async with served(short_dir, none) as (_, bee, asker):
        answer = await asker.ask("look", "echo", attachments=[{"kind": "image", "data": PNG}])
        assert "[media] max_count" in ended(answer)["message"]
        stages = {entry["stage"] for entry in bee.events("worker.cell.stage")}
        assert not any(stage.startswith("media") for stage in stages)


async def test_a_text_model_is_asked_once(short_dir: Path) -> None:
    async with served(short_dir, egg(short_dir)) as (_, bee, asker):
        answer = await asker.ask("look", "echo", attachments=[{"kind": "image", "data": PNG}])
        assert ended(answer)["message"] == (
            "the prompt has an image (attachments[0]); echo takes text only"
        )
        stages = [entry["stage"] for entry in bee.events("worker.cell.stage")]
        assert [stage for stage in stages if stage.startswith("media")] == ["media: image"] * 2


async def test_images_of_the_command_line_are_sent_along(short_dir: Path) -> None:
    seer = egg(short_dir, fake=TAKES)
    png, webp = short_dir / "a.txt", short_dir / "b.png"
    png.write_bytes(SAMPLES["image"][1])
    webp.write_bytes(b"RIFF\x04\0\0\0WEBPVP8 ")
    code, out, err = await worker(
        short_dir, "--egg", seer, "--prompt", "look", "--image", png, "--image", webp
    )
    assert (code, out) == (0, "got 2 image\n"), err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "can't be read: No such file or directory"),
        (b"GIF88a", "is no PNG, JPEG, GIF or WebP image"),
        (b"", "is no PNG, JPEG, GIF or WebP image"),
    ],
)
async def test_an_image_that_can_not_be_read_is_one_line_and_exit_code_2(
    short_dir: Path, content: bytes | None, said: str
) -> None:
    image = short_dir / "image.png"
    if content is not None:
        image.write_bytes(content)
    code, out, err = await worker(
        short_dir, "--egg", egg(short_dir), "--prompt", "look", "--image", image
    )
    assert (code, out, err) == (2, "", f"--image {image}: {said}\n")


async def test_an_image_over_the_eggs_limit_is_refused_before_anything_starts(
    short_dir: Path,
) -> None:
    image = short_dir / "image.png"
    image.write_bytes(SAMPLES["image"][1])
    small = egg(short_dir, fake=TAKES, extra='[media]\nmax_bytes = "100B"')
    code, _, err = await worker(short_dir, "--egg", small, "--prompt", "look", "--image", image)
    assert code == 2
    assert err.startswith("--prompt: ")
    assert err.count("\n") == 1


async def test_an_image_for_a_text_model_fails_the_turn(short_dir: Path) -> None:
    image = short_dir / "image.png"
    image.write_bytes(SAMPLES["image"][1])
    code, out, err = await worker(
        short_dir, "--egg", egg(short_dir), "--prompt", "look", "--image", image
    )
    assert (code, out) == (1, "")
    assert (
        "the prompt failed: the prompt has an image (attachments[0]); echo takes text only" in err
    )


async def test_image_without_a_prompt_is_a_usage_error(short_dir: Path) -> None:
    code, _, err = await worker(short_dir, "--egg", egg(short_dir), "--image", "x.png")
    assert code == 2
    assert "--image goes with --prompt only" in err
