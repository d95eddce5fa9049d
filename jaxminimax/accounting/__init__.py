"""The accountant: host only, float64, reads descriptions of mechanisms and nothing else."""

from jaxminimax.accounting._calibrate import calibrate, calibrate_iterations, calibrate_noise
from jaxminimax.accounting._epsilon import effective_noise_multiplier, epsilon
from jaxminimax.accounting._statement import Statement, statement

__all__ = [
    "Statement",
    "calibrate",
    "calibrate_iterations",
    "calibrate_noise",
    "effective_noise_multiplier",
    "epsilon",
    "statement",
]
