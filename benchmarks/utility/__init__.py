"""Gaps, accuracies and rates that the algorithms reach."""
