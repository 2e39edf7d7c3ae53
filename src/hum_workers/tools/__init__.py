"""Tools: what may be called, what was called, where results go."""
