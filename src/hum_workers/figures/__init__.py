"""Figures: what is counted, and who may see it."""
