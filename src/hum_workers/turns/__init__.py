"""Turns: what is asked, what is answered, in which order."""
