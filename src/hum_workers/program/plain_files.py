"""Files of others, read whole: only regular ones, and only up to a limit.

A pipe or a device in a file's place would be waited for, or read for ever.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_plain(path: str | Path) -> BinaryIO:
    """Opens a regular file for reading; symbolic links are followed, nothing is waited for.

    Raises:
        OSError: it can't be opened, or is no regular file; `strerror` says which.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except ValueError as error:  # a NUL in its name
        raise OSError(errno.EINVAL, "the name can't be that of a file", str(path)) from error
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise OSError(errno.EINVAL, "is no regular file", str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    return open(fd, "rb")


def read_plain(path: str | Path, limit: int) -> bytes:
    """Returns what is in a regular file of at most `limit` bytes.

    Raises:
        OSError: as for `open_plain`, or it is larger.
    """
    with open_plain(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"is larger than {limit:,} bytes", str(path))
    return data
