"""The metrics of a bee: what each is called, what it means, where its values come from (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from hum_workers.figures.counts import BeeView, CellView, EggView, Histogram

Value = float | Histogram
Row = tuple[tuple[str, ...], Value]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: what it is called, what it means and where its values come from."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    labels: tuple[str, ...]
    rows: Callable[[BeeView], Iterator[Row]]


def _cell(
    name: str, text: str, value: Callable[[CellView], float], kind: Literal["gauge", "counter"]
) -> Family:
    def rows(bee: BeeView) -> Iterator[Row]:
        for egg in bee.eggs:
            for cell in egg.cells:
                yield (str(cell.pid), cell.cell, egg.egg, egg.model), value(cell)

    return Family(name, kind, text, ("pid", "cell", "egg", "model"), rows)


def _egg(
    name: str,
    text: str,
    value: Callable[[EggView], Value],
    kind: Literal["gauge", "counter", "histogram"],
) -> Family:
    def rows(bee: BeeView) -> Iterator[Row]:
        for egg in bee.eggs:
            yield (egg.egg, egg.model), value(egg)

    return Family(name, kind, text, ("egg", "model"), rows)


def _split(
    name: str, text: str, label: str, values: Callable[[EggView], Iterator[tuple[str, float]]]
) -> Family:
    """A counter of each egg that is split by one more label."""

    def rows(bee: BeeView) -> Iterator[Row]:
        for egg in bee.eggs:
            for key, value in values(egg):
                yield (egg.egg, egg.model, key), value

    return Family(name, "counter", text, ("egg", "model", label), rows)


def _bee(
    name: str, text: str, value: Callable[[BeeView], float], kind: Literal["gauge", "counter"]
) -> Family:
    return Family(name, kind, text, (), lambda bee: iter([((), value(bee))]))


def _cell_info(bee: BeeView) -> Iterator[Row]:
    for egg in bee.eggs:
        for cell in egg.cells:
            about = (str(cell.pid), cell.cell, egg.egg, egg.model, str(cell.engine_pid), cell.state)
            yield about, 1


def _set_aside(bee: BeeView) -> Iterator[Row]:
    for device in bee.devices:
        yield (device.uuid,), float(device.set_aside)


def _told(
    name: str, text: str, value: Callable[[EggView], bool | None], labels: tuple[str, ...]
) -> Family:
    """A gauge of the eggs that have something to say of it."""

    def rows(bee: BeeView) -> Iterator[Row]:
        for egg in bee.eggs:
            if (said := value(egg)) is not None:
                yield (egg.egg, egg.model)[: len(labels)], float(said)

    return Family(name, "gauge", text, labels, rows)


def _input_tokens(egg: EggView) -> Iterator[tuple[str, float]]:
    yield "true", egg.figures.cached_tokens
    yield "false", egg.figures.input_tokens


FAMILIES: Sequence[Family] = (
    _cell(
        "hum_cell_rss_bytes",
        "Resident memory of the engine and all processes below it.",
        lambda c: c.rss_bytes,
        "gauge",
    ),
    _cell(
        "hum_cell_cpu_ms",
        "CPU time of the engine and all processes below it so far, in ms; it never falls.",
        lambda c: c.cpu_ms,
        "gauge",
    ),
    _cell(
        "hum_cell_open_files",
        "Open file descriptors of the engine and all processes below it.",
        lambda c: c.open_files,
        "gauge",
    ),
    _cell(
        "hum_cell_processes",
        "Processes of the engine, itself included.",
        lambda c: c.processes,
        "gauge",
    ),
    _cell(
        "hum_cell_age_seconds",
        "Seconds since the cell was spawned.",
        lambda c: c.age_seconds,
        "gauge",
    ),
    _cell(
        "hum_cell_output_tokens_total",
        "Tokens the cell has generated, those of running turns included, as of a second ago.",
        lambda c: c.output_tokens,
        "counter",
    ),
    Family(
        "hum_cell_info",
        "gauge",
        "Always 1: what the pid of a cell stands for, the pid of its engine, and its state.",
        ("pid", "cell", "egg", "model", "engine_pid", "state"),
        _cell_info,
    ),
    _egg("hum_cell_count", "Cells that live.", lambda e: len(e.cells), "gauge"),
    _egg(
        "hum_cell_kills_total",
        "Cells whose engine ended by SIGKILL, whoever sent it.",
        lambda e: e.figures.kills,
        "counter",
    ),
    _split(
        "hum_cell_evictions_total",
        "Cells ended to make room or for idleness, by reason.",
        "reason",
        lambda e: iter(e.figures.evictions.items()),
    ),
    _split(
        "hum_cell_deaths_total",
        "Cells that ended, by class: stopped (as asked), usage, model, room, port, start_timeout, "
        "start_failed, memory, gpu_memory, stalled, killed, signal, exit, tender, slice.",
        "class",
        lambda e: ((death.value, count) for death, count in e.figures.deaths.items()),
    ),
    _egg(
        "hum_cell_start_seconds",
        "Seconds from spawning a cell to its first answered prompt.",
        lambda e: e.figures.start_seconds,
        "histogram",
    ),
    _egg(
        "hum_cell_restarts_total",
        "Raises of a cell after the one before died or failed.",
        lambda e: e.figures.restarts,
        "counter",
    ),
    _told(
        "hum_worker_advertised",
        "1 while humd may send prompts for the model, else 0.",
        lambda e: e.advertised if e.model else None,
        ("egg", "model"),
    ),
    _split(
        "hum_worker_turns_total",
        "Turns that ended, by the reason of their finish or the code of their error.",
        "ending",
        lambda e: iter(e.figures.turns.items()),
    ),
    _egg(
        "hum_worker_turns_running",
        "Turns that hold a slot of the cell.",
        lambda e: e.running,
        "gauge",
    ),
    _egg(
        "hum_worker_turns_waiting",
        "Turns that wait for a slot or for an earlier turn of their sid.",
        lambda e: e.waiting,
        "gauge",
    ),
    _egg(
        "hum_worker_turns_held",
        "Turns that wait for a forager's tool and hold no slot.",
        lambda e: e.held,
        "gauge",
    ),
    _split(
        "hum_worker_input_tokens_total",
        "Tokens of prompts of ended turns, by whether they came from the prefix cache.",
        "cached",
        _input_tokens,
    ),
    _egg(
        "hum_worker_output_tokens_total",
        "Tokens generated for ended turns.",
        lambda e: e.figures.output_tokens,
        "counter",
    ),
    _egg(
        "hum_worker_queue_seconds",
        "Seconds from a prompt to its slot.",
        lambda e: e.figures.queue,
        "histogram",
    ),
    _egg(
        "hum_worker_time_to_first_token_seconds",
        "Seconds from a prompt to its first text or reasoning, waiting included.",
        lambda e: e.figures.first_token,
        "histogram",
    ),
    _egg(
        "hum_worker_time_between_tokens_seconds",
        "Seconds between two pieces of text of a stream; a piece is a token unless several came "
        "together.",
        lambda e: e.figures.between_tokens,
        "histogram",
    ),
    _egg(
        "hum_worker_turn_seconds",
        "Seconds from a prompt to its ending.",
        lambda e: e.figures.turn_seconds,
        "histogram",
    ),
    _egg(
        "hum_worker_cancel_confirm_seconds",
        "Seconds from a cancel to the engine's own gauges proving it.",
        lambda e: e.figures.cancel_confirm,
        "histogram",
    ),
    _egg(
        "hum_worker_cancels_unconfirmed_total",
        "Cancels that the engine's gauges did not prove in time.",
        lambda e: e.figures.cancels_unconfirmed,
        "counter",
    ),
    _bee(
        "hum_worker_parked_calls",
        "Tool calls of askers that wait for their result.",
        lambda b: b.parked_calls,
        "gauge",
    ),
    _bee("hum_worker_tones_sent_total", "Tones written to humd.", lambda b: b.tones, "counter"),
    _bee(
        "hum_worker_deltas_merged_total",
        "Texts that had to wait and went in the delta of another.",
        lambda b: b.merged,
        "counter",
    ),
    _bee(
        "hum_worker_held_bytes",
        "Bytes of tones that wait to be written.",
        lambda b: b.held_bytes,
        "gauge",
    ),
    _bee(
        "hum_worker_tasks",
        "Tasks of the bee, a turn each and a few more: they fall when turns end.",
        lambda b: b.tasks,
        "gauge",
    ),
    _told(
        "hum_route_complete",
        "Of a coordinator: 1 while every layer of its model has a holder that is fit, 0 otherwise.",
        lambda e: e.covered,
        ("egg", "model"),
    ),
    _told(
        "hum_slice_leased",
        "Of a slice: 1 while a coordinator has it.",
        lambda e: e.leased,
        ("egg",),
    ),
    Family(
        "hum_worker_device_set_aside",
        "gauge",
        "1 while no cell gets a device, as a dead cell's memory on it is not back; 0 afterwards.",
        ("uuid",),
        _set_aside,
    ),
    _bee(
        "hum_worker_connected",
        "1 while a connection to humd stands, else 0.",
        lambda b: float(b.connected),
        "gauge",
    ),
    _bee(
        "hum_worker_reconnects_total",
        "Connections to humd after the first.",
        lambda b: max(0, b.connections - 1),
        "counter",
    ),
)
