"""Measured rates beside those of the theorems."""
