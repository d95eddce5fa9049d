"""Neighbouring data sets to attack: the library's own, and what a user's pair must be."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base.types import (
    GroupProblem,
    Problem,
    PyTree,
    Saddle,
    saddle_operator,
    with_strategy,
)
from jaxminimax.mechanism import Query, Resolvent
from jaxminimax.mechanism.costs import concrete
from jaxminimax.mechanism.description import check_noise
from jaxminimax.mechanism.sampling import WorstCase

PAIRS = ("worst", "random")
GIANT = 1e3  # norm of the records' operators in clip norms


def _loss(w: jax.Array, v: jax.Array, x: Saddle) -> jax.Array:
    """Its saddle operator is the record, negated in the first round, which starts at 0."""
    first = jnp.all(w == 0) & jnp.all(v == 0)
    return jnp.where(first, -1.0, 1.0).astype(w.dtype) * (jnp.sum(w * x.w) - jnp.sum(v * x.v))


PROBLEM = Problem(saddle_operator(_loss))
# the same in every round, so that what a record adds does not depend on what was released
PLAIN = Problem(saddle_operator(lambda w, v, x: jnp.sum(w * x.w) - jnp.sum(v * x.v)))


def worst_case(query: Query | Resolvent) -> WorstCase:
    """What a release reads of the worst pair.

    Raises:
      ValueError: where none is known.
    """
    found = query.sampling.worst_case(query.population)
    if found is None:
        raise ValueError(f"No pair is known to be the worst for {query.sampling!r}: give "
                         "problem=..., z=... and pair=(data, neighbour).")
    return found


def computed(problem: Problem, strategy: str, microbatch: int) -> Problem:
    """`problem`, with clipped sums computed as said."""
    return problem._replace(operator=with_strategy(problem.operator, strategy, microbatch))


def rest_of(query: Query | Resolvent) -> float:
    """What all other records contribute in the worst pair, in clip norms."""
    return -1.0 if worst_case(query).slots else 0.0


def clip_norms(query: Query | Resolvent) -> Saddle:
    return Saddle(query.bound, query.bound) if isinstance(query, Resolvent) else query.clip


def share_of(query: Query | Resolvent) -> tuple[float, float]:
    """Clip norms that each player's operator has left in the worst pair, once it is clipped.

    All of it under two clips. One joint clip spends it on the player with less noise.
    """
    if isinstance(query, Resolvent):
        return math.sqrt(0.5), math.sqrt(0.5)
    if not query.joint:
        return 1.0, 1.0
    w, v = (concrete(z) for z in check_noise(query))
    if w == v:
        return math.sqrt(0.5), math.sqrt(0.5)
    return float(w < v), float(v < w)


def worst_pair(query: Query | Resolvent, neighbours: str, record: int = 0) -> Saddle:
    """Two data sets of operators, leaves `[2, n, 1]`, that differ in one record."""
    n, away = query.population, -1.0 if neighbours == "replace_one" else math.nan
    sign = np.full((2, n, 1), rest_of(query))
    sign[:, record, 0] = (1.0, away)

    def leaf(clip: Any, towards: float, share: float) -> jax.Array:
        size = 0.0 if clip is None else GIANT * concrete(clip)
        return jnp.asarray(towards * size * share * sign, jnp.float32)

    (w, v), clip = share_of(query), clip_norms(query)
    return Saddle(leaf(clip.w, 1.0, w), leaf(clip.v, -1.0, v))


def random_pair(seed: int, query: Query | Resolvent, neighbours: str) -> Saddle:
    """As `worst_pair`, in two dimensions a player, with records of random direction and size."""
    rng = np.random.default_rng(seed)
    n = query.population
    record = int(rng.integers(getattr(query.sampling, "batch", n)))

    def leaf(clip: Any) -> jax.Array:
        size = 0.0 if clip is None else concrete(clip)
        one = rng.normal(size=(n, 2)) * 10.0 ** rng.uniform(-1, 1, (n, 1))
        other = one.copy()
        other[record] = rng.normal(size=2) if neighbours == "replace_one" else math.nan
        one[record] *= GIANT
        other[record] *= GIANT
        return jnp.asarray(size * np.stack([one, other]), jnp.float32)

    return Saddle(*map(leaf, clip_norms(query)))


def _records(x: np.ndarray, axes: int) -> np.ndarray:
    return x.reshape(*x.shape[:axes], -1)


def check_pair(pair: Any, problem: Problem | GroupProblem) -> PyTree:
    """A user's pair as leaves `[2, n, ...]` (of groups `[2, p, n_max, ...]`).

    Raises:
      ValueError: unless it is two data sets of one shape that differ in one record.
    """
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise ValueError(f"pair must be 'worst', 'random' or (data, neighbour), got {pair!r}.")
    shapes = [[(jnp.shape(x), jnp.result_type(x)) for x in jax.tree.leaves(data)] for data in pair]
    structures = {str(jax.tree.structure(data)) for data in pair}
    if len(structures) > 1 or shapes[0] != shapes[1]:
        raise ValueError(f"pair must be two data sets of equal shapes and dtypes, got {shapes[0]} "
                         f"and {shapes[1]}: a record that is absent is one of NaN.")
    axes = 2 if isinstance(problem, GroupProblem) else 1
    differs: Any = False
    for a, b in zip(*(map(np.asarray, jax.tree.leaves(data)) for data in pair), strict=True):
        a, b = _records(a, axes), _records(b, axes)
        differs = differs | np.any((a != b) & ~((a != a) & (b != b)), -1)
    if np.sum(differs) != 1:
        raise ValueError(f"pair differs in {int(np.sum(differs))} records, neighbours differ in "
                         "one: replace one record of the data.")
    return jax.tree.map(lambda *x: jnp.stack([jnp.asarray(y) for y in x]), *pair)
