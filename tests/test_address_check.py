"""Log files and addresses, tried and left as they were."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from hum_workers.program.address_check import check_listen, check_log, why_unwritable
from hum_workers.program.findings import Finding


def log(file: Path | None) -> Finding:
    (found,) = check_log(file, "log")
    return found


def test_a_log_that_is_not_asked_for_is_not_looked_at() -> None:
    assert list(check_log(None, "log")) == []


def test_a_log_that_can_be_written_is_ok_and_not_made(tmp_path: Path) -> None:
    assert log(tmp_path / "worker.log").level == "ok"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "worker.log").write_text("kept")
    assert log(tmp_path / "worker.log").level == "ok"
    assert (tmp_path / "worker.log").read_text() == "kept"


def test_a_log_in_no_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    found = log(tmp_path / "none" / "worker.log")
    assert found.level == "error"
    assert f"{tmp_path}/none does not exist; make it" in found.message
    (tmp_path / "file").write_text("")
    assert log(tmp_path / "file" / "worker.log").level == "error"


def test_a_log_that_is_no_regular_file_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        assert "is no regular file" in log(path).message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_log_that_this_user_may_not_write_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o500)
    (tmp_path / "worker.log").touch(mode=0o400)
    assert log(tmp_path / "theirs" / "worker.log").level == "error"
    assert log(tmp_path / "worker.log").level == "error"


def test_a_folder_that_takes_files_has_no_fault_and_gets_none(tmp_path: Path) -> None:
    assert why_unwritable(tmp_path) == ""
    assert list(tmp_path.iterdir()) == []


def listen(address: str | None, *, bee_runs: bool = False) -> Finding:
    (found,) = check_listen(address, "metrics", bee_runs=bee_runs)
    return found


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_figures_that_are_not_asked_for_are_not_looked_at() -> None:
    assert list(check_listen(None, "metrics", bee_runs=False)) == []


def test_a_port_that_is_free_is_ok_and_stays_free() -> None:
    assert listen("127.0.0.1:0").level == "ok"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert listen(f"127.0.0.1:{port}").level == "ok"
    assert listen(f"127.0.0.1:{port}").level == "ok"


def test_a_port_in_use_is_an_error_unless_our_own_bee_may_have_it(taken: str) -> None:
    assert (listen(taken).level, "is in use" in listen(taken).message) == ("error", True)
    assert listen(taken, bee_runs=True).level == "warning"


def test_an_address_that_is_not_ours_is_an_error() -> None:
    # 192.0.2.0/24 is for documentation: no machine has it.
    found = listen("192.0.2.1:9464")
    assert (found.level, "is no address of this machine" in found.message) == ("error", True)


def test_a_name_that_nobody_knows_is_an_error() -> None:
    found = listen("no.such.host.invalid:9464")
    assert (found.level, "no name that is known here" in found.message) == ("error", True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may take any port")
def test_a_port_for_root_is_an_error() -> None:
    assert listen("127.0.0.1:1").level == "error"
