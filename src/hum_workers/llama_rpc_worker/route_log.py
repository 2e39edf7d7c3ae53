"""What a coordinator says of its route in the log: each line and its fields in one place."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from hum_workers.llama_rpc_worker.route import Route
from hum_workers.llama_rpc_worker.shares import plain, span
from hum_workers.program import logs

log = structlog.get_logger()


def planned(egg: str, route: Route) -> None:
    """A route is complete: its map on a terminal, else its fields, a record for each share."""
    if logs.for_people():
        for line in route.lines():
            log.info("worker.route", egg=egg, line=line)
        return
    log.info(
        "worker.route",
        egg=egg,
        fingerprint=route.fingerprint,
        slices=len(route.shares),
        local=span(route.local),
        head=route.head,
        notes=list(route.notes),
        lines=route.lines(),
    )
    for share in route.shares:
        log.info(
            "worker.route.share",
            egg=egg,
            slice=plain(share.offer.facts.name),
            endpoint=share.offer.endpoint,
            layers=span(share.layers),
            weights_bytes=share.weights,
            kv_bytes=share.kv,
            head=share.output,
        )


def incomplete(egg: str, reasons: Sequence[str]) -> None:
    """These reasons are new."""
    for reason in reasons:
        log.warning("worker.route.incomplete", egg=egg, reason=reason)


def left_out(egg: str, reason: str) -> None:
    """A slice is planned with no more, for a while."""
    log.warning("worker.slice.left_out", egg=egg, reason=reason)


def withdrawn(egg: str, models: Sequence[str], reasons: Sequence[str]) -> None:
    """humd hears that the models can't be had."""
    log.warning("worker.route.withdrawn", egg=egg, models=models, reason="; ".join(reasons))


def not_held(egg: str, reason: str) -> None:
    """The route is complete, and its slices could not all be leased."""
    log.warning("worker.route.not_held", egg=egg, reason=reason)
