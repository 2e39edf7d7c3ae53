"""The private folder of a cell: made anew for each start, gone with the cell.

It holds the engine's socket, its temporary files and what may not stand on a command line.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from hum_workers.cells import claims
from hum_workers.errors import StartFailed
from hum_workers.process import shm
from hum_workers.spec import CellSpec


def prepare(spec: CellSpec) -> None:
    """Makes the private folder anew, mode 0700, with the spec's files in it, mode 0600.

    Raises:
        StartFailed: the folder can't be made, or it belongs to somebody else.
    """
    private = Path(spec.private)
    try:
        if private.is_symlink():
            raise StartFailed(f"{private}: is a symbolic link; remove it")
        if private.exists():
            owner = private.stat().st_uid
            if owner != os.getuid():
                raise StartFailed(f"{private}: belongs to user {owner}, not to us; remove it")
            shm.sweep_recorded(private)
            shutil.rmtree(private)
        # `parents=True` gives parents the umask's mode; whoever removed them must not widen them.
        missing = [folder for folder in private.parents if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(mode=0o700, exist_ok=True)
        private.mkdir(mode=0o700)
        private.chmod(0o700)
        claims.write(private)
        sweep(private.parent)
        (private / "tmp").mkdir(mode=0o700)
        for name, text in spec.files.items():
            _write(private / name, text)
    except OSError as error:
        raise StartFailed(f"{private}: can't be made ready: {error.strerror or error}") from error


def sweep(cells: Path) -> list[Path]:
    """Removes our folders of cells whose tender and bee are dead; returns them."""
    swept = []
    for claim in cells.glob(f"*/{claims.FILE}"):
        folder = claim.parent
        try:
            ours = folder.lstat().st_uid == os.getuid() and not folder.is_symlink()
        except OSError:
            continue
        if ours and claims.abandoned(folder):
            shm.sweep_recorded(folder)
            shutil.rmtree(folder, ignore_errors=True)
            swept.append(folder)
    return swept


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    fd = os.open(path, flags, stat.S_IRUSR | stat.S_IWUSR)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)


def clean(spec: CellSpec) -> list[str]:
    """Removes the private folder after the engine's death; what can't be removed stays.

    Shared memory that a tender wrote down there and did not live to sweep goes as well; returns
    its names.
    """
    swept = shm.sweep_recorded(Path(spec.private))
    shutil.rmtree(spec.private, ignore_errors=True)
    return swept
