"""Variance reduction beside descent-ascent."""
