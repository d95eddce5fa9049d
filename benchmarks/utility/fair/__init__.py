"""Accuracy against equalised odds."""
