"""Reading eggs, with the tables that all workers share."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hum_workers.egg import bee_settings, load_eggs, log_settings, metrics_settings, schema
from hum_workers.egg.tables import Egg
from hum_workers.errors import EggError, UsageError


def write(folder: Path, **eggs: str) -> Path:
    for name, text in eggs.items():
        (folder / f"{name}.toml").write_text(text)
    return folder


def load(folder: Path, **eggs: str) -> list[Egg]:
    return load_eggs([write(folder, **eggs)], Egg)


def refused(folder: Path, **eggs: str) -> list[str]:
    with pytest.raises(EggError) as caught:
        load(folder, **eggs)
    return [line.removeprefix(f"{folder}/") for line in str(caught.value).splitlines()]


def test_defaults_come_as_the_code_needs_them(tmp_path: Path) -> None:
    (egg,) = load(tmp_path, a="[bee]\n")
    assert egg.name == "a"
    assert egg.source == tmp_path / "a.toml"
    assert egg.limits.turn_timeout == 1800.0
    assert egg.lifecycle.stop_grace == 15.0
    assert egg.bee.raise_ == "on-start"
    assert (egg.limits.memory, egg.limits.max_waiting_per_sid) == (None, 16)
    assert egg.warnings == ()


def test_values_come_as_the_code_needs_them(tmp_path: Path) -> None:
    text = """
    [bee]
    raise = "on-prompt"
    thrum_socket = "run/../thrum.sock"
    [limits]
    memory = "2GiB"
    cpus = "3,0-1"
    turn_timeout = "1h30m"
    max_waiting = 4
    [lifecycle]
    stop_grace = "0s"
    [engine]
    env = { HF_TOKEN = "hush", A = "" }
    """
    (egg,) = load(tmp_path, a=text)
    assert egg.bee.thrum_socket == tmp_path / "thrum.sock"
    assert egg.bee.raise_ == "on-prompt"
    assert (egg.limits.memory, egg.limits.cpus) == (2 << 30, "0-1,3")
    assert (egg.limits.turn_timeout, egg.lifecycle.stop_grace) == (5400.0, 0.0)
    assert egg.limits.max_waiting_per_sid == 4
    assert egg.engine.redacted()["env"] == {"HF_TOKEN": "***", "A": ""}
    assert "hush" not in repr(egg)


def test_an_egg_does_not_change_after_reading(tmp_path: Path) -> None:
    (egg,) = load(tmp_path, a="[bee]\npace = 100\n")
    with pytest.raises(ValueError, match="frozen"):
        egg.bee.pace = 3


def test_relative_paths_are_relative_to_the_egg_as_it_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "eggs").mkdir()
    write(tmp_path / "eggs", a='[log]\nfile = "../bee.log"\n')
    (tmp_path / "link.toml").symlink_to("eggs/a.toml")
    monkeypatch.chdir(tmp_path)
    (egg,) = load_eggs([Path("eggs")], Egg)
    assert egg.log.file == tmp_path / "bee.log"
    (egg,) = load_eggs([Path("link.toml")], Egg)
    assert egg.log.file == tmp_path.parent / "bee.log"


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (egg,) = load(tmp_path, a='[log]\nfile = "~/bee.log"\n')
    assert egg.log.file == tmp_path / "home" / "bee.log"


def test_the_bee_may_stand_in_one_egg(tmp_path: Path) -> None:
    eggs = load(tmp_path, a="[limits]\n", b='[bee]\nname = "x"\npace = 7\n')
    assert (bee_settings(eggs).name, bee_settings(eggs).pace) == ("x", 7)


def test_the_bee_may_stand_in_several_eggs_if_equal_but_for_models(tmp_path: Path) -> None:
    text = '[bee]\nname = "x"\nmodels = ["{}"]\n'
    eggs = load(tmp_path, a=text.format("one"), b="[limits]\n", c=text.format("two"))
    bee = bee_settings(eggs)
    assert (bee.name, bee.models) == ("x", ["one", "two"])
    assert eggs[0].models() == ["one"]


def test_a_bee_that_differs_is_told_with_both_places(tmp_path: Path) -> None:
    lines = refused(tmp_path, a='[bee]\nname = "x"\n', b='\n[bee]\nname = "y"\nburst = 2\n')
    reason = "in burst, name; it describes the process: keep it in one egg"
    assert lines == [f"b.toml:2:2: bee: differs from {tmp_path}/a.toml:1 {reason}"]


def test_without_a_bee_or_log_the_defaults_hold(tmp_path: Path) -> None:
    eggs = load(tmp_path, a="[limits]\n")
    assert (bee_settings(eggs).burst, log_settings(eggs).level) == (256, "info")
    assert (bee_settings([]).burst, log_settings([]).level) == (256, "info")


def test_the_log_of_one_egg_holds_for_the_process(tmp_path: Path) -> None:
    eggs = load(tmp_path, a="[limits]\n", b='[log]\nlevel = "debug"\n')
    assert log_settings(eggs).level == "debug"


def test_two_eggs_of_one_name_are_told(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, same="[bee]\n")
    with pytest.raises(EggError, match="y/same.toml: .*/x/same.toml has the same name"):
        load_eggs([tmp_path / "x", tmp_path / "y"], Egg)


def test_mistakes_come_in_the_order_of_files_lines_and_columns(tmp_path: Path) -> None:
    lines = refused(
        tmp_path,
        a="[limits]\nmax_waiting = 0\n[bee]\npace = 'x'\n[zoo]\n",
        b="nothing",
        c="[log]\nlevel = 'loud'\n",
    )
    assert [line.split(": ")[0] for line in lines] == [
        "a.toml:2:15",
        "a.toml:4:8",
        "a.toml:5:2",
        "b.toml:1:8",
        "c.toml:2:9",
    ]


def test_a_file_full_of_mistakes_is_told_in_a_bounded_way(tmp_path: Path) -> None:
    lines = refused(tmp_path, a="[bee]\n" + "".join(f"key{i} = 1\n" for i in range(5000)))
    assert len(lines) == 101
    assert "a.toml: has more mistakes" in lines


def test_a_wrong_key_hides_no_other_mistake(tmp_path: Path) -> None:
    text = "[limits]\nmax_waiting = 2\nmax_waiting_per_sid = 3\ncgroup = 'maybe'\n"
    lines = refused(tmp_path, a=text)
    assert len(lines) == 2
    assert lines[0].endswith("must be at most limits.max_waiting, which is 2")


def test_what_rests_on_a_wrong_key_is_not_told(tmp_path: Path) -> None:
    text = "[limits]\nmax_waiting = 'two'\nmax_waiting_per_sid = 5000\n"
    assert len(refused(tmp_path, a=text)) == 1


def test_a_pace_that_humd_may_not_follow_is_a_warning(tmp_path: Path) -> None:
    (egg,) = load(tmp_path, a="[bee]\npace = 5000\n")
    (warning,) = egg.warnings
    assert str(warning).removeprefix(f"{tmp_path}/") == (
        "a.toml:2:8: bee.pace: an asker that pauses for 0.35 s loses text: burst + pace × 0.35 s "
        "is 2006 tones and humd holds 1024; lower one of them"
    )


def test_no_pace_is_no_warning(tmp_path: Path) -> None:
    (egg,) = load(tmp_path, a="[bee]\npace = 0\n")
    assert egg.warnings == ()


@pytest.mark.parametrize(
    ("listen", "means", "warnings"),
    [
        ("9464", "127.0.0.1:9464", 0),
        ('"0"', "127.0.0.1:0", 0),
        ('"localhost:9464"', "localhost:9464", 0),
        ('"[::1]:9464"', "[::1]:9464", 0),
        ('"0.0.0.0:9464"', "0.0.0.0:9464", 1),
        ('"[::]:9464"', "[::]:9464", 1),
    ],
)
def test_figures_listen_on_loopback_unless_the_egg_says_so(
    tmp_path: Path, listen: str, means: str, warnings: int
) -> None:
    (egg,) = load(tmp_path, a=f"[metrics]\nlisten = {listen}\n")
    assert egg.metrics.listen == means
    assert len(egg.warnings) == warnings
    assert metrics_settings([egg]).listen == means


def test_an_egg_error_is_a_usage_error_that_carries_its_mistakes(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, a="[bee]\npace = -1\n")
    assert isinstance(caught.value, EggError)
    (mistake,) = caught.value.mistakes
    assert (mistake.key, mistake.line, mistake.column) == ("bee.pace", 2, 8)


def test_the_schema_has_no_null_and_no_unknown_keys() -> None:
    made = schema(Egg)

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            assert node.get("type") != "null"
            assert "default" not in node or node["default"] is not None
            if "properties" in node:
                assert node["additionalProperties"] is False
        for inner in node.values() if isinstance(node, dict) else node:
            if isinstance(inner, dict | list):
                walk(inner)

    walk(made)
    assert made["$defs"]["Bee"]["properties"]["raise"]["enum"] == ["on-start", "on-prompt"]
    assert made["$defs"]["Limits"]["properties"]["turn_timeout"]["default"] == "30m"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.sampled_from(["bee", "limits", "log", "engine", "metrics", "zoo"]),
        st.dictionaries(
            st.sampled_from(["name", "models", "pace", "memory", "args", "env", "listen", "x"]),
            st.sampled_from(["1", "-1", "''", "'a'", "[]", "[1]", "['b']", "{ A = 'x' }", "true"]),
        ),
    )
)
def test_any_egg_is_read_or_refused(tmp_path: Path, tables: dict[str, dict[str, str]]) -> None:
    text = "".join(
        f"[{table}]\n" + "".join(f"{key} = {value}\n" for key, value in keys.items())
        for table, keys in tables.items()
    )
    with suppress(EggError):
        assert load(tmp_path, a=text)


def test_reading_eggs_imports_no_engine_and_no_network_library() -> None:
    code = (
        "import sys, hum_workers.vllm_worker.egg, hum_workers.egg;"
        "print([m for m in ('torch', 'vllm', 'ray', 'asyncio', 'ssl', 'pydantic.networks')"
        " if m in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert found.stdout.strip() == "[]"
