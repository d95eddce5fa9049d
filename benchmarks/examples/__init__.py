"""Examples with pictures; `python -m benchmarks.examples` runs them."""
