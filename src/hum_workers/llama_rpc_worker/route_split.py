"""By memory: layers for slices that take any (pure).

RPC buys capacity and not speed: slices work one after the other, and each costs about one round
trip a token. So a run of layers gets as few slices as hold it, the nearest first, and they share it
by their memory. Distances count in whole milliseconds, so that the same slices give the same route
again; among equals the larger comes first. One that would get less than a layer is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hum_workers.llama_rpc_worker.facts import Layers, Offer

Room = tuple[Offer, int]
"""A slice and the bytes of weights and KV cache that it can take."""


def split(
    first: int, sizes: Sequence[int], rooms: Sequence[Room], most: int
) -> list[tuple[Offer, Layers]] | None:
    """Gives layers of these sizes, numbered from `first`, to at most `most` of the slices.

    Returns None where they don't fit.
    """
    rooms = sorted((room for room in rooms if room[1] > 0), key=_nearness)
    for count in range(1, min(len(rooms), len(sizes), most) + 1):
        for chosen in _choices(sum(sizes), rooms, count):
            for order in _orders(chosen):
                counts = _by_memory(sizes, order) or _by_filling(sizes, order)
                if counts is not None:
                    return list(_numbered(first, order, counts))
    return None


def _nearness(room: Room) -> tuple[int, int, str, str]:
    offer, size = room
    return round(offer.round_trip * 1000), -size, offer.facts.hid, offer.endpoint


def _choices(total: int, rooms: Sequence[Room], count: int) -> Iterator[list[Room]]:
    """Yields sets of `count` slices with room enough: the nearest such, then the largest."""
    largest = sorted(rooms, key=lambda room: (-room[1], _nearness(room)))[:count]
    if sum(size for _, size in largest) < total:
        return
    chosen: list[Room] = []
    for at, room in enumerate(rooms):
        rest = sorted((size for _, size in rooms[at + 1 :]), reverse=True)
        others = sum(size for _, size in chosen) + sum(rest[: count - len(chosen) - 1])
        if len(chosen) < count and others + room[1] >= total:
            chosen.append(room)
    yield chosen
    if chosen != largest:
        yield largest


def _orders(chosen: Sequence[Room]) -> Iterator[list[Room]]:
    """Yields the order that people expect, and one where the last layer, with the output, fits."""
    yield sorted(chosen, key=lambda room: (room[0].facts.name, room[0].facts.hid))
    yield sorted(chosen, key=lambda room: (room[1], room[0].facts.hid))


def _by_memory(sizes: Sequence[int], rooms: Sequence[Room]) -> list[int] | None:
    """Layers for each slice so that all are filled to the same part; None if one is too small.

    A layer goes where its middle lies. Whole numbers only: no rounding decides.
    """
    total, all_rooms = sum(sizes), sum(size for _, size in rooms)
    counts, loads = [0] * len(rooms), [0] * len(rooms)
    at, done, end = 0, 0, rooms[0][1]
    for size in sizes:
        while (2 * done + size) * all_rooms > 2 * end * total and at < len(rooms) - 1:
            at += 1
            end += rooms[at][1]
        counts[at] += 1
        loads[at] += size
        done += size
    fits = all(load <= size for load, (_, size) in zip(loads, rooms, strict=True))
    return counts if fits and all(counts) else None


def _by_filling(sizes: Sequence[int], rooms: Sequence[Room]) -> list[int] | None:
    """Layers for each slice where each is filled before the next; None if the last overflows."""
    counts, at, left = [0] * len(rooms), 0, rooms[0][1]
    for size in sizes:
        while size > left:
            at += 1
            if at == len(rooms):
                return None
            left = rooms[at][1]
        counts[at] += 1
        left -= size
    return counts


def _numbered(
    first: int, rooms: Sequence[Room], counts: Sequence[int]
) -> Iterator[tuple[Offer, Layers]]:
    for (offer, _), count in zip(rooms, counts, strict=True):
        if count:
            yield offer, (first, first + count)
            first += count
