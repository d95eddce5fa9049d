"""Differentially private minimax optimisation, as pure functions on JAX."""

from jaxminimax import averaging, metrics, noise, problems, schedules, solvers
from jaxminimax._types import (
    Algorithm,
    GroupProblem,
    Problem,
    Saddle,
    SaddleOperator,
    record,
    saddle_operator,
)
from jaxminimax.accounting import (
    Statement,
    calibrate,
    calibrate_iterations,
    calibrate_noise,
    effective_noise_multiplier,
    epsilon,
    statement,
)
from jaxminimax.algorithms import active_groups, extragradient, gda, group_sgd, proximal, sgda
from jaxminimax.averaging import TAIL, UNIFORM, WEIGHTED, Averaging
from jaxminimax.drivers import run, stack, sweep
from jaxminimax.fit import fit
from jaxminimax.gradients import ClippedSum, clipped_sum
from jaxminimax.mechanism import (
    Disjoint,
    FixedSize,
    Full,
    GroupGradients,
    GroupLosses,
    Parallel,
    Poisson,
    Query,
    Repeat,
    Resolvent,
    Sequence,
    Solution,
    Tree,
    budget_split,
)
from jaxminimax.noise import secret_key
from jaxminimax.release import release

__version__ = "0.1.0"

__all__ = [
    "TAIL",
    "UNIFORM",
    "WEIGHTED",
    "Algorithm",
    "Averaging",
    "ClippedSum",
    "Disjoint",
    "FixedSize",
    "Full",
    "GroupGradients",
    "GroupLosses",
    "GroupProblem",
    "Parallel",
    "Poisson",
    "Problem",
    "Query",
    "Repeat",
    "Resolvent",
    "Saddle",
    "SaddleOperator",
    "Sequence",
    "Solution",
    "Statement",
    "Tree",
    "active_groups",
    "averaging",
    "budget_split",
    "calibrate",
    "calibrate_iterations",
    "calibrate_noise",
    "clipped_sum",
    "effective_noise_multiplier",
    "epsilon",
    "extragradient",
    "fit",
    "gda",
    "group_sgd",
    "metrics",
    "noise",
    "problems",
    "proximal",
    "record",
    "release",
    "run",
    "saddle_operator",
    "schedules",
    "secret_key",
    "sgda",
    "solvers",
    "stack",
    "statement",
    "sweep",
]
