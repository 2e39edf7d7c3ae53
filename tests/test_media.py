"""Pollen in every form that is read, and what is refused of it."""

from __future__ import annotations

import base64
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hum_workers.errors import ErrorCode, TurnError
from hum_workers.media import types as media_types
from hum_workers.media.pollen import MediaRules, refuse_untaken
from hum_workers.media.samples import SAMPLES
from hum_workers.turns.prompt import Prompt, parse_prompt
from tests.test_sampling import JSON

PNG = base64.b64encode(SAMPLES["image"][1]).decode()
WAV = base64.b64encode(SAMPLES["audio"][1]).decode()
PNG_URL = f"data:image/png;base64,{PNG}"
IMAGE = {"type": "image_url", "image_url": {"url": PNG_URL}}
SOUND = {"type": "input_audio", "input_audio": {"data": WAV, "format": "wav"}}
CLIP = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}
WEB = {"type": "image_url", "image_url": {"url": "https://img.example.org/a.png?b=1"}}


def prompt(*parts: Any, **fields: Any) -> Prompt:
    return parse_prompt({"sid": "s", "content": list(parts), **fields})


def content(*parts: Any, **fields: Any) -> Any:
    return prompt(*parts, **fields).messages[-1]["content"]


def refusal(*parts: Any, rules: MediaRules | None = None, **fields: Any) -> str:
    with pytest.raises(TurnError) as caught:
        (rules or MediaRules()).admit(prompt(*parts, **fields).media)
    assert caught.value.code is ErrorCode.BAD_PROMPT
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize(
    ("given", "part"),
    [
        (IMAGE, IMAGE),
        ({"type": "image_url", "image_url": PNG_URL}, IMAGE),
        ({"type": "input_image", "image_url": PNG_URL}, IMAGE),
        ({"type": "image_url", "image_url": {"url": PNG_URL, "detail": "low"}},
         {"type": "image_url", "image_url": {"url": PNG_URL, "detail": "low"}}),
        ({"type": "image_url", "image_url": {"url": f"DATA:IMAGE/PNG;q=1;base64,{PNG}"}}, IMAGE),
        ({"type": "image_url", "image_url": {"url": f"data:;base64,{PNG}"}}, IMAGE),
        ({"type": "image",
          "source": {"type": "base64", "media_type": "image/png", "data": PNG}}, IMAGE),
        ({"type": "image", "data": PNG, "mimeType": "image/png"}, IMAGE),
        ({"type": "image", "source": {"type": "url", "url": "HTTPS://img.EXAMPLE.org./a.png?b=1"}},
         WEB),
        (SOUND, SOUND),
        ({"type": "audio_url", "audio_url": {"url": f"data:audio/x-wav;base64,{WAV}"}}, SOUND),
        ({"type": "audio_url", "audio_url": {"url": "http://h:81"}},
         {"type": "audio_url", "audio_url": {"url": "http://h:81/"}}),
        (CLIP, CLIP),
    ],
)  # fmt: skip
def test_parts_of_every_form_become_the_engines(given: Any, part: Any) -> None:
    assert content(given) == [part]


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"kind": "image", "mediaType": "image/png", "data": PNG}, IMAGE),
        ({"kind": "IMAGE", "media_type": "image/png; q=1", "data": PNG}, IMAGE),
        ({"mediaType": "image/png", "data": PNG}, IMAGE),
        ({"kind": "image", "data": PNG}, IMAGE),
        ({"kind": "image", "data": PNG_URL}, IMAGE),
        ({"kind": "image", "url": PNG_URL}, IMAGE),
        ({"kind": "image", "url": "https://img.example.org/a.png?b=1"}, WEB),
        ({"kind": "audio", "mediaType": "audio/wav", "data": WAV}, SOUND),
        ({"kind": "video", "mediaType": "video/mp4", "data": "AAAA"}, CLIP),
    ],
)
def test_attachments_of_every_form_become_the_engines(given: Any, part: Any) -> None:
    assert content("look", attachments=[given]) == [{"type": "text", "text": "look"}, part]


def test_parts_keep_their_order_and_attachments_follow_the_last_user_message() -> None:
    asked = parse_prompt(
        {
            "sid": "s",
            "messages": [
                {"role": "user", "content": [IMAGE, "and", SOUND]},
                {"role": "assistant", "content": "yes"},
                {"role": "user", "content": "this?"},
                {"role": "assistant", "content": "well"},
            ],
            "attachments": [
                {"kind": "image", "url": PNG_URL},
                {"kind": "video", "data": "", **_CLIP},
            ],
        }
    )
    first, _, last, _ = asked.messages
    assert first["content"] == [IMAGE, {"type": "text", "text": "and"}, SOUND]
    assert last["content"] == [{"type": "text", "text": "this?"}, IMAGE, CLIP]
    assert [one.kind for one in asked.media] == ["image", "audio", "image", "video"]
    assert [one.place for one in asked.media][1:3] == ["messages[0].content[2]", "attachments[0]"]


_CLIP = {"url": "data:video/mp4;base64,AAAA"}


def test_attachments_alone_are_a_prompt() -> None:
    asked = parse_prompt({"sid": "s", "text": "", "attachments": [{"kind": "image", "data": PNG}]})
    assert asked.messages == [{"role": "user", "content": [IMAGE]}]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"type": "file", "file": {}}, "content[0] is a file; images, audio and video can"),
        ({"type": "input_file"}, "content[0] is a file"),
        ({"type": "document", "source": {}}, "content[0] is a document"),
        ({"type": "image_url", "image_url": 5}, "content[0].image_url must be an object, not a nu"),
        ({"type": "image_url", "image_url": {"url": 5}}, "url must be a string, not a number"),
        ({"type": "image", "source": {"data": 5}}, "data must be a string, not a number"),
        ({"type": "image"}, "content[0] has neither data nor a url"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "is a file: URL"),
        ({"type": "image_url", "image_url": {"url": "FILE:/x"}}, "is a file: URL"),
        ({"type": "image_url", "image_url": {"url": "ftp://x/y"}}, "must begin with https:, http:"),
        ({"type": "image_url", "image_url": {"url": PNG}}, "begin with https:, http: or data:"),
        ({"type": "image_url", "image_url": {"url": "data:image/png,abc"}}, "data:image/...;base"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64"}}, "data URL must be"),
        ({"type": "image_url", "image_url": {"url": "data:audio/wav;base64,AAAA"}},
         "content[0] is an image, but its media type is audio/wav"),
        ({"type": "video_url", "video_url": {"url": "data:application/pdf;base64,AAAA"}},
         "is a video, but its media type is application/pdf"),
        ({"type": "image_url", "image_url": {"url": "data:nonsense;base64,AAAA"}}, "no media type"),
        ({"type": "image_url", "image_url": {"url": "data:;base64,AAAA"}}, "has no media type"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}, "no valid base64"),
        ({"type": "input_audio", "input_audio": {"data": "A?==", "format": "wav"}}, "valid base64"),
        ({"type": "input_audio", "input_audio": {"data": "AAAA"}}, "has no media type"),
    ],
)  # fmt: skip
def test_a_part_that_can_not_be_used_is_told_with_its_place(part: Any, said: str) -> None:
    assert said in refusal(part)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("x", "attachments must be a list, not a string"),
        (["x"], "attachments[0] must be an object, not a string"),
        ([{"data": PNG}], "attachments[0].kind must be one of image, audio, video, not null"),
        ([{"kind": "smell"}], "attachments[0] is of kind 'smell'"),
        ([{"kind": "pdf", "data": "AAAA"}], "attachments[0] is a PDF"),
        ([{"kind": "file", "data": "AAAA"}], "attachments[0] is a file"),
        ([{"mediaType": "application/pdf", "data": "AAAA"}], "attachments[0] is a PDF"),
        ([{"kind": "image", "mediaType": 3, "data": PNG}], "its media type must be a string"),
        ([{"kind": "image", "mediaType": "audio/wav", "data": PNG}], "its media type is audio/wav"),
        ([{"kind": "image", "url": "file:///x"}], "attachments[0] is a file: URL"),
        ([{"kind": "image"}], "attachments[0] has neither data nor a url"),
    ],
)
def test_an_attachment_that_can_not_be_used_is_told(given: Any, said: str) -> None:
    assert said in refusal("x", attachments=given)


@pytest.mark.parametrize(
    "text",
    ["A", "AA", "AAA", "AAAA=", "=AAA", "A=AA", "AA=A", "====", "A\nAA", "AA_-", "AAA\ud800"],
)
def test_what_is_no_base64_is_refused(text: str) -> None:
    part = {"type": "input_audio", "input_audio": {"data": text, "format": "wav"}}
    assert "no valid base64" in refusal(part)


@settings(deadline=None)  # a loaded machine is no fault
@given(st.binary(min_size=1, max_size=64))
def test_all_base64_passes_with_its_size(data: bytes) -> None:
    text = base64.b64encode(data).decode()
    (one,) = prompt({"type": "input_audio", "input_audio": {"data": text, "format": "wav"}}).media
    MediaRules(max_bytes=len(data)).admit([one])
    assert one.size == len(data)


def test_a_video_may_come_as_frames() -> None:
    frames = {"type": "video_url", "video_url": {"url": "data:video/jpeg;base64,AAAA,BBBB"}}
    MediaRules().admit(prompt(frames).media)
    frames["video_url"] = {"url": "data:video/mp4;base64,AAAA,BBBB"}
    assert "no valid base64" in refusal(frames)


def test_count_and_bytes_are_limited() -> None:
    few = MediaRules(max_count=2, max_bytes=6)
    assert refusal(IMAGE, IMAGE, IMAGE, rules=few) == (
        "images, audio and video in the prompt: 3; at most 2 may be ([media] max_count)"
    )
    six = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    few.admit(prompt(six, six).media)
    seven = {"type": "input_audio", "input_audio": {"data": "AAAAAA==", "format": "wav"}}
    assert "([media] max_bytes)" in refusal(six, seven, rules=few)


@pytest.mark.parametrize(
    ("domains", "host", "passes"),
    [
        ((), "example.org", False),
        (("example.org",), "example.org", True),
        (("example.org",), "EXAMPLE.org.", True),
        (("example.org",), "img.example.org", False),
        (("*.example.org",), "img.example.org", True),
        (("*.example.org",), "a.b.example.org", True),
        (("*.example.org",), "example.org", False),
        (("*.example.org",), "badexample.org", False),
        (("example.org",), "example.org.evil.net", False),
    ],
)
def test_a_url_is_fetched_from_allowed_hosts_only(
    domains: tuple[str, ...], host: str, *, passes: bool
) -> None:
    rules = MediaRules(domains=domains)
    part = {"type": "image_url", "image_url": {"url": f"https://{host}/x"}}
    if passes:
        rules.admit(prompt(part).media)
    else:
        assert "is not allowed: [media] domains" in refusal(part, rules=rules)


@pytest.mark.parametrize(
    "url",
    [
        "https://good.org\\@evil.net/",
        "https://good.org/\\evil.net",
        "https://user@good.org/",
        "https://good.org:80:81/",
        "https://good.org?@evil.net/",
        "https://good.org#@evil.net/",
        "https://good.org\t.evil.net/",
        "https://good.org /",
        "https:///good.org/",
        "https:good.org/",
        "https://[::1]/",
        "https://gооd.org/",
        "https://good.org/ä",
        "https://./",
        "https://good.org/" + "x" * 9000,
    ],
)
def test_a_url_that_two_readers_may_read_apart_is_refused(url: str) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}
    assert "its url can't be used" in refusal(part, rules=MediaRules(domains=("good.org",)))


@pytest.mark.parametrize(
    ("takes", "said"),
    [
        ((), "the prompt has an image (content[1]); m takes text only"),
        (("audio",), "the prompt has an image (content[1]); m takes text and audio"),
        (("audio", "video"), "the prompt has an image (content[1]); m takes text, audio and video"),
        (("image",), "the prompt has a video (content[2]); m takes text and image"),
        (("image", "video"), ""),
    ],
)
def test_what_the_model_does_not_take_is_told(takes: tuple[str, ...], said: str) -> None:
    pollen = prompt("look", IMAGE, CLIP).media
    if not said:
        refuse_untaken(pollen, takes, "m")
        return
    with pytest.raises(TurnError) as caught:
        refuse_untaken(pollen, takes, "m")
    assert caught.value.message == said


def test_files_are_told_by_their_first_bytes() -> None:
    shown = {kind: media_types.sniff(data[:16]) for kind, (_, data) in SAMPLES.items()}
    assert shown == {"image": "image/png", "audio": "audio/wav", "video": "image/jpeg"}
    assert media_types.sniff(b"GIF89a....") == "image/gif"
    assert media_types.sniff(b"RIFF\0\0\0\0WEBPVP8 ") == "image/webp"
    assert media_types.sniff(b"\0\0\0\x18ftypmp42") == "video/mp4"
    assert media_types.sniff(b"#!/bin/sh") == ""


@settings(deadline=None)  # a loaded machine is no fault
@given(st.lists(JSON, max_size=4), JSON)
def test_any_parts_are_read_or_refused(parts: list[Any], attached: Any) -> None:
    with suppress(TurnError):
        MediaRules().admit(prompt("x", *parts, attachments=attached).media)
