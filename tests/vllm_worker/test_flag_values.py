"""`engine.args` held to what an installed vLLM takes."""

from __future__ import annotations

import pytest

from hum_workers.vllm_worker.flag_values import Flag, Help, instead, unknown_flags, wrong_values

KNOWN = frozenset({"--max-model-len", "--enforce-eager", "--compilation-config", "-O", "-tp"})


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (["--max-modl-len", "5"], [("--max-modl-len", "--max-model-len")]),
        (["--enforce_eagre=1"], [("--enforce-eagre", "--enforce-eager")]),
        (["--zzz", "--max-model-len"], [("--zzz", "")]),
        (["-zz"], [("-zz", "")]),
        (["--enforce_eager", "--max-model-len=5", "-tp", "2", "-1"], []),
        (["--compilation-config.mode=2", "--compilation-config.ops+", "a", "-O3"], []),
        (["--enforce-ea"], []),
    ],
)
def test_flags_the_engine_refuses_come_with_the_nearest(
    args: list[str], found: list[tuple[str, str]]
) -> None:
    assert list(unknown_flags(args, KNOWN)) == found


HAS_NONE = "--watermark has no value behind it"
WHOLE, REAL, SIZE, ANY = ("12",), ("12", "1.5"), ("12", "1k", "auto"), ("12", "1.5", "1k", "x")
TAKEN = Help(
    (
        Flag(("--seed",), 1, 1, takes=WHOLE),
        Flag(("--watermark",), 1, 1, takes=REAL),
        Flag(("--bytes", "-b"), 1, 1, takes=SIZE),
        Flag(("--log-level",), 1, 1, choices=("debug", "warning"), takes=ANY),
        Flag(("--tokenizer-mode",), 1, 1, choices=("auto", "hf"), is_open=True),
        Flag(("--eager", "--no-eager"), least=0, most=0),
        Flag(("--sizes",), least=1, takes=WHOLE),
        Flag(("--compilation-config", "-cc"), 1, 1),
        Flag(("--only-named",)),
    )
)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--seed"], ["--seed has no value behind it"]),
        (["--seed", "--eager"], ["--seed has no value behind it"]),
        (["--seed", "abc"], ["--seed takes a whole number"]),
        (["--seed=1.5"], ["--seed takes a whole number"]),
        (["--seed", "1", "2"], ["--seed takes 1 value, not 2"]),
        (["--seed 5"], ["--seed and its value are one string; write them as two"]),
        (["--watermark", "much"], ["--watermark takes a number"]),
        (["-b", "4GiB"], ["-b takes a whole number"]),
        (
            ["--log-level", "warn"],
            ["--log-level is set to nothing it knows; did you mean warning?"],
        ),
        (["--log_level=x"], ["--log-level is set to nothing it knows; it takes debug, warning"]),
        (["--eager", "true"], ["--eager takes no value"]),
        (["--no-eager=1"], ["--no-eager takes no value"]),
        (["--sizes", "1", "x"], ["--sizes takes a whole number"]),
        (["--s", "1"], ["--s may be any of --seed, --sizes; write it out"]),
        (["--see", "a", "--watermark"], ["--see takes a whole number", HAS_NONE]),
    ],
)
def test_a_value_that_the_engine_refuses_is_told(args: list[str], said: list[str]) -> None:
    assert [complaint for complaint, _ in wrong_values(args, TAKEN)] == said


@pytest.mark.parametrize(
    "args",
    [
        ["--seed", "-1", "--watermark", "0.5", "--watermark=1", "-b", "16k", "-b", "auto"],
        ["--log-level", "debug", "--eager", "--no-eager", "--sizes", "1", "2"],
        ["--compilation-config", '{"mode": 2}', "-cc.mode=2", "--compilation-config.ops+", "a"],
        ["--only-named", "a", "b", "--only-named", "--unknown", "x"],
    ],
)
def test_what_the_engine_takes_is_not_told(args: list[str]) -> None:
    assert list(wrong_values(args, TAKEN)) == []


@pytest.mark.parametrize("args", [["-O3"], ["-O=3"], ["-O", "3"], ["-Odecode"]])
def test_the_short_form_of_the_optimization_level_is_written_out(args: list[str]) -> None:
    level = Flag(("--optimization-level",), 1, 1)
    assert list(unknown_flags(args, frozenset(level.names))) == []
    assert list(wrong_values(args, Help((level,)))) == []
    ((complaint, _),) = wrong_values(["-O"], Help((level,)))
    assert complaint == "--optimization-level has no value behind it"


def test_a_name_that_a_plugin_may_bring_is_not_surely_wrong() -> None:
    ((complaint, surely),) = wrong_values(["--tokenizer-mode", "own"], TAKEN)
    assert (complaint, surely) == (
        "--tokenizer-mode is set to nothing it knows; it takes auto, hf",
        False,
    )


def test_no_complaint_repeats_a_value() -> None:
    args = ["--seed", "hf_secret", "--log-level", "hf_secret", "--eager", "hf_secret"]
    assert "hf_secret" not in "".join(complaint for complaint, _ in wrong_values(args, TAKEN))


def test_of_many_choices_the_nearest_or_the_first_are_named() -> None:
    many = [f"method{number}" for number in range(50)]
    assert instead("METHOD7", many) == "; did you mean method7?"
    assert instead("zzz", many).endswith("method15, …")
