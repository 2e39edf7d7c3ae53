"""Whether a command can be started, without starting it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hum_workers.program.command_check import why_not_startable


def script(path: Path, text: str = "#!/bin/sh\n", mode: int = 0o755) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def why(folder: Path, *words: str, path: str = "/usr/bin:/bin") -> str:
    return why_not_startable(words, {"PATH": path}, folder)


@pytest.mark.parametrize("words", [(), ("nice", "-n", "5"), ("/usr/bin/env", "A=b"), ("./run",)])
def test_what_can_be_started_is_not_told(tmp_path: Path, words: tuple[str, ...]) -> None:
    script(tmp_path / "run")
    assert why(tmp_path, *words) == ""


def test_a_name_is_looked_for_in_the_path_of_the_engine_alone(tmp_path: Path) -> None:
    script(tmp_path / "bin" / "wrap")
    assert why(tmp_path, "wrap", path=f"/nowhere:{tmp_path}/bin") == ""
    assert why(tmp_path, "wrap", path="bin") == ""
    assert "is not found in the PATH that the engine gets" in why(tmp_path, "wrap")


def test_an_empty_path_finds_nothing_of_a_missing_folder(tmp_path: Path) -> None:
    assert "is not found" in why(tmp_path, "wrap", path="/nowhere")


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ("#!/bin/sh\n", 0o644, "is not executable; chmod +x it"),
        ("#!/nowhere/sh -e\n", 0o755, "is a script for /nowhere/sh, which is not there"),
        ("#!\n", 0o755, "is a script for nothing"),
        ("echo hello\n", 0o755, "is neither a program nor a script with #!"),
    ],
)
@pytest.mark.parametrize("by_path", [True, False])
def test_a_file_that_the_kernel_refuses_is_told(
    tmp_path: Path, text: str, mode: int, said: str, by_path: bool
) -> None:
    script(tmp_path / "bin" / "wrap", text, mode)
    word, path = ("./bin/wrap", "/bin") if by_path else ("wrap", f"/bin:{tmp_path}/bin")
    assert said in why(tmp_path, word, path=path)


def test_a_path_that_is_no_file_is_told(tmp_path: Path) -> None:
    assert "does not exist" in why(tmp_path, "/nowhere/wrap")
    assert "is a folder" in why(tmp_path, str(tmp_path))
