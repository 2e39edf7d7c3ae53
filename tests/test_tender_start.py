"""Starts that fail, hang or take their time; the private folder of a cell."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from hum_workers.frames import Frame
from hum_workers.tender.hatch import context_of
from tests.tenders import spec, tender

PATIENCE = 1.5
"""Seconds without progress after which a start fails here."""


async def failed(folder: Path, fake: dict[str, Any] | None = None, **changes: Any) -> str:
    """Returns why a start failed by the tender's own word."""
    raised = spec(folder, fake, **{"start_timeout": PATIENCE, **changes})
    async with tender(folder, raised) as it:
        gone = await it.gone()
        assert not it.of(Frame.READY)
        assert (gone["asked"], gone["left"]) == (False, [])
    return str(gone["reason"])


@pytest.mark.parametrize(
    ("wishes", "stage"),
    [
        ({"hang_at": "start"}, "spawned"),
        ({"hang_at": "load"}, "engine"),
        ({"hang_at": "listen"}, "engine ready"),
        ({"hang_at": "health"}, "serving"),
        ({"hang_at": "chat"}, "canary 1 of 2"),
        ({"hang_at": "load", "double_fork": True, "ignore_sigterm": True}, "engine"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_start_without_progress_fails_and_names_the_stage(
    wishes: dict[str, Any], stage: str, short_dir: Path
) -> None:
    reason = await failed(short_dir, wishes)
    assert reason == (
        f"no progress for {PATIENCE:g} s at stage '{stage}'; raise [lifecycle] start_timeout if it "
        "needs longer"
    )
    assert not (short_dir / "cell").exists()


async def test_a_list_of_models_that_never_comes_is_a_failed_start(short_dir: Path) -> None:
    reason = await failed(short_dir, {"hang_at": "models"})
    assert reason.startswith((f"no progress for {PATIENCE:g} s", "the engine says it is healthy"))


async def test_an_engine_that_says_the_same_for_ever_makes_no_progress(short_dir: Path) -> None:
    wishes = {
        "hang_at": "load",
        "chatter": "No available shared memory broadcast block found in 60 seconds.",
    }
    assert f"no progress for {PATIENCE:g} s at stage 'engine'" in await failed(short_dir, wishes)


async def test_each_new_line_moves_the_deadline(short_dir: Path) -> None:
    wishes = {"hang_at": "load", "chatter": "shard {n} of many"}
    async with tender(short_dir, spec(short_dir, wishes, start_timeout=PATIENCE)) as it:
        await it.first(Frame.VITALS)
        await it.until(lambda: it.vitals()["age_ms"] > 3 * PATIENCE * 1000)
        it.send(Frame.SILENCE, 0, "seen enough")
        assert (await it.gone())["reason"] == "seen enough"


async def test_a_progress_bar_moves_the_deadline(short_dir: Path) -> None:
    raised = spec(short_dir, {"ready_after": 3 * PATIENCE}, start_timeout=2 * PATIENCE)
    async with tender(short_dir, raised) as it:
        _, facts = await it.first(Frame.READY)
        assert facts["seconds"] > 2 * PATIENCE


async def test_the_wrong_model_is_a_failed_start(short_dir: Path) -> None:
    assert await failed(short_dir, model="other") == "the engine serves echo, not 'other'"


async def test_a_refused_key_is_a_failed_start(short_dir: Path) -> None:
    raised = spec(short_dir)
    reason = await failed(short_dir, argv=[*raised.argv, "--api-key", "secret"])
    assert "list of models can't be read (status 401)" in reason


async def test_a_first_prompt_that_fails_is_a_failed_start(short_dir: Path) -> None:
    reason = await failed(short_dir, {"request": {"error": 500}}, start_timeout=10)
    assert reason == (
        "ready by its own word, but a first prompt failed: the engine answered 500: EngineCore "
        "encountered an issue"
    )


async def test_an_engine_that_dies_of_its_first_prompt_is_told_by_its_death(
    short_dir: Path,
) -> None:
    raised = spec(short_dir, {"request": {"die": "before"}}, start_timeout=10)
    async with tender(short_dir, raised) as it:
        gone = await it.gone()
        assert (gone["reason"], gone["signal"]) == ("", 9)


async def test_an_engine_that_is_not_there_is_a_failed_start(short_dir: Path) -> None:
    reason = await failed(short_dir, argv=[str(short_dir / "nothing"), "serve"])
    assert reason == f"can't run {short_dir}/nothing: No such file or directory"


async def test_a_folder_to_work_in_that_is_not_there_is_a_failed_start(short_dir: Path) -> None:
    reason = await failed(short_dir, cwd=str(short_dir / "nowhere"))
    assert f"{short_dir}/nowhere" in reason
    assert "No such file or directory" in reason


async def test_the_private_folder_is_ours_alone_and_its_files_too(short_dir: Path) -> None:
    private = short_dir / "cell"
    raised = spec(short_dir, files={"cell.yaml": "{}", "alias/x.dist-info/METADATA": "Name: x\n"})
    before = os.umask(0)
    try:
        async with tender(short_dir, raised) as it:
            await it.first(Frame.READY)
            assert _mode(private) == 0o700
            assert _mode(private / "tmp") == 0o700
            assert _mode(private / "alias" / "x.dist-info") == 0o700
            for name, text in raised.files.items():
                assert _mode(private / name) == 0o600
                assert (private / name).read_text() == text
            it.leave()
            await it.process.wait()
            assert not private.exists()
    finally:
        os.umask(before)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


async def test_what_an_earlier_run_left_in_the_folder_is_wiped(short_dir: Path) -> None:
    private = short_dir / "cell"
    (private / "tmp" / "deep").mkdir(parents=True)
    private.chmod(0o755)
    (private / "tmp" / "deep" / "file").write_text("old")
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(private / "engine.sock"))
        stale.listen()
        async with tender(short_dir, spec(short_dir)) as it:
            await it.first(Frame.READY)
            assert _mode(private) == 0o700
            assert not (private / "tmp" / "deep").exists()


async def test_a_folder_that_is_a_symbolic_link_is_refused_and_left_alone(short_dir: Path) -> None:
    precious = short_dir / "precious"
    precious.mkdir()
    (precious / "file").write_text("keep")
    (short_dir / "cell").symlink_to(precious)
    assert await failed(short_dir) == f"{short_dir}/cell: is a symbolic link; remove it"
    assert (precious / "file").read_text() == "keep"
    assert (short_dir / "cell").is_symlink()


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give a folder away")
async def test_a_folder_of_somebody_else_is_refused_and_left_alone(short_dir: Path) -> None:
    private = short_dir / "cell"
    private.mkdir()
    (private / "file").write_text("theirs")
    os.chown(private, 65534, 65534)
    reason = await failed(short_dir)
    assert reason == f"{private}: belongs to user 65534, not to us; remove it"
    assert (private / "file").read_text() == "theirs"


async def test_a_folder_that_can_not_be_made_is_a_failed_start(short_dir: Path) -> None:
    (short_dir / "file").write_text("")
    private = short_dir / "file" / "cell"
    reason = await failed(short_dir, private=str(private))
    assert reason == f"{private}: can't be made ready: Not a directory"


async def test_no_memory_grows_with_what_an_engine_prints(short_dir: Path) -> None:
    wishes = {"flood": 16 << 20, "long_line": 16 << 20}
    async with tender(short_dir, spec(short_dir, wishes)) as it:
        await it.first(Frame.READY)
        status = Path(f"/proc/{it.process.pid}/status").read_text()
        peak = next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line)
        assert peak < 120 * 1024
        assert len(it.of(Frame.STAGE)) < 20


async def test_lines_that_the_spec_waits_for_are_told_by_name_or_as_they_are(
    short_dir: Path,
) -> None:
    raised = spec(short_dir, notices=[["Starting vLLM server", "listens"], ["KV cache size", ""]])
    async with tender(short_dir, raised) as it:
        await it.first(Frame.READY)
        told = [frame[1] for frame in it.of(Frame.NOTICE)]
    assert "listens" in told
    assert any("KV cache size" in line and line != "KV cache size" for line in told)


@pytest.mark.parametrize(
    ("card", "context"),
    [
        ({"id": "x", "max_model_len": 2048}, 2048),
        ({"id": "x", "meta": {"n_ctx": 4096, "n_ctx_train": 8192}}, 4096),
        ({"id": "x", "meta": None}, None),
        ({"id": "x", "meta": {"n_ctx": "many"}}, None),
    ],
)
def test_the_context_of_a_turn_is_read_as_either_engine_tells_it(
    card: dict[str, Any], context: int | None
) -> None:
    assert context_of(card) == context
