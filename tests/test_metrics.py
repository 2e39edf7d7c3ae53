"""The exported names, held to page and dashboard; and a running bee's figures beside the truth."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from hum_workers.figures.counts import (
    BeeView,
    CellView,
    Death,
    DeviceView,
    EggFigures,
    EggView,
    LastDeath,
)
from hum_workers.figures.families import FAMILIES
from hum_workers.figures.metrics import page
from hum_workers.process import proc
from tests.rig import WAIT, Bee, egg, fake, served, worker

ROOT = Path(__file__).parent.parent
STREAMS = 32


def bee_view() -> BeeView:
    figures = EggFigures()
    turn = figures.turn()
    turn.ticker()()
    turn.ended("stop", {"input": 3, "cached": 4, "output": 5})
    figures.cancelled(True, 0.1)
    figures.evicted("idle")
    figures.died(LastDeath(cell="a-1", death=Death.KILLED, reason="x", at=1.0), 9)
    cell = CellView(
        cell="a-2",
        state="ready",
        pid=77,
        engine_pid=78,
        age_seconds=9.5,
        rss_bytes=4096,
        cpu_ms=12,
        open_files=5,
        processes=2,
        output_tokens=50,
        tokens_per_second=1.0,
    )
    egg_view = EggView(
        egg="a",
        model='odd "model"\n',
        advertised=True,
        failure=None,
        running=1,
        waiting=2,
        held=3,
        cells=[cell],
        figures=figures,
    )
    return BeeView(
        hive="vllm-worker",
        hid="wbee_0",
        connected=True,
        connections=3,
        tones=10,
        merged=4,
        held_bytes=6,
        parked_calls=8,
        devices=[
            DeviceView(uuid="GPU-a", set_aside=True),
            DeviceView(uuid="GPU-b", set_aside=False),
        ],
        eggs=[egg_view],
    )


def parsed(text: bytes) -> dict[str, Metric]:
    return {metric.name: metric for metric in text_string_to_metric_families(text.decode())}


def value(metrics: dict[str, Metric], sample: str, **labels: str) -> float:
    """The sum of the samples of this name that have these labels."""
    found = [
        one.value
        for metric in metrics.values()
        for one in metric.samples
        if one.name == sample and labels.items() <= one.labels.items()
    ]
    assert found, f"no {sample} {labels}"
    return sum(found)


def exported() -> set[str]:
    """Names of the samples of a bee that has one of everything."""
    return {one.name for metric in parsed(page(bee_view)()).values() for one in metric.samples}


def test_every_family_is_exported_with_its_type_its_labels_and_its_help() -> None:
    metrics = parsed(page(bee_view)())
    assert len(metrics) == len(FAMILIES)
    for family in FAMILIES:
        metric = metrics[family.name.removesuffix("_total")]
        assert (metric.type, metric.documentation) == (family.kind, family.help)
        for sample in metric.samples:
            assert set(sample.labels) - {"le"} == set(family.labels)


def test_values_are_those_of_the_bee() -> None:
    metrics = parsed(page(bee_view)())
    assert value(metrics, "hum_cell_rss_bytes", pid="77", cell="a-2", egg="a") == 4096
    assert value(metrics, "hum_cell_info", engine_pid="78", state="ready") == 1
    assert value(metrics, "hum_worker_turns_total", model='odd "model"\n', ending="stop") == 1
    assert value(metrics, "hum_worker_input_tokens_total", cached="true") == 4
    assert value(metrics, "hum_cell_deaths_total", **{"class": "killed"}) == 1
    assert value(metrics, "hum_cell_evictions_total", reason="idle") == 1
    assert value(metrics, "hum_worker_reconnects_total") == 2
    assert value(metrics, "hum_worker_device_set_aside", uuid="GPU-a") == 1
    assert value(metrics, "hum_worker_device_set_aside", uuid="GPU-b") == 0
    assert value(metrics, "hum_worker_cancel_confirm_seconds_bucket", le="0.1") == 1
    assert value(metrics, "hum_worker_cancel_confirm_seconds_bucket", le="+Inf") == 1


def test_an_egg_that_serves_no_model_is_not_said_to_be_advertised() -> None:
    bee = bee_view()
    bee = replace(bee, eggs=[replace(egg, model="", leased=True) for egg in bee.eggs])
    metrics = parsed(page(lambda: bee)())
    assert not metrics["hum_worker_advertised"].samples
    assert value(metrics, "hum_slice_leased", egg="a") == 1


def test_a_bee_that_never_connected_has_not_reconnected() -> None:
    def view() -> BeeView:
        seen = bee_view()
        return BeeView(**{**vars(seen), "connections": 0, "eggs": []})

    metrics = parsed(page(view)())
    assert value(metrics, "hum_worker_reconnects_total") == 0
    assert metrics["hum_cell_rss_bytes"].samples == []


def test_the_page_of_the_docs_has_every_metric_as_it_is() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (\w+) \| ([^|]*) \| ([^|]*) \|$",
        (ROOT / "docs" / "metrics.md").read_text(),
        re.MULTILINE,
    )
    told = [(name, kind, re.findall(r"`(\w+)`", labels), text) for name, kind, labels, text in rows]
    assert told == [(f.name, f.kind, list(f.labels), f.help) for f in FAMILIES]


def queries() -> list[str]:
    dashboard = json.loads((ROOT / "examples" / "grafana-dashboard.json").read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return found + [
        one["definition"] for one in dashboard["templating"]["list"] if "definition" in one
    ]


@pytest.mark.parametrize("query", queries())
def test_each_query_of_the_dashboard_asks_for_what_is_exported(query: str) -> None:
    names = re.findall(r"\bhum_\w+", query)
    assert names
    assert set(names) <= exported()
    assert query.count("(") == query.count(")")
    by_name = {family.name: family for family in FAMILIES}
    for grouped in re.findall(r"by \((\w+)\)", query):
        owner = re.sub(r"_(bucket|sum|count)$", "", names[0]) if grouped == "le" else names[0]
        assert grouped in (*by_name[owner].labels, "le")


def test_a_bee_without_figures_imports_no_prometheus_client() -> None:
    code = (
        "import sys, hum_workers.program.serving, hum_workers.vllm_worker.__main__;"
        "print('prometheus_client' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert run.stdout.strip() == "False"


def port(bee: Bee) -> int:
    (listening,) = bee.events("worker.metrics.listening")
    assert listening["host"] == "127.0.0.1"
    return int(listening["port"])


async def scraped(bee: Bee) -> dict[str, Metric]:
    url = f"http://127.0.0.1:{port(bee)}/metrics"

    def get() -> bytes:
        with urllib.request.urlopen(url, timeout=WAIT) as answer:
            body: bytes = answer.read()
        return body

    return parsed(await asyncio.to_thread(get))


def engine_says(cells: Path) -> dict[str, Metric]:
    """The scripted engine's own page, asked over its socket."""
    (uds,) = cells.rglob("engine.sock")
    key = json.loads((uds.parent / "cell.yaml").read_text())["api-key"][0]
    run = subprocess.run(
        [
            "curl",
            "-s",
            "-H",
            f"Authorization: Bearer {key}",
            "--unix-socket",
            uds,
            "http://x/metrics",
        ],
        capture_output=True,
        check=True,
        timeout=WAIT,
    )
    return parsed(run.stdout)


def tree(root: int) -> list[proc.Stat]:
    """The process and all below it."""
    found = (proc.read_stat(pid) for pid in (root, *proc.walk(root)))
    return [stat for stat in found if stat is not None]


async def test_the_figures_of_32_streams_and_a_kill_are_what_engine_and_kernel_say(
    short_dir: Path,
) -> None:
    extra = '[metrics]\nlisten = 0\ninterval = "100ms"\n[lifecycle]\ndrain_timeout = "0s"'
    path = egg(short_dir, extra=extra)
    async with served(short_dir, path) as (humd, bee, asker):
        script = fake(tokens=60, rate=100, cached=2)
        answers = await asyncio.gather(*(asker.ask(script, "echo") for _ in range(STREAMS)))
        assert all(answer.complete for answer in answers)
        metrics = await scraped(bee)
        usage = [answer.ending["usage"] for answer in answers if answer.ending]
        assert value(metrics, "hum_worker_turns_total", ending="stop") == STREAMS
        assert value(metrics, "hum_worker_output_tokens_total") == 60 * STREAMS
        for cached, key in (("true", "cache_read_input_tokens"), ("false", "input_tokens")):
            told = sum(one[key] for one in usage)
            assert value(metrics, "hum_worker_input_tokens_total", cached=cached) == told
        assert value(metrics, "hum_worker_time_to_first_token_seconds_count") == STREAMS
        pieces = value(metrics, "hum_worker_time_between_tokens_seconds_count")
        assert STREAMS < pieces <= 59 * STREAMS  # the busier the machine, the more comes together
        gap = value(metrics, "hum_worker_time_between_tokens_seconds_sum") / pieces
        assert gap > 0.7 * 0.01 * 59 * STREAMS / pieces  # no faster than the engine
        heard = sum(len(answer.tones) for answer in answers)
        assert value(metrics, "hum_worker_tones_sent_total") >= heard
        engine = engine_says(short_dir / "run")
        generated = value(engine, "vllm:generation_tokens_total")
        assert generated - 60 * STREAMS < 20  # the canaries'

        sids = [
            asker.prompt(text=fake(tokens=5000, rate=20), modelId="echo") for _ in range(STREAMS)
        ]
        first = await anext(aiter(asker.stream(sids[-1])))
        assert first["chi"] == "session-ready"
        metrics = await scraped(bee)
        assert value(metrics, "hum_worker_turns_running", model="echo") == STREAMS
        assert value(metrics, "hum_worker_turns_waiting", model="echo") == 0
        engine = engine_says(short_dir / "run")
        assert value(engine, "vllm:num_requests_running") == STREAMS
        await _the_tree_is_that_of_the_kernel(bee)

        (info,) = metrics["hum_cell_info"].samples
        os.kill(int(info.labels["engine_pid"]), signal.SIGKILL)
        endings = await asyncio.gather(*(asker.collect(sid, WAIT) for sid in sids))
        assert {one.ending["code"] for one in endings if one.ending} == {"cell_died"}
        metrics = await scraped(bee)
        assert value(metrics, "hum_worker_turns_total", ending="cell_died") == STREAMS
        assert value(metrics, "hum_cell_deaths_total", **{"class": "killed"}) == 1
        assert value(metrics, "hum_cell_kills_total") == 1
        assert value(metrics, "hum_worker_turns_running") == 0
        answer = await asker.ask("again", "echo", timeout=WAIT)
        assert answer.complete
        metrics = await scraped(bee)
        assert value(metrics, "hum_cell_restarts_total") == 1
        assert value(metrics, "hum_cell_start_seconds_count") == 2
        assert value(metrics, "hum_cell_count") == 1


async def _the_tree_is_that_of_the_kernel(bee: Bee) -> None:
    """A sample lies between two looks of our own, since the tree only grows here."""
    metrics = await scraped(bee)
    (info,) = metrics["hum_cell_info"].samples
    mark, engine = int(info.labels["pid"]), int(info.labels["engine_pid"])
    assert mark in proc.children(bee.pid)
    assert engine in [stat.pid for stat in tree(mark)]
    before = value(metrics, "hum_cell_cpu_ms")
    async with asyncio.timeout(WAIT):
        while (now := value(await scraped(bee), "hum_cell_cpu_ms")) == before:
            pass
    ticks = sum(stat.cpu for stat in tree(engine))
    assert before < now <= ticks * 1000 / proc.TICKS
    resident = sum(stat.rss for stat in tree(engine)) * proc.PAGE
    metrics = await scraped(bee)
    assert value(metrics, "hum_cell_rss_bytes") == pytest.approx(resident, rel=0.2)
    assert value(metrics, "hum_cell_processes") == len(tree(engine))
    assert value(metrics, "hum_cell_open_files") == pytest.approx(
        sum(proc.fd_count(stat.pid) for stat in tree(engine)), abs=STREAMS
    )


async def test_an_address_that_is_taken_ends_the_bee_with_a_sentence(short_dir: Path) -> None:
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    taken = server.sockets[0].getsockname()[1]
    path = egg(short_dir, extra=f"[metrics]\nlisten = {taken}")
    code, _, err = await worker(short_dir, "--egg", path)
    server.close()
    await server.wait_closed()
    assert code == 2
    assert f"[metrics] listen: can't listen on 127.0.0.1:{taken}: " in err
