"""Types of the values that only eggs of llama.cpp have: layers, doors, hids, model files (pure but
for the question what is there).

Each check raises `ValueError` with the rest of a sentence that begins with the key.
"""

from __future__ import annotations

import ipaddress
import os
import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, ValidationInfo, WithJsonSchema

from hum_workers.egg.types import Text, expand_path
from hum_workers.egg.units import is_loopback, parse_listen, split_listen
from hum_workers.llama_rpc_worker.facts import Layers

LAYERS_PATTERN = r"^[0-9]{1,5}:[0-9]{1,5}$"
ENDPOINT_PATTERN = r"^([^:\s/]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}$"
HID_PATTERN = r"^wbee_[0-9a-f]{64}$"
FINGERPRINT_PATTERN = r"^[0-9a-f]{16}$"
SPLIT = re.compile(r"-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})$")
"""The end of a split file's name, before `.gguf`."""


def parse_layers(value: object) -> Layers:
    """Returns the range of `"A:B"`: blocks A up to, but not with, B."""
    if not isinstance(value, str) or not re.fullmatch(LAYERS_PATTERN, value):
        raise ValueError('must be a range of blocks like "0:10", which is 0 to 9')
    first, end = map(int, value.split(":"))
    if first == end:
        raise ValueError(f"{value} holds no block: the end is not part of a range")
    if first > end:
        raise ValueError(f'runs backwards: did you mean "{end}:{first}"?')
    return first, end


def parse_endpoint(value: object) -> tuple[str, int]:
    """Returns host and port of a door somewhere else."""
    if not isinstance(value, str) or not re.fullmatch(ENDPOINT_PATTERN, value):
        raise ValueError('is no address of a door: write "host:port", like "10.0.0.7:7300"')
    host, port = split_listen(value)
    if not 0 < port <= 65535:
        raise ValueError(f"has no port {port}: they go from 1 to 65535")
    if is_wildcard(host):
        raise ValueError(f"{host} is where a door listens; name the address it is reached at")
    return host, port


def parse_door(value: object) -> tuple[str, int]:
    """Returns host and port to listen on; 0 is any port that is free."""
    host, port = split_listen(parse_listen(value))
    return host, port


def is_wildcard(host: str) -> bool:
    """Returns whether an address stands for all of this machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return host == "*"


def is_ipv4(host: str) -> bool:
    """Returns whether an address is written as four numbers."""
    try:
        return ipaddress.ip_address(host).version == 4
    except ValueError:
        return False


def is_private(host: str) -> bool:
    """Returns whether an address is of this machine or of a private network, written as numbers."""
    if is_loopback(host):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_private and not address.is_unspecified


def _hid(value: str) -> str:
    if not re.fullmatch(HID_PATTERN, value):
        raise ValueError("is no hid: wbee_ and 64 hex digits in lower case, as --check shows it")
    return value


def _fingerprint(value: str) -> str:
    if not re.fullmatch(FINGERPRINT_PATTERN, value):
        raise ValueError("is no fingerprint: 16 hex digits in lower case, as --check shows it")
    return value


def _device(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", value):
        raise ValueError('is no name of a device, like "CPU" or "CUDA0"')
    return value


def _folder(value: object, info: ValidationInfo) -> Path:
    path = expand_path(value, info)
    if not path.is_dir():
        why = "is a file; name the folder that it is in" if path.exists() else "does not exist"
        raise ValueError(f"{path} {why}")
    return path


def _gguf(value: object, info: ValidationInfo) -> Path:
    path = expand_path(value, info)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name the .gguf file")
    if path.suffix != ".gguf":
        raise ValueError(f"{path} does not end in .gguf; llama.cpp reads only such files")
    if not path.exists():
        raise ValueError(f"{path} does not exist")
    match = SPLIT.search(path.stem)
    if match and int(match["number"]) != 1:
        first = SPLIT.sub(f"-00001-of-{match['count']}", path.stem)
        raise ValueError(f"is part {int(match['number'])} of a model; name the first: {first}.gguf")
    return path


def _template(value: str, info: ValidationInfo) -> str:
    """Returns an absolute file, or a template written out as it is."""
    if "{" in value:
        return value
    path = expand_path(value, info)
    if not os.path.isfile(path):
        raise ValueError(f"{path} does not exist")
    return str(path)


LayerRange = Annotated[
    tuple[int, int],
    BeforeValidator(parse_layers),
    WithJsonSchema({"type": "string", "pattern": LAYERS_PATTERN}),
]
Endpoint = Annotated[
    tuple[str, int],
    BeforeValidator(parse_endpoint),
    WithJsonSchema({"type": "string", "pattern": ENDPOINT_PATTERN}),
]
Door = Annotated[
    tuple[str, int],
    BeforeValidator(parse_door),
    WithJsonSchema({"type": ["string", "integer"], "minimum": 0, "maximum": 65535}),
]
Hid = Annotated[
    Text, AfterValidator(_hid), WithJsonSchema({"type": "string", "pattern": HID_PATTERN})
]
Fingerprint = Annotated[
    Text,
    AfterValidator(_fingerprint),
    WithJsonSchema({"type": "string", "pattern": FINGERPRINT_PATTERN}),
]
Device = Annotated[Text, AfterValidator(_device)]
Folder = Annotated[
    Path, BeforeValidator(_folder), WithJsonSchema({"type": "string", "minLength": 1})
]
Gguf = Annotated[Path, BeforeValidator(_gguf), WithJsonSchema({"type": "string", "minLength": 1})]
Template = Annotated[str, AfterValidator(_template)]
