"""Serving: one bee process under humd, from its eggs to its exit code."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from hum_workers import lifecycle
from hum_workers.bee import Bee
from hum_workers.cells import ledger
from hum_workers.cells.ephemeral import Spares
from hum_workers.cells.ledger import Ledger
from hum_workers.cells.room import Room
from hum_workers.egg import bee_settings, load_eggs, log_settings, metrics_settings
from hum_workers.figures.shown import shown
from hum_workers.process import orphans
from hum_workers.program import journal, logs, places
from hum_workers.program.annex import Home
from hum_workers.program.assembly import NestMaker, Stops, raise_open_files
from hum_workers.program.hosted import hosted
from hum_workers.program.journal import Journal
from hum_workers.program.rereading import Rereader
from hum_workers.program.worker import Worker
from hum_workers.thrum.identity import Identity
from hum_workers.thrum.pacer import Pacer
from hum_workers.thrum.paths import find_socket, state_home
from hum_workers.tools.call_id import CallIds

log = structlog.get_logger()


async def serve(
    worker: Worker, eggs: Sequence[Any], paths: Sequence[Path], *, found: Path | None = None
) -> int:
    """Serves the eggs until a signal and returns the exit code.

    `paths` is where they were read, and will be read again; `found` is the egg of the user's
    configuration, when none was named.

    Raises:
        UsageError: the identity, the log file, the folder of cells or the address of the figures
            can't be used.
    """
    settings, log_to = bee_settings(eggs), log_settings(eggs)
    logs.configure(log_to.level, log_to.file)
    if found is not None:
        log.info("worker.egg.found", file=str(found), why="no --egg was given")
    for warning in (line for egg in eggs for line in egg.warnings):
        log.warning("worker.egg.warning", about=str(warning))
    cells = places.cells_folder(os.environ, os.getuid())
    state = state_home(os.environ)
    identity = Identity.load(worker.hive, settings.name, state)
    tag = _tag(identity.hid)
    records = Journal(journal.path(state, worker.hive, tag), identity.hid)
    book = Ledger(ledger.path(state, worker.hive, tag))
    try:
        lifecycle.become_subreaper()
        raise_open_files()
        stops = Stops()
        left = await ledger.end_leftovers(book.path, cells, tag)
        bee, maker = _assemble(worker, eggs, identity, cells, records, book)
        await maker.custody.inherit(left)
        annex = maker.annex
        reader = Rereader(bee, maker, eggs, lambda: load_eggs(paths, worker.egg()))
        stops.asked.add_done_callback(lambda _: reader.close())
        stops.asked.add_done_callback(lambda _: maker.custody.hurry())
        try:
            page = shown(
                bee,
                state=state,
                tag=tag,
                name=settings.name,
                listen=metrics_settings(eggs).listen,
            )
            async with page, hosted(bee.view, stops.asked):
                if annex is not None:
                    await annex.open()
                await bee.serve(stops.asked)
        except asyncio.CancelledError:
            if stops.forced is None:
                raise
        finally:
            reader.close()
            maker.custody.close()
            if annex is not None:
                await annex.close()
            # A probe of an engine may hang, and the thread that waits for it with it.
            orphans.kill_below()
        return stops.forced or 0
    finally:
        places.leave(cells)
        records.close()
        book.close()
        identity.close()


def _assemble(
    worker: Worker,
    eggs: Sequence[Any],
    identity: Identity,
    cells: Path,
    records: Journal,
    book: Ledger,
) -> tuple[Bee, NestMaker]:
    settings, loop = bee_settings(eggs), asyncio.get_running_loop()
    ephemeral = settings.propensity == "ephemeral"
    places = settings.max_procs or len(eggs)
    home = Home(
        seed=identity.seed,
        hid=identity.hid,
        state=state_home(os.environ),
        changed=lambda: bee.models_changed(),
    )
    annex = worker.annex(home, eggs) if worker.annex is not None else None
    maker = NestMaker(
        annex=annex,
        worker=worker,
        cells=cells,
        tag=_tag(identity.hid),
        start_slot=asyncio.Semaphore(1),
        on_change=lambda: bee.models_changed(),
        on_prompt=settings.raise_ == "on-prompt",
        room=Room(places),
        spares=Spares(places - len(eggs)) if ephemeral else None,
        pulse=lambda *event: bee.pulse(*event),
        ledger=book,
    )
    bee = Bee(
        hive=worker.hive,
        hid=identity.hid,
        source=settings.source,
        statefulness="ephemeral_per_call" if ephemeral else "stateless_per_call",
        nests=[maker.nest(egg) for egg in eggs],
        pacer=Pacer(
            settings.pace, settings.burst, loop.time, worker.hive, dialect=settings.dialect
        ),
        journal=records,
        call_ids=CallIds(identity.seed),
        socket=partial(_socket, settings.thrum_socket),
        devices=maker.custody.views,
        more=annex.hello if annex is not None else dict,
    )
    return bee, maker


def _tag(hid: str) -> str:
    """Returns what tells this bee's files from others': the first letters of its hid."""
    return hid[5:13]


def _socket(named: Path | None) -> Path:
    return named if named is not None else find_socket(os.environ, os.getuid())
