"""Gathering: the slices that a coordinator may use, each asked at its own door, again and again.

Named by the egg or hinted at by humd; a slice counts only while its door answers. Owns one link a
slice. It decides nothing: `offers` and `absent` are what it sees, `changed` is called when that
is something else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from hum_workers.errors import SliceError
from hum_workers.llama_rpc_worker.facts import Absent, Layers, Offer
from hum_workers.llama_rpc_worker.slice_link import SliceLink

log = structlog.get_logger()

LOOK = 2.0
"""Seconds between two rounds of questions."""
PAUSE = 5.0
"""Seconds before it goes on after a failure of its own."""


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
        unknown: Callable[[], Iterable[Absent]] = tuple,
    ) -> None:
        """`unknown` says which slices are wanted and have no known door."""
        self.changed = changed
        self.offers: list[Offer] = []
        """In the order in which the doors are known."""
        self.absent: Sequence[Absent] = ()
        """The doors that are known and offer nothing, then the slices that no door is known of."""
        self._known = known
        self._unknown = unknown
        self._make = link
        self._links: dict[Known, SliceLink] = {}
        self._old: set[SliceLink] = set()
        """Those of an earlier egg; one that is leased stays until it is given back."""
        self.lost: Callable[[str, str], None] = lambda endpoint, reason: None
        """Called with the endpoint of a slice that was leased and is no more, and the reason."""
        self._puzzles: dict[str, str] = {}
        """By endpoint, the error of a door that is no answer of any kind, as it was logged."""
        self._rounds = 0
        self._begun = 0
        self._asked = asyncio.Event()
        self._looked = asyncio.Event()

    @property
    def asked(self) -> bool:
        """Whether every known door was asked once."""
        return self._rounds > 0

    def link(self, endpoint: str) -> SliceLink | None:
        """Returns the link to a door that answers."""
        return next((link for k, link in self._links.items() if k.endpoint == endpoint), None)

    def adopt(self, other: Gathering) -> None:
        """Asks the doors of another egg from now on, each by a link of its own."""
        self._known, self._unknown, self._make = other._known, other._unknown, other._make
        self._old = set(self._links.values())
        self.hurry()

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

    async def run(self, pause: float = PAUSE) -> None:
        """Asks for ever; whatever fails, it goes on after a pause."""
        while True:
            self._asked.clear()  # before: whoever is in a hurry now wants a round that begins now
            try:
                await self.look()
            except Exception:  # without rounds no slice would ever be found again
                log.exception("worker.gathering.failed", again_in=pause)
                await asyncio.sleep(pause)
                continue
            try:
                async with asyncio.timeout(LOOK):  # wait_for may lose a cancel (gh-86296)
                    await self._asked.wait()
            except TimeoutError:
                pass

    async def look(self) -> None:
        """Asks every known door once."""
        self._begun += 1
        try:
            news = await self._look()
        finally:  # nobody waits for ever for a round that failed
            self._rounds = self._begun
            self._looked.set()
        if news or self._rounds == 1:
            self._tell()

    async def _look(self) -> bool:
        """Asks; says whether that is something else than before."""
        known = list(dict.fromkeys(self._known()))
        for gone, link in list(self._links.items()):
            if (gone not in known or link in self._old) and not link.leased:
                del self._links[gone]
                self._old.discard(link)
                self._puzzles.pop(gone.endpoint, None)
                await link.close()
        answers = await asyncio.gather(*(self._ask(one) for one in known))
        offers = [answer for answer in answers if isinstance(answer, Offer)]
        absent = [
            Absent(reason=answer, layers=one.layers)
            for one, answer in zip(known, answers, strict=True)
            if isinstance(answer, str)
        ]
        absent += self._unknown()
        was = [_plain(offer) for offer in self.offers], self.absent
        self.offers, self.absent = offers, absent
        return was != ([_plain(offer) for offer in offers], absent)

    def _tell(self) -> None:
        try:
            self.changed()
        except Exception as error:  # what hears of a round can't end the rounds
            log.exception("worker.gathering.changed_failed", reason=type(error).__name__)

    async def close(self) -> None:
        """Ends all links."""
        links, self._links = list(self._links.values()), {}
        await asyncio.gather(*(link.close() for link in links))

    def _lost(self, endpoint: str, reason: str) -> None:
        self.lost(endpoint, reason)

    async def _ask(self, known: Known) -> Offer | str:
        """Returns what a door offers, or why it offers nothing: that is its own, whatever it is."""
        try:
            answer = await self._answer(known)
        except SliceError as error:
            answer = str(error)
        except Exception as error:  # what one door says is no trouble of the others
            return self._puzzled(known.endpoint, error)
        self._puzzles.pop(known.endpoint, None)
        return answer

    def _puzzled(self, endpoint: str, error: Exception) -> str:
        kind = type(error).__name__
        if self._puzzles.get(endpoint) != kind:
            self._puzzles[endpoint] = kind
            reason = f"{endpoint}: {kind}"
            log.warning("worker.gathering.door_failed", reason=reason, exc_info=error)
        return f"the slice at {endpoint} can't be asked: {kind}; this bee's log says where"

    async def _answer(self, known: Known) -> Offer | str:
        link = self._links.get(known)
        if link is None:
            link = self._links[known] = self._make(known, partial(self._lost, known.endpoint))
        await link.connect()
        facts = await link.describe()
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
