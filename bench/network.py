"""Machines on one host: network namespaces, each with an address, on a switch of their own.

A cable that is cut swallows what is sent and tells neither side, as a switch that loses power does.
Needs root. Owns the namespaces; leaving the context removes them and every link in them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Self

SUBNET = "10.77.0"
SWITCH = "br0"


class NetworkError(Exception):
    """The network can't be made here; the message is one line."""


class Network:
    """`with Network(["front", "one"]) as net: ...`; namespaces bear the pid of who made them."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self._switch = self._namespace("switch")

    def __enter__(self) -> Self:
        try:
            _ip("netns", "add", self._switch)
            _ip("-n", self._switch, "link", "add", SWITCH, "type", "bridge")
            _ip("-n", self._switch, "link", "set", SWITCH, "up")
            for name in self.names:
                self._add(name)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    def address(self, name: str) -> str:
        """Returns the address of a machine."""
        return f"{SUBNET}.{self.names.index(name) + 1}"

    def within(self, name: str) -> list[str]:
        """Returns what starts a command on a machine and is replaced by it.

        Not `ip netns exec`, which takes the cgroups away with the mounts.
        """
        return ["nsenter", f"--net=/var/run/netns/{self._namespace(name)}"]

    def cut(self, name: str) -> None:
        """Pulls a machine's cable out of the switch."""
        _ip("-n", self._switch, "link", "set", f"p-{name}", "nomaster")

    def mend(self, name: str) -> None:
        """Puts it back."""
        _ip("-n", self._switch, "link", "set", f"p-{name}", "master", SWITCH)

    def carried(self, name: str) -> tuple[int, int]:
        """Returns the bytes on a machine's cable so far, to it and from it, headers included."""
        shown = _ip("-n", self._switch, "-s", "-j", "link", "show", f"p-{name}")
        (link,) = json.loads(shown)
        counts = link["stats64"]
        return counts["tx"]["bytes"], counts["rx"]["bytes"]

    def _add(self, name: str) -> None:
        space, port = self._namespace(name), f"p-{name}"
        _ip("netns", "add", space)
        ends = ["name", "eth0", "netns", space, "type", "veth", "peer", "name", port]
        _ip("link", "add", *ends, "netns", self._switch)
        _ip("-n", self._switch, "link", "set", port, "master", SWITCH, "up")
        _ip("-n", space, "address", "add", f"{self.address(name)}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", space, "link", "set", device, "up")

    def _remove(self) -> None:
        for name in (*self.names, "switch"):
            space = self._namespace(name)
            if os.path.exists(f"/var/run/netns/{space}"):
                _ip("netns", "delete", space)

    def _namespace(self, name: str) -> str:
        return f"hum-{os.getpid()}-{name}"


def why_not() -> str:
    """Returns why no network can be made here, one line; empty: it can."""
    for program, package in (("ip", "iproute2"), ("nsenter", "util-linux")):
        if shutil.which(program) is None:
            return f"no network namespaces without {program}: install {package}"
    try:
        with Network(["probe"]):
            return ""
    except NetworkError as error:
        return f"{error}; network namespaces and virtual links need root, and a kernel with both"


def _ip(*arguments: str) -> str:
    """Runs `ip` and returns its output."""
    try:
        done = subprocess.run(
            ["ip", *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except subprocess.TimeoutExpired:
        raise NetworkError(f"ip {' '.join(arguments)}: no end after 10 s") from None
    if done.returncode != 0:
        words = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise NetworkError(f"ip {' '.join(arguments)}: {words}")
    return done.stdout
