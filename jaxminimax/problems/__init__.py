"""Saddle problems: a loss, a projection and, where it exists, the exact solution."""

from jaxminimax.problems._auc import (
    auc,
    auc_start,
    linear_scorer,
    mlp_init,
    mlp_scorer,
    release_prior,
)
from jaxminimax.problems._games import bilinear_game, quadratic_game

__all__ = [
    "auc",
    "auc_start",
    "bilinear_game",
    "linear_scorer",
    "mlp_init",
    "mlp_scorer",
    "quadratic_game",
    "release_prior",
]
