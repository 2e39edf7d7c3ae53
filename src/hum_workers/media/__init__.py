"""Pollen: images, audio and video of a prompt."""
