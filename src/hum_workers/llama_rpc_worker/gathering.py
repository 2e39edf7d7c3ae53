"""Gathering: the slices that a coordinator may use, each asked at its own door, again and again.

Named by the egg or hinted at by humd; a slice counts only while its door answers. Owns one link a
slice. It decides nothing: `offers` and `troubles` are what it sees, `changed` is called when that
is something else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import structlog

from hum_workers.errors import SliceError
from hum_workers.llama_rpc_worker.facts import Layers, Offer
from hum_workers.llama_rpc_worker.slice_link import SliceLink

log = structlog.get_logger()

LOOK = 2.0
"""Seconds between two rounds of questions."""


@dataclass(frozen=True)
class Known:
    """A door to knock at."""

    host: str
    port: int
    hid: str | None = None
    layers: Layers | None = None

    @property
    def endpoint(self) -> str:
        """`host:port`."""
        return f"{self.host}:{self.port}"


class Gathering:
    """See the module. `run` is its task; `close` ends the links."""

    def __init__(
        self,
        known: Callable[[], Iterable[Known]],
        link: Callable[[Known, Callable[[str], None]], SliceLink],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.changed = changed
        self.offers: list[Offer] = []
        """In the order in which the doors are known."""
        self.troubles: Mapping[str, str] = {}
        """By endpoint, why a door that is known offers nothing; one sentence."""
        self._known = known
        self._make = link
        self._links: dict[Known, SliceLink] = {}
        self.lost: Callable[[str, str], None] = lambda endpoint, reason: None
        """Called with the endpoint of a slice that was leased and is no more, and the reason."""
        self._rounds = 0
        self._begun = 0
        self._asked = asyncio.Event()
        self._looked = asyncio.Event()

    def link(self, endpoint: str) -> SliceLink | None:
        """Returns the link to a door that answers."""
        return next((link for k, link in self._links.items() if k.endpoint == endpoint), None)

    def hurry(self) -> None:
        """Asks again now."""
        self._asked.set()

    async def fresh(self) -> None:
        """Returns when every door was asked after this call; `run` must be running."""
        wanted = self._begun + 1
        self.hurry()
        while self._rounds < wanted:
            self._looked.clear()
            await self._looked.wait()

    async def run(self) -> None:
        """Asks for ever."""
        while True:
            self._asked.clear()  # before: whoever is in a hurry now wants a round that begins now
            await self.look()
            try:
                await asyncio.wait_for(self._asked.wait(), LOOK)
            except TimeoutError:
                pass

    async def look(self) -> None:
        """Asks every known door once."""
        self._begun += 1
        known = list(dict.fromkeys(self._known()))
        for gone, link in list(self._links.items()):
            if gone not in known and not link.leased:
                del self._links[gone]
                await link.close()
        answers = await asyncio.gather(*(self._ask(one) for one in known))
        offers = [answer for answer in answers if isinstance(answer, Offer)]
        troubles = {
            one.endpoint: answer
            for one, answer in zip(known, answers, strict=True)
            if isinstance(answer, str)
        }
        was = [_plain(offer) for offer in self.offers], self.troubles
        self.offers, self.troubles = offers, troubles
        self._rounds += 1
        self._looked.set()
        if was != ([_plain(offer) for offer in offers], troubles) or self._rounds == 1:
            self.changed()

    async def close(self) -> None:
        """Ends all links."""
        links, self._links = list(self._links.values()), {}
        await asyncio.gather(*(link.close() for link in links))

    def _lost(self, endpoint: str, reason: str) -> None:
        self.lost(endpoint, reason)

    async def _ask(self, known: Known) -> Offer | str:
        link = self._links.get(known)
        if link is None:
            link = self._links[known] = self._make(known, partial(self._lost, known.endpoint))
        try:
            await link.connect()
            facts = await link.describe()
        except SliceError as error:
            return str(error)
        if facts.hid != link.hid:
            return f"{known.endpoint} proves to be {link.hid} and says it is {facts.hid}"
        return Offer(
            endpoint=known.endpoint,
            facts=facts,
            declared=known.layers,
            round_trip=link.round_trip,
        )


def _plain(offer: Offer) -> tuple[object, ...]:
    return offer.endpoint, offer.declared, offer.facts
