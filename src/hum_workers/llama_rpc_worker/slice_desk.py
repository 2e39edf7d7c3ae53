"""The desk of a slice: its lease, and what it says of itself at the door and in the hello.

After the end of a lease, however it came, the process is replaced before anybody else gets it: a
new client could read what the last one left in its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from hum_workers.llama_rpc_worker.facts import Build, Device, Layers, SliceFacts, SliceState
from hum_workers.llama_rpc_worker.lease import Lease, LeaseBook, LeaseRefused

log = structlog.get_logger()

NOT_STARTED = Build(commit="unknown", digest="", protocol=(0, 0, 0))
"""Before its first process."""
STRANGER = "somebody came past its door"


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What its egg lends, and to what it binds a lease."""

    memory: Callable[[tuple[Device, ...]], int]
    """Gives the bytes that a model may take on these devices."""
    layers: Layers | None = None
    fingerprint: str | None = None
    direct: bool = False
    """Whether the place of rpc-server is told."""


class Desk:
    """Answers for one slice (see `questions.SliceDesk`). Its nest tells it what the process does.

    `changed` is called when the hello would say something else.
    """

    def __init__(
        self,
        *,
        hid: str,
        name: str,
        terms: Terms,
        changed: Callable[[], None],
        now: Callable[[], float],
    ) -> None:
        self.build: Build | None = None
        """Set by the nest: which llama.cpp the process is of, whatever lies on the disk by now."""
        self.recycle: Callable[[str], None] = lambda reason: None
        """Set by the nest: has the process replaced."""
        self.end_streams: Callable[[], None] = lambda: None
        """Set by who opens the door: ends what goes through it to rpc-server."""
        self.take_leave: Callable[[], None] = lambda: None
        """Set by who opens the door: says there that the slice is being stopped."""
        self.book = LeaseBook(layers=terms.layers, fingerprint=terms.fingerprint, ended=self._ended)
        self._hid = hid
        self._name = name
        self._terms = terms
        self._changed = changed
        self._now = now
        self._place: str | None = None
        """`host:port` of rpc-server while it answers."""
        self._devices: tuple[Device, ...] = ()
        self._protocol: tuple[int, int, int] | None = None
        self._direct = False
        """Its process may have clients that did not come by the door."""
        self._let_in = 0
        """Clients that the lease's holder was given the address for."""
        self._came = 0
        """Clients that rpc-server has had in this lease."""

    def __str__(self) -> str:
        """What it does now, in a few words."""
        lease = self.book.lease
        if lease is None:
            return str(self.book.state)
        return f"layers {_span(lease.layers)} for {lease.holder[:13]}"

    def provides(self) -> list[str]:
        """Returns what the hello says of it."""
        said = [f"build:{self.build.commit}"] if self.build is not None else []
        if (lease := self.book.lease) is not None:
            said += [f"layers:{_span(lease.layers)}", f"gguf:{lease.fingerprint}"]
        return said

    def adopt(self, terms: Terms) -> None:
        """Takes other terms; a lease that runs keeps what it has."""
        self._terms = terms
        self.book.bind(terms.layers, terms.fingerprint)

    def starting(self) -> None:
        """Its process is started, again or for the first time."""
        self._place = None
        if self.book.state in (SliceState.FAILED, SliceState.FREE):
            self.book.starting()

    def ready(self, place: str, facts: Mapping[str, Any]) -> None:
        """Its process answers at `place`; `facts` are those of its cell."""
        self._place, self._direct = place, self._terms.direct
        self._devices = tuple(Device(name=n, free=f, total=t) for n, f, t in facts["devices"])
        major, minor, patch = facts["protocol"]
        self._protocol = int(major), int(minor), int(patch)
        if self.book.state is SliceState.RECYCLING:
            self.book.recycled()
            log.info("worker.slice.recycled", egg=self._name)
        else:
            self.book.ready()
        self._changed()

    def failed(self, reason: str) -> None:
        """Its process has ended, or can't be started."""
        self._place = None
        if self.book.state is not SliceState.FAILED:
            self.book.failed(reason)
            self._changed()

    def accepted(self) -> None:
        """rpc-server has a client. It answers nobody else meanwhile, and knows no password."""
        if self._place is None:
            return
        if self.book.state is SliceState.FREE:
            log.warning("worker.slice.stranger", egg=self._name)
            self.book.starting()
            self._place = None
            self.recycle(STRANGER)
        elif self.book.lease is not None and not self._direct:
            self._came += 1
            if self._came > self._let_in:
                log.warning("worker.slice.stranger", egg=self._name, holder=self.book.holder)
                self.book.revoke(STRANGER)

    def look(self) -> None:
        """Ends a lease whose time is over."""
        self.book.expire(self._now())

    def facts(self) -> SliceFacts:
        """See `questions.SliceDesk`."""
        build, terms = self.build or NOT_STARTED, self._terms
        return SliceFacts(
            hid=self._hid,
            name=self._name,
            build=Build(
                commit=build.commit, digest=build.digest, protocol=self._protocol or build.protocol
            ),
            devices=self._devices,
            memory=terms.memory(self._devices),
            layers=terms.layers,
            fingerprint=terms.fingerprint,
            state=self.book.state,
            holder=self.book.holder,
            direct=self._place if self._direct else None,
        )

    def lease(self, holder: str, layers: Layers, fingerprint: str, life: str) -> str:
        """See `questions.SliceDesk`."""
        lease = self.book.grant(holder, layers, fingerprint, self._now(), life)
        self._let_in = self._came = 0
        log.info(
            "worker.slice.leased",
            egg=self._name,
            holder=holder,
            layers=_span(layers),
            model=fingerprint,
        )
        self._changed()
        return lease.token

    def renew(self, holder: str, token: str) -> None:
        """See `questions.SliceDesk`."""
        self.book.renew(holder, token, self._now())

    def release(self, holder: str, token: str) -> None:
        """See `questions.SliceDesk`."""
        self.book.release(holder, token, self._now())

    def address(self, holder: str, token: str) -> tuple[str, int]:
        """See `questions.SliceDesk`."""
        self.book.held(holder, token, self._now())
        if self._place is None:
            raise LeaseRefused("rpc-server is not there")
        self._let_in += 1
        host, _, port = self._place.rpartition(":")
        return host, int(port)

    def _ended(self, lease: Lease, reason: str) -> None:
        log.info("worker.slice.lease_over", egg=self._name, holder=lease.holder, reason=reason)
        self._place = None
        self.end_streams()
        if self.book.state is SliceState.RECYCLING:
            self.recycle(f"its lease is over: {reason}")
        self._changed()


def _span(layers: Layers) -> str:
    return f"{layers[0]}:{layers[1]}"
