"""Ahead, level or behind: the one rule by which means over seeds are compared.

A difference decides where it exceeds two standard errors and, for few seeds, the two-sided 95 %
quantile of Student's t, which is 2.78 standard errors for five seeds and 2.09 for twenty.
"""

import math

from scipy import stats

AHEAD, LEVEL, BEHIND = "ahead", "level", "behind"
WORDS = (AHEAD, LEVEL, BEHIND)


def deciding(error: float, seeds: int, errors: float = 2.0) -> float:
    """The difference from which on means of this standard error are apart.

    Args:
        error: Standard error of the difference.
        seeds: That the error was estimated from; the fewer of the two, for two means.
        errors: Standard errors that decide at least.
    """
    if seeds < 2:
        return math.inf
    return max(errors, float(stats.t.ppf(0.975, seeds - 1))) * error


def verdict(difference: float, error: float, seeds: int, errors: float = 2.0) -> str:
    """What `difference` says of the first of two means, where more is better."""
    if abs(difference) <= deciding(error, seeds, errors):
        return LEVEL
    return AHEAD if difference > 0 else BEHIND
