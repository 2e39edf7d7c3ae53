"""Worker bees for hum: each raises eggs as cells, living inference engines behind the thrum.

This package imports nothing heavy: no torch, no vLLM, no Ray. Those live in the engine's own
interpreter, started as a process of its own.
"""

__version__ = "0.1.0"
