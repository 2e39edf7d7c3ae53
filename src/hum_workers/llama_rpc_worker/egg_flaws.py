"""What is wrong in an egg of llama.cpp between values that are right alone (pure)."""

from __future__ import annotations

from collections.abc import Iterator

from hum_workers.egg.tables import Flaw
from hum_workers.egg.units import is_loopback
from hum_workers.llama_rpc_worker.egg_tables import LlamaTables, SliceEntry
from hum_workers.llama_rpc_worker.facts import Layers
from hum_workers.llama_rpc_worker.values import is_ipv4, is_private, is_wildcard

MOST_LAYERS_APART = 15
"""Slices: llama.cpp's --tensor-split takes 16 numbers, and one may be the coordinator's own."""
_ROLE = ("cell", "role")


def of_slice(egg: LlamaTables) -> Iterator[Flaw]:
    """Yields the mistakes of a slice's egg."""
    for key in sorted(egg.model.model_fields_set - {"fingerprint"}):
        why = "is a coordinator's: a slice gets its model from whoever leases it; remove it"
        yield Flaw(("model", key), why, (_ROLE,), at_key=True)
    if egg.slices:
        yield Flaw(("slices",), "is a coordinator's; remove it", (_ROLE,), at_key=True)
    for key in sorted(egg.split.model_fields_set):
        yield Flaw(("split", key), "is a coordinator's; remove it", (_ROLE,), at_key=True)
    if egg.bee.models:
        yield Flaw(("bee", "models"), "is a coordinator's: a slice serves no model", (_ROLE,))
    if egg.bee.raise_ != "on-start":
        yield Flaw(("bee", "raise"), "no prompt ever reaches a slice; remove it", (_ROLE,))
    if egg.bee.propensity != "stateless":
        yield Flaw(("bee", "propensity"), "a slice has no turns; remove it", (_ROLE,))
    if egg.lifecycle.idle_timeout is not None:
        yield Flaw(("lifecycle", "idle_timeout"), "a slice has no turns; remove it", (_ROLE,))
    devices = egg.rpc.devices
    for index, device in enumerate(devices):
        if device in devices[:index]:
            yield Flaw(("rpc", "devices", index), f"{device} is named twice; name each once")
    yield from _door(egg)


def _door(egg: LlamaTables) -> Iterator[Flaw]:
    rpc, listen = egg.rpc, ("rpc", "listen")
    host = rpc.listen[0]
    if rpc.private_network and is_wildcard(host):
        yield Flaw(
            ("rpc", "private_network"),
            f"needs one address in rpc.listen, and {host} is all of them: rpc-server asks nobody "
            "for a password",
            (listen,),
        )
    elif rpc.private_network and not is_private(host):
        yield Flaw(
            ("rpc", "private_network"),
            f"{host} is no address of this machine or of a private network, written as numbers: "
            "rpc-server encrypts nothing and asks nobody for a password",
            (listen,),
        )
    elif rpc.private_network and not is_ipv4(host):
        yield Flaw(
            ("rpc", "private_network"),
            f"needs an IPv4 address in rpc.listen, as rpc-server has no others, not {host}",
            (listen,),
        )


def slice_cautions(egg: LlamaTables) -> Iterator[Flaw]:
    """Yields what of a slice is likely to disappoint."""
    host = egg.rpc.listen[0]
    if is_wildcard(host):
        yield Flaw(
            ("rpc", "listen"),
            f"{host} is nothing that hum can tell to coordinators: they need the address in their "
            "[[slices]]",
        )
    if egg.rpc.private_network and not is_loopback(host):
        yield Flaw(
            ("rpc", "private_network"),
            "whoever reaches that network reads prompts and weights there, can change them, and "
            "can end the slice",
        )
    if not egg.rpc.coordinators and not is_loopback(host):
        yield Flaw(
            ("rpc", "listen"),
            "the door can be reached from other machines, but rpc.coordinators names nobody there",
        )


def of_coordinator(egg: LlamaTables) -> Iterator[Flaw]:
    """Yields the mistakes of a coordinator's egg."""
    model = egg.model
    if model.path is None:
        yield Flaw(("model", "path"), "is missing; give the .gguf file", (_ROLE,))
    elif "," in model.served_name:
        named = "served_name" if "served_name" in model.model_fields_set else "path"
        why = "the model's id has a comma, where llama.cpp would cut it; set served_name"
        yield Flaw(("model", named), why)
    if (model.max_tokens or 0) > model.ctx:
        message = f"must be at most model.ctx, which is {model.ctx}"
        yield Flaw(("model", "max_tokens"), message, (("model", "ctx"),))
    for key in sorted(egg.rpc.model_fields_set - {"listen", "private_network"}):
        yield Flaw(("rpc", key), "is a slice's; remove it", (_ROLE,), at_key=True)
    yield from _slices(egg)
    if egg.split.policy == "declared" or egg.split.local is not None:
        yield from _overlaps(egg)


def _slices(egg: LlamaTables) -> Iterator[Flaw]:
    first: dict[object, int] = {}
    if len(egg.slices) > MOST_LAYERS_APART:
        message = f"names {len(egg.slices)}; llama.cpp spreads a model over {MOST_LAYERS_APART}"
        yield Flaw(("slices",), message, at_key=True)
    for index, entry in enumerate(egg.slices):
        at = ("slices", index)
        if entry.endpoint is None and entry.hid is None and not entry.discover:
            yield Flaw(at, "names no slice; give endpoint, hid or discover = true", at_key=True)
        if entry.discover and entry.endpoint is not None:
            yield Flaw((*at, "discover"), "excludes endpoint: a slice is named, or it is found")
        if entry.discover and entry.hid is None and entry.layers is not None:
            yield Flaw((*at, "layers"), "of which slice? discover finds all; give its hid")
        if entry.layers is not None and egg.split.policy != "declared":
            message = 'is read with split.policy = "declared" alone; set that'
            yield Flaw((*at, "layers"), message, (("split", "policy"),))
        yield from _twice(index, entry, first)


def _twice(index: int, entry: SliceEntry, first: dict[object, int]) -> Iterator[Flaw]:
    named = {"endpoint": entry.endpoint, "hid": entry.hid, "discover": entry.discover or None}
    if entry.hid is not None:
        named["discover"] = None
    for key, value in named.items():
        other = first.setdefault((key, value), index) if value is not None else index
        if other != index:
            yield Flaw(("slices", index, key), f"stands in slices[{other}] as well; each once")


def _overlaps(egg: LlamaTables) -> Iterator[Flaw]:
    """Yields blocks that two are to hold; whether all are held, only the model's header says."""
    held: list[tuple[str, Layers]] = []
    if egg.split.local is not None:
        held.append(("split.local", egg.split.local))
    for index, entry in enumerate(egg.slices):
        if entry.layers is None:
            continue
        for name, other in held:
            both = max(other[0], entry.layers[0]), min(other[1], entry.layers[1])
            if both[0] < both[1]:
                message = f"{both[0]}:{both[1]} is held by {name} as well; each block once"
                yield Flaw(("slices", index, "layers"), message, (("split", "local"),))
                break
        held.append((f"slices[{index}]", entry.layers))
