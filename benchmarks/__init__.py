"""Benchmarks of jaxminimax on public data sets."""
