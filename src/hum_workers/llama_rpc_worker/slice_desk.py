"""The desk of a slice: its lease, and what it says of itself at the door and in the hello.

After the end of a lease, however it came, the process is replaced before anybody else gets it: a
new client could read what the last one left in its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import structlog

from hum_workers.llama_rpc_worker.facts import Build, Device, Layers, SliceFacts, SliceState
from hum_workers.llama_rpc_worker.lease import Lease, LeaseBook, LeaseRefused

log = structlog.get_logger()


class Desk:
    """Answers for one slice (see `questions.SliceDesk`). Its nest tells it what the process does.

    `changed` is called when the hello would say something else.
    """

    def __init__(
        self,
        *,
        hid: str,
        name: str,
        build: Callable[[], Build],
        memory: Callable[[tuple[Device, ...]], int],
        layers: Layers | None,
        fingerprint: str | None,
        direct: bool,
        changed: Callable[[], None],
        now: Callable[[], float],
    ) -> None:
        """`memory` gives the bytes that a model may take on these devices."""
        self.recycle: Callable[[str], None] = lambda reason: None
        """Set by the nest: has the process replaced."""
        self.end_streams: Callable[[], None] = lambda: None
        """Set by who opens the door: ends what goes through it to rpc-server."""
        self.take_leave: Callable[[], None] = lambda: None
        """Set by who opens the door: says there that the slice is being stopped."""
        self.book = LeaseBook(layers=layers, fingerprint=fingerprint, ended=self._ended)
        self._hid = hid
        self._name = name
        self._build = build
        self._memory = memory
        self._bound = layers, fingerprint
        self._direct = direct
        self._changed = changed
        self._now = now
        self._place: str | None = None
        """`host:port` of rpc-server while it answers."""
        self._devices: tuple[Device, ...] = ()
        self._protocol: tuple[int, int, int] | None = None

    def __str__(self) -> str:
        """What it does now, in a few words."""
        lease = self.book.lease
        if lease is None:
            return str(self.book.state)
        return f"layers {_span(lease.layers)} for {lease.holder[:13]}"

    def provides(self) -> list[str]:
        """Returns what the hello says of it."""
        said = [f"build:{self._build().commit}"]
        if (lease := self.book.lease) is not None:
            said += [f"layers:{_span(lease.layers)}", f"gguf:{lease.fingerprint}"]
        return said

    def starting(self) -> None:
        """Its process is started, again or for the first time."""
        self._place = None
        if self.book.state in (SliceState.FAILED, SliceState.FREE):
            self.book.starting()

    def ready(self, place: str, facts: Mapping[str, Any]) -> None:
        """Its process answers at `place`; `facts` are those of its cell."""
        self._place = place
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
        """rpc-server has a client."""
        if self.book.state is SliceState.FREE and self._place is not None:
            # It answers nobody else for as long as that one stays, and knows no password.
            log.warning("worker.slice.stranger", egg=self._name)
            self.book.starting()
            self._place = None
            self.recycle("somebody came past its door")

    def look(self) -> None:
        """Ends a lease whose time is over."""
        self.book.expire(self._now())

    def facts(self) -> SliceFacts:
        """See `questions.SliceDesk`."""
        build = self._build()
        layers, fingerprint = self._bound
        return SliceFacts(
            hid=self._hid,
            name=self._name,
            build=Build(
                commit=build.commit, digest=build.digest, protocol=self._protocol or build.protocol
            ),
            devices=self._devices,
            memory=self._memory(self._devices),
            layers=layers,
            fingerprint=fingerprint,
            state=self.book.state,
            holder=self.book.holder,
            direct=self._place if self._direct else None,
        )

    def lease(self, holder: str, layers: Layers, fingerprint: str, life: str) -> str:
        """See `questions.SliceDesk`."""
        lease = self.book.grant(holder, layers, fingerprint, self._now(), life)
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
