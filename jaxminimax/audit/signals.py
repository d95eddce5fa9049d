"""The distance of neighbours' releases in units of their noise, measured and charged.

An attack's lower bound on epsilon detects any kind of mistake, but only one that raises epsilon by
a good part. The accountant's charge rests on two numbers that can be measured directly: how far a
record moves a release, and the size of the noise. A few thousand runs measure their ratio to a few
hundredths.

The same is measured for a released index: how far a record moves its odds.
"""

import dataclasses
import math
from typing import Any

import jax
import numpy as np
import scipy

from jaxminimax.accounting import curve
from jaxminimax.audit.pairs import Observe, Rounds, first_release, rounds
from jaxminimax.audit.released import shared_noise
from jaxminimax.base import checks
from jaxminimax.base.types import Algorithm, PyTree, Saddle
from jaxminimax.mechanism import Full, TreeSums, factorisation, repeat


@dataclasses.dataclass(frozen=True)
class Signal:
    """The distance that a record moves the releases of a run, in units of their noise.

    For Gaussian noise it is the distance of the two means in the metric of the noise's covariance,
    over all observed rounds, given samples that hold the record; a run is the Gaussian mechanism of
    this parameter. For Laplace noise it is the sum of distances over scales. For the index of the
    largest of scores with Gumbel noise it is the change of its log odds, see `index_signal`.

    Attributes:
      attained: the estimate.
      low: a lower confidence bound on it.
      high: an upper confidence bound on it.
      charged: the value that the accountant charges.
      read: a lower bound on the share of releases that read the record; 0 if samples are public.
      read_charged: the share in the description; 1 if samples are public.
      shared: a lower bound on the largest correlation of two released numbers' noise, or of noise
        with whether a sample holds the record; 0 if it may be chance. For a tree it is about the
        nodes' noise, for correlated noise about its independent parts.
      law: "gaussian", "laplace" or "gumbel".
      confidence: the confidence of each bound.
      runs: the number of runs.

    Examples:
        >>> result = jmm.audit.Signal(attained=0.9, low=0.8, high=1.1, charged=1.0, read=1.0,
        ...                           read_charged=1.0, shared=0.0, law="gaussian",
        ...                           confidence=0.999, runs=4000)
        >>> result.violated
        False
    """

    attained: float
    low: float
    high: float
    charged: float
    read: float
    read_charged: float
    shared: float
    law: str
    confidence: float
    runs: int

    @property
    def violated(self) -> bool:
        """Returns True if the charge is refuted."""
        return not (self.low <= self.charged and self.read <= self.read_charged
                    and self.shared <= 0)


def _always_read(query: Any) -> Any:
    """Returns a query whose samples hold the record whenever they may, no secrets."""
    secret = isinstance(query, repeat.OneRelease) and query.sampling.secret
    return query.sampled_by(query.sampling.always() or Full()) if secret else query


def charged_signal(mechanism: Any, neighbours: str = "replace_one", law: str = "gaussian") -> float:
    """Returns the signal that the accountant charges, given samples that hold the record.

    For Gaussian noise it is mu, (1 or 2) (sum of 1 / z^2)^(1/2). For Laplace noise it is the sum of
    1 / z, and for Gumbel noise too, over the indices that it decides.

    Args:
      mechanism: the description of the run.
      neighbours: the neighbouring relation.
      law: the law of the noise, "gaussian", "laplace" or "gumbel".
    """
    kind = {"laplace": "laplace", "gumbel": "selection"}.get(law)
    largest = 0.0
    unsampled = jax.tree.map(_always_read, mechanism,
                             is_leaf=lambda x: isinstance(x, repeat.OneRelease))
    for charge in curve.charges(unsampled, neighbours):
        if law == "gaussian":
            largest = max(largest, curve.shift(neighbours) * math.sqrt(charge.gaussian))
        else:
            largest = max(largest, sum(times / loss.z if loss.z else math.inf
                                 for loss, times in charge.losses if loss.kind == kind))
    return largest


def _reduced(observed: Rounds, noise: np.ndarray, gap: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Replaces each round's part of a leaf by its component along the record's move."""
    columns = []
    for span in (span for release in observed.spans() for span in release):
        move = gap[:, span]  # [rounds, k]
        length = np.linalg.norm(move, axis=1, keepdims=True)
        direction = np.where(length > 0, move / np.where(length > 0, length, 1.0),
                        1 / math.sqrt(span.stop - span.start))
        columns.append((np.einsum("rtk,tk->rt", noise[..., span], direction), length[:, 0]))
    return np.stack([x for x, _ in columns], -1), np.stack([x for _, x in columns], -1)


def _release_spans(observed: Rounds) -> list[slice]:
    return [slice(leaves[0].start, leaves[-1].stop) for leaves in observed.spans()]


def _largest(observed: Rounds, gap: np.ndarray, noise: np.ndarray, smallest: bool) -> np.ndarray:
    """Returns each release's largest move over the noise, of all runs, `[rounds, k]`.

    If samples may hold the record several times, it is the smallest move that is not 0.
    """
    scale = noise.std(0)
    square, row = np.square(gap / np.where(scale > 0, scale, 1.0)), np.arange(gap.shape[1])
    move = np.zeros(gap.shape[1:])
    for span in _release_spans(observed):
        size = np.sum(square[..., span], -1)  # [runs, rounds]
        if smallest:
            size = np.where(size > 1e-6 * size.max(), -size, -np.inf)
        move[:, span] = gap[np.argmax(size, 0), row, span]
    return move


def _nodes(steps: np.ndarray) -> np.ndarray:
    """Computes a tree's nodes, `[runs, rounds, k]`, from the growth of its sums with each leaf.

    With leaf t = 1, 2, ... one node comes, and those at the bits of t - 1 below it go.
    """
    nodes = np.array(steps)
    for t in range(1, steps.shape[1] + 1):
        low = (t & -t).bit_length() - 1
        for level in range(low):  # the node over the leaves up to t - 1 at this level came then
            nodes[:, t - 1] += nodes[:, ((t - 1) >> level << level) - 1]
    return nodes


def _innovations(steps: np.ndarray, bands: int, restart: int | None) -> np.ndarray:
    """Returns the innovations of correlated noise, `[runs, rounds, k]`, and a record's moves."""
    if bands == 1:
        return steps
    a, rounds = factorisation.coefficients(bands), steps.shape[1]
    # noise that begins anew has innovations of its own from there on
    return np.concatenate([
        scipy.signal.lfilter([1.0], a / a[0], steps[:, start:start + (restart or rounds)], axis=1)
        for start in range(0, rounds, restart or rounds)], 1)


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
    scales = np.abs(noise - np.median(noise, 0)).mean(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(np.sum(np.where(move == 0, 0.0, np.abs(move) / scales)))
    error = 1 - confidence  # 2 runs mean |noise| / scale has that law
    low, high = scipy.stats.chi2.ppf([error, 1 - error], 2 * len(noise)) / (2 * len(noise))
    return value, value * low, value * high


def clopper_pearson(hits: Any, trials: int, error: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns lower and upper confidence bounds on a probability.

    Args:
      hits: how often the event was seen, any shape.
      trials: the number of independent trials.
      error: the largest probability that either bound is wrong.
    """
    hits = np.asarray(hits, np.float64)
    low = scipy.special.betaincinv(np.maximum(hits, 1), trials - hits + 1, error)
    high = scipy.special.betaincinv(hits + 1, np.maximum(trials - hits, 1), 1 - error)
    return np.where(hits > 0, low, 0.0), np.where(hits < trials, high, 1.0)


def _reads(observed: Rounds, gap: np.ndarray) -> list[np.ndarray]:
    """Returns True for each release of a round that read the record, `[runs, rounds]` each."""
    sizes = [np.sum(np.square(gap[..., span]), -1) for span in _release_spans(observed)]
    return [size > 1e-9 * size.max() for size in sizes]


def _read(reads: list[np.ndarray], confidence: float) -> float:
    """Bounds from below how often a release reads the record, if it reads it at all."""
    read = 0.0
    for hits in reads:
        hits = hits[:, hits.any(0)]  # rounds on other parts of the data never do
        if hits.size:
            read = max(read, float(clopper_pearson(hits.sum(), hits.size,
                                                   (1 - confidence) / len(reads))[0]))
    return read


def signal_of(observed: Rounds, mechanism: Any, *, neighbours: str = "replace_one",
              law: str = "gaussian", confidence: float = 0.999) -> Signal:
    """Computes the signal of observed rounds; see `signal`."""
    noise, gap = observed.noise, observed.quiet[:, :, 0] - observed.quiet[:, :, 1]
    complete = np.isfinite(noise).all((1, 2)) & np.isfinite(gap).all((1, 2))
    if complete.sum() < 4:
        raise ValueError("Hardly any run released numbers: NaN stands for a spent budget, samples "
                         "that cannot be drawn, or solutions without a certificate.")
    noise, gap = noise[complete], gap[complete]
    if isinstance(mechanism, TreeSums):  # whose nodes have noise of their own each
        noise, gap = _nodes(noise), _nodes(gap)
    query: Any = getattr(mechanism, "query", None)
    if getattr(query, "adaptive", None) is not None and observed.noisy.shape[1] > 1:
        raise ValueError("With adaptive clip norms a release's noise differs from run to run: "
                         "measure the signal of one round, iterations=1.")
    bands = getattr(mechanism if query is None else query, "bands", 1)
    if bands > 1 and len(observed.leaves) > 1:
        raise ValueError("The signal of correlated noise is that of one release a round, and "
                         f"{len(observed.leaves)} are looked at: audit another algorithm.")
    restart = query.restart() if bands > 1 and query is not None else None
    noise, gap = (_innovations(x, bands, restart) for x in (noise, gap))
    sampling = getattr(query, "sampling", None)
    n = getattr(query, "population", None) or min(getattr(query, "sizes", (1,)))
    case = None if sampling is None else sampling.worst_case(n)
    several = case is not None and case.times.max() > 1
    move = _largest(observed, gap, noise, several)
    if noise[0].size > len(noise) // 20:
        noise, move = _reduced(observed, noise, move)
    noise, move = noise.reshape(len(noise), -1), move.ravel()
    reads = _reads(observed, gap)
    shared = shared_noise(noise, np.concatenate(reads, 1), confidence)
    measure = gaussian_signal if law == "gaussian" else laplace_signal
    attained, low, high = measure(noise, move, confidence)
    read, charged = 0.0, 1.0
    if sampling is not None and case is not None and sampling.secret:
        read, charged = _read(reads, confidence), case.read
    return Signal(attained, low, high, charged_signal(mechanism, neighbours, law), read, charged,
                  shared, law, confidence, len(noise))


def signal(key: jax.Array, algorithm: Algorithm[Any, Any], hyper: Any, z: Saddle, data: PyTree,
           problem: Any, *, observe: Observe = first_release, runs: int = 4000,
           neighbours: str = "replace_one", law: str = "gaussian", confidence: float = 0.999,
           mechanism: Any = None) -> Signal:
    """Measures how far a record moves the releases, in units of their noise.

    With k runs the noise has a relative error of (2 k)^(-1/2); 4000 runs refute a description whose
    sensitivity or noise is a tenth off.

    Args:
      key: the key of all runs.
      algorithm: a module such as `sgda`.
      hyper: its `Hyper`, with noise multipliers; they need not be calibrated.
      z: the initial point.
      data: the pair, leaves `[2, ...]`, of invented records: the result is not private.
      problem: a problem that the algorithm takes; its operator should attain the clip norms.
      observe: `(state, released) -> tree`, the observed values of a round: `released` are the
        values that the update's calls of release functions returned, in their order, and `state` is
        the state after it. A tuple of trees for several releases. By default the first value.
      runs: the number of runs, at least ten for each observed number.
      neighbours: the neighbouring relation.
      law: the law of the noise, "gaussian" or "laplace".
      confidence: the confidence of each bound.
      mechanism: the description that is charged for the observed numbers; None for the whole run.

    Raises:
      ValueError: for numbers out of range, runs that are too few, several releases a round with
        correlated noise, several rounds with adaptive clip norms, or a release within a branch or a
        loop of the algorithm's own.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(2.0, None),
        ...                   population=10)
        >>> hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=1)
        >>> problem = jmm.Problem(operator=jmm.saddle_operator(lambda w, v, x: jnp.sum(w * x)))
        >>> data = jnp.zeros((2, 10, 1)).at[:, 0,
        ...                                 0].set(jnp.array([1.0, -1.0]))  # a pair of data sets
        >>> result = jmm.audit.signal(jax.random.key(0), jmm.sgda, hyper,
        ...                           Saddle(jnp.zeros(1), jnp.zeros(())), data, problem, runs=1000)
        >>> round(result.charged, 2), result.violated
        (1.0, False)
    """
    checks.count("runs", runs, low=4)
    checks.one_of("law", law, ("gaussian", "laplace"))
    checks.number("confidence", confidence, low=0.0, high=1.0)
    charged = algorithm.mechanism(hyper) if mechanism is None else mechanism
    observed = rounds(key, algorithm, hyper, z, data, problem, observe, runs)
    return signal_of(observed, charged, neighbours=neighbours, law=law, confidence=confidence)


def index_signal(one: Any, two: Any, mechanism: Any, confidence: float = 0.999) -> Signal:
    """Measures the largest change of an index's log odds, from counts on two data sets.

    `Selection` promises that no record changes the odds of any index by more than e^t, for any
    scores, t = 1 / its charged multiplier. The index, and in which of the data sets it comes
    up more often, are chosen by the same counts: the bounds are for all of them together.

    Args:
      one: indices released in runs on one data set, `[runs]`; one release each.
      two: indices released on the other.
      mechanism: the `Selection`, of any number of releases.
      confidence: the confidence of each bound.

    Examples:
        >>> chosen = jmm.mechanism.Selection(bound=1.0, sizes=(50, 50), noise_multiplier=2.0)
        >>> rng = np.random.default_rng(0)
        >>> one, two = rng.integers(0, 2, (2, 1000))  # indices of 1,000 runs on the two data sets
        >>> jmm.audit.index_signal(one, two, chosen).violated
        False
    """
    one, two = (np.asarray(x).ravel() for x in (one, two))
    indices = np.union1d(one, two)
    error = (1 - confidence) / (4 * max(len(indices), 2))
    hits = [np.array([np.sum(x == i) for i in indices]) for x in (one, two)]

    def odds(p: np.ndarray) -> np.ndarray:
        p = np.clip(p, 1e-12, 1 - 1e-12)
        return np.log(p) - np.log1p(-p)

    bounds = [[odds(b) for b in clopper_pearson(h, len(x), error)]
              for h, x in zip(hits, (one, two), strict=True)]
    middle = [odds(h / len(x)) for h, x in zip(hits, (one, two), strict=True)]
    low, value, high = (np.concatenate([a, b]) for a, b in (
        (bounds[0][0] - bounds[1][1], bounds[1][0] - bounds[0][1]),
        (middle[0] - middle[1], middle[1] - middle[0]),
        (bounds[0][1] - bounds[1][0], bounds[1][1] - bounds[0][0])))
    best = int(np.argmax(low))
    charged = charged_signal(dataclasses.replace(mechanism, times=1), law="gumbel")
    return Signal(float(value[best]), max(float(low[best]), 0.0), float(high[best]), charged, 0.0,
                  1.0, 0.0, "gumbel", confidence, min(len(one), len(two)))
