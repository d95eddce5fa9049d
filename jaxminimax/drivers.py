"""Whole runs as one program: `run` scans, `sweep` maps runs over seeds and budgets."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxminimax import _valid
from jaxminimax._types import Algorithm, Problem, Saddle, Tree


def _nothing(state: Any) -> tuple[()]:
    return ()


def run(key: jax.Array, z: Saddle, data: Tree, hyper: Any, algorithm: Algorithm, problem: Problem,
        observe: Callable[[Any], Tree] = _nothing) -> tuple[Any, Tree]:
    """All `hyper.iterations` rounds of an algorithm in one scan; jit it at the edge.

        jax.jit(run, static_argnames=("algorithm", "problem", "observe"))

    Args:
      key: root key of the run, a secret: drawn for this run, never printed or stored.
      z: initial point; must not depend on the data.
      data: leaves `[n, ...]`, n = `hyper.query.population`.
      hyper: the algorithm's `Hyper`, calibrated.
      algorithm: a module such as `sgda`.
      problem: operator, public terms, projection.
      observe: `state -> tree`, what to keep of every round. It gets the state, which is private
        output already, and never the data.

    Returns:
      The last state, and the observations with a leading axis of rounds.

    Raises:
      ValueError: for a description that is not valid or does not fit the data.
    """
    _valid.check(algorithm.mechanism(hyper))

    def step(state: Any, _: None) -> tuple[Any, Tree]:
        state = algorithm.update(key, state, data, hyper, problem)
        return state, observe(state)

    return jax.lax.scan(step, algorithm.init(z, hyper), length=hyper.iterations)


def stack(hypers: Sequence[Any]) -> Any:
    """Records with equal static fields as one record with a leading axis on every number.

    Raises:
      ValueError: if there are none, or their static fields (iterations, population, sampling,
        optimisers, ...) differ: they would be different programs.
    """
    structures = {jax.tree.structure(h) for h in hypers}
    if len(structures) != 1:
        raise ValueError(f"stack needs records that differ in their numbers only, got "
                         f"{len(structures)} different structures among {len(hypers)} records: "
                         "iterations, population, sampling and optimisers must be equal.")
    return jax.tree.map(lambda *x: jnp.stack([jnp.asarray(y) for y in x]), *hypers)


def sweep(keys: jax.Array, z: Saddle, data: Tree, hypers: Any, algorithm: Algorithm,
          problem: Problem, observe: Callable[[Any], Tree] = _nothing) -> tuple[Any, Tree]:
    """Every budget with every seed, in one compiled program.

    Noise is calibrated on the host, a budget at a time: `hypers = stack([calibrate(...), ...])`.
    Runs on the same data add up: `statement` is for one of them.

    Args:
      keys: `[budgets, seeds]` typed keys, all different: two budgets with the same noise would
        give the data away by their difference. `jax.random.split(key, (budgets, seeds))`.
      z: as in `run`.
      data: as in `run`, shared by all runs.
      hypers: records stacked by `stack`, leading axis `[budgets]`.
      algorithm: as in `run`.
      problem: as in `run`.
      observe: as in `run`.

    Returns:
      As `run`, with leading axes `[budgets, seeds]`.

    Raises:
      ValueError: as `run`; for keys of another shape.
    """
    def one(key: jax.Array, hyper: Any) -> tuple[Any, Tree]:
        return run(key, z, data, hyper, algorithm, problem, observe)

    budgets = {x.shape[:1] for x in jax.tree.leaves(hypers)}
    if keys.ndim != 2 or budgets != {keys.shape[:1]}:
        raise ValueError(f"keys must have shape [budgets, seeds], got {keys.shape} for {budgets} "
                         "budgets: use jax.random.split(key, (budgets, seeds)).")
    return jax.vmap(jax.vmap(one, (0, None)), (0, 0))(keys, hypers)
