"""Confidence bounds on epsilon, on distances and on shared noise, from runs on two data sets."""

import itertools
import math
from typing import Any

import jax
import numpy as np
import scipy

_THRESHOLDS = 400
_COLUMNS = 256  # numbers of a run that the linear statistic weighs one by one


def linear(one: Any, two: Any, half: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns Fisher's linear statistic, which separates the first `half` runs best, `[runs]`.

    Noise that several numbers share cancels in it, wherever they are in the path. If a run has
    many numbers, each round's part of a leaf is first replaced by its component along the two
    means' difference. Each half of the first runs gets its weights from the other half, so that a
    choice among statistics prefers none that fits chance.

    Args:
      one: the observations of the runs on one data set, leaves `[runs, rounds, ...]`.
      two: those on the other data set.
      half: the number of runs that the weights are chosen by.
    """
    def table(x: Any) -> np.ndarray:
        x = np.nan_to_num(np.asarray(x, np.float64), posinf=0.0, neginf=0.0)
        return x.reshape(*x.shape[:2], -1) if x.ndim > 1 else x.reshape(-1, 1, 1)

    pairs = [(table(a), table(b)) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two),
                                                  strict=True)]
    runs, quarter = len(pairs[0][0]), max(2, half // 2)
    scores = np.empty((2, runs))
    for shown, by in ((slice(0, quarter), slice(quarter, max(half, quarter + 2))),
                      (slice(quarter, half), slice(0, quarter)),
                      (slice(half, runs), slice(0, half))):
        scores[:, shown] = _weighed(pairs, by, shown)
    return scores[0], scores[1]


def _weighed(pairs: list[tuple[np.ndarray, np.ndarray]], by: slice, shown: slice) -> np.ndarray:
    """Returns the statistic of the runs `shown` whose weights separate the runs `by`."""
    sides: list[list[np.ndarray]] = [[], []]
    many = sum(a.shape[1] * a.shape[2] for a, _ in pairs) > _COLUMNS
    for pair in pairs:
        gap = pair[0][by].mean(0) - pair[1][by].mean(0)
        for side, x in zip(sides, pair, strict=True):
            side.append(np.einsum("rtk,tk->rt", x, gap) if many else x.reshape(len(x), -1))
    one, two = (np.concatenate(side, 1) for side in sides)
    gap = one[by].mean(0) - two[by].mean(0)
    spread = np.atleast_2d(np.cov(one[by].T) + np.cov(two[by].T))
    scale = np.sqrt(np.maximum(np.diag(spread), 1e-30))
    spread = spread / np.outer(scale, scale) + 1e-12 * np.eye(len(scale))
    weight = np.linalg.solve(spread, gap / scale)
    weight /= max(math.sqrt(weight @ spread @ weight), 1e-30)
    middle = (one[by].mean(0) + two[by].mean(0)) / 2
    return np.stack([(x[shown] - middle) @ (weight / scale) for x in (one, two)])


def clopper_pearson(hits: Any, trials: int, error: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns lower and upper confidence bounds on a probability.

    Args:
      hits: how often the event was seen, any shape.
      trials: the number of independent trials.
      error: the largest probability that either bound is wrong.

    Examples:
        >>> low, high = jmm.audit.clopper_pearson(5, 10, 0.025)
        >>> round(float(low), 3), round(float(high), 3)
        (0.187, 0.813)
    """
    hits = np.asarray(hits, np.float64)
    low = scipy.special.betaincinv(np.maximum(hits, 1), trials - hits + 1, error)
    high = scipy.special.betaincinv(hits + 1, np.maximum(trials - hits, 1), 1 - error)
    return np.where(hits > 0, low, 0.0), np.where(hits < trials, high, 1.0)


def _bound(hits: Any, other: Any, trials: int, delta: float, confidence: float) -> np.ndarray:
    """Returns the lower bound on epsilon from the counts of an event on each side."""
    error = (1 - confidence) / 2
    low, _ = clopper_pearson(hits, trials, error)
    _, high = clopper_pearson(other, trials, error)
    return np.maximum(np.log(np.maximum(low - delta, 1e-300) / high), 0.0)


def lower_bound(one: dict[str, np.ndarray], two: dict[str, np.ndarray], delta: float,
                confidence: float = 0.999) -> tuple[float, str, tuple[int, int], int]:
    """Computes a lower bound on epsilon from statistics of independent runs on two data sets.

    The first half of the runs chooses the statistic, its sign, the order of the pair and the
    threshold; only the second half enters the bound. Nothing is assumed about the distributions.

    Args:
      one: statistics of the runs on one data set, each `[runs]`, by name.
      two: statistics of as many runs on the other.
      delta: delta of the bound, in (0, 1).
      confidence: the confidence of the bound.

    Returns:
      The bound, the statistic's name, how often its event was seen on each side, and among how
      many runs.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> one, two = rng.normal(0, 1, 4000), rng.normal(1, 1, 4000)  # of either data set
        >>> epsilon, *_ = jmm.audit.lower_bound({"mean": one}, {"mean": two}, 1e-2)
        >>> bool(0.5 < epsilon < 4)
        True
    """
    pair = (one, two)
    half = len(next(iter(one.values()))) // 2
    best, chosen = -1.0, (0, 1.0, next(iter(one)), math.inf)
    for likelier, sign, name in itertools.product((0, 1), (1.0, -1.0), one):
        p, q = (sign * pair[i][name][:half] for i in (likelier, 1 - likelier))
        cuts = np.unique(np.quantile(np.concatenate([p, q]), np.linspace(0, 1, _THRESHOLDS)))
        hits, other = (half - np.searchsorted(np.sort(x), cuts) for x in (p, q))
        values = _bound(hits, other, half, delta, confidence)
        if values.max() > best:
            best = float(values.max())
            chosen = (likelier, sign, name, float(cuts[np.argmax(values)]))
    likelier, sign, name, cut = chosen
    seen = [int(np.sum(sign * x[name][half:] >= cut)) for x in pair]
    trials = len(one[name]) - half
    attained = float(_bound(seen[likelier], seen[1 - likelier], trials, delta, confidence))
    return attained, name, (seen[0], seen[1]), trials


def gaussian_signal(noise: np.ndarray, move: np.ndarray,
                    confidence: float) -> tuple[float, float, float]:
    """The distance of `move`, `[k]`, from 0 in the metric of noise `[runs, k]`, with bounds.

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
    """Sums |move| over the noise's scale, mean |noise|, of the `k` numbers, with bounds."""
    each = np.abs(noise - np.median(noise, 0)).mean(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(np.sum(np.where(move == 0, 0.0, np.abs(move) / each)))
    error = 1 - confidence  # 2 runs mean |noise| / scale has that law
    low, high = scipy.stats.chi2.ppf([error, 1 - error], 2 * len(noise)) / (2 * len(noise))
    return value, value * low, value * high


def shared_noise(noise: np.ndarray, signals: np.ndarray, confidence: float) -> float:
    """Returns a lower bound on the largest |correlation| of noise; 0 if it may be chance.

    It correlates noise, `[runs, k]`, and its size with those of other numbers, and with whether a
    sample holds the record, `[runs, releases]`, by Fisher's transformation, for all pairs together.
    """
    noise, signals = (x[:, x.std(0) > 0] for x in (noise, signals))
    runs, k = noise.shape
    columns = np.concatenate([noise, np.abs(noise), signals], 1)
    # pairs of which one at least is noise, but for a number and its own size
    pairs = np.triu(np.ones((2 * k, columns.shape[1]), bool), 1)
    pairs[np.arange(k), np.arange(k) + k] = False
    if not pairs.any():
        return 0.0
    correlation = np.abs(np.corrcoef(columns.T))[: 2 * k][pairs]
    error = scipy.stats.norm.isf((1 - confidence) / (2 * len(correlation))) / math.sqrt(runs - 3)
    return max(0.0, math.tanh(math.atanh(min(correlation.max(), 1 - 1e-15)) - error))
