"""Layouts of the real model against llama-server's own report: `bench.llama_layouts` in short."""

from __future__ import annotations

import random

import pytest

from bench.llama_layouts import MODEL, SLICES, differences, random_route, slices
from hum_workers.llama_rpc_worker.gguf import read

pytestmark = [pytest.mark.llama, pytest.mark.xdist_group("llama"), pytest.mark.timeout(200)]


def test_each_layer_is_where_the_route_says() -> None:
    model, dice = read(MODEL), random.Random(1)
    with slices(SLICES) as endpoints:
        for _ in range(6):
            assert differences(random_route(model, endpoints, dice), endpoints) == []
