"""A humd for tests, benches and rehearsals, held to the transcripts of the real one.

`FakeHumd` listens, routes and misbehaves on demand; `Asker` is a client of it or of a real humd.
`python -m hum_workers.fake_humd` runs one, `--ask TEXT --model ID` asks one that runs. Of the
bee's own reading of the wire it uses nothing, so that the bee is held against a second one.
"""

from hum_workers.fake_humd.asker import Answer, Asker
from hum_workers.fake_humd.server import FakeHumd

__all__ = ["Answer", "Asker", "FakeHumd"]
