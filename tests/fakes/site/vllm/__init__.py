"""A scripted engine in the place of vLLM: its command line, log marks and HTTP side, no model."""

__version__ = "0.32.0"
