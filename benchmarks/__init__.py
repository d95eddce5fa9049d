"""Measurements of the library, in packages by question: a command is `python -m` and its module."""
