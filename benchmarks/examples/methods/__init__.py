"""Algorithms of other papers, composed of the library, one file each."""
