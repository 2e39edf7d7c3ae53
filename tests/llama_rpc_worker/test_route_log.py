"""A route in the log: lines on a terminal, records with fields otherwise."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

SCRIPT = """
from hum_workers.llama_rpc_worker import route_log
from hum_workers.llama_rpc_worker.route import plan
from hum_workers.program import logs
from tests.llama_rpc_worker.routes import SMALL, offer, want
logs.configure()
offers = [offer("a", (0, 10)), offer("b", (10, 30))]
route_log.planned("front", plan(SMALL, offers, want(policy="declared", head="last")))
"""


def test_records_have_a_field_for_each_thing_that_a_share_is() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, check=True, timeout=30
    )
    route, *shares = map(json.loads, done.stderr.splitlines())
    assert (route["event"], route["slices"], route["head"]) == ("worker.route", 2, "last")
    assert route["lines"][1].startswith("slice ")
    assert [share["event"] for share in shares] == ["worker.route.share"] * 2
    assert [share["layers"] for share in shares] == ["0:10", "10:30"]
    assert [share["head"] for share in shares] == [False, True]
    first = shares[0]
    assert (first["slice"], first["weights_bytes"]) == ("a", 10 * 2_216_448)
    assert first["kv_bytes"] == 10 * 768 * 1024
    assert first["endpoint"].startswith("10.0.0.1:")


def test_people_get_the_map_line_by_line() -> None:
    master, slave = pty.openpty()
    env = os.environ | {"NO_COLOR": "1"}
    subprocess.run([sys.executable, "-c", SCRIPT], env=env, stderr=slave, check=True, timeout=30)
    os.close(slave)
    text = os.read(master, 65536).decode()
    os.close(master)
    assert text.count("worker.route ") == 6
    assert "worker.route.share" not in text
