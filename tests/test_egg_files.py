from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hum_workers.egg.files import MAX_EGG, Document, clip, dotted, parse, read_documents
from hum_workers.errors import Mistake

EGG = "[model]\npath = 'x'\n"


def messages(*paths: Path) -> list[str]:
    return [str(result) for result in read_documents(paths) if isinstance(result, Mistake)]


def sources(*paths: Path) -> list[str]:
    return [r.source.name for r in read_documents(paths) if isinstance(r, Document)]


def test_a_folder_stands_for_its_toml_files_sorted_by_name(tmp_path: Path) -> None:
    for name in ("b.toml", "a.toml", ".hidden.toml", "notes.md", "c.toml~"):
        (tmp_path / name).write_text(EGG)
    (tmp_path / "folder.toml").mkdir()
    assert sources(tmp_path) == ["a.toml", "b.toml"]
    assert messages(tmp_path) == []


def test_no_path_is_a_mistake() -> None:
    assert messages() == ["egg: none is given; name a .toml file or a folder"]


def test_a_missing_file_is_told_with_the_file_that_was_meant(tmp_path: Path) -> None:
    (tmp_path / "smollm2.toml").write_text(EGG)
    missing = tmp_path / "smolm2.toml"
    assert messages(missing) == [f"{missing}: no such file; did you mean {tmp_path}/smollm2.toml?"]
    assert messages(tmp_path / "no" / "x.toml") == [f"{tmp_path}/no/x.toml: no such file"]


def test_a_path_through_a_file_and_a_loop_of_links_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(EGG)
    (tmp_path / "loop.toml").symlink_to("loop.toml")
    assert messages(tmp_path / "a.toml" / "b.toml", tmp_path / "loop.toml") == [
        f"{tmp_path}/a.toml/b.toml: can't be read: Not a directory",
        f"{tmp_path}/loop.toml: can't be read: Too many levels of symbolic links",
    ]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_without_permission_is_told(tmp_path: Path) -> None:
    egg = tmp_path / "a.toml"
    egg.write_text(EGG)
    egg.chmod(0)
    assert messages(egg) == [f"{egg}: can't be read: Permission denied"]


def test_what_is_no_file_is_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    assert messages(tmp_path / "pipe.toml", Path("/dev/null")) == [
        f"{tmp_path}/pipe.toml: is no regular file; give a .toml file or a folder",
        "/dev/null: is no regular file; give a .toml file or a folder",
    ]


def test_a_huge_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    egg = tmp_path / "huge.toml"
    with egg.open("wb") as stream:
        stream.truncate(MAX_EGG * 1000)
    assert messages(egg) == [f"{egg}: is larger than 1 MiB; is this an egg?"]


def test_an_egg_given_twice_is_told_whatever_it_is_called(tmp_path: Path) -> None:
    egg, link = tmp_path / "a.toml", tmp_path / "b.toml"
    egg.write_text(EGG)
    link.symlink_to(egg)
    assert messages(tmp_path, egg) == [
        f"{link}: is given twice; name each egg once",
        f"{egg}: is given twice; name each egg once",
    ]


def test_a_secret_without_quotes_is_not_shown() -> None:
    (mistake,) = parse(Path("a.toml"), b"[engine.env]\nHF_TOKEN = hf_abc123\n")
    assert str(mistake).startswith("a.toml:2:12: is no TOML: invalid value; a value that is no")
    assert "hf_abc" not in str(mistake)


@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda text: text.encode()))
def test_any_bytes_become_a_document_or_mistakes_on_one_line(raw: bytes) -> None:
    results = parse(Path("a.toml"), raw)
    assert results
    for result in results:
        assert isinstance(result, Document) or "\n" not in str(result)


def test_paths_are_shown_as_toml_writes_them() -> None:
    assert dotted(("engine", "args", 1)) == "engine.args[1]"
    assert dotted(("engine", "env", 'A "B"')) == 'engine.env."A \\"B\\""'
    assert len(dotted(("x" * 1000,))) == 60


def test_what_is_shown_is_one_short_line() -> None:
    assert clip("a\nb\x1b[31m") == "a b [31m"
    assert clip("x" * 61) == "x" * 59 + "…"
