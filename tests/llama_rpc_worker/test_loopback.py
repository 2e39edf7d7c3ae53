"""Whose process is at the other end of a connection of this host."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from unittest.mock import patch

import pytest

from hum_workers.llama_rpc_worker.loopback import NOBODY, TABLE, origin, peer_uid, uid_in_table

HEAD = (
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout\n"
)
UNABLE = patch("socket.AF_NETLINK", -1)
"""As on a kernel that can't be asked for one socket."""


@pytest.mark.parametrize("able", [True, False])
@pytest.mark.parametrize("end", ["open", "closed", "reset"])
def test_a_peer_is_this_user_for_as_long_as_it_holds_its_socket(able: bool, end: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        link, peer = server.accept()
        own = link.getsockname()
        with link, client:
            if end == "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if end != "open":
                client.close()
            if able:
                found = peer_uid(peer, own)
            else:
                with UNABLE:
                    found = peer_uid(peer, own)
        assert found == (os.geteuid() if end == "open" else NOBODY)


def test_whoever_listens_at_the_peers_port_is_not_the_peer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert peer_uid(server.getsockname(), ("127.0.0.1", 9)) == NOBODY


def test_a_peer_by_ipv6_is_known_too() -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        port = server.getsockname()[1]
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, port)):
                link, peer = server.accept()
                with link:
                    assert peer_uid(peer, link.getsockname()) == os.geteuid()
                    assert origin(peer, link.getsockname()) == f"uid {os.geteuid()}"


def test_the_row_of_the_peer_and_not_of_this_side_counts(tmp_path: Path) -> None:
    table = tmp_path / "tcp"
    row = " 00000000:00000000 00:00000000 00000000 "
    table.write_text(
        HEAD
        + f"   0: 0100007F:1F90 0100007F:C350 01{row}    0 0 1\n"
        + f"   1: 0100007F:C350 0100007F:1F91 01{row}    7 0 2\n"
        + f"   2: 0100007F:C350 0100007F:1F90 01{row} 1000 0 3\n"
        + f"   3: 0100007F:C351 0100007F:1F90 04{row}    0 0 0\n"
        + f"   4: 0100007F:C352 0100007F:1F90 01{row}    0 0 0\n"
    )
    own = "127.0.0.1", 8080
    assert uid_in_table(("127.0.0.1", 50000), own, table) == 1000
    for closed in (50001, 50002, 50003):
        assert uid_in_table(("127.0.0.1", closed), own, table) == NOBODY


def test_a_table_that_can_not_be_read_knows_nobody(tmp_path: Path) -> None:
    assert uid_in_table(("127.0.0.1", 1), ("127.0.0.1", 2), tmp_path) == NOBODY


def test_without_the_table_it_is_not_known_whose_it_is(tmp_path: Path) -> None:
    assert uid_in_table(("127.0.0.1", 1), ("127.0.0.1", 2), tmp_path / "none") is None
    assert Path("/proc/net/tcp") == TABLE


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("fe80::1%eth0", "fe80::/64"),
        ("127.8.7.6", "this host"),
        ("a socket", "a socket"),
    ],
)
def test_from_elsewhere_a_host_is_one_however_many_addresses_it_has(host: str, said: str) -> None:
    assert origin((host, 7), ("127.0.0.1", 9)) == said
