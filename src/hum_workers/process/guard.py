"""The program between tender and engine: `python -I -S guard.py --control FD [options] -- argv...`.

It owns the engine's process tree and promises that nothing of it outlives the tender: when the
control socket ends, for whatever reason, every process below the guard is killed. It works as an
ordinary process (then a child subreaper, so that orphans stay below it) and as the init of a PID
namespace. It knows nothing but the standard library, imports little of it and starts in 15 ms.

Options: `--control FD` socket to the tender; `--nofile N` open files of the engine; `--cpus LIST`
as in `0-3,8`; `--cgroup DIR` (repeatable) cgroup to enter before the engine starts.

Bytes from the tender: `T` SIGTERM and `I` SIGINT to the engine's main process, `K` or end of file:
SIGKILL to everything. Lines to the tender: `spawned PID` (as the guard numbers it) once the engine
runs, else `failed REASON`; `exit CODE` or `exit -SIGNAL`; `note REMARK`. Its own status is the
engine's (128 + n for a signal).
"""

from __future__ import annotations

import os
import select
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
CAN_T_RUN = 127
POLL_MS = 20  # between two rounds of killing, for members that a signal alone can't end


class Options:
    """The command line, read without argparse: that alone would cost 20 ms."""

    def __init__(self, args: list[str]) -> None:
        self.control, self.nofile, self.cpus = -1, 0, ""
        self.cgroups: list[str] = []
        while args and args[0] != "--":
            name, value, args = args[0], args[1], args[2:]
            if name == "--control":
                self.control = int(value)
            elif name == "--nofile":
                self.nofile = int(value)
            elif name == "--cpus":
                self.cpus = value
            elif name == "--cgroup":
                self.cgroups.append(value)
            else:
                raise SystemExit(f"guard: unknown option {name}")
        self.argv = args[1:]


def cpu_set(text: str) -> set[int]:
    """Returns the CPU numbers of a list such as `0-3,8`."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def become_subreaper() -> ctypes.CDLL:
    """Makes orphans below this process its children and returns libc.

    The init of a namespace has that anyway, and importing ctypes costs 3 ms.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(36, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    return libc


class Guard:
    """One engine, its tree, and the way to the tender."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.is_init = os.getpid() == 1
        self.libc: ctypes.CDLL | None = None
        self.engine = 0
        self.status: int | None = None
        self.wake = self.started = -1

    def say(self, kind: str, value: str | int) -> None:
        """Sends a line to the tender; a tender that is gone is noticed elsewhere."""
        line = f"{kind} {value}".replace("\n", " ")
        try:
            os.write(self.options.control, line.encode("utf-8", "replace") + b"\n")
        except OSError:
            pass

    def prepare(self) -> None:
        """Makes this process deaf to stops, able to reap, and a member of its cgroups."""
        # Blocked, not ignored: an order that comes between fork and exec then waits for the engine.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        os.set_blocking(self.options.control, False)
        os.set_inheritable(self.options.control, False)
        self.wake, wake_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        if not self.is_init:
            self.libc = become_subreaper()
            if not os.path.exists("/proc/self/stat"):
                self.say("note", "no /proc: members that left the engine's group can't be found")
        for path in self.options.cgroups:
            try:
                procs = os.open(os.path.join(path, "cgroup.procs"), os.O_WRONLY)
                os.write(procs, b"0")
                os.close(procs)
            except OSError as error:
                self.say("note", f"can't enter the cgroup {path}: {error.strerror}")

    def spawn(self) -> None:
        """Starts the engine in a session of its own; `started` ends once it really runs."""
        guard = os.getpid()
        self.started, failure = os.pipe()
        self.engine = os.fork()
        if self.engine == 0:
            try:
                self.enter_engine(guard)
            except Exception as error:
                reason = getattr(error, "strerror", None) or str(error)
                os.write(failure, f"can't run {self.options.argv[0]}: {reason}".encode())
            os._exit(CAN_T_RUN)
        os.close(failure)

    def report_start(self) -> None:
        """Tells the tender whether the engine runs."""
        failure = os.read(self.started, 4096).decode()
        if failure:
            self.say("failed", failure)
        else:
            self.say("spawned", self.engine)

    def enter_engine(self, guard: int) -> None:
        """Turns this process, freshly forked, into the engine."""
        os.setsid()
        if self.libc is not None:
            # Second line of defence, for the guard and the tender killed together: it reaches the
            # engine's main process only.
            self.libc.prctl(1, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != guard:
                return
        for number in (*STOPS, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        self.limit()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.execvp(self.options.argv[0], self.options.argv)

    def limit(self) -> None:
        """Sets the limits that the engine and all below it inherit."""
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if self.options.nofile:
            soft, hard = self.options.nofile, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, max(soft, hard)))
            except (OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard), hard))
                self.say("note", f"open files: {hard} instead of {soft}, the hard limit")
        if self.options.cpus:
            try:
                os.sched_setaffinity(0, cpu_set(self.options.cpus))
            except (OSError, ValueError):
                raise ValueError(f"no CPU of {self.options.cpus} can be used here") from None

    def reap(self) -> bool:
        """Collects the dead. Returns False when no child is left, dead or alive."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.engine and self.status is None:
                self.status = os.waitstatus_to_exitcode(status)
                self.say("exit", self.status)

    def obey(self) -> bool:
        """Reads what the tender wants. Returns False when all must die."""
        try:
            orders = os.read(self.options.control, 64)
        except BlockingIOError:
            return True
        except OSError:
            return False
        for order in orders:
            if order == ord("K"):
                return False
            number = {ord("T"): signal.SIGTERM, ord("I"): signal.SIGINT}.get(order)
            if number is not None and self.status is None:
                os.kill(self.engine, number)
        return bool(orders)

    def tend(self) -> None:
        """Waits until the engine's main process ends or everything must die."""
        poll = select.poll()
        for fd in (self.started, self.wake, self.options.control):
            poll.register(fd, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll()]
            if self.started in ready:
                self.report_start()
                poll.unregister(self.started)
            if self.wake in ready:
                os.read(self.wake, 512)
            if not self.reap() or self.status is not None:
                return
            if self.options.control in ready and not self.obey():
                return

    def kill_all(self) -> None:
        """Kills whatever is below, until nothing is left."""
        poll = select.poll()
        poll.register(self.wake, select.POLLIN)
        if not self.is_init:
            # Reaches what a /proc that hides processes would not show. Once, and first: later the
            # number may be another's.
            kill_quietly(-self.engine)
        while self.reap():
            for pid in [-1] if self.is_init else below(os.getpid()):
                kill_quietly(pid)
            if poll.poll(POLL_MS):
                os.read(self.wake, 512)


def kill_quietly(pid: int) -> None:
    """SIGKILL to a process, or a group when negative; one that has gone is fine."""
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass


def below(root: int) -> list[int]:
    """Returns the live descendants of `root`, the nearest first.

    Own children come from the kernel's list too, where it has one: that still works when /proc
    hides other users' processes. A pid read here can't name a stranger: children of `root` are
    reaped by nobody else, and deeper ones are killed within the millisecond.
    """
    children: dict[int, list[int]] = {}
    dead: set[int] = set()
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as stat:
                    state, parent = stat.read().rpartition(b")")[2].split()[:2]
            except (OSError, ValueError):
                continue
            children.setdefault(int(parent), []).append(int(name))
            if state in b"ZX":
                dead.add(int(name))
    try:
        with open(f"/proc/self/task/{root}/children", "rb") as listed:
            own = children.setdefault(root, [])
            own.extend(pid for pid in map(int, listed.read().split()) if pid not in own)
    except OSError:
        pass
    found: list[int] = []
    queue = [root]
    for pid in queue:
        queue.extend(children.get(pid, ()))
        found.extend(child for child in children.get(pid, ()) if child not in dead)
    return found


def main() -> int:
    """Runs one engine from its start to the death of its last process."""
    options = Options(sys.argv[1:])
    guard = Guard(options)
    guard.prepare()
    guard.spawn()
    guard.tend()
    guard.kill_all()
    status = -signal.SIGKILL if guard.status is None else guard.status
    return 128 - status if status < 0 else status


if __name__ == "__main__":
    os._exit(main())
