"""The doors that a coordinator knows: those its egg names, and those its humd hints at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hum_workers.llama_rpc_worker import bees_file
from hum_workers.llama_rpc_worker.facts import Absent, Layers
from hum_workers.llama_rpc_worker.gathering import Gathering, Known
from hum_workers.llama_rpc_worker.slice_link import SliceLink
from hum_workers.llama_rpc_worker.trust import Trust
from hum_workers.program.annex import Home

if TYPE_CHECKING:
    from hum_workers.llama_rpc_worker.egg import LlamaEgg


def gathering(egg: LlamaEgg, home: Home) -> Gathering:
    """Returns what asks the doors of one coordinator's egg; nothing is asked yet."""
    return Gathering(
        partial(known, egg, home), partial(_link, egg, home), unknown=partial(unknown, egg, home)
    )


def known(egg: LlamaEgg, home: Home) -> Iterator[Known]:
    """Yields the doors that a coordinator's egg names, and those that its humd hints at."""
    named = set()
    for one in egg.slices:
        if one.endpoint is not None:
            host, port = one.endpoint
            named.add((host, port))
            yield Known(host, port, one.hid, one.layers)
    everybody, wanted = _sought(egg)
    if everybody or wanted:
        for host, port, hid in bees_file.slices(_bees(home)):
            if (host, port) not in named and (everybody or hid in wanted):
                yield Known(host, port, hid, wanted.get(hid))


def unknown(egg: LlamaEgg, home: Home) -> Iterator[Absent]:
    """Yields the slices that an egg wants and that no door is known of."""
    everybody, wanted = _sought(egg)
    if not (everybody or wanted):
        return
    bees = _bees(home)
    listed = {hid for _, _, hid in bees_file.slices(bees)}
    if not bees.exists():
        yield Absent(
            reason=f"humd is not there, or knows no bee: there is no {bees}; start humd, then the "
            "slices' bees under it, or name their endpoints in [[slices]]"
        )
    elif everybody and not listed:
        yield Absent(
            reason=f"humd lists no slice in {bees}: start the slices' bees under it, or name their "
            "endpoints in [[slices]]"
        )
    for hid, layers in wanted.items():
        if hid not in listed:
            yield Absent(
                reason=f"the slice {hid} of [[slices]] is not listed by humd in {bees}: start its "
                "bee under this humd, or give its endpoint",
                layers=layers,
            )


def _sought(egg: LlamaEgg) -> tuple[bool, dict[str, Layers | None]]:
    """Returns whether every slice under humd is meant, and the layers of those meant by hid."""
    without = [one for one in egg.slices if one.endpoint is None]
    everybody = any(one.discover and one.hid is None for one in without)
    return everybody, {one.hid: one.layers for one in without if one.hid is not None}


def _bees(home: Home) -> Path:
    return home.state / "hum" / "bees.json"


def _link(egg: LlamaEgg, home: Home, known: Known, on_lost: Callable[[str], None]) -> SliceLink:
    named = [one.hid for one in egg.slices if one.hid]
    trust = Trust(named, home.state)
    door = known.host, known.port
    return SliceLink(home.seed, door, known.hid, trust, on_lost=on_lost, on_cut=on_lost)
