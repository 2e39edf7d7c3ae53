"""The command line that all workers share, and how a bee is put together."""
