"""What FAKE_ENGINE asks of the process: hangs, exits, floods, children that do not leave.

Keys (all optional):
  ready_after      seconds a start takes in all, with progress lines (0)
  hang_at          stage at which the start stops for ever
  chatter          line printed all the time at that stage, {n} in it counts
  exit_at          {"stage", "code", "line", "after"}: leaves there, `line` on stderr, after seconds
  failure          name of a failure of the real one (FAILURES), at its stage
  children         EngineCore and workers: that many more processes (0); they outlive a SIGKILL
  double_fork      true: one more that has left the session and ignores every polite signal
  ignore_sigterm   true: SIGTERM and SIGINT do nothing
  long_line        bytes of one line of output while starting
  flood            bytes of output while starting; flood_ready: when ready, by a thread
  die_after        seconds from ready to a SIGKILL of this process by itself
  long_usage       true: a usage error prints some 300 lines first
  refuse_after     requests after which each more gets 503
  health_after_death  seconds /health says 503 before the exit after an engine's death (0.3)
  request          directives for requests that bring none (plan.Fake)
  media            kinds of media that the model takes, ["image", "audio", "video"] ([]); the answer
                   to a prompt with some says how many of each came
  keep_alive       seconds a free connection is kept (5)
  alive            path of a Unix socket: each process connects to it for as long as it lives
Stages, in order: start, config, engine, load, kv, listen, ready. hang_at may also name a route that
never answers: health, models, chat, metrics.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from vllm.scripted.failures import FAILURES, NOISE
from vllm.scripted.log import say

_KEPT = 600.0
"""Seconds after which a child leaves by itself, so that nothing stays for good."""

_CHILD = """
import os, signal, socket, subprocess, sys, time
name, below, text, parent = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
alive = sys.argv[5]
open('/proc/self/comm', 'w').write(name)
if alive:
    link = socket.socket(socket.AF_UNIX)
    link.connect(alive)
    link.sendall(name.encode() + b'\\n')
for n in range(below):
    subprocess.Popen([sys.executable, '-I', '-S', '-c', text, 'VLLM::Worker', '0', text,
                      str(os.getpid()), alive], stdin=subprocess.DEVNULL)
end = time.monotonic() + 600
# A worker has a death pipe to its EngineCore; EngineCore outlives its API server.
while time.monotonic() < end and (below or name != 'VLLM::Worker' or os.getppid() == parent):
    time.sleep(0.1)
"""


class Faults:
    """The wishes of FAKE_ENGINE."""

    def __init__(self, wishes: dict[str, Any]) -> None:
        self.wishes = wishes
        self.request: dict[str, Any] = wishes.get("request", {})
        self.hang_at: str = wishes.get("hang_at", "")
        self.ready_after = float(wishes.get("ready_after", 0))
        self.children: list[subprocess.Popen[bytes]] = []
        self._alive = _live(wishes.get("alive", ""), "main")

    @classmethod
    def from_environment(cls) -> Faults:
        """Reads FAKE_ENGINE."""
        return cls(json.loads(os.environ.get("FAKE_ENGINE") or "{}"))

    def stage(self, name: str) -> None:
        """Does what is wished for at this stage of the start."""
        if self.hang_at == name:
            self._hang()
        leave = self.wishes.get("exit_at") or {}
        if leave.get("stage") == name:
            time.sleep(leave.get("after", 0))
            self.leave(int(leave.get("code", 1)), leave.get("line", ""))
        failure = FAILURES.get(self.wishes.get("failure", ""))
        if failure is not None and failure[0] == name:
            self._fail(*failure[1:])

    def _hang(self) -> NoReturn:
        number, line = 0, self.wishes.get("chatter", "")
        while True:
            if line:
                say(line.format(n=number))
                number += 1
            time.sleep(0.02 if line else 60)

    def leave(self, code: int, line: str = "") -> NoReturn:
        """Leaves at once, without any tidying up."""
        if line:
            sys.stderr.write(line + "\n")
        sys.stdout.flush()
        sys.stderr.flush()
        self.end_children()
        os._exit(code)

    def _fail(self, deepest: str, last: str) -> NoReturn:
        now = time.strftime("%m-%d %H:%M:%S")
        if deepest:
            sys.stdout.write(deepest.format(pid=os.getpid() + 1, now=now) + "\n")
        sys.stderr.write(
            "Traceback (most recent call last):\n"
            '  File "<string>", line 1, in <module>\n'
            '  File "vllm/entrypoints/cli/main.py", line 120, in main\n'
            "    args.dispatch_function(args)\n"
        )
        self.leave(1, last + "\n" + NOISE.rstrip("\n"))

    def early(self) -> None:
        """Starts the processes and writes the output that are wished for."""
        if self.wishes.get("ignore_sigterm"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        count = int(self.wishes.get("children", 0))
        if count:
            argv = [sys.executable, "-I", "-S", "-c", _CHILD]
            argv += ["VLLM::EngineCor", str(count - 1), _CHILD, "0", self.wishes.get("alive", "")]
            self.children.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL))
        if self.wishes.get("double_fork"):
            _double_fork(self.wishes.get("alive", ""))
        _flood(int(self.wishes.get("flood", 0)))
        if self.wishes.get("long_line"):
            sys.stdout.write("x" * int(self.wishes["long_line"]) + "\n")
            sys.stdout.flush()

    def late(self) -> None:
        """Does what is wished for once the engine is ready."""
        size = int(self.wishes.get("flood_ready", 0))
        if size:
            threading.Thread(target=_flood, args=(size,), daemon=True).start()
        if "die_after" in self.wishes:
            after = float(self.wishes["die_after"])
            timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGKILL))
            timer.daemon = True
            timer.start()

    def end_children(self) -> None:
        """Kills EngineCore and workers, as an orderly stop does."""
        for child in self.children:
            for pid in _children(child.pid):
                os.kill(pid, signal.SIGKILL)
            child.kill()
            child.wait()
        self.children.clear()


def _children(pid: int) -> list[int]:
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _live(path: str, role: str) -> socket.socket | None:
    """Shows on a socket that this process lives: its end is the end of the connection."""
    if not path:
        return None
    link = socket.socket(socket.AF_UNIX)
    link.connect(path)
    link.sendall(role.encode() + b"\n")
    return link


def _double_fork(alive: str) -> None:
    first = os.fork()
    if first:
        os.waitpid(first, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    # Not the engine's socket: it would go on accepting connections that nobody serves.
    os.closerange(3, 256)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    Path("/proc/self/comm").write_text("elsewhere")
    link = _live(alive, "elsewhere")  # noqa: F841 - held, not used
    time.sleep(_KEPT)
    os._exit(0)


def _flood(size: int) -> None:
    line = f"(EngineCore pid={os.getpid()}) INFO flood {'y' * 960}\n"
    while size > 0:
        sys.stdout.write(line)
        size -= len(line)
    if size:
        sys.stdout.flush()
        say("flood ended")
