"""Planted bugs, and the detectors that have to find each of them."""
