"""Distances in units of noise that was measured, and what noise has in common, with bounds."""

import math

import numpy as np
import scipy


def gaussian_signal(noise: np.ndarray, move: np.ndarray,
                    confidence: float) -> tuple[float, float, float]:
    """The distance of `move`, `[k]`, from 0 in the metric of the noise `[runs, k]`, with bounds.

    For Gaussian noise with sample covariance S of nu degrees of freedom and true covariance V,
    nu (move' V^-1 move) / (move' S^-1 move) has the chi-squared law of nu - k + 1 degrees.

    Raises:
      ValueError: for too few runs.
    """
    noise = noise - noise.mean(0)
    scale = noise.std(0)
    still = scale <= 1e-9 * np.maximum(np.abs(move), 1e-300)
    if np.any(still & (move != 0)):
        return math.inf, math.inf, math.inf
    noise, move, scale = noise[:, ~still], move[~still], scale[~still]
    runs, k = noise.shape
    if runs < 10 * (k + 1):
        raise ValueError(f"runs must be at least {10 * (k + 1)} for {k} released numbers, got "
                         f"{runs}: give more, or a Hyper of fewer rounds.")
    if not k:
        return 0.0, 0.0, 0.0
    correlation = np.atleast_2d(np.corrcoef(noise.T)) + 1e-13 * np.eye(k)
    unit = move / (scale * math.sqrt(runs / (runs - 1)))
    square = float(unit @ np.linalg.solve(correlation, unit))
    degrees, error = runs - k, 1 - confidence
    quantiles = scipy.stats.chi2.ppf([0.5, error, 1 - error], degrees) / (runs - 1)
    middle, low, high = (math.sqrt(max(square, 0.0) * q) for q in quantiles)
    return middle, low, high


def laplace_signal(noise: np.ndarray, move: np.ndarray,
                   confidence: float) -> tuple[float, float, float]:
    """The sum of |move| over the noise's scale, mean |noise|, of the `k` numbers, with bounds."""
    each = np.abs(noise - np.median(noise, 0)).mean(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(np.sum(np.where(move == 0, 0.0, np.abs(move) / each)))
    error = 1 - confidence  # 2 runs mean |noise| / scale has that law
    low, high = scipy.stats.chi2.ppf([error, 1 - error], 2 * len(noise)) / (2 * len(noise))
    return value, value * low, value * high


def shared_noise(noise: np.ndarray, there: np.ndarray, confidence: float) -> float:
    """The largest |correlation| that noise has, from below; 0 if it may be chance.

    Of noise, `[runs, k]`, and its size, with those of other numbers, and with whether a sample
    holds the record, `[runs, releases]`. By Fisher's transformation, for all pairs together.
    """
    noise, there = (x[:, x.std(0) > 0] for x in (noise, there))
    runs, k = noise.shape
    known = np.concatenate([noise, np.abs(noise), there], 1)
    # pairs of which one at least is noise, but for a number and its own size
    pairs = np.triu(np.ones((2 * k, known.shape[1]), bool), 1)
    pairs[np.arange(k), np.arange(k) + k] = False
    if not pairs.any():
        return 0.0
    found = np.abs(np.corrcoef(known.T))[: 2 * k][pairs]
    error = scipy.stats.norm.isf((1 - confidence) / (2 * len(found))) / math.sqrt(runs - 3)
    return max(0.0, math.tanh(math.atanh(min(found.max(), 1 - 1e-15)) - error))
