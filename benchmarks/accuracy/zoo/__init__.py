"""All algorithms on the same games."""
