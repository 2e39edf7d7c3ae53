"""Leases: who holds a slice, and since when (pure; the clock comes in).

One holder a slice. A lease that is not renewed for `LEASE_TIME` is over. However one ends, the
slice's memory holds the last holder's data, so that nobody gets it before it is `recycled`.

```
STARTING ──ready──> FREE ──grant──> LEASED ──release, expiry, revoke──> RECYCLING ──recycled──> FREE
   ^                 │                │                                     │
   └────starting─────┴──── FAILED <──failed (from any state but itself)─────┘
```
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from hum_workers.errors import HumError
from hum_workers.llama_rpc_worker.facts import Layers, SliceState

LEASE_TIME = 20.0
"""Seconds without a renewal after which a lease is over."""
_TOKEN_BYTES = 16


class LeaseRefused(HumError):
    """The slice can't be had, or is not held; the message is one sentence for its asker."""


class WrongTransition(RuntimeError):
    """A slice can't go from its state by this method: a fault of the caller."""


@dataclass(frozen=True, kw_only=True)
class Lease:
    """One granted lease. The token is worth nothing without the holder's key."""

    holder: str
    """The hid of the coordinator's bee."""
    life: str
    """Which run of that bee it was; empty: it did not say."""
    layers: Layers
    fingerprint: str
    token: str


def any_token() -> str:
    """Returns a token that nobody guesses."""
    return secrets.token_hex(_TOKEN_BYTES)


class LeaseBook:
    """The one lease of one slice. `ended` is called once for each, after the change of state."""

    def __init__(
        self,
        *,
        layers: Layers | None = None,
        fingerprint: str | None = None,
        lease_time: float = LEASE_TIME,
        mint: Callable[[], str] = any_token,
        ended: Callable[[Lease, str], None] = lambda lease, reason: None,
    ) -> None:
        """`layers` and `fingerprint` are what the slice's egg binds it to."""
        self.state = SliceState.STARTING
        self.lease: Lease | None = None
        self.reason = ""
        """Why it is RECYCLING or FAILED."""
        self._layers = layers
        self._fingerprint = fingerprint
        self._lease_time = lease_time
        self._mint = mint
        self._ended = ended
        self._until = 0.0

    def bind(self, layers: Layers | None, fingerprint: str | None) -> None:
        """Binds leases to come to this; one that runs goes on."""
        self._layers = layers
        self._fingerprint = fingerprint

    @property
    def holder(self) -> str | None:
        """The hid that leases it."""
        return self.lease.holder if self.lease else None

    @property
    def expires(self) -> float | None:
        """When the lease is over without a renewal; None: there is no lease."""
        return self._until if self.lease else None

    def grant(
        self, holder: str, layers: Layers, fingerprint: str, now: float, life: str = ""
    ) -> Lease:
        """Leases the slice to `holder` until `now` + lease time.

        A bee runs once at a time: if the holder's other `life` has the lease, that one is over.

        Raises:
            LeaseRefused: it is not free, or its egg binds it to something else.
        """
        self.expire(now)
        if (
            self.lease
            and self.lease.holder == holder
            and life
            and self.lease.life not in ("", life)
        ):
            self._end(SliceState.RECYCLING, "its holder has been started anew")
        self._check_free()
        self._check_bound(layers, fingerprint)
        self.lease = Lease(
            holder=holder, life=life, layers=layers, fingerprint=fingerprint, token=self._mint()
        )
        self.state = SliceState.LEASED
        self._until = now + self._lease_time
        return self.lease

    def renew(self, holder: str, token: str, now: float) -> Lease:
        """Keeps the lease until `now` + lease time.

        Raises:
            LeaseRefused: this holder has no such lease, or no longer.
        """
        lease = self.held(holder, token, now)
        self._until = now + self._lease_time
        return lease

    def release(self, holder: str, token: str, now: float) -> None:
        """Ends the lease.

        Raises:
            LeaseRefused: this holder has no such lease, or no longer.
        """
        self.held(holder, token, now)
        self._end(SliceState.RECYCLING, "its holder released it")

    def held(self, holder: str, token: str, now: float) -> Lease:
        """Returns the lease if it is this holder's.

        Raises:
            LeaseRefused: this holder has no such lease, or no longer.
        """
        self.expire(now)
        lease = self.lease
        if (
            lease is None
            or lease.holder != holder
            or not secrets.compare_digest(lease.token.encode(), token.encode())
        ):
            raise LeaseRefused(f"the lease is over: {self._standing()}")
        return lease

    def expire(self, now: float) -> bool:
        """Ends a lease whose time is over; says whether one was."""
        if self.lease is None or now < self._until:
            return False
        self._end(SliceState.RECYCLING, f"it was not renewed for {self._lease_time:g} s")
        return True

    def revoke(self, reason: str) -> None:
        """Ends the lease against its holder's will.

        Raises:
            WrongTransition: there is none.
        """
        self._must_be("revoke", SliceState.LEASED)
        self._end(SliceState.RECYCLING, reason)

    def recycled(self) -> None:
        """A new process stands for the old one, and no memory of it is left.

        Raises:
            WrongTransition: it was not being recycled.
        """
        self._must_be("recycled", SliceState.RECYCLING)
        self._become(SliceState.FREE)

    def starting(self) -> None:
        """Its process is started, again or instead of an unused one.

        Raises:
            WrongTransition: it is leased, being recycled, or being started.
        """
        self._must_be("starting", SliceState.FAILED, SliceState.FREE)
        self._become(SliceState.STARTING)

    def ready(self) -> None:
        """Its process answers.

        Raises:
            WrongTransition: it was not being started.
        """
        self._must_be("ready", SliceState.STARTING)
        self._become(SliceState.FREE)

    def failed(self, reason: str) -> None:
        """Its process is gone or can't be started; a lease ends with it.

        Raises:
            WrongTransition: that is known already.
        """
        self._must_be("failed", *(state for state in SliceState if state is not SliceState.FAILED))
        if self.lease:
            self._end(SliceState.FAILED, reason)
        else:
            self._become(SliceState.FAILED, reason)

    def _check_free(self) -> None:
        if self.state is not SliceState.FREE:
            raise LeaseRefused(f"the slice can't be leased now: {self._standing()}")

    def _check_bound(self, layers: Layers, fingerprint: str) -> None:
        first, end = layers
        if not 0 <= first <= end:
            raise LeaseRefused(f"layers {first}:{end} are no range: name them as first:end")
        if self._layers is not None and self._layers != layers:
            raise LeaseRefused(
                f"the slice's egg binds it to layers {self._layers[0]}:{self._layers[1]}, and "
                f"{first}:{end} were asked for: change [rpc] layers there or the split here"
            )
        if self._fingerprint not in (None, fingerprint):
            raise LeaseRefused(
                f"the slice's egg binds it to the model {self._fingerprint}, and {fingerprint!r} "
                "was asked for: change [model] fingerprint there or take another slice"
            )

    def _standing(self) -> str:
        """What the state is, for people."""
        match self.state:
            case SliceState.LEASED:
                return f"{self.holder} holds it"
            case SliceState.RECYCLING:
                return f"it is being recycled, as {self.reason}"
            case SliceState.FAILED:
                return f"it has failed: {self.reason}"
            case SliceState.STARTING:
                return "it is being started"
            case SliceState.FREE:
                return "nobody holds it"

    def _must_be(self, method: str, *states: SliceState) -> None:
        if self.state not in states:
            raise WrongTransition(f"a slice that is {self.state} has no {method}()")

    def _become(self, state: SliceState, reason: str = "") -> None:
        self.state, self.reason = state, reason

    def _end(self, state: SliceState, reason: str) -> None:
        lease, self.lease = self.lease, None
        assert lease is not None
        self._become(state, reason)
        self._ended(lease, reason)
