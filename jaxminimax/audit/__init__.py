"""Privacy audit: the share of the claimed epsilon that an attack on the real update code attains.

A whole run of an algorithm is repeated on two neighbouring data sets, and a threshold test guesses
from the releases which one a run read. For every event S an (epsilon, delta)-private run
has P[S] <= e^epsilon Q[S] + delta, so with Clopper-Pearson bounds on both probabilities

    epsilon >= ln((P_low[S] - delta) / Q_up[S])

at the stated confidence, whatever the two distributions are. Statistic, threshold and the order of
the pair are chosen on one half of the runs, the bound is computed on the other. A lower bound above
the claimed epsilon proves a bug; one below it proves nothing.

The bound reads the points that runs publish. The `Signal` is no proof for all events but much
sharper. It reads the values that the release functions return: how far a record moves them, in
units of their noise, measured and as charged; how often samples hold the record; and whether two of
their numbers share noise. An error of ten per cent in a noise scale or a sensitivity shows in a few
thousand runs.

The pair "worst" is the one that attains the theory's bound for one release (and, without fixed-size
samples, for all of them): every operator is far above its clip norm, along one axis, opposite for
the two players and, from the second round on, for the rounds, so that noise shared by players or
rounds cancels and shows. The other records contribute nothing, or the opposite where samples have a
fixed size. You can attack a problem, a point and a pair of your own in the same way:

    jmm.audit.audit(key, sgda, hyper, delta, problem=problem, z=z, pair=(data, neighbour))
"""

import dataclasses
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax import mechanism as mechanisms
from jaxminimax.accounting import epsilon
from jaxminimax.audit import pairs, released, signals
from jaxminimax.audit.pairs import Rounds
from jaxminimax.audit.signals import Signal, clopper_pearson, index_signal, signal
from jaxminimax.base import checks
from jaxminimax.base.types import Algorithm, GroupProblem, Problem, Saddle
from jaxminimax.mechanism import Query, Repeat, Resolvent

__all__ = ["Audit", "Signal", "audit", "index_signal", "lower_bound", "signal"]

_ENOUGH = 4000  # runs that the signal is measured on
_FEW = 1000  # with fewer it is not


@dataclasses.dataclass(frozen=True)
class Audit:
    """The result of an audit.

    Attributes:
      epsilon_lower: lower bound on the epsilon of the code, at `confidence`.
      epsilon_claimed: the epsilon of the accountant.
      delta: the delta of both.
      confidence: the probability that `epsilon_lower` is a lower bound.
      neighbours: the neighbouring relation.
      pair: "worst" or "own".
      statistic: the statistic that separated the runs: "likelihood ratio" of the described
        mechanism, "linear" fitted on the first half, or "failures", the number of rounds that
        released NaN.
      runs: the number of runs on each data set.
      hits: on how many of the `trials` of each data set the event was seen.
      trials: the number of runs on each data set that the bound is computed from.
      signal: how far a record moves the releases in units of their noise, measured and charged;
        None if it was not measured.
      shared: lower bound on the largest correlation between the noise of two releases of a run, if
        a round makes several; 0 if chance explains it. The difference of correlated releases has
        less noise than that of independent ones.

    Examples:
        >>> result = jmm.audit.Audit(epsilon_lower=0.8, epsilon_claimed=1.0, delta=1e-2,
        ...                          confidence=0.999, neighbours="replace_one", pair="own",
        ...                          statistic="linear", runs=4000, hits=(900, 400), trials=2000)
        >>> result.violated
        False
    """

    epsilon_lower: float
    epsilon_claimed: float
    delta: float
    confidence: float
    neighbours: str
    pair: str
    statistic: str
    runs: int
    hits: tuple[int, int]
    trials: int
    signal: Signal | None = None
    shared: float = 0.0

    @property
    def violated(self) -> bool:
        """Returns True if the claim, or its charge, is refuted."""
        return (not self.epsilon_lower <= self.epsilon_claimed or self.shared > 0
                or (self.signal is not None and self.signal.violated))


def audit(key: jax.Array, algorithm: Algorithm[Any, Any], hyper: Any, delta: float, *,
          runs: int = 100_000, neighbours: str = "replace_one", pair: Any = "worst",
          confidence: float = 0.999, problem: Problem | GroupProblem | None = None,
          z: Saddle | None = None) -> Audit:
    """Attacks whole runs of `algorithm.update` and compares with the accountant's claim.

    The bound reaches most of the claimed epsilon only if events of probability near delta can be
    counted: use a delta like 1e-2 here, with noise calibrated to it. Keep the rounds, the
    population and the optimiser simple; the code under audit is the same for others.

    Args:
      key: the key of all runs.
      algorithm: a module such as `sgda`.
      hyper: its `Hyper`, with noise multipliers. Entropic steps are taken as Euclidean ones: like
        a projection, they only hide released values.
      delta: delta of the bound and of the claim.
      runs: the number of runs on each of the two data sets.
      neighbours: "replace_one" or "add_or_remove_one".
      pair: "worst", or two data sets of your own, (data, neighbour), that differ in one record; an
        absent record is one of NaN. Give invented records: all runs read them, and no
        statement covers what is printed of them.
      confidence: the confidence of the lower bound.
      problem: the problem of a pair of your own. The projection is left out if it only hides
        released values.
      z: the initial point of a pair of your own.

    Raises:
      ValueError: for numbers out of range, a relation that the mechanism has no guarantee for, or a
        pair that is no pair of neighbours, or without its problem and point.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), population=10)
        >>> hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=2)
        >>> hyper = jmm.calibrate(jmm.sgda, hyper, epsilon=1.0, delta=0.01)
        >>> result = jmm.audit.audit(jax.random.key(0), jmm.sgda, hyper, 0.01, runs=500)
        >>> result.violated, result.epsilon_lower <= result.epsilon_claimed
        (False, True)
    """
    checks.count("runs", runs, low=4)
    checks.number("confidence", confidence, low=0.0, high=1.0)
    hyper = pairs.straightened(hyper)
    if not isinstance(pair, str):
        if problem is None or z is None:
            missing = "problem" if problem is None else "z"
            raise ValueError(f"{missing} is None, but a pair of one's own needs both: give "
                             "problem=..., z=... and pair=(data, neighbour).")
        return _audit_pair(key, algorithm, hyper, delta, runs, neighbours, pair, confidence,
                           problem, z)
    checks.one_of("pair", pair, ("worst",))
    if problem is not None or z is not None:
        raise ValueError(f"problem and z belong to a pair of one's own, got pair={pair!r}: give "
                         "pair=(data, neighbour).")
    mechanism, query = algorithm.mechanism(hyper), getattr(hyper, "query", None)
    if not (isinstance(mechanism, Repeat) and isinstance(query, Query | Resolvent)):
        raise ValueError(f"pair {pair!r} is for algorithms that repeat a Query or a Resolvent, got "
                         f"{type(mechanism).__name__}: give problem=..., z=... and "
                         "pair=(data, neighbour).")
    claimed = epsilon(mechanism, delta, neighbours=neighbours)
    key, choice = jax.random.split(key)
    data = pairs.worst_pair(query, neighbours)
    # the record is in the first part of the data; the other parts contribute nothing
    padding = (mechanism.parts - 1) * query.population
    data = jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (0, padding), (0, 0))), data)
    first, second = released.releases(key, algorithm, hyper, data, runs)
    scores: list[dict[str, np.ndarray]] = [{"linear": x} for x in linear(first, second, runs // 2)]
    for score, values in zip(scores, (first, second), strict=True):
        score["likelihood ratio"] = released.likelihood_ratio(values, query, neighbours,
                                                              mechanism.times)
        score["failures"] = np.isnan(values[:, :, 0, 0]).sum(1).astype(float)
    value, name, hits, trials = lower_bound(scores[0], scores[1], delta, confidence)
    start = jax.tree.map(lambda x: jnp.zeros(x.shape[2:], x.dtype), data)
    measured = None
    if runs >= _FEW and not _moving(query, mechanism):
        measured = signal(
            choice, algorithm, hyper, start, data, pairs.PLAIN, observe=pairs.all_releases,
            runs=min(runs, _ENOUGH), neighbours=neighbours, confidence=confidence)
    shared = released.shared_between_releases(
        choice, algorithm, hyper, start, jax.tree.map(lambda x: x[0], data), pairs.PROBLEM,
        min(runs, _ENOUGH), confidence)
    return Audit(value, claimed, delta, confidence, neighbours, pair, name, runs, hits, trials,
                 measured, shared)


def _moving(query: Any, mechanism: Any) -> bool:
    """Returns True if the noise of a release differs from run to run, as the clip norms do."""
    return getattr(query, "adaptive", None) is not None and mechanism.releases() > 1


def _public(mechanism: Any) -> bool:
    """Returns True if it is public which records a release reads."""
    samplings = (getattr(getattr(leaf, "query", None), "sampling", None)
                 for leaf in mechanisms.leaves(mechanism))
    return not any(sampling is not None and sampling.secret for sampling in samplings)


def _audit_pair(key: jax.Array, algorithm: Algorithm[Any, Any], hyper: Any, delta: float, runs: int,
                neighbours: str, pair: Any, confidence: float, problem: Problem | GroupProblem,
                z: Saddle) -> Audit:
    """Audits a user's pair, round by round: the points, and the released values."""
    data = pairs.check_pair(pair, problem)
    mechanism = algorithm.mechanism(hyper)
    claimed = epsilon(mechanism, delta, neighbours=neighbours)
    if isinstance(problem, Problem) and isinstance(getattr(hyper, "query", None), Query):
        problem = problem._replace(project=lambda z: z)  # which only hides released values
    # one release a round, whose noise can be separated from the algorithm's own arithmetic
    separable = isinstance(mechanism, Repeat | mechanisms.TreeSums | mechanisms.CorrelatedSums
                       | mechanisms.GroupSolution)

    def looked_at(state: Any, released: list[Any]) -> Any:
        points = getattr(state, "ahead", state.z)  # those of the first of two releases
        return (points, pairs.first_release(state, released)) if separable else (points,)

    sides = pairs.rounds_of_keys(list(jax.random.split(key)), algorithm, hyper, z, data, problem,
                                 looked_at, runs)
    scores = _scores([x.release(0).noisy[:, :, i] for i, x in enumerate(sides)])
    charged, gauge = mechanism, None
    if separable:
        values = [x.release(1) for x in sides]
        if _public(mechanism):
            scores = [a | b for a, b in zip(scores, _likelihood_ratios(values), strict=True)]
        if isinstance(mechanism, Repeat) and mechanism.times == 2 * hyper.iterations:
            # a round's first release
            charged = dataclasses.replace(mechanism, times=hyper.iterations)
        if runs >= _FEW and not _moving(getattr(mechanism, "query", None), mechanism):
            gauge = signals.signal_of(values[0], charged, neighbours=neighbours,
                                      confidence=confidence)
    value, name, hits, trials = lower_bound(scores[0], scores[1], delta, confidence)
    shared = released.shared_between_releases(
        key, algorithm, hyper, z, jax.tree.map(lambda x: x[0], data), problem,
        min(runs, _ENOUGH), confidence)
    return Audit(value, claimed, delta, confidence, neighbours, "own", name, runs, hits, trials,
                 gauge, shared)


def _scores(paths: list[np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Computes statistics of points `[runs, rounds, k]` on each data set."""
    first, second = moves = [np.diff(x, axis=1, prepend=0.0) for x in paths]
    return [{"linear": x, "failures": np.isnan(move).any(2).sum(1).astype(float)}
            for x, move in zip(linear(first, second, len(first) // 2), moves, strict=True)]


def _likelihood_ratios(sides: list[Rounds]) -> list[dict[str, np.ndarray]]:
    """Computes likelihood ratios of releases of public samples, by the sums of both data sets."""
    half = len(sides[0].noisy) // 2
    variance = np.maximum(np.nanvar(sides[0].noise[:half], 0), 1e-300)
    scores = []
    for i, x in enumerate(sides):
        first, second = np.moveaxis(x.quiet, 2, 0)
        ratio = (x.noisy[:, :, i] - (first + second) / 2) * (first - second) / variance
        scores.append({"likelihood ratio": np.nansum(ratio, (1, 2))})
    return scores


# --- the statistic of weighed numbers, and the bound ---


def linear(first: Any, second: Any, half: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns Fisher's linear statistic, which separates the first `half` runs best, `[runs]`.

    Noise that several numbers share cancels in it, wherever they are in the path. If a run has
    many numbers, each round's part of a leaf is first replaced by its component along the two
    means' difference. Each half of the first runs gets its weights from the other half, so that a
    choice among statistics prefers none that fits chance.

    Args:
      first: the observations of the runs on one data set, leaves `[runs, rounds, ...]`.
      second: those on the other data set.
      half: the number of runs that the weights are chosen by.
    """
    def table(x: Any) -> np.ndarray:
        x = np.nan_to_num(np.asarray(x, np.float64), posinf=0.0, neginf=0.0)
        return x.reshape(*x.shape[:2], -1) if x.ndim > 1 else x.reshape(-1, 1, 1)

    tables = [(table(a), table(b)) for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second),
                                                   strict=True)]
    runs, quarter = len(tables[0][0]), max(2, half // 2)
    scores = np.empty((2, runs))
    for shown, fit in ((slice(0, quarter), slice(quarter, max(half, quarter + 2))),
                      (slice(quarter, half), slice(0, quarter)),
                      (slice(half, runs), slice(0, half))):
        scores[:, shown] = _weighed(tables, fit, shown)
    return scores[0], scores[1]


def _weighed(tables: list[tuple[np.ndarray, np.ndarray]], fit: slice, shown: slice) -> np.ndarray:
    """Returns the statistic of the runs `shown` whose weights separate the runs `fit`."""
    sides: list[list[np.ndarray]] = [[], []]
    projected = sum(a.shape[1] * a.shape[2] for a, _ in tables) > 256  # else one by one
    for pair in tables:
        gap = pair[0][fit].mean(0) - pair[1][fit].mean(0)
        for side, x in zip(sides, pair, strict=True):
            side.append(np.einsum("rtk,tk->rt", x, gap) if projected else x.reshape(len(x), -1))
    first, second = (np.concatenate(side, 1) for side in sides)
    gap = first[fit].mean(0) - second[fit].mean(0)
    spread = np.atleast_2d(np.cov(first[fit].T) + np.cov(second[fit].T))
    scale = np.sqrt(np.maximum(np.diag(spread), 1e-30))
    spread = spread / np.outer(scale, scale) + 1e-12 * np.eye(len(scale))
    weight = np.linalg.solve(spread, gap / scale)
    weight /= max(math.sqrt(weight @ spread @ weight), 1e-30)
    middle = (first[fit].mean(0) + second[fit].mean(0)) / 2
    return np.stack([(x[shown] - middle) @ (weight / scale) for x in (first, second)])


def _bound(hits: Any, other_hits: Any, trials: int, delta: float, confidence: float) -> np.ndarray:
    """Returns the lower bound on epsilon from the counts of an event on each side."""
    error = (1 - confidence) / 2
    low, _ = clopper_pearson(hits, trials, error)
    _, high = clopper_pearson(other_hits, trials, error)
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
        cuts = np.unique(np.quantile(np.concatenate([p, q]), np.linspace(0, 1, 400)))
        hits, other_hits = (half - np.searchsorted(np.sort(x), cuts) for x in (p, q))
        values = _bound(hits, other_hits, half, delta, confidence)
        if values.max() > best:
            best = float(values.max())
            chosen = (likelier, sign, name, float(cuts[np.argmax(values)]))
    likelier, sign, name, cut = chosen
    counts = [int(np.sum(sign * x[name][half:] >= cut)) for x in pair]
    trials = len(one[name]) - half
    attained = float(_bound(counts[likelier], counts[1 - likelier], trials, delta, confidence))
    return attained, name, (counts[0], counts[1]), trials
