"""Proof: llama-server's own report of devices and bytes, compared with the route (pure).

Its lines at `-lv 4` say which devices it uses, and the bytes of weights and KV cache on each;
those at `-lv 5` name the device of each layer as well. A buffer carries the number that its device
has within its server, so it is told by `host:port`. What the coordinator maps from a file is one
range from its first tensor to its last, with all between: only where that is one tensor can it be
compared. It need not be: what each slice holds to the byte is nowhere else.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from hum_workers.errors import one_line
from hum_workers.llama_rpc_worker.route import Route
from hum_workers.llama_rpc_worker.shares import Share, kv_of, named, span, weights_of
from hum_workers.program.findings import amount

MIB = 1 << 20
SLACK = 64 << 10
"""Bytes by which a buffer may differ at least: padding of tensors, and two digits behind a MiB."""
PART = 100
"""A buffer may differ by one part of this many, but not by a quarter of a layer."""
MOST_LINES = 10_000
LONGEST_LINE = 1000
"""Characters of a line that are looked at; those of use have 100."""
MOST_SAID = 20

_DEVICE = re.compile(r"using device (\S+) \((.*?)\) \(")
_BUFFER = re.compile(r"([^\s:]\S*) +(model|KV) buffer size = +([0-9]+\.[0-9]+) MiB")
_LAYER = re.compile(r"layer +(\d+) assigned to device ([^\s,]+)")
_UNUSED = re.compile(r"unused tensor blk\.(\d+)\.\S* \(size = (\d+) bytes\)")
_REMOTE = re.compile(r"RPC\d+\[(.*)\]")


class Proof:
    """Reads the lines of one load. `endpoints` are those that llama-server was given."""

    def __init__(self, route: Route, endpoints: Sequence[str]) -> None:
        self._route = route
        self._endpoints = list(endpoints)
        self._devices: list[tuple[str, str]] = []
        """Name and description of each device, in the order of use; of a slice `host:port`."""
        self._bytes: dict[str, Counter[str]] = {"model": Counter(), "KV": Counter()}
        """Of weights and of KV cache, by `host:port` or by the name of a buffer here."""
        self._layers: dict[int, str] = {}
        self._unused: Counter[int] = Counter()
        """Bytes of tensors that llama-server leaves out, by block."""
        self._lines = 0

    def line(self, text: str) -> None:
        """Reads a line of the log; most say nothing here."""
        text = text[:LONGEST_LINE]
        if self._lines >= MOST_LINES or not any(
            word in text for word in ("using device", "buffer size", "assigned to", "unused tensor")
        ):
            return
        self._lines += 1
        if found := _BUFFER.search(text):
            name, kind, size = found.groups()
            remote = _REMOTE.fullmatch(name)
            self._bytes[kind][remote[1] if remote else name] += round(float(size) * MIB)
        elif found := _DEVICE.search(text):
            self._devices.append((found[1], found[2]))
        elif found := _LAYER.search(text):
            self._layers[int(found[1])] = found[2]
        elif found := _UNUSED.search(text):
            self._unused[int(found[1])] += int(found[2])

    def differences(self) -> list[str]:
        """Returns what is not as the route says; one sentence each, none when it is proven."""
        found = [one_line(line) for line in self._differences()]
        if len(found) > MOST_SAID:
            found[MOST_SAID:] = [f"{len(found) - MOST_SAID:,} more differences"]
        return found

    def _differences(self) -> Iterator[str]:
        yield from self._wrong_devices()
        for share, endpoint in zip(self._route.shares, self._endpoints, strict=True):
            yield from self._wrong_share(share, endpoint)
        yield from self._wrong_here()
        yield from self._wrong_layers()

    def _wrong_devices(self) -> Iterator[str]:
        used = Counter(description for _, description in self._devices)
        for share, endpoint in zip(self._route.shares, self._endpoints, strict=True):
            if used[endpoint] != 1:
                yield (
                    f"{named(share.offer)} ({endpoint}) is {used[endpoint]} devices of "
                    "llama-server and has to be one"
                )
        for name, description in self._devices:
            if description not in self._endpoints:
                yield f"llama-server uses the device {name} ({description}), which has no share"
        order = [description for _, description in self._devices if description in self._endpoints]
        if sorted(order) == sorted(self._endpoints) and order != self._endpoints:
            yield f"the devices are in the order {', '.join(order)}, not in that of the route"

    def _wrong_share(self, share: Share, endpoint: str) -> Iterator[str]:
        held = self._bytes["model"][endpoint]
        most = share.weights
        least = most - sum(self._unused[n] for n in range(*share.layers))
        if share is self._route.shares[-1] and not share.output:
            most += self._norm()
        if not least - self._slack(least) <= held <= most + self._slack(most):
            yield (
                f"{named(share.offer)} ({endpoint}) holds {amount(held)} of weights and layers "
                f"{span(share.layers)}{' with the output' if share.output else ''} are "
                f"{amount(most)}"
            )
        kv = self._bytes["KV"][endpoint]
        if kv > share.kv + self._slack(share.kv):
            yield (
                f"{named(share.offer)} ({endpoint}) holds {amount(kv)} of KV cache and "
                f"{amount(share.kv)} are planned"
            )

    def _norm(self) -> int:
        """Bytes of the output layer that stay on the last device beside a local matrix."""
        model = self._route.model
        return max(model.output - model.embedding, 0) if model.tied else 8 * model.hidden_width

    def _slack(self, size: int) -> int:
        smallest = min(layer.weights for layer in self._route.model.layers)
        return max(SLACK, min(size // PART, smallest // 4))

    def _wrong_here(self) -> Iterator[str]:
        route = self._route
        model, local = route.model, route.local
        for kind, sizes in self._bytes.items():
            for name in sizes:
                if name not in self._endpoints and not _is_here(name):
                    yield f"llama-server has a {kind} buffer on {name}, which has no share"
        kv = sum(size for name, size in self._bytes["KV"].items() if _is_here(name))
        planned = kv_of(model, route.want, local)
        if kv > planned + self._slack(planned):
            yield (
                f"the coordinator holds {amount(kv)} of KV cache and {amount(planned)} are planned"
            )
        weights = self._bytes["model"]
        here = sum(size for name, size in weights.items() if _is_here(name))
        planned = model.embedding + weights_of(model, local)
        if route.head == "local":
            planned += model.output - (model.embedding if model.tied else 0)
        lone = local[0] == local[1] and model.tied and model.embedding <= model.output
        ranges = any(name.endswith("_Mapped") for name in weights)
        if here > planned + self._slack(planned) and (lone or not ranges):
            yield (
                f"the coordinator holds {amount(here)} of weights and its part is {amount(planned)}"
            )

    def _wrong_layers(self) -> Iterator[str]:
        """Compares what `-lv 5` says; nothing where it was not said."""
        if not self._layers:
            return
        names = {description: name for name, description in self._devices}
        count = len(self._route.model.layers)
        planned = dict.fromkeys(range(count + 1), "CPU")
        for share, endpoint in zip(self._route.shares, self._endpoints, strict=True):
            device = names.get(endpoint, endpoint)
            planned.update(dict.fromkeys(range(*share.layers), device))
            planned[count] = device
        for n, device in planned.items():
            said = self._layers.get(n, "no device")
            if said != device:
                layer = "the output" if n == count else f"layer {n}"
                yield f"{layer} is on {said} and has to be on {device}"


def _is_here(buffer: str) -> bool:
    """Tells whether a buffer is in the coordinator's own memory."""
    return buffer.startswith("CPU") or buffer.endswith("_Host")
