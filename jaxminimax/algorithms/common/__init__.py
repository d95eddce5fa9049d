"""Pieces that algorithms share."""
