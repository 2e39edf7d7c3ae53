"""A humd for tests, benches and rehearsals, held to the transcripts of the real one.

`FakeHumd` listens, routes and misbehaves on demand; `Asker` is a client of it or of a real humd.
`python -m hum_workers.fake_humd` runs one, `--ask TEXT` asks one that runs. Of the bee's own
reading of the wire it uses nothing, so that the bee is held against a second one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hum_workers.fake_humd.asker import Answer, Asker
    from hum_workers.fake_humd.server import FakeHumd

__all__ = ["Answer", "Asker", "FakeHumd"]


def __getattr__(name: str) -> Any:
    """Imports what is asked for when it is: the program must get to its signals first."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hum_workers.fake_humd import asker, server

    return getattr(server if name == "FakeHumd" else asker, name)
