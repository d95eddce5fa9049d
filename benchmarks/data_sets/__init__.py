"""Data sets of the measurements, each read or made by one module."""
