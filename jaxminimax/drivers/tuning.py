"""Private search for the best of several settings, in one compiled program, charged as a whole.

A search makes a random number of runs, each with settings drawn from the candidates, and each with
a released score. It publishes the run with the best score and nothing else. The proof of its cost
is in `mechanism.repetitions`.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.accounting import TuningStatement, statement_of_run, tuning
from jaxminimax.base import arguments, checks, identity
from jaxminimax.base.random_bits import random_words
from jaxminimax.base.types import Algorithm, AnyProblem, HyperT, Problem, PyTree, Saddle, StateT
from jaxminimax.drivers import many_runs, runs
from jaxminimax.drivers.runs import Functions
from jaxminimax.mechanism import Full, Query, Repeat, composed, repetitions
from jaxminimax.placement.sharding import Sharded, arrays, as_rows
from jaxminimax.releases import release_keys
from jaxminimax.releases.sums import release


class Tuned(NamedTuple, Generic[HyperT, StateT]):
    """The published result of a search; all of it is private output.

    Attributes:
      state: the winner's last state.
      score: the winner's released score, noisy, float32 `[]`.
      candidate: the number of the winner's settings.
      hyper: the winner's settings, with the noise of their run.
      statement: the statement of everything above together.

    Examples:
        >>> jmm.types.Tuned._fields  # the result of a search
        ('state', 'score', 'candidate', 'hyper', 'statement')
    """

    state: StateT
    score: jax.Array
    candidate: int
    hyper: HyperT
    statement: TuningStatement


def average(state: Any) -> PyTree:
    """Returns the averaged iterate of a state."""
    return state.average


def tune(key: jax.Array, z: Saddle, data: PyTree, candidates: Sequence[HyperT],
         algorithm: Algorithm[HyperT, StateT], problem: AnyProblem, *,
         score: Callable[[PyTree, PyTree], jax.Array], score_range: tuple[float, float],
         epsilon: float, delta: float, held_out: PyTree | None = None, expected: float = 10.0,
         eta: float = 0.0, most: int | None = None, hide_time: bool = False, share: float = 0.2,
         neighbours: str = "replace_one", point: Callable[[StateT], PyTree] = average,
         at_once: int = 1, unit: str | None = None,
         assumed: tuple[str, ...] = ()) -> Tuned[HyperT, StateT]:
    """Publishes the best of a random number of runs with drawn candidates, and pays for them.

        tuned = jmm.tune(key, start, rows, candidates, jmm.sgda, problem, score=accuracy,
                         score_range=(0.0, 1.0), epsilon=1.0, delta=1e-6)

    A run draws one of the candidates, trains, and releases the mean of its score over the records,
    each record's clipped to the range, with Gaussian noise. The number of runs is drawn first. The
    winner is the run with the largest released score; a score that is NaN is the least. Noise is
    calibrated here, so that winner, score and choice together are (epsilon, delta)-private.

    Args:
      key: root key of the search, a secret, used for nothing else.
      z: initial point of every run; must not depend on the data.
      data: leaves `[n, ...]`, n = the population of the candidates.
      candidates: a public list of the algorithm's `Hyper`s, which may differ in numbers and in
        iterations. `tune` sets their noise multipliers, and keeps their ratios.
      algorithm: a module such as `sgda`.
      problem: operator, public terms, projection.
      score: `(point, record) -> []`, larger is better; it reads that record only. A score that is
        not finite counts as the least of the range.
      score_range: (low, high), public. A narrow range needs less noise, of standard deviation
        (high - low) / 2 times the noise multiplier over n.
      epsilon: epsilon of the whole search, in (0, 1e6).
      delta: delta of the whole search, in (0, 1).
      held_out: records that the score reads in place of `data`, none of which is among `data`. Each
        record then pays for training or for the score, and never for both.
      expected: the mean number of runs, above 1.
      eta: the shape of its law, see `mechanism.repetitions.Repetitions`.
      most: the largest number of runs. None for the number that leaves 1e-9 of probability, or with
        `hide_time` six times the expected number.
      hide_time: whether to make the largest number of runs always, each as long as the longest, so
        that time reveals neither how many count nor which candidates they drew. If not, the
        statement assumes that nobody learns how long the search took.
      share: the part of epsilon that a search would cost that released the scores alone, if they
        read the training records.
      neighbours: "replace_one" or "add_or_remove_one".
      point: `state -> point`, the part of a run's last state that is scored.
      at_once: the number of runs at the same time; more than one is quicker on a GPU.
      unit: the unit of privacy, for the statement; None for "one record", and for data by
        `by_person` "one person".
      assumed: further assumptions to print.

    Returns:
      The winner and its statement; see `Tuned`.

    Raises:
      ValueError: for candidates that are none or differ in more than numbers, numbers out of range,
        data of another shape, a target that no noise reaches; before any record is read.
      TypeError: for arguments of another kind, candidates that are no list, or a score of other
        arguments.

    Examples:
        >>> game = jmm.problems.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(2.0, 2.0))
        >>> data = (jnp.ones((200, 2)), jnp.zeros((200, 2)))
        >>> query = jmm.Query(clip=Saddle(3.0, 3.0), population=200)
        >>> candidates = [jmm.sgda.Hyper(query=query, step=Saddle(s, s), iterations=3)
        ...               for s in (0.05, 0.2)]
        >>> def score(z, record):  # for one record; larger is better
        ...     return -jnp.sum((z.w - record[0]) ** 2)
        >>> tuned = jmm.tune(jmm.noise.secret_key(), Saddle(jnp.zeros(2), jnp.zeros(2)), data,
        ...                  candidates,
        ...                  jmm.sgda, game, score=score, score_range=(-4.0, 0.0), epsilon=1.0,
        ...                  delta=1e-3, expected=2.0)
        >>> tuned.candidate in (0, 1), tuned.statement.epsilon <= 1
        (True, True)
    """
    checks.exact_arithmetic()
    candidates = _listed(candidates)
    for hyper in candidates:
        arguments.call(key, z, hyper, algorithm, problem)
    checks.takes("score", score, "point", "record")
    checks.count("at_once", at_once)
    if most is None and hide_time:
        checks.number("expected (number of runs)", expected, low=1.0, high=1e4)
        most = math.ceil(6 * expected)  # all of which are made, for their time to be hidden
    runs = repetitions.Repetitions(expected=expected, eta=eta, most=most)
    runs.check()
    apart = held_out is not None
    rows = _read_by_score(data, held_out)
    scored = score_mechanism(score_range, _rows(rows, "data" if held_out is None else "held_out"))
    _check(candidates, algorithm)
    if apart:
        _check_apart(data, held_out)
    else:
        _check_flat(candidates, algorithm, data)
    target = tuning.Target(epsilon, delta, runs, neighbours)
    paid, scored = tuning.calibrate_search(algorithm, candidates, scored, target, apart=apart,
                                           share=share)
    promised = statement_of_run.tuning_statement(
        algorithm, paid, scored, score_range, target, padded=hide_time, apart=apart,
        unit=unit or identity.unit_of(rows=identity.rows_each(data)), assumed=assumed)
    arguments.records(data)
    arguments.records(held_out, "held_out")
    low, high = score_range
    hypers, lengths = stacked(paid)
    winner, best, number = search(
        key, arrays(z), as_rows(data), arrays(rows), hypers, scored, cumulative(runs),
        algorithm=Functions.from_algorithm(algorithm), problem=problem, point=point,
        lengths=lengths, scored=score_problem(score, float(low), float(high)), at_once=at_once,
        hide_time=hide_time)
    number = int(number)
    return Tuned(winner, best + (low + high) / 2, number, paid[number], promised)


# --- on the host, before any record is read ---


def _listed(candidates: Any) -> list[Any]:
    """Returns the candidates as a list, with one at least."""
    if not isinstance(candidates, Sequence) or isinstance(candidates, str | bytes):
        raise TypeError("candidates must be a list of the algorithm's Hyper, got "
                        f"{checks.describe(candidates)}.")
    if not candidates:
        raise ValueError("candidates is empty: give at least one Hyper.")
    return list(candidates)


def _check(candidates: list[Any], algorithm: Algorithm[Any, Any]) -> None:
    """Refuses candidates that are none, or differ in more than numbers and iterations.

    Raises:
      ValueError: also for different iterations of an algorithm whose description is more than one
        repeated query.
    """
    for hyper in candidates:
        composed.check(algorithm.mechanism(hyper))
    alike, lengths = stacked([composed.with_noise_of_all(h, 1.0) for h in candidates])
    if len(set(lengths)) == 1:
        return
    described = [algorithm.mechanism(dataclasses.replace(alike, iterations=length))
                 for length in sorted(set(lengths))]
    structures = {jax.tree.structure(dataclasses.replace(m, times=1)) if isinstance(m, Repeat)
                  else None for m in described}
    if len(structures) != 1 or None in structures:
        raise ValueError("Runs of different iterations need an algorithm that repeats one query: "
                         f"got iterations {lengths} of {type(described[0]).__name__}. Search each "
                         "number of them on its own.")


def stacked(candidates: list[Any]) -> tuple[Any, tuple[int, ...]]:
    """Stacks candidates, with the iterations of the longest, and returns the iterations of each."""
    lengths = tuple(h.iterations for h in candidates)
    if all(any(field.name == "iterations" for field in dataclasses.fields(h)) for h in candidates):
        candidates = [dataclasses.replace(h, iterations=max(lengths)) for h in candidates]
    return many_runs.stack(candidates), lengths


def _check_flat(candidates: list[Any], algorithm: Algorithm[Any, Any], data: PyTree) -> None:
    """Refuses training records that are not all rows of the data."""
    n, described = _rows(data, "data"), algorithm.mechanism(candidates[0]).records()
    if described > n:
        raise ValueError(f"Without held_out the score reads the {n} rows of data, but the runs are "
                         f"described for {described} records: give held_out rows.")


def _read_by_score(data: PyTree, held_out: PyTree | None) -> PyTree:
    """Returns the records that the score averages over."""
    return data if held_out is None else held_out


def _rows(data: PyTree, name: str) -> int:
    """Returns n, the number of records of leaves `[n, ...]`."""
    if isinstance(data, Sharded):
        return data.population
    leading = {np.shape(x)[:1] for x in jax.tree.leaves(data)}
    if len(leading) != 1 or leading == {()}:
        arguments.records(data, name)  # names lists in its message
        raise ValueError(f"The arrays of {name} must have one row a record, and the same number of "
                         f"rows, got leading axes {leading}.")
    return int(leading.pop()[0])


def score_mechanism(score_range: tuple[float, float], population: int) -> Repeat:
    """Describes the release of a run's score."""
    if not isinstance(score_range, tuple | list) or len(score_range) != 2:
        raise TypeError("score_range must be a pair (low, high), got "
                        f"{checks.describe(score_range)}.")
    low, high = score_range
    checks.number("score_range[0]", low, low=-1e6, high=1e6)
    checks.number("score_range[1]", high, low=float(low), high=1e6)
    query = Query(clip=Saddle((high - low) / 2, None), population=population, sampling=Full(),
                  parameters=1)
    return Repeat(query=query, times=1)


def _check_apart(data: PyTree, held_out: PyTree) -> None:
    """Refuses held-out arrays that are the training's own."""
    training_arrays = [x for x in jax.tree.leaves(data) if np.size(x)]
    if any(x is y for x in training_arrays for y in jax.tree.leaves(held_out)):
        raise ValueError("held_out holds an array of data: its records must be others, because "
                         "training and score are charged as reading disjoint data. Leave held_out "
                         "out to score the training records.")


# --- the program: runs one after the other, of which the best one leaves ---


def cumulative(runs: repetitions.Repetitions) -> tuple[np.ndarray, np.ndarray]:
    """Returns 2^62 P[K <= k] for k = 1 ... most - 1, in words of 30 and 32 bits."""
    steps = list(itertools.accumulate(runs.weights))[:-1]
    return (np.asarray([x >> 32 for x in steps], np.uint32),
            np.asarray([x & (2**32 - 1) for x in steps], np.uint32))


@functools.lru_cache(maxsize=64)  # one object a score: programs are kept by identity
def score_problem(score: Callable[[PyTree, PyTree], jax.Array], low: float, high: float) -> Problem:
    """Makes the score less the middle of its range the operator of a player with one number."""
    def operator(z: Saddle, record: PyTree) -> Saddle:
        value = jnp.asarray(score(z.v, record))
        if value.shape != ():
            raise ValueError(f"The score of one record must be one number, got shape "
                             f"{value.shape}.")
        value = value.astype(jnp.float32)
        value = jnp.clip(jnp.where(jnp.isfinite(value), value, low), low, high)
        return Saddle(value - (low + high) / 2, z.v)

    return Problem(operator)


def number_of_runs(key: jax.Array, table: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Draws K, int32 `[]`: one more than the numbers of `cumulative` that a 62-bit word reaches."""
    words = random_words(key, (2,))
    high, low = words[0] >> (64 - repetitions.BITS), words[1]
    reached = (table[0] < high) | ((table[0] == high) & (table[1] <= low))
    return 1 + jnp.sum(reached, dtype=jnp.int32)


@functools.partial(jax.jit, static_argnames=("algorithm", "problem", "scored", "point", "at_once",
                                             "hide_time", "lengths"))
def search(key: jax.Array, z: Saddle, data: PyTree, rows: PyTree, hypers: Any, score: Repeat,
           table: tuple[jax.Array, jax.Array], *, algorithm: Algorithm[Any, Any],
           problem: AnyProblem, scored: Problem, point: Callable[[Any], PyTree], at_once: int,
           hide_time: bool, lengths: tuple[int, ...]) -> tuple[Any, jax.Array, jax.Array]:
    """Returns the winner's state, its released score less the middle of the range, its candidate.

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
      lengths: iterations of each candidate; `hypers` have those of the longest.
    """
    count = number_of_runs(release_keys.run_count_key(key), table)
    last = table[0].shape[0] + 1

    def single(number: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        """Makes run `number` = 1, 2, ...: state, score, candidate."""
        run_keys = release_keys.search_keys(key, number)
        # as good as uniform; it need not be, as every candidate is charged as the dearest
        drawn = random_words(run_keys.candidate, (2,))[0] % len(lengths)
        hyper = jax.tree.map(lambda x: x[drawn], hypers)
        state = runs.whole_run(run_keys.training, z, data, hyper, algorithm, problem, lengths,
                               drawn, hide_time)
        scored_point = Saddle(jnp.zeros((), jnp.float32), point(state))
        released = release(run_keys.score, score, jnp.int32(0), scored, scored_point, rows).w
        return state, released, drawn.astype(jnp.int32)

    # one run at a time is not mapped over: its conditions stay conditions
    def several(first: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        if at_once > 1:
            return jax.vmap(single)(first + jnp.arange(at_once))
        return jax.tree.map(lambda x: x[None], single(first))

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
