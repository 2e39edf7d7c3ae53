"""A humd for tests, benches and rehearsals, held to the transcripts of the real one.

`FakeHumd` listens, routes and misbehaves on demand; `Asker` is a client of it or of a real humd.
`python -m hum_workers.fake_humd` runs one, `--ask TEXT --model ID` asks one that runs. It imports
nothing of the bee, so that the bee is tested against a second reading of the wire.
"""

from hum_workers.fake_humd.asker import Answer, Asker
from hum_workers.fake_humd.server import FakeHumd

__all__ = ["Answer", "Asker", "FakeHumd"]
