"""Maps runs over seeds and budgets, in one program."""

import dataclasses
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base import arguments, checks
from jaxminimax.base.programs import is_traced
from jaxminimax.base.types import Algorithm, AnyProblem, HyperT, PyTree, Saddle, StateT
from jaxminimax.drivers import runs
from jaxminimax.mechanism import Full, Repeat
from jaxminimax.mechanism.composed import check
from jaxminimax.mechanism.description import Mechanism
from jaxminimax.placement.sharding import arrays
from jaxminimax.releases.watch import update


def stack(hypers: Sequence[HyperT]) -> HyperT:
    """Stacks settings into one `Hyper` with a leading axis on every number, for `sweep`.

    Static fields must be equal, except `iterations`: if they differ, the result has the tuple of
    them, which only `sweep` reads. Each setting is calibrated for its own iterations, so order them
    before stacking, and do not permute the numbers afterwards.

    Args:
      hypers: settings of one algorithm, calibrated.

    Raises:
      ValueError: for no settings, or if other static fields (population, sampling, optimisers, ...)
        differ: they would be different programs.
      TypeError: for objects that are no settings.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), population=100,
        ...                   noise_multiplier=Saddle(9.0, 9.0))
        >>> hypers = jmm.stack([jmm.sgda.Hyper(query=query, step=Saddle(s, s), iterations=5)
        ...                     for s in (0.1, 0.2)])
        >>> hypers.step.w.shape
        (2,)
    """
    for x in jax.tree.leaves(hypers):
        if not isinstance(x, numbers.Number | np.ndarray | jax.Array):
            raise TypeError(f"stack needs records of numbers, got {checks.describe(x)} in one of "
                            "them.")
    lengths = tuple(getattr(h, "iterations", None) for h in hypers)
    if len(set(lengths)) > 1 and all(_has_iterations(h) for h in hypers):
        hypers = [dataclasses.replace(h, iterations=lengths) for h in hypers]
    structures = {jax.tree.structure(h) for h in hypers}
    if len(structures) != 1:
        raise ValueError("stack needs records that differ in their numbers and iterations only, "
                         f"got {len(structures)} different structures among {len(hypers)} records: "
                         "population, sampling and optimisers must be equal.")
    return jax.tree.map(lambda *x: jnp.stack([jnp.asarray(y) for y in x]), *hypers)


def _has_iterations(hyper: Any) -> bool:
    return dataclasses.is_dataclass(hyper) and any(
        field.name == "iterations" for field in dataclasses.fields(hyper))


def sweep(keys: jax.Array, z: Saddle, data: PyTree, hypers: HyperT,
          algorithm: Algorithm[HyperT, StateT], problem: AnyProblem,
          observe: Callable[[StateT], PyTree] = runs.nothing, *, at_once: int | None = None,
          progress: bool = False) -> runs.Run[StateT]:
    """Runs every budget with every seed, in one compiled program.

    Noise is calibrated on the host, a budget at a time: `hypers = stack([calibrate(...), ...])`;
    the settings may differ in any number, and in their iterations. A run that is shorter than
    others keeps its last state once its own rounds are done, and makes no further release. State
    each run by its own settings. Runs on the same data add up: `statement` is for one of them.

    Runs of about equal length are computed together, so that little work is wasted. The program is
    compiled once, like that of `run`.

    Args:
      keys: `[budgets, seeds]` typed keys, all different: the difference of
        two runs with the same noise would reveal the data. Use
        `jax.random.split(key, (budgets, seeds))`. Equal keys are refused, except under jit, where
        their numbers are unknown.
      z: initial point; must not depend on the data.
      data: leaves `[n, ...]`, n = the population, shared by all runs.
      hypers: settings stacked by `stack`, leading axis `[budgets]`.
      algorithm: a module such as `sgda`.
      problem: operator, public terms, projection.
      observe: `state -> tree`, the values to keep of every round; it never sees the data.
      at_once: the largest number of runs at the same time, which bounds the memory; the others
        wait. None for one on a CPU if every run draws its own samples, and else for all of them,
        because all runs then read the same rows.
      progress: whether to show a bar, which moves whenever `at_once` runs have ended, if tqdm is
        installed. Static under jit, like `at_once`.

    Returns:
      A `Run` of last states and observations, with leading axes `[budgets, seeds]`; observations
      of shorter runs repeat their last one up to the number of rounds of the longest.

    Raises:
      ValueError: for the errors of `run`; for keys of another shape, or two equal ones; for
        different iterations of an algorithm whose description is more than one repeated query.
      TypeError: for arguments of another kind.

    Examples:
        >>> game = jmm.problems.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(2.0, 2.0))
        >>> data = (jnp.ones((100, 2)), jnp.zeros((100, 2)))
        >>> query = jmm.Query(clip=Saddle(3.0, 3.0), population=100)
        >>> hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=5)
        >>> hypers = jmm.stack([jmm.calibrate(jmm.sgda, hyper, epsilon=epsilon, delta=1e-3)
        ...                     for epsilon in (1.0, 2.0)])
        >>> keys = jax.random.split(jmm.noise.secret_key(), (2, 3))  # two budgets, three seeds
        >>> start = Saddle(jnp.zeros(2), jnp.zeros(2))
        >>> states, _ = jmm.sweep(keys, start, data, hypers, jmm.sgda, game)
        >>> states.average.w.shape
        (2, 3, 2)
    """
    arguments.call(keys, z, hypers, algorithm, problem, one=False)
    arguments.records(data)
    checks.takes("observe", observe, "state")
    budgets = {np.shape(x)[:1] for x in jax.tree.leaves(hypers)}
    if keys.ndim != 2 or budgets != {keys.shape[:1]}:
        raise ValueError(f"keys must have shape [budgets, seeds], got {keys.shape} for {budgets} "
                         "budgets: use jax.random.split(key, (budgets, seeds)).")
    _check_different(keys)
    checks.exact_arithmetic()
    hypers, lengths = lengths_of(hypers, len(keys), algorithm)
    if at_once is None:
        alone = jax.default_backend() == "cpu" and _draws(algorithm.mechanism(hypers))
        at_once = 1 if alone else keys.size
    checks.count("at_once", at_once)
    how = problem, observe, lengths, at_once, progress
    if is_traced(keys, z, data, hypers):
        return runs.Run(*_in_turn(keys, arrays(z), arrays(data), hypers, algorithm, *how))
    return runs.Run(*runs.call_kept(_compiled, keys, arrays(z), arrays(data), hypers, algorithm,
                                    *how))


def _draws(described: Mechanism) -> bool:
    """Returns whether every release reads a random sample of its own."""
    queries = [getattr(part, "query", part) for part in described.answered()]
    return all(getattr(query, "sampling", Full()).secret for query in queries)


def _check_different(keys: jax.Array) -> None:
    """Refuses two equal keys, if their numbers are known."""
    if isinstance(keys, jax.core.Tracer) or not keys.is_fully_addressable:
        return
    with jax.ensure_compile_time_eval():
        words = np.asarray(jax.random.key_data(keys)).reshape(keys.size, -1)
    first: dict[bytes, int] = {}
    for k, row in enumerate(words):
        same = first.setdefault(row.tobytes(), k)
        if same != k:
            at, other = (tuple(map(int, np.unravel_index(x, keys.shape))) for x in (same, k))
            raise ValueError(f"keys {at} and {other} are equal: two runs with the same noise give "
                             "the data away by their difference. Use jax.random.split(key, "
                             "(budgets, seeds)).")


def _in_turn(keys: jax.Array, z: Saddle, data: PyTree, hypers: Any, algorithm: Algorithm[Any, Any],
             problem: AnyProblem, observe: Callable[[Any], PyTree], lengths: tuple[int, ...],
             at_once: int, progress: bool) -> tuple[Any, PyTree]:
    """Every run, in shares of equal width, the longest first; each share ends with its longest."""
    budgets, seeds = keys.shape
    longest, differ = max(lengths), len(set(lengths)) > 1
    shares = -(-keys.size // min(at_once, keys.size))
    width = -(-keys.size // shares)
    # run i has budget i // seeds; the last place is filled up with copies, whose result is unused
    order: np.ndarray = np.argsort([-lengths[i // seeds] for i in range(keys.size)], kind="stable")
    place = np.argsort(order).reshape(budgets, seeds)
    order = np.pad(order, (0, shares * width - keys.size), mode="edge").reshape(shares, width)
    rounds: np.ndarray = np.asarray(lengths, np.int32)[order // seeds]
    mixed = bool(np.any(rounds.min(1) != rounds.max(1)))
    # a single run is not mapped over: its conditions stay conditions
    over: Any = jax.vmap if width > 1 else lambda f: f
    if width == 1:
        order, rounds = order[:, 0], rounds[:, 0]
    lead = order.ndim
    ticks = runs.Ticks(keys.size) if progress and runs.possible() else None

    def share(these: tuple[jax.Array, Any, jax.Array]) -> tuple[Any, PyTree]:
        keys, hypers, rounds = these

        def advance(key: jax.Array, state: Any, hyper: Any, length: jax.Array) -> Any:
            if differ:  # a run's own number decides its averages, and when its releases are spent
                hyper = dataclasses.replace(hyper, iterations=length)
            return update(algorithm, key, state, data, hyper, problem)

        def step(t: jax.Array, carry: tuple[Any, PyTree]) -> tuple[Any, PyTree]:
            states, seen = carry
            new = over(advance)(keys, states, hypers, rounds)
            states = _where(t < rounds, new, states) if mixed else new
            return states, jax.tree.map(lambda all_, x: all_.at[t].set(x), seen,
                                        over(observe)(states))

        states = over(lambda hyper: algorithm.init(z, hyper))(hypers)
        seen = jax.tree.map(lambda x: jnp.zeros((longest, *x.shape), x.dtype),
                            jax.eval_shape(over(observe), states))
        most = jnp.max(rounds) if differ else longest
        states, seen = jax.lax.fori_loop(0, most, step, (states, seen))
        if differ:
            kept = jnp.minimum(jnp.arange(longest), most - 1)
            seen = jax.tree.map(lambda x: x[kept], seen)
        if ticks is not None:  # reads the states' counter, so it waits for them
            jax.debug.callback(ticks, jnp.sum(states.spent > 0))
        return states, jax.tree.map(lambda x: jnp.moveaxis(x, 0, lead - 1), seen)

    ended = jax.lax.map(share, (keys.reshape(-1)[order],
                                jax.tree.map(lambda x: x[order // seeds], hypers),
                                jnp.asarray(rounds)))
    return jax.tree.map(lambda x: x.reshape((shares * width, *x.shape[lead:]))[place], ended)


_compiled = jax.jit(_in_turn, static_argnames=("algorithm", "problem", "observe", "lengths",
                                               "at_once", "progress"))


def lengths_of(hypers: Any, budgets: int,
               algorithm: Algorithm[Any, Any]) -> tuple[Any, tuple[int, ...]]:
    """Stacked records with the iterations of the longest, and the iterations of each.

    Raises:
      ValueError: for different iterations of an algorithm whose description is more than one
        repeated query.
    """
    lengths = hypers.iterations
    if not isinstance(lengths, tuple):
        check(algorithm.mechanism(hypers))
        return hypers, (lengths,) * budgets
    described = []
    for length in sorted(set(lengths)):
        described.append(algorithm.mechanism(dataclasses.replace(hypers, iterations=length)))
        check(described[-1])
    alike = {jax.tree.structure(dataclasses.replace(m, times=1)) if isinstance(m, Repeat) else None
             for m in described}
    if len(lengths) != budgets or len(alike) != 1 or None in alike:
        raise ValueError("Runs of different iterations need an algorithm that repeats one query: "
                         f"got iterations {lengths} for {budgets} budgets of "
                         f"{type(described[0]).__name__}. Sweep each number of them on its own.")
    return dataclasses.replace(hypers, iterations=max(lengths)), lengths


def _where(going: jax.Array, new: Any, old: Any) -> Any:
    """The new state of runs that go on, the old one of the others."""
    return jax.tree.map(
        lambda a, b: jnp.where(going.reshape(going.shape + (1,) * (a.ndim - 1)), a, b), new, old)
