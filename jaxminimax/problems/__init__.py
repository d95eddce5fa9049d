"""Saddle problems: a loss, a projection and, where it exists, the exact solution."""

from jaxminimax.problems._auc import (
    auc,
    auc_start,
    linear_scorer,
    mlp_init,
    mlp_scorer,
    release_prior,
)
from jaxminimax.problems._games import bilinear_game, kinked_game, quadratic_game
from jaxminimax.problems._groups import (
    GLM_LOSSES,
    by_group,
    group_glm,
    group_means,
    group_means_optimum,
    worst_group,
)
from jaxminimax.problems._regression import bounded_glm, robust_regression
from jaxminimax.problems._sets import Set, ball, box, product, simplex
from jaxminimax.problems._vi import (
    Bounded,
    affine,
    bounded_bilinear,
    cournot,
    matrix_game,
    sanitise,
    variational_inequality,
)

__all__ = [
    "GLM_LOSSES",
    "Bounded",
    "Set",
    "affine",
    "auc",
    "auc_start",
    "ball",
    "bilinear_game",
    "bounded_bilinear",
    "bounded_glm",
    "box",
    "by_group",
    "cournot",
    "group_glm",
    "group_means",
    "group_means_optimum",
    "kinked_game",
    "linear_scorer",
    "matrix_game",
    "mlp_init",
    "mlp_scorer",
    "product",
    "quadratic_game",
    "release_prior",
    "robust_regression",
    "sanitise",
    "simplex",
    "variational_inequality",
    "worst_group",
]
