"""Privacy audit: how much of the claimed epsilon an attack on the real update code attains.

A whole run of an algorithm is repeated on two neighbouring data sets, and a threshold test guesses
from what the runs released which one they read. For every event S an (epsilon, delta)-private run
has P[S] <= e^epsilon Q[S] + delta, so with Clopper-Pearson bounds on both probabilities

    epsilon >= ln((P_low[S] - delta) / Q_up[S])

at the stated confidence, whatever the two distributions are. Statistic, threshold and the order of
the pair are chosen on one half of the runs, the bound is computed on the other. A lower bound above
the claimed epsilon proves a bug; one below it proves nothing.

The pair "worst" is the one that attains the theory's bound for one release (and, without fixed-size
samples, for all of them): every operator is far above its clip norm, along one axis, opposite for
the two players and, from the second round on, for the rounds, so that noise shared by players or
rounds cancels and shows. The other records contribute nothing, or the opposite where samples have a
fixed size.
"""

import dataclasses
import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special, stats

from jaxminimax import _check
from jaxminimax import mechanism as words
from jaxminimax._types import Algorithm, Problem, Saddle, saddle_operator
from jaxminimax.accounting import effective_noise_multiplier, epsilon
from jaxminimax.drivers import run
from jaxminimax.mechanism import Disjoint, FixedSize, Full, Poisson, Query, Resolvent

PAIRS = ("worst", "random")
_GIANT = 1e3  # norm of the records' operators in clip norms
_THRESHOLDS = 400


@dataclasses.dataclass(frozen=True)
class Audit:
    """What an audit found.

    Attributes:
      epsilon_lower: lower bound on the epsilon of the code, at `confidence`.
      epsilon_claimed: what the accountant says.
      delta: the delta of both.
      confidence: probability that `epsilon_lower` is a lower bound.
      neighbours: the relation.
      pair: "worst" or "random".
      statistic: what separated the runs: "likelihood ratio" of the described mechanism, "linear"
        fitted on the first half, or "failures", the number of rounds that released NaN.
      runs: on each data set.
      hits: on how many of the `trials` of each data set the event was seen.
      trials: runs on each data set that the bound is computed from.
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

    @property
    def violated(self) -> bool:
        """Whether the claim is refuted."""
        return not self.epsilon_lower <= self.epsilon_claimed


def _loss(w: jax.Array, v: jax.Array, x: Saddle) -> jax.Array:
    """Its saddle operator is the record, negated in the first round, which starts at 0."""
    first = jnp.all(w == 0) & jnp.all(v == 0)
    return jnp.where(first, -1.0, 1.0).astype(w.dtype) * (jnp.sum(w * x.w) - jnp.sum(v * x.v))


PROBLEM = Problem(saddle_operator(_loss))


def _rest(query: Query | Resolvent) -> float:
    """What all other records contribute in the worst pair, in clip norms."""
    return -1.0 if isinstance(query.sampling, FixedSize) else 0.0


def _clips(query: Query | Resolvent) -> Saddle:
    return Saddle(query.bound, query.bound) if isinstance(query, Resolvent) else query.clip


def _share(query: Query | Resolvent) -> tuple[float, float]:
    """Clip norms that each player's operator has left in the worst pair, once it is clipped.

    All of it under two clips. One joint clip spends it on the player with less noise.
    """
    if isinstance(query, Resolvent):
        return math.sqrt(0.5), math.sqrt(0.5)
    if not query.joint:
        return 1.0, 1.0
    w, v = (words.concrete(z) for z in words.check_noise(query))
    if w == v:
        return math.sqrt(0.5), math.sqrt(0.5)
    return float(w < v), float(v < w)


def worst_pair(query: Query | Resolvent, neighbours: str, record: int = 0) -> Saddle:
    """Two data sets of operators, leaves `[2, n, 1]`, that differ in one record."""
    n, away = query.population, -1.0 if neighbours == "replace_one" else math.nan
    sign = np.full((2, n, 1), _rest(query))
    sign[:, record, 0] = (1.0, away)

    def leaf(clip: Any, towards: float, share: float) -> jax.Array:
        size = 0.0 if clip is None else _GIANT * words.concrete(clip)
        return jnp.asarray(towards * size * share * sign, jnp.float32)

    (w, v), clip = _share(query), _clips(query)
    return Saddle(leaf(clip.w, 1.0, w), leaf(clip.v, -1.0, v))


def random_pair(seed: int, query: Query | Resolvent, neighbours: str) -> Saddle:
    """As `worst_pair`, in two dimensions a player, with records of random direction and size."""
    rng = np.random.default_rng(seed)
    n = query.population
    record = int(rng.integers(getattr(query.sampling, "batch", n)))

    def leaf(clip: Any) -> jax.Array:
        size = 0.0 if clip is None else words.concrete(clip)
        one = rng.normal(size=(n, 2)) * 10.0 ** rng.uniform(-1, 1, (n, 1))
        other = one.copy()
        other[record] = rng.normal(size=2) if neighbours == "replace_one" else math.nan
        one[record] *= _GIANT
        other[record] *= _GIANT
        return jnp.asarray(size * np.stack([one, other]), jnp.float32)

    return Saddle(*map(leaf, _clips(query)))


def _observed(state: Any) -> Saddle:
    """The points that a round's releases led to, leaves `[releases, dim]`."""
    points = [state.ahead, state.z] if hasattr(state, "ahead") else [state.z]
    return Saddle(*(jnp.stack(x) for x in zip(*points, strict=True)))


def _moves(key: jax.Array, algorithm: Algorithm, hyper: Any, data: Saddle) -> Saddle:
    """How far each release moves one run from where its round began, leaves `[releases, dim]`."""
    start = jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), data)
    if getattr(hyper.query, "doubling", False):  # a solution moves away from its centre
        return run(key, start, data, hyper, algorithm, PROBLEM,
                   lambda state: jax.tree.map(jnp.subtract, state.z, state.centre))[1]
    _, path = run(key, start, data, hyper, algorithm, PROBLEM, _observed)

    def moves(x: jax.Array) -> jax.Array:
        before = jnp.concatenate([jnp.zeros_like(x[:1, -1:]), x[:-1, -1:]])
        return (x - before).reshape(-1, x.shape[-1])

    return jax.tree.map(moves, path)


def releases(key: jax.Array, algorithm: Algorithm, hyper: Any, data: Saddle, runs: int,
             together: int = 1024) -> np.ndarray:
    """What runs on each of several data sets released, read off the iterates.

    Iterates move by a step times what was released; the steps are measured on a run without noise.
    Optimisers with a memory leave a mixture, on which only the attack is weaker.

    Args:
      key: for all the runs.
      algorithm: a module such as `sgda`.
      hyper: its `Hyper`.
      data: leaves `[sets, n, dim]`.
      runs: on each data set.
      together: runs at a time.

    Returns:
      Noisy sums over clip norms (proximal points: over displacements), sign of the first release
      undone: `[sets, runs, releases, players, dim]`, the players that have a clip norm.
    """
    players = [p for p, clip in enumerate(_clips(hyper.query)) if clip is not None]
    together = min(together, runs)

    @jax.jit
    def programme(keys: jax.Array, data: Saddle) -> Saddle:
        one = jax.vmap(lambda key: _moves(key, algorithm, hyper, data))
        return jax.lax.map(one, keys)

    key, other = jax.random.split(key)
    sets = [Saddle(*x) for x in zip(*data, strict=True)]
    keys = jax.random.split(key, (len(sets), -(-runs // together), together))
    moves = [jax.device_get(programme(k, x)) for k, x in zip(keys, sets, strict=True)]
    size: Any
    if isinstance(hyper.query, Resolvent):  # a point moves against the operator, in every round
        query, made = hyper.query, algorithm.mechanism(hyper)
        lengths = [words.concrete(words.displacement(words.on_part(query, k // made.times)))
                   for k in range(words.releases(made))]
        step, size = Saddle(-1.0, -1.0), 1 / np.array(lengths)[:, None]
    else:
        step, size = _steps(other, algorithm, hyper, sets[0]), words.batch_size(hyper.query)
    flat = [[x[p].reshape(-1, *x[p].shape[2:])[:runs].astype(np.float64) for p in players]
            for x in moves]
    return np.stack([np.stack([x * (size / step[p]) for x, p in zip(row, players, strict=True)], 2)
                     for row in flat])


def _steps(key: jax.Array, algorithm: Algorithm, hyper: Any, data: Saddle) -> Saddle:
    """Moves per clip norm released, from a run without noise on one record, `[releases, 1]`."""
    query = hyper.query
    zero = jax.tree.map(lambda _: 0.0, query.noise_multiplier)
    plain = dataclasses.replace(hyper, query=dataclasses.replace(
        query, noise_multiplier=zero, sampling=Full(), population=1, joint=False))
    unit = Saddle(*(jnp.zeros_like(x[:1]) if c is None else jnp.zeros_like(x[:1]).at[:, 0].set(
        _GIANT * words.concrete(c)) for x, c in zip(data, query.clip, strict=True)))
    unit = jax.tree.map(lambda x: jnp.repeat(x, algorithm.mechanism(hyper).parts, 0), unit)
    moves = jax.device_get(_moves(key, algorithm, plain, unit))
    sizes = (np.abs(x[:, :1].astype(np.float64)) for x in moves)
    return Saddle(*(np.where(np.arange(len(x)) > 0, -1.0, 1.0)[:, None]  # players descend
                    * np.where((x > 0) & np.isfinite(x), x, 1.0) for x in sizes))


def _counts(query: Query | Resolvent) -> tuple[np.ndarray, np.ndarray]:
    """How often a sample holds a record: multiplicities and their probabilities."""
    match query.sampling:
        case Poisson(rate=rate) if rate < 1:
            return np.array([0.0, 1.0]), np.array([1 - rate, rate])
        case FixedSize(batch=batch, replacement=True):
            k = np.arange(batch + 1)
            return k.astype(float), stats.binom.pmf(k, batch, 1 / query.population)
        case FixedSize(batch=batch) if batch < query.population:
            rate = batch / query.population
            return np.array([0.0, 1.0]), np.array([1 - rate, rate])
    return np.ones(1), np.ones(1)


def likelihood_ratio(released: np.ndarray, query: Query | Resolvent, neighbours: str,
                     times: int | None = None) -> np.ndarray:
    """Log-likelihood ratio of the described mechanism on the two data sets of `worst_pair`.

    Args:
      released: from `releases`, `[runs, releases, players, 1]`.
      query: the description.
      neighbours: the relation.
      times: releases on the part of the data that the record is in; None: all of them.
    """
    noise, clips = words.check_noise(query), _clips(query)
    noise = Saddle(noise, noise) if isinstance(query, Resolvent) else noise
    z = [words.concrete(x) for x in noise if x is not None]
    joint = effective_noise_multiplier(query)
    w, v = _share(query)
    towards = [s for s, c in zip((w, -v), clips, strict=True) if c is not None]
    direction = joint * np.array(towards) / np.square(z)
    u = released[:, :times, :, 0] @ direction  # [runs, releases], N(contributions / joint, 1)
    if isinstance(query.sampling, Disjoint):
        u = u[:, :: query.population // query.sampling.batch]  # record 0 is read once a pass
    k, weight = _counts(query)
    size = getattr(query.sampling, "batch", 0)
    away = -1.0 if neighbours == "replace_one" else 0.0
    total = np.zeros(len(u))
    for sign, own in ((1.0, 1.0), (-1.0, away)):
        mean = (own * k + _rest(query) * (size - k)) / joint
        logs = [math.log(w) + u * x - x * x / 2 for w, x in zip(weight, mean, strict=True)]
        with np.errstate(invalid="ignore"):  # NaN is no evidence here; `failures` counts it
            total += sign * np.nansum(functools.reduce(np.logaddexp, logs), 1)
    return total


def _linear(one: np.ndarray, two: np.ndarray, half: int) -> tuple[np.ndarray, np.ndarray]:
    """The linear statistic that separates the first `half` runs best (Fisher's)."""
    one, two = (np.nan_to_num(x.reshape(len(x), -1)) for x in (one, two))
    gap = one[:half].mean(0) - two[:half].mean(0)
    spread = np.atleast_2d(np.cov(one[:half].T) + np.cov(two[:half].T))
    scale = np.sqrt(np.maximum(np.diag(spread), 1e-30))
    spread = spread / np.outer(scale, scale) + 1e-12 * np.eye(len(scale))
    weight = np.linalg.solve(spread, gap / scale) / scale
    return one @ weight, two @ weight


def clopper_pearson(hits: Any, trials: int, error: float) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper confidence bounds on a probability, each wrong with at most `error`."""
    hits = np.asarray(hits, np.float64)
    low = special.betaincinv(np.maximum(hits, 1), trials - hits + 1, error)
    high = special.betaincinv(hits + 1, np.maximum(trials - hits, 1), 1 - error)
    return np.where(hits > 0, low, 0.0), np.where(hits < trials, high, 1.0)


def _bound(hits: Any, other: Any, trials: int, delta: float, confidence: float) -> np.ndarray:
    """The lower bound on epsilon from how often an event was seen on each side."""
    error = (1 - confidence) / 2
    low, _ = clopper_pearson(hits, trials, error)
    _, high = clopper_pearson(other, trials, error)
    return np.maximum(np.log(np.maximum(low - delta, 1e-300) / high), 0.0)


def lower_bound(one: dict[str, np.ndarray], two: dict[str, np.ndarray], delta: float,
                confidence: float = 0.999) -> tuple[float, str, tuple[int, int], int]:
    """A lower bound on epsilon from statistics of independent runs on two data sets.

    The first half of the runs chooses the statistic, its sign, the order of the pair and the
    threshold; only the second half enters the bound. Nothing is assumed about the distributions.

    Args:
      one: statistics of the runs on one data set, each `[runs]`, by name.
      two: of the runs on the other, as many.
      delta: in (0, 1).
      confidence: of the bound.

    Returns:
      The bound, the statistic's name, how often its event was seen on each side, and among how
      many runs.
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


def audit(key: jax.Array, algorithm: Algorithm, hyper: Any, delta: float, *, runs: int = 100_000,
          neighbours: str = "replace_one", pair: str = "worst",
          confidence: float = 0.999) -> Audit:
    """Attacks whole runs of `algorithm.update` and compares with what the accountant claims.

    The bound sees most of the claimed epsilon only where events of probability near delta can be
    counted: use a delta like 1e-2 here, with noise calibrated to it. Keep the rounds, the
    population and the optimiser simple; the code under audit is the same for others.

    Args:
      key: for all the runs.
      algorithm: a module such as `sgda`.
      hyper: its `Hyper`, with noise multipliers.
      delta: of the bound and of the claim.
      runs: on each of the two data sets.
      neighbours: "replace_one" or "add_or_remove_one".
      pair: "worst" or "random".
      confidence: of the lower bound.

    Raises:
      ValueError: for numbers out of range, or a relation the mechanism has no guarantee for.
    """
    _check.count("runs", runs, low=4)
    _check.one_of("pair", pair, PAIRS)
    _check.number("confidence", confidence, low=0.0, high=1.0)
    made, query = algorithm.mechanism(hyper), hyper.query
    claimed = epsilon(made, delta, neighbours=neighbours)
    key, choice = jax.random.split(key)
    if pair == "worst":
        data = worst_pair(query, neighbours)
    else:
        seed = int(jax.random.bits(choice, (), jnp.uint32))
        data = random_pair(seed, query, neighbours)
    # the record is in the first part of the data; the other parts contribute nothing
    more = (made.parts - 1) * query.population
    data = jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (0, more), (0, 0))), data)
    one, two = releases(key, algorithm, hyper, data, runs)
    scores: list[dict[str, np.ndarray]] = [{"linear": x} for x in _linear(one, two, runs // 2)]
    for score, released in zip(scores, (one, two), strict=True):
        if pair == "worst":
            score["likelihood ratio"] = likelihood_ratio(released, query, neighbours,
                                                         made.times)
        score["failures"] = np.isnan(released[:, :, 0, 0]).sum(1).astype(float)
    value, name, hits, trials = lower_bound(scores[0], scores[1], delta, confidence)
    return Audit(value, claimed, delta, confidence, neighbours, pair, name, runs, hits, trials)
