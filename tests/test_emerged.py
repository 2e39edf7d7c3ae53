"""Autopsies: what a death is called, in one line, and what it means for the next raise.

The lines of failed starts are vLLM's own (`vllm_worker/failures`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hum_workers.cells.blame import AT_ONCE, RULES, START_TRIES, Again, again
from hum_workers.cells.emerged import Emerged, Fault, verdict
from hum_workers.figures.counts import Death
from hum_workers.vllm_worker.failure import diagnosis

FAILURES = Path(__file__).parent / "vllm_worker" / "failures"
CLASSES = {
    "bad_choice": Death.USAGE,
    "bad_json": Death.USAGE,
    "bad_path": Death.MODEL,
    "chat_template_missing": Death.MODEL,
    "empty_folder": Death.MODEL,
    "heads": Death.MODEL,
    "hub_id_not_cached": Death.MODEL,
    "kv_too_big": Death.ROOM,
    "kv_too_small": Death.ROOM,
    "no_tokenizer": Death.MODEL,
    "numa": Death.USAGE,
    "quantization": Death.MODEL,
    "sleep_on_cpu": Death.USAGE,
    "socket_in_use": Death.PORT,
    "too_long": Death.MODEL,
    "tool_parser": Death.USAGE,
    "truncated_weights": Death.MODEL,
    "unknown_architecture": Death.MODEL,
    "unknown_flag": Death.USAGE,
    "worker_killed": Death.START_FAILED,
}
OUT_OF_MEMORY = [
    "(EngineCore pid=9) ERROR 12-01 10:38:20 [core.py:1510] EngineCore failed to start.",
    (
        "(Worker_TP0 pid=11) ERROR 12-01 10:38:20 [x.py:1] torch.OutOfMemoryError: CUDA out of "
        "memory. Tried to allocate 224.00 MiB. GPU 0 has a total capacity of 23.52 GiB of which "
        "98.44 MiB is free."
    ),
    "RuntimeError: Engine core initialization failed. See root cause above.",
]
TOO_LITTLE_FREE = [
    (
        "(EngineCore pid=9) ERROR 12-01 10:38:20 [core.py:1510] ValueError: Free memory on device "
        "cuda:0 (3.2/23.5 GiB) on startup is less than desired GPU memory utilization (0.9, 21.1)."
    ),
]
SEGFAULT = ["Fatal Python error: Segmentation fault", "", "Current thread 0x7f (most recent call):"]
KILLED: dict[str, Any] = {"fallen": ["VLLM::Worker (pid 11) was killed by SIGKILL", -9]}


def lines(name: str) -> list[str]:
    return (FAILURES / f"{name}.txt").read_text("utf-8").splitlines()[2:]


def dead(
    *,
    was_ready: bool = True,
    said: Sequence[str] = (),
    sentence: tuple[Fault, str] | None = None,
    hint: str = "",
    **facts: Any,
) -> Emerged:
    """Returns the autopsy of an end that nobody asked for."""
    gone = {
        **{"code": None, "signal": None, "cause": "", "reason": "", "asked": False},
        **{"fallen": None, "left": [], "swept": [], "stacks": "", "lines": list(said)},
        **{"oom_kills": 0, "host_ooms": 0, "peak_rss_bytes": 1 << 30, "seconds": 7.0},
        **facts,
    }
    return verdict(
        gone,
        tender_status=0,
        orphans=[],
        asked=False,
        killed=False,
        sentence=sentence,
        hint=hint,
        was_ready=was_ready,
        diagnose=diagnosis,
    )


def test_every_recorded_failure_has_a_class() -> None:
    assert sorted(CLASSES) == sorted(path.stem for path in FAILURES.glob("*.txt"))


@pytest.mark.parametrize("name", CLASSES)
def test_a_failed_start_is_classed_by_vllms_own_words(name: str) -> None:
    emerged = dead(was_ready=False, said=lines(name), code=2 if name == "unknown_flag" else 1)
    assert emerged.death is CLASSES[name]
    assert emerged.reason == (FAILURES / f"{name}.txt").read_text("utf-8").splitlines()[0]
    assert emerged.by == "itself"
    assert str(emerged) == f"{emerged.reason}; {emerged.advice}"


def test_a_worker_killed_while_it_loads_is_named_where_the_kernel_told() -> None:
    emerged = dead(was_ready=False, said=lines("worker_killed"), code=1, **KILLED)
    assert emerged.death is Death.KILLED
    assert emerged.reason == "VLLM::Worker (pid 11) was killed by SIGKILL while it started"


def test_a_worker_that_its_engine_ends_after_an_error_is_not_the_cause() -> None:
    fallen: dict[str, Any] = {"fallen": ["VLLM::Worker (pid 11) was killed by SIGTERM", -15]}
    emerged = dead(was_ready=False, said=lines("kv_too_big"), code=1, **fallen)
    assert emerged.death is Death.ROOM


def test_whether_an_engine_or_its_bee_noticed_a_lost_slice_first_is_all_the_same() -> None:
    told = dead(was_ready=False, signal=6, sentence=(Fault(Death.SLICE), "slice b was lost"))
    assert (told.death, told.by, told.reason) == (Death.SLICE, "us", "slice b was lost")
    mild = dead(
        was_ready=False, signal=6, sentence=(Fault(Death.SLICE, mild=True), "b was stopped")
    )
    assert mild.death == Death.SLICE
    assert "log" not in mild.advice
    assert told.signal == 6


def test_a_hint_is_for_an_engine_that_was_silent() -> None:
    silent = dead(cause="stalled", reason="no token", hint="slice b has not answered")
    assert silent.reason == "no token; slice b has not answered"
    assert "slice b" not in dead(signal=9, hint="slice b has not answered").reason


@pytest.mark.parametrize("said", [OUT_OF_MEMORY, TOO_LITTLE_FREE])
@pytest.mark.parametrize("was_ready", [True, False])
def test_a_device_without_memory_is_told_from_a_machine_without(
    said: list[str], was_ready: bool
) -> None:
    emerged = dead(was_ready=was_ready, said=said, code=1)
    assert emerged.death is Death.GPU_MEMORY
    assert "free the device" in emerged.advice
    own = replace(emerged, words={Death.GPU_MEMORY: "lower [kv] size"})
    assert own.advice == "lower [kv] size"
    assert "memory" in emerged.reason


@pytest.mark.parametrize(
    ("facts", "death", "by", "reason"),
    [
        ({"signal": 9, "oom_kills": 1}, Death.MEMORY, "SIGKILL", "killed by the kernel for memory"),
        (
            {"cause": "member", **KILLED, "oom_kills": 1},
            *(Death.MEMORY, "SIGKILL"),
            "killed by the kernel for memory (VLLM::Worker (pid 11) was killed by SIGKILL)",
        ),
        (
            {"cause": "member", **KILLED, "host_ooms": 2},
            *(Death.MEMORY, "SIGKILL"),
            (
                "VLLM::Worker (pid 11) was killed by SIGKILL when this host's kernel ended a "
                "process for want of memory"
            ),
        ),
        (
            {"cause": "member", **KILLED},
            *(Death.KILLED, "SIGKILL"),
            "VLLM::Worker (pid 11) was killed by SIGKILL",
        ),
        ({"signal": 9}, Death.KILLED, "SIGKILL", "the engine was killed by SIGKILL"),
        (
            {"signal": 11, "said": SEGFAULT},
            *(Death.SIGNAL, "SIGSEGV"),
            "the engine was killed by SIGSEGV; it said: Fatal Python error: Segmentation fault",
        ),
        ({"code": 0}, Death.EXIT, "itself", "the engine exited with code 0"),
        (
            {"cause": "memory", "reason": "over", "signal": 9},
            *(Death.MEMORY, "us"),
            "over",
        ),
        (
            {"cause": "stalled", "reason": "no token", "stacks": "by py-spy"},
            *(Death.STALLED, "us"),
            "no token; stacks by py-spy are in the engine's log",
        ),
        (
            {"cause": "start_timeout", "reason": "no progress", "was_ready": False},
            *(Death.START_TIMEOUT, "us", "no progress"),
        ),
        (
            {"cause": "start", "reason": "wrong model", "was_ready": False},
            *(Death.START_FAILED, "us", "wrong model"),
        ),
        (
            {"cause": "tender", "reason": "the tender failed"},
            *(Death.TENDER, "us", "the tender failed"),
        ),
    ],
)
def test_who_ended_it_and_why(facts: dict[str, Any], death: Death, by: str, reason: str) -> None:
    emerged = dead(**facts)
    assert (emerged.death, emerged.by, emerged.reason) == (death, by, reason)
    assert emerged.advice
    assert (emerged.seconds, emerged.peak_rss_bytes) == (7.0, 1 << 30)


def test_an_end_that_was_asked_for_needs_no_advice() -> None:
    emerged = dead(asked=True, reason="the bee stops", code=0, **KILLED)
    assert (emerged.death, emerged.by, str(emerged)) == (Death.STOPPED, "us", "the bee stops")


def test_who_said_nothing_has_no_log_to_read() -> None:
    started: dict[str, Any] = {"cause": "start", "reason": "can't run it", "was_ready": False}
    assert "log has the rest" not in dead(**started).advice
    assert dead(**started, said=["words"]).advice == "the engine's log has the rest"
    assert "log has the stacks" not in dead(signal=11).advice
    assert "dmesg" in dead(signal=9).advice


def test_what_there_is_nothing_of_is_left_out_of_the_log() -> None:
    facts = dead(code=1, said=["words"]).facts()
    assert (facts["code"], facts["turns_lost"], facts["peak_mib"]) == (1, 0, 1024)
    assert not {"signal", "left", "swept"} & facts.keys()
    assert "peak_mib" not in dead(peak_rss_bytes=0).facts()


@pytest.mark.parametrize("end", [{"code": 0}, {"signal": 9}])
def test_how_an_engine_ended_that_we_condemned_tells_nothing(end: dict[str, Any]) -> None:
    condemned = dead(cause="start", reason="wrong model", was_ready=False, **end)
    assert not {"code", "signal"} & condemned.facts().keys()
    asked = dead(asked=True, reason="the bee stops", **end)
    assert end.items() <= asked.facts().items()


def test_every_class_has_a_rule_and_an_advice() -> None:
    assert RULES.keys() == set(Death)
    assert all(advice for death, (_, advice) in RULES.items() if death is not Death.STOPPED)


@pytest.mark.parametrize("death", [Death.USAGE, Death.MODEL, Death.ROOM])
def test_a_mistake_of_the_egg_is_never_tried_again(death: Death) -> None:
    for was_ready in (True, False):
        assert again(death, was_ready=was_ready, failures=1) is Again.NEVER


def test_a_clash_is_tried_again_at_once_but_not_for_ever() -> None:
    tries = [again(Death.PORT, was_ready=False, failures=n) for n in range(1, AT_ONCE + 3)]
    assert tries == [Again.AT_ONCE] * AT_ONCE + [Again.NEVER] * 2
    assert again(Death.PORT, was_ready=True, failures=99) is Again.PAUSED


@pytest.mark.parametrize("death", [Death.KILLED, Death.MEMORY, Death.START_TIMEOUT, Death.TENDER])
def test_a_crash_is_tried_again_after_a_pause_a_first_start_a_few_times(death: Death) -> None:
    assert again(death, was_ready=True, failures=99) is Again.PAUSED
    tries = [again(death, was_ready=False, failures=n) for n in range(1, START_TRIES + 1)]
    assert tries == [Again.PAUSED] * (START_TRIES - 1) + [Again.NEVER]


def test_a_start_that_fails_for_no_known_reason_counts_as_a_mistake_of_the_egg_at_first() -> None:
    assert again(Death.START_FAILED, was_ready=False, failures=1) is Again.NEVER
    assert again(Death.START_FAILED, was_ready=True, failures=1) is Again.PAUSED


def test_the_page_says_of_each_class_what_the_code_does() -> None:
    page = (Path(__file__).parent.parent / "docs" / "reliability.md").read_text("utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    rows = [row for row in rows if len(row) == 4]
    told = {row[0].strip("| `"): (row[2], row[3].strip(" |")) for row in rows}
    assert told.keys() == {death.value for death in Death}
    for death, (rule, advice) in RULES.items():
        raised, step = told[death.value]
        assert raised.startswith({"never": "never"}.get(rule.value, rule.value))
        assert step == (advice or "–")
