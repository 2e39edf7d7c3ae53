"""What `--check` says of files and addresses that the process will open: tried, and left as found.

Nothing is created: a folder is tried with a file that has no name, an address with a socket that is
closed at once.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from hum_workers.egg.units import split_listen
from hum_workers.program.findings import Finding

_NO_SUCH = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS)
"""What a file system says that has no files without a name."""


def check_log(file: Path | None, subject: str) -> Iterator[Finding]:
    """Yields whether the file of `[log]` can be written."""
    if file is None:
        return
    where, why = "[log] file: " + str(file), _unwritable(file)
    if why:
        yield Finding("error", subject, f"{where} can't be written: {why}")
    else:
        yield Finding("ok", subject, f"{where} can be written")


def _unwritable(file: Path) -> str:
    try:
        found = file.stat()
    except FileNotFoundError:
        return why_unwritable(file.parent)
    except OSError as error:
        return error.strerror or str(error)
    if not stat.S_ISREG(found.st_mode):
        return "it is no regular file; name another"
    try:
        os.close(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return f"{error.strerror}; give it to this user"
    return ""


def why_unwritable(folder: Path) -> str:
    """Returns why no file can be made in a folder; an empty string when one can."""
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "does not exist"
        return f"{folder} {what}; make it, or name another"
    try:
        os.close(os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except OSError as error:
        if error.errno not in _NO_SUCH:
            return f"{folder}: {error.strerror}; name another folder"
        if not os.access(folder, os.W_OK | os.X_OK):
            return f"{folder} can't be written; name another folder"
    return ""


def check_listen(listen: str | None, subject: str, *, bee_runs: bool) -> Iterator[Finding]:
    """Yields whether the figures can be served on an address of `[metrics]`.

    Args:
        listen: as `parse_listen` returns it.
        bee_runs: whether a bee runs with our identity, which may hold the port itself.
    """
    if listen is not None:
        yield check_address("[metrics] listen", split_listen(listen), subject, bee_runs=bee_runs)


def check_address(key: str, at: tuple[str, int], subject: str, *, bee_runs: bool) -> Finding:
    """Returns whether a process of this user can listen at host and port, 0 being any port.

    Args:
        key: that of the egg, which opens the sentence.
        bee_runs: whether a bee runs with our identity, which may hold the port itself.
    """
    host, port = at
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(address)
    except socket.gaierror:
        what = f"{host} is no address and no name that is known here"
        return Finding("error", subject, f"{key}: {what}; name one of this machine's")
    except OSError as error:
        return _not_bound(key, error, at, subject, bee_runs=bee_runs)
    free = f"port {port} of {host} is free" if port else f"any port of {host} that is free"
    return Finding("ok", subject, f"{key}: {free}")


def _not_bound(
    key: str, error: OSError, at: tuple[str, int], subject: str, *, bee_runs: bool
) -> Finding:
    host, port = at
    if error.errno == errno.EADDRINUSE:
        text = f"{key}: port {port} of {host} is in use"
        if bee_runs:
            return Finding("warning", subject, f"{text}, perhaps by the bee that runs already")
        return Finding("error", subject, f"{text}; name another, or 0 for one that is free")
    if error.errno == errno.EADDRNOTAVAIL:
        what = f"{host} is no address of this machine; name one that is, as 127.0.0.1"
    elif error.errno in (errno.EACCES, errno.EPERM):
        what = f"port {port} is not for this user; name one above 1023"
    else:
        what = f"can't listen on {host}:{port}: {error.strerror}; name another"
    return Finding("error", subject, f"{key}: {what}")
