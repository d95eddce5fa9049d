"""Accuracy of the worst group."""
