"""Whose process is at the other end of a loopback connection."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from hum_workers.llama_rpc_worker.loopback import TABLE, peer_uid

HEAD = (
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout\n"
)


def test_the_peer_of_a_connection_is_this_user() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as client:
            link, peer = server.accept()
            with link:
                assert peer_uid(peer, link.getsockname()) == os.geteuid()
                assert peer_uid(peer, client.getsockname()) is None


def test_the_row_of_the_peer_and_not_of_this_side_counts(tmp_path: Path) -> None:
    table = tmp_path / "tcp"
    table.write_text(
        HEAD
        + "   0: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0 0 1\n"
        + "   1: 0100007F:C350 0100007F:1F91 01 00000000:00000000 00:00000000 00000000     7 0 2\n"
        + "   2: 0100007F:C350 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1000 0 3\n"
    )
    assert peer_uid(("127.0.0.1", 50000), ("127.0.0.1", 8080), table) == 1000


def test_without_the_table_nobody_knows(tmp_path: Path) -> None:
    assert peer_uid(("127.0.0.1", 1), ("127.0.0.1", 2), tmp_path / "none") is None
    assert Path("/proc/net/tcp") == TABLE
