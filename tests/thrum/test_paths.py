"""Where humd is looked for, in the order of thrum section 2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hum_workers.thrum.paths import find_socket, state_home

UID = 1234


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run")}


def places(env: dict[str, str]) -> list[Path]:
    return [
        Path(env["XDG_RUNTIME_DIR"], "hum/thrum.sock"),
        Path(f"/run/user/{UID}/hum/thrum.sock"),
        Path(env["HOME"], ".local/state/hum/thrum.sock"),
        Path(f"/tmp/hum-{UID}/hum/thrum.sock"),
        Path("/tmp/hum/thrum.sock"),
    ]


def announce(env: dict[str, str], text: str) -> None:
    path = state_home(env) / "hum" / "runtime.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_state_home_is_local_state_unless_named(env: dict[str, str]) -> None:
    assert state_home(env) == Path(env["HOME"], ".local/state")
    assert state_home({**env, "XDG_STATE_HOME": "/var/x"}) == Path("/var/x")
    assert state_home({**env, "XDG_STATE_HOME": "relative"}) == Path(env["HOME"], ".local/state")
    assert state_home({**env, "XDG_STATE_HOME": ""}) == Path(env["HOME"], ".local/state")
    assert state_home({}) == Path.home() / ".local" / "state"


@pytest.mark.parametrize("name", ["HUM_THRUM_SOCK", "HUM_SOCKET"])
def test_a_named_socket_wins_even_if_it_is_not_there(env: dict[str, str], name: str) -> None:
    assert find_socket({**env, name: "/x"}, UID, exists=lambda path: path != Path("/x")) == Path(
        "/x"
    )


def test_the_first_name_wins_and_an_empty_one_is_none(env: dict[str, str]) -> None:
    both = {**env, "HUM_THRUM_SOCK": "/a", "HUM_SOCKET": "/b"}
    assert find_socket(both, UID) == Path("/a")
    assert find_socket({**both, "HUM_THRUM_SOCK": ""}, UID) == Path("/b")


@pytest.mark.parametrize("at", range(5))
def test_of_the_other_places_the_first_that_exists(env: dict[str, str], at: int) -> None:
    there = places(env)[at:]
    assert find_socket(env, UID, exists=there.__contains__) == there[0]


def test_where_nothing_exists_it_is_the_likeliest_place(env: dict[str, str]) -> None:
    assert find_socket(env, UID, exists=lambda path: False) == places(env)[0]
    del env["XDG_RUNTIME_DIR"]
    expected = Path(f"/run/user/{UID}/hum/thrum.sock")
    assert find_socket(env, UID, exists=lambda path: False) == expected


def test_a_living_humds_rendezvous_goes_before_the_places(env: dict[str, str]) -> None:
    announce(env, json.dumps({"socket": "/x", "pid": os.getpid(), "version": "0.31.18"}))
    assert find_socket(env, UID, exists=lambda path: True) == Path("/x")
    assert find_socket(env, UID, exists=lambda path: path != Path("/x")) == places(env)[0]


def test_a_dead_humds_rendezvous_is_ignored(env: dict[str, str]) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    announce(env, json.dumps({"socket": "/x", "pid": process.pid}))
    assert find_socket(env, UID, exists=lambda path: True) == places(env)[0]


def test_a_humd_of_another_user_is_alive(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    announce(env, json.dumps({"socket": "/x", "pid": 7}))
    assert find_socket(env, UID, exists=lambda path: True) == Path("/x")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"socket":"/x"}', '{"socket":"/x","pid":0}', '{"socket":"/x","pid":-1}',
     '{"socket":7,"pid":1}', '{"socket":"","pid":1}', '{"socket":"/x","pid":99999999999999999999}',
     '{"socket":"/x","pid":1,"x":' + "[" * 1500 + "]" * 1500 + "}"],
)  # fmt: skip
def test_a_rendezvous_that_makes_no_sense_is_ignored(env: dict[str, str], text: str) -> None:
    announce(env, text)
    assert find_socket(env, UID, exists=lambda path: True) == places(env)[0]
