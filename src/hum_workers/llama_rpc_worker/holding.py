"""Holding: the slices of one route, leased together and given back together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Self

from hum_workers.errors import HumError, SliceError
from hum_workers.llama_rpc_worker.facts import Offer, SliceState
from hum_workers.llama_rpc_worker.failure import SLICE_FAILED
from hum_workers.llama_rpc_worker.gathering import Gathering
from hum_workers.llama_rpc_worker.questions import STOPPED
from hum_workers.llama_rpc_worker.route import Route
from hum_workers.llama_rpc_worker.slice_link import SliceLink


class NotHeld(HumError):
    """A slice of the route could not be leased; none is held."""


class Holding:
    """All slices of a route. `lost` says why the first one was lost, if one was."""

    def __init__(self, route: Route, links: Sequence[SliceLink]) -> None:
        self.lost: str | None = None
        self.orderly = False
        """The slice that was lost was stopped, as somebody there has asked."""
        self.endpoints: list[str] = []
        """Where llama-server finds them, in the order of the route: `host:port`."""
        self._offers = [share.offer for share in route.shares]
        self._links = links

    @classmethod
    async def take(cls, route: Route, gathering: Gathering, on_lost: Callable[[str], None]) -> Self:
        """Leases every slice of the route, or none.

        All coordinators take them in the order of their hids: two that want the same slices never
        hold each other up.

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
            raise NotHeld("; ".join(told))
        try:
            for at in order:
                share = route.shares[at]
                try:
                    await links[at].lease(share.layers, route.fingerprint)
                except SliceError as error:
                    raise NotHeld(f"{named(share.offer)} can't be leased: {error}") from error
            for at, link in enumerate(links):
                direct = route.shares[at].offer.facts.direct
                self.endpoints.append(direct or f"127.0.0.1:{await link.forward()}")
        except BaseException:
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


def named(offer: Offer) -> str:
    """Returns the slice as people know it."""
    return f"slice {offer.facts.name} at {offer.endpoint}"
