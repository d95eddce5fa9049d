"""Attacks on the releases, each with the pair of neighbours that it tells apart."""
