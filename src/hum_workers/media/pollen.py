"""Pollen: images, audio and video of a prompt, in the engine's form and checked (pure).

Promise: of what `media_part` and `attachment` have read and `MediaRules.admit` has let pass,
the engine fetches only URLs of allowed hosts, reads no file, and decodes only base64 of a stated
size; everything else is a `bad_prompt` whose one line says what is wrong.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hum_workers.errors import TurnError
from hum_workers.media import types as media_types
from hum_workers.media.types import KINDS
from hum_workers.turns.sampling import kind_of, refuse

Part = dict[str, Any]

_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
# Narrow on purpose: what two parsers may read as two hosts (a backslash, a user, spaces) is none.
_URL = re.compile(r"(https?)://([A-Za-z0-9.-]+)(:[0-9]{1,5})?(/[!-\[\]-~]*)?", re.IGNORECASE)
URL_LIMIT = 8192
"""Characters of an http URL at most."""
_FRAMES = "video/jpeg"
"""vLLM's form of a video as JPEG frames, base64 each, with commas between them."""
_PARTS = {
    "image_url": "image",
    "input_image": "image",
    "image": "image",
    "input_audio": "audio",
    "audio_url": "audio",
    "audio": "audio",
    "video_url": "video",
    "video": "video",
}
_TYPE_KEYS = ("mediaType", "media_type", "mimeType")
_REFUSED = ("pdf", "file", "document")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pollen:
    """One image, audio or video of a prompt: its data, or the host that has it."""

    kind: str
    place: str
    """Where in the prompt it stands, for messages."""
    media_type: str = ""
    """Empty for a URL."""
    data: str = ""
    """Base64, not checked yet; video in frames has commas between them."""
    host: str = ""

    @property
    def size(self) -> int:
        """Bytes of the data, decoded."""
        padding = 2 if self.data.endswith("==") else int(self.data.endswith("="))
        return len(self.data) * 3 // 4 - padding


@dataclass(frozen=True, kw_only=True)
class MediaRules:
    """`[media]` of an egg: how much a prompt may bring, and from where the engine may fetch."""

    max_count: int = 16
    max_bytes: int = 32 * 1024**2
    domains: tuple[str, ...] = ()
    """Hosts; `*.example.org` stands for every host below example.org."""

    def admit(self, pollen: Sequence[Pollen]) -> tuple[Pollen, ...]:
        """Returns the pollen without its data, which the messages hold.

        Raises:
            TurnError: `bad_prompt`, for what these rules don't allow and data that is no base64.
        """
        if len(pollen) > self.max_count:
            raise refuse(
                f"images, audio and video in the prompt: {len(pollen)}; at most {self.max_count} "
                "may be ([media] max_count)"
            )
        size = sum(one.size for one in pollen)
        if size > self.max_bytes:
            raise refuse(
                f"the prompt's media are {_mib(size)} decoded; at most {_mib(self.max_bytes)} are "
                "taken ([media] max_bytes)"
            )
        for one in pollen:
            if one.host and not self._allows(one.host):
                known = f"has {', '.join(self.domains)}" if self.domains else "names none"
                raise refuse(
                    f"{one.place}: its host {one.host[:80]} is not allowed: [media] domains {known}"
                )
            _check_base64(one)
        return tuple(replace(one, data="") for one in pollen)

    def _allows(self, host: str) -> bool:
        return any(
            host.endswith(domain[1:]) if domain.startswith("*.") else host == domain
            for domain in self.domains
        )


def refuse_untaken(pollen: Iterable[Pollen], takes: Sequence[str], model: str) -> None:
    """Raises `bad_prompt` for the first of the pollen that is not among what the model takes."""
    for one in pollen:
        if one.kind not in takes:
            what = {"image": "an image", "video": "a video"}.get(one.kind, one.kind)
            able = " and ".join([", ".join(["text", *takes[:-1]]), *takes[-1:]])
            only = "" if takes else " only"
            raise refuse(f"the prompt has {what} ({one.place}); {model} takes {able}{only}")


def media_part(place: str, part: Mapping[str, Any]) -> tuple[Pollen, Part] | None:
    """Reads a content part of OpenAI's or Anthropic's form; None when it is no part of media.

    Raises:
        TurnError: `bad_prompt`: a file, or a part that lacks what its type must have.
    """
    type_ = part.get("type")
    if not isinstance(type_, str):
        return None
    named = type_.removeprefix("input_")
    if named in _REFUSED:
        raise _no_files(place, named)
    if (kind := _PARTS.get(type_)) is None:
        return None
    if isinstance(source := part.get("source"), dict):  # Anthropic
        return _read(place, kind, source.get("media_type"), source.get("data"), source.get("url"))
    value = part.get(type_ if type_ != "input_image" else "image_url", part)
    if isinstance(value, str):
        value = {"url": value}
    if not isinstance(value, dict):
        raise refuse(f"{place}.{type_} must be an object, not {kind_of(value)}")
    media_type = _declared(value)
    if isinstance(format_ := value.get("format"), str):
        media_type = format_ if "/" in format_ else f"{kind}/{format_}"
    found, made = _read(place, kind, media_type, value.get("data"), value.get("url"))
    if kind == "image" and value.get("detail") in ("auto", "low", "high"):
        made["image_url"]["detail"] = value["detail"]
    return found, made


def attachments(value: Any) -> list[tuple[Pollen, Part]]:
    """Reads the `attachments` of a prompt tone, in their order.

    Raises:
        TurnError: `bad_prompt`; the message says which and what.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        raise refuse(f"attachments must be a list, not {kind_of(value)}")
    return [_attachment(f"attachments[{i}]", one) for i, one in enumerate(value)]


def _attachment(place: str, value: Any) -> tuple[Pollen, Part]:
    if not isinstance(value, dict):
        raise refuse(f"{place} must be an object, not {kind_of(value)}")
    media_type = _declared(value)
    kind = value.get("kind")
    if kind is None and isinstance(media_type, str):
        kind = media_types.kind(media_types.clean(media_type))
    if not isinstance(kind, str):
        raise refuse(f"{place}.kind must be one of {', '.join(KINDS)}, not {kind_of(kind)}")
    kind = kind.lower()
    if kind in _REFUSED:
        raise _no_files(place, kind)
    if kind not in KINDS:
        raise refuse(f"{place} is of kind {kind[:40]!r}; it must be one of {', '.join(KINDS)}")
    return _read(place, kind, media_type, value.get("data"), value.get("url"))


def _declared(value: Mapping[str, Any]) -> Any:
    return next((value[key] for key in _TYPE_KEYS if value.get(key)), None)


def _no_files(place: str, kind: str) -> TurnError:
    what = "a PDF" if kind == "pdf" else f"a {kind}"
    return refuse(f"{place} is {what}; images, audio and video can be taken, files and PDFs can't")


def _read(place: str, kind: str, media_type: Any, data: Any, url: Any) -> tuple[Pollen, Part]:
    """Returns pollen and part from its data or, where there is none, its URL."""
    for name, value in (("its media type", media_type), ("data", data), ("url", url)):
        if value is not None and not isinstance(value, str):
            raise refuse(f"{place}: {name} must be a string, not {kind_of(value)}")
    given = data or url
    if not given:
        raise refuse(f"{place} has neither data nor a url")
    if given[:5].lower() == "data:":
        return _from_data_url(place, kind, given)
    if data:
        return _from_data(place, kind, media_type or "", data)
    return _from_url(place, kind, given)


def _from_data_url(place: str, kind: str, url: str) -> tuple[Pollen, Part]:
    head, comma, data = url[5:].partition(",")
    media_type, _, encoding = head.rpartition(";")
    if not comma or encoding.strip().lower() != "base64":
        raise refuse(f"{place}: a data URL must be of the form data:{kind}/...;base64,...")
    return _from_data(place, kind, media_type, data, url=url)


def _from_data(
    place: str, kind: str, declared: str, data: str, *, url: str = ""
) -> tuple[Pollen, Part]:
    """Returns pollen and part of base64; `url` is the data URL that it came in, if it did."""
    media_type = media_types.clean(declared)
    if declared and not media_type:
        raise refuse(f"{place}: {declared[:40]!r} is no media type")
    media_type = media_type or _sniffed(data)
    if not media_type:
        raise refuse(f"{place} has no media type, and its data don't show one")
    if media_types.kind(media_type) != kind:
        article = "an" if kind[0] in "ai" else "a"
        raise refuse(f"{place} is {article} {kind}, but its media type is {media_type[:60]}")
    pollen = Pollen(kind=kind, place=place, media_type=media_type, data=data)
    if kind == "audio":
        heard = {"data": data, "format": media_types.audio_format(media_type)}
        return pollen, {"type": "input_audio", "input_audio": heard}
    head = f"data:{media_type};base64,"
    if not url.startswith(head):
        url = head + data
    return pollen, {"type": f"{kind}_url", f"{kind}_url": {"url": url}}


def _sniffed(data: str) -> str:
    """Returns the media type that the beginning of base64 data shows, or an empty string."""
    try:
        return media_types.sniff(binascii.a2b_base64(data[:32]))
    except ValueError:
        return ""


def _from_url(place: str, kind: str, url: str) -> tuple[Pollen, Part]:
    scheme = url.partition(":")[0].lower()
    if scheme == "file":
        raise refuse(f"{place} is a file: URL; files are never read, send the data instead")
    if scheme not in ("http", "https"):
        raise refuse(f"{place}: its url must begin with https:, http: or data:")
    found = _URL.fullmatch(url) if len(url) <= URL_LIMIT else None
    host = found[2].lower().rstrip(".") if found else ""
    if not found or not host:
        raise refuse(
            f"{place}: its url can't be used: it must be scheme://host/path of at most {URL_LIMIT} "
            "plain characters, others written as %XX"
        )
    # Rebuilt, so that the engine sees the very host that is checked.
    url = f"{scheme}://{host}{found[3] or ''}{found[4] or '/'}"
    part = {"type": f"{kind}_url", f"{kind}_url": {"url": url}}
    return Pollen(kind=kind, place=place, host=host), part


def _check_base64(one: Pollen) -> None:
    if one.host:
        return
    pieces = one.data.split(",") if one.media_type == _FRAMES else [one.data]
    if not all(map(_is_base64, pieces)):
        raise refuse(f"{one.place}: its data is no valid base64")


def _is_base64(text: str) -> bool:
    # Half the time of decoding: what is left without the alphabet may be the padding alone.
    rest = text.encode("utf-8", "replace").translate(None, _ALPHABET)
    if not text or len(text) % 4 or rest not in (b"", b"=", b"=="):
        return False
    return not rest or text.endswith(rest.decode())


def _mib(size: int) -> str:
    return f"{size / 1024**2:.3g} MiB"
