"""Release functions: the only way that numbers leave the data."""
