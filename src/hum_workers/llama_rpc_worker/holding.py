"""Holding: the slices of one route, leased together and given back together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Self

import structlog

from hum_workers.errors import HumError, SliceError
from hum_workers.llama_rpc_worker.facts import Offer, SliceState
from hum_workers.llama_rpc_worker.failure import SLICE_FAILED
from hum_workers.llama_rpc_worker.gathering import Gathering
from hum_workers.llama_rpc_worker.questions import STOPPED
from hum_workers.llama_rpc_worker.route import Route
from hum_workers.llama_rpc_worker.shares import named, plain
from hum_workers.llama_rpc_worker.slice_link import SliceLink
from hum_workers.llama_rpc_worker.values import is_ipv4

log = structlog.get_logger()


class NotHeld(HumError):
    """A slice of the route could not be leased; none is held."""

    def __init__(self, reason: str, *refused: Offer, free: bool = False) -> None:
        """`refused`: whose fault it is; `free`: it says still that anybody may have it."""
        super().__init__(reason)
        self.refused = refused
        self.free = free


class Holding:
    """All slices of a route. `lost` says why the first one was lost, if one was."""

    def __init__(self, route: Route, links: Sequence[SliceLink]) -> None:
        self.lost: str | None = None
        self.orderly = False
        """The slice that was lost was stopped, as somebody there has asked."""
        self.endpoints: list[str] = []
        """Where llama-server finds them, in the order of the route: `host:port`."""
        self._lost: Offer | None = None
        self._offers = [share.offer for share in route.shares]
        self._links = links

    @classmethod
    async def take(
        cls,
        route: Route,
        gathering: Gathering,
        on_lost: Callable[[str], None],
        *,
        unencrypted: bool = False,
    ) -> Self:
        """Leases every slice of the route, or none.

        All coordinators take them in the order of their hids: two that want the same slices never
        hold each other up. `unencrypted`: where a slice tells the place of its rpc-server, that is
        used and not its door.

        Raises:
            NotHeld: one could not be had; the message names it.
        """
        links = []
        for share in route.shares:
            link = gathering.link(share.offer.endpoint)
            if link is None:
                raise NotHeld(f"{named(share.offer)} has gone")
            links.append(link)
        self = cls(route, links)
        gathering.lost = lambda endpoint, reason: self._lose(endpoint, reason, on_lost)
        order = sorted(range(len(links)), key=lambda at: route.shares[at].offer.facts.hid)
        # A plan takes no other's lease: these are of an earlier life of this bee. One by one, each
        # would be recycled, and the ones before it again.
        states = [share.offer.facts.state for share in route.shares]
        if old := [at for at in order if states[at] is SliceState.LEASED]:
            told = await asyncio.gather(*(_end_old(links[at], route, at) for at in old))
            raise NotHeld("; ".join(told), *(route.shares[at].offer for at in old))
        try:
            for at in order:
                share = route.shares[at]
                try:
                    await links[at].lease(share.layers, route.fingerprint)
                except SliceError as error:
                    reason = f"{named(share.offer)} can't be leased: {error}"
                    raise NotHeld(reason, share.offer, free=await _is_free(links[at])) from error
            for at, link in enumerate(links):
                place = _direct(route.shares[at].offer, unencrypted)
                self.endpoints.append(place or f"127.0.0.1:{await link.forward()}")
        except BaseException:  # all of them or none, in a cancel as well
            await self.release()
            raise
        return self

    async def release(self) -> None:
        """Gives all of them back; never fails."""
        await asyncio.gather(*(link.release() for link in self._links))

    def silent(self) -> str:
        """Returns in half a sentence which slice llama-server waits for; empty: for none."""
        asked = [
            (at, named(offer))
            for link, offer in zip(self._links, self._offers, strict=True)
            if (at := link.unanswered) is not None
        ]
        # A command that wants no answer leaves its slice in this list; the last one is the one.
        return f"{max(asked)[1]} was asked last and has not answered" if asked else ""

    def blamed(self, reason: str) -> Sequence[Offer]:
        """Returns whose end is why a cell ended for this reason; all, where nobody can tell."""
        if self._lost is not None:
            return [self._lost]
        return [one for one in self._offers if named(one) in reason] or self._offers

    def explain(self, text: str) -> str:
        """Returns a line of llama-server with the slices' names for the ports it knows."""
        told = text
        for endpoint, offer in zip(self.endpoints, self._offers, strict=False):
            told = told.replace(endpoint, named(offer))
        if told == text and text.startswith(SLICE_FAILED):
            # It does not say which one; of a stream that passes us by we know nothing either.
            told = f"{text}, one of {', '.join(map(named, self._offers))}"
        return told

    def _lose(self, endpoint: str, reason: str, on_lost: Callable[[str], None]) -> None:
        for offer in self._offers:
            if offer.endpoint == endpoint and self.lost is None:
                self._lost = offer
                self.orderly = reason == STOPPED
                self.lost = f"{named(offer)} was lost: {reason}"
                on_lost(self.lost)


async def _end_old(link: SliceLink, route: Route, at: int) -> str:
    """Ends a lease of an earlier life, as to ask for another one does; returns what came of it."""
    share = route.shares[at]
    try:
        await link.lease(share.layers, route.fingerprint)
    except SliceError as error:
        return f"{named(share.offer)} can't be leased: {error}"
    await link.release()
    return f"{named(share.offer)} was free and is recycled"


async def _is_free(link: SliceLink) -> bool:
    """Says whether a slice that was not to be had says still that it is free."""
    try:
        return (await link.describe()).state is SliceState.FREE
    except SliceError:
        return False


def _direct(offer: Offer, unencrypted: bool) -> str | None:
    """Returns the place of rpc-server itself, if it may be used: the slice alone can't say so."""
    place = offer.facts.direct
    if place is None:
        return None
    host, _, port = place.rpartition(":")
    door = offer.endpoint.rpartition(":")[0]
    if not unencrypted:
        why = "this egg has no [rpc] private_network = true"
    elif not (is_ipv4(host) and port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16):
        why = f"{plain(place)} is not one address and port"
    elif host != door:
        why = f"{plain(place)} is not where its door is, {door}"
    else:
        return place
    log.warning("worker.slice.not_direct", slice=named(offer), reason=f"its door is used, as {why}")
    return None
