"""The program of a private search: runs one after the other, of which the best one leaves.

Keys: that of the search is folded with 0 for the number of runs, and with k = 1, 2, ... for run k;
the key of a run with 0 for its candidate, 1 for its training, 2 for the release of its score.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base.random_bits import fold_in, random_words
from jaxminimax.base.types import Algorithm, Problem, PyTree, Saddle
from jaxminimax.drivers import many_runs, scan
from jaxminimax.mechanism import Repeat
from jaxminimax.mechanism.repetitions import BITS, Repetitions
from jaxminimax.releases.sums import release

_CANDIDATE, _TRAINING, _SCORE = 0, 1, 2  # what the key of a run is folded with
_LOW = 32  # bits of the second of two words


def cumulative(runs: Repetitions) -> tuple[np.ndarray, np.ndarray]:
    """2^62 P[K <= k] for k = 1 ... most - 1, in words of 30 and 32 bits."""
    steps = list(itertools.accumulate(runs.weights))[:-1]
    return (np.asarray([x >> _LOW for x in steps], np.uint32),
            np.asarray([x & (2**_LOW - 1) for x in steps], np.uint32))


@functools.lru_cache(maxsize=64)  # one object a score: programs are kept by identity
def score_problem(score: Callable[[PyTree, PyTree], jax.Array], low: float,
                  high: float) -> Problem:
    """The score less the middle of its range, as the operator of a player with one number."""
    def operator(at: Saddle, record: PyTree) -> Saddle:
        value = jnp.asarray(score(at.v, record))
        if value.shape != ():
            raise ValueError(f"The score of one record must be one number, got shape "
                             f"{value.shape}.")
        value = value.astype(jnp.float32)
        value = jnp.clip(jnp.where(jnp.isfinite(value), value, low), low, high)
        return Saddle(value - (low + high) / 2, at.v)

    return Problem(operator)


def number_of_runs(key: jax.Array, table: tuple[jax.Array, jax.Array]) -> jax.Array:
    """K, int32 `[]`: one more than the numbers of `cumulative` that a word of 62 bits reaches."""
    words = random_words(key, (2,))
    high, low = words[0] >> (2 * _LOW - BITS), words[1]
    reached = (table[0] < high) | ((table[0] == high) & (table[1] <= low))
    return 1 + jnp.sum(reached, dtype=jnp.int32)


@functools.partial(jax.jit, static_argnames=("algorithm", "problem", "scored", "point", "at_once",
                                             "hide_time"))
def search(key: jax.Array, z: Saddle, data: PyTree, rows: PyTree, hypers: Any, score: Repeat,
           table: tuple[jax.Array, jax.Array], *, algorithm: Algorithm, problem: Problem,
           scored: Problem, point: Callable[[Any], PyTree], at_once: int,
           hide_time: bool) -> tuple[Any, jax.Array, jax.Array]:
    """The winner's state, its released score less the middle of the range, its candidate.

    Args:
      key: as in `tune`.
      z: as in `tune`.
      data: as in `tune`.
      rows: what the score reads.
      hypers: stacked candidates, calibrated.
      score: description of the release of a score.
      table: of `cumulative`.
      algorithm: as in `tune`.
      problem: as in `tune`.
      scored: of `score_problem`.
      point: as in `tune`.
      at_once: as in `tune`.
      hide_time: as in `tune`.
    """
    candidates = jax.tree.leaves(hypers)[0].shape[0]
    hypers, lengths = many_runs.lengths_of(hypers, candidates, algorithm)
    count = number_of_runs(fold_in(key, 0), table)
    last = table[0].shape[0] + 1

    def one(number: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        """Run `number` = 1, 2, ...: state, score, candidate."""
        own = fold_in(key, number)
        # as good as uniform; it need not be, as every candidate is charged as the dearest
        drawn = random_words(fold_in(own, _CANDIDATE), (2,))[0] % candidates
        hyper = jax.tree.map(lambda x: x[drawn], hypers)
        state = scan.whole_run(fold_in(own, _TRAINING), z, data, hyper, algorithm, problem,
                               lengths, drawn, hide_time)
        at = Saddle(jnp.zeros((), jnp.float32), point(state))
        found = release(fold_in(own, _SCORE), score, jnp.int32(0), scored, at, rows).w
        return state, found, drawn.astype(jnp.int32)

    # one run at a time is not mapped over: its conditions stay conditions
    def several(first: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        if at_once > 1:
            return jax.vmap(one)(first + jnp.arange(at_once))
        return jax.tree.map(lambda x: x[None], one(first))

    def step(turn: jax.Array, best: tuple[Any, jax.Array, jax.Array, jax.Array]) -> Any:
        first = 1 + turn * at_once
        states, scores, drawn = several(first)
        # NaN is the least; what counts no more is less than that
        order = jnp.where(jnp.isnan(scores), jnp.finfo(scores.dtype).min, scores)
        order = jnp.where(first + jnp.arange(at_once) <= count, order, -jnp.inf)
        top = jnp.argmax(order)  # the first of equal ones, which is as good as any
        new = jax.tree.map(lambda x: x[top], (states, scores, drawn, order))
        return jax.tree.map(lambda a, b: jnp.where(new[3] > best[3], a, b), new, best)

    shapes = jax.eval_shape(several, jnp.int32(1))
    best = (*jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), shapes),
            jnp.full((), -jnp.inf, shapes[1].dtype))
    turns = -(-last // at_once) if hide_time else -(-count // at_once)
    return jax.lax.fori_loop(0, turns, step, best)[:3]
