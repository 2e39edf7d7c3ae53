"""Cells and nests: living engines as the bee sees them, and who gets which."""
