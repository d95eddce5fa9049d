"""Maps runs over seeds and budgets, in one program; a sweep that was interrupted goes on."""

import math
import numbers
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax import mechanism
from jaxminimax.accounting import Ledger
from jaxminimax.base import arguments, checks, identity, programs
from jaxminimax.base.types import Algorithm, AnyProblem, HyperT, PyTree, Saddle, StateT
from jaxminimax.drivers import fingerprint, runs, saved_runs
from jaxminimax.mechanism import Full, composed
from jaxminimax.placement.sharding import arrays, as_rows
from jaxminimax.releases.watch import update


def stack(hypers: Sequence[HyperT]) -> HyperT:
    """Stacks settings into one `Hyper` with a leading axis on every number, for `sweep`.

    Static fields must be equal, iterations among them: they decide the program.

    Args:
      hypers: settings of one algorithm, calibrated.

    Raises:
      ValueError: for no settings, or if static fields (iterations, population, sampling,
        optimisers, ...) differ: they would be different programs.
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
    structures = {jax.tree.structure(h) for h in hypers}
    if len(structures) != 1:
        raise ValueError("stack needs records that differ in their numbers only, got "
                         f"{len(structures)} different structures among {len(hypers)} records: "
                         "iterations, population, sampling and optimisers must be equal. Sweep "
                         "each number of iterations on its own.")
    return jax.tree.map(lambda *x: jnp.stack([jnp.asarray(y) for y in x]), *hypers)


def sweep(keys: jax.Array, z: Saddle, data: PyTree, hypers: HyperT,
          algorithm: Algorithm[HyperT, StateT], problem: AnyProblem,
          observe: Callable[[StateT], PyTree] = runs.nothing, *, at_once: int | None = None,
          progress: bool = False, checkpoint: str | os.PathLike[str] | None = None,
          ledger: Ledger | None = None, name: str | None = None,
          unit: str | None = None) -> runs.Run[StateT]:
    """Runs every budget with every seed, in one compiled program.

    Noise is calibrated on the host, a budget at a time: `hypers = stack([calibrate(...), ...])`;
    the settings may differ in any number. State each run by its own settings. Runs on the same data
    add up: `statement` is for one of them. The program is compiled once, like that of `run`.

    With `checkpoint`, the last states and observations are saved whenever `at_once` runs have
    ended, and a sweep that was interrupted goes on after the last that were saved. Runs that were
    lost begin anew with their own keys, so they repeat their releases exactly and none is made
    with other noise. The folder is like that of `fit`: other keys, settings, data or problems are
    refused, and it never holds a key. With `ledger`, all runs are charged together, as one
    entry, before data are read; a sweep that goes on is not charged again. The ledger recognises
    a sweep by all its keys together: use none of them for another run on these data.

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
        because all runs then read the same rows; with `checkpoint`, those of one setting.
      progress: whether to show a bar, which moves whenever `at_once` runs have ended, if tqdm is
        installed; not inside jit, nor of several processes.
      checkpoint: folder for the saved runs, which no other user may write to; needs
        orbax-checkpoint.
      ledger: the budget of everything that is released about these data; see `Ledger`.
      name: the name of the sweep in the ledger.
      unit: the unit of privacy, the same as that of `ledger`; None as in `fit`.

    Returns:
      A `Run` of last states and observations, with leading axes `[budgets, seeds]`.

    Raises:
      ValueError: for the errors of `run`; for keys of another shape, or two equal ones; for a
        folder of another sweep; if the ledger refuses the runs.
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
    arguments.call(keys, z, hypers, algorithm, problem, single=False)
    arguments.records(data)
    checks.takes("observe", observe, "state")
    budgets = {np.shape(x)[:1] for x in jax.tree.leaves(hypers)}
    if keys.ndim != 2 or budgets != {keys.shape[:1]}:
        raise ValueError(f"keys must have shape [budgets, seeds], got {keys.shape} for {budgets} "
                         "budgets: use jax.random.split(key, (budgets, seeds)).")
    _check_different(keys)
    checks.exact_arithmetic()
    composed.check(algorithm.mechanism(hypers))
    traced = programs.is_traced(keys, z, data, hypers)
    if checkpoint is not None:
        saved_runs.check_folder(checkpoint, keys)
    if at_once is None:
        alone = jax.default_backend() == "cpu" and _draws(algorithm.mechanism(hypers))
        at_once = 1 if alone else keys.size if checkpoint is None else keys.shape[1]
    checks.count("at_once", at_once)
    static, on_host = (problem, observe, at_once), not traced and jax.process_count() == 1
    if not on_host and (checkpoint is not None or ledger is not None):
        raise ValueError("A sweep inside jit or vmap, or of several processes, cannot save its "
                         "runs or charge a ledger: leave checkpoint and ledger out.")
    if traced:
        runs.check_functions(algorithm, z, jax.tree.map(lambda x: x[0], hypers), data, observe)
        return runs.Run(*_in_turn(keys, arrays(z), as_rows(data), hypers, algorithm, *static))
    if checkpoint is None and ledger is None and name is None and not (progress and on_host):
        return runs.Run(*runs.call_kept(_compiled, keys, arrays(z), as_rows(data), hypers,
                                        algorithm, *static))
    promise = saved_runs.promise_of(keys, algorithm.mechanism(hypers), hypers, algorithm) | {
        "at_once": at_once}
    stated: dict[str, Any] = {"delta": 0.0} if ledger is None else {
        "delta": ledger.delta,
        "unit": unit or identity.unit_of(ledger.people, identity.rows_each(data))}
    with saved_runs.Booking(ledger, keys, _all_runs(algorithm, hypers, keys.shape),
                            promise, name, checkpoint is not None, **stated) as booking:
        if checkpoint is not None:
            marks = fingerprint.hash_run(keys, arrays(z), as_rows(data),
                                       jax.tree.map(lambda x: x[0], hypers), algorithm, problem,
                                       observe)
            booking.bind(z, marks, problem)
            promise |= marks
        with saved_runs.Folder(checkpoint, promise, keep=None) as folder:
            return runs.Run(*_saved(keys, arrays(z), as_rows(data), hypers, algorithm, *static,
                                    progress=progress, folder=folder, booking=booking))


def _draws(described: mechanism.Description) -> bool:
    """Returns whether every release reads a random sample of its own."""
    queries = [getattr(answered, "query", answered) for answered in described.answered()]
    return all(getattr(query, "sampling", Full()).secret for query in queries)


def _check_different(keys: jax.Array) -> None:
    """Refuses two equal keys, if their numbers are known."""
    if isinstance(keys, jax.core.Tracer) or not keys.is_fully_addressable:
        return
    with jax.ensure_compile_time_eval():
        words = np.asarray(jax.random.key_data(keys)).reshape(keys.size, -1)
    first: dict[bytes, int] = {}
    for k, row in enumerate(words):
        run_of_key = first.setdefault(row.tobytes(), k)
        if run_of_key != k:
            places = [tuple(map(int, np.unravel_index(x, keys.shape))) for x in (run_of_key, k)]
            raise ValueError(f"keys {places[0]} and {places[1]} are equal: two runs with the same "
                             "noise give the data away by their difference. Use "
                             "jax.random.split(key, (budgets, seeds)).")


def _in_turn(keys: jax.Array, z: Saddle, data: PyTree, hypers: Any, algorithm: Algorithm[Any, Any],
             problem: AnyProblem, observe: Callable[[Any], PyTree], at_once: int,
             share_number: jax.Array | None = None) -> tuple[Any, PyTree]:
    """Every run, in shares of equal width.

    With `share_number`, the share of that number, as `_placed` takes it.
    """
    seeds, rounds = keys.shape[1], hypers.iterations
    order = _order(keys.size, at_once)
    width = order.shape[1]
    # a single run is not mapped over: its conditions stay conditions
    map_runs: Any = jax.vmap if width > 1 else lambda f: f
    if width == 1:
        order = order[:, 0]

    def share(share_settings: tuple[jax.Array, Any]) -> tuple[Any, PyTree]:
        keys, hypers = share_settings

        def advance(key: jax.Array, state: Any, hyper: Any) -> Any:
            return update(algorithm, key, state, data, hyper, problem)

        def step(t: jax.Array, carry: tuple[Any, PyTree]) -> tuple[Any, PyTree]:
            states, observed = carry
            states = map_runs(advance)(keys, states, hypers)
            return states, jax.tree.map(lambda buffer, x: buffer.at[t].set(x), observed,
                                        map_runs(observe)(states))

        states = map_runs(lambda hyper: algorithm.init(z, hyper))(hypers)
        observed = jax.tree.map(lambda x: jnp.zeros((rounds, *x.shape), x.dtype),
                            jax.eval_shape(map_runs(observe), states))
        states, observed = jax.lax.fori_loop(0, rounds, step, (states, observed))
        return states, jax.tree.map(lambda x: jnp.moveaxis(x, 0, order.ndim - 1), observed)

    settings = keys.reshape(-1)[order], jax.tree.map(lambda x: x[order // seeds], hypers)
    if share_number is not None:
        return share(jax.tree.map(lambda x: x[share_number], settings))
    return _placed(jax.lax.map(share, settings), keys.shape, order.ndim)


def _order(size: int, at_once: int) -> np.ndarray:
    """Numbers of runs, `[shares, width]`: run i has budget i // seeds."""
    shares = -(-size // min(at_once, size))
    width = -(-size // shares)
    # the last place is filled up with copies, whose result is unused
    return np.pad(np.arange(size), (0, shares * width - size), mode="edge").reshape(shares, width)


def _placed(ended: Any, shape: tuple[int, ...], lead: int) -> Any:
    """Results of all shares, with `lead` leading axes, as `[budgets, seeds, ...]`."""
    return jax.tree.map(lambda x: x.reshape((-1, *x.shape[lead:]))[:math.prod(shape)].reshape(
        *shape, *x.shape[lead:]), ended)


def _all_runs(algorithm: Algorithm[Any, Any], hypers: Any,
              shape: tuple[int, ...]) -> mechanism.Sequence:
    """Describes all runs together."""
    described = (algorithm.mechanism(jax.tree.map(lambda x, i=i: x[i], hypers))
                 for i in range(shape[0]))
    return mechanism.Sequence(parts=tuple(x for x in described for _ in range(shape[1])))


def _saved(keys: jax.Array, z: Saddle, data: PyTree, hypers: Any, algorithm: Algorithm[Any, Any],
           problem: AnyProblem, observe: Callable[[Any], PyTree], at_once: int, *, progress: bool,
           folder: saved_runs.Folder, booking: saved_runs.Booking) -> tuple[Any, PyTree]:
    """Every run, a share at a time on the host; shares that were saved before are read back."""
    static = problem, observe, at_once
    shares, width = _order(keys.size, at_once).shape
    saved, ended = folder.steps(), []
    if saved:
        like = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), _compiled.eval_shape(
            keys, z, data, hypers, runs.Functions.from_algorithm(algorithm), *static, jnp.int32(0)))
    booking.bind_place(len(saved), problem, None)
    with runs.bar(keys.size, min(len(saved) * width, keys.size), progress, "run") as bar:
        for number in range(shares):
            if number in saved:
                ended.append(folder.restored(number, like))
                continue
            ended.append(jax.device_get(runs.call_kept(
                _compiled, keys, z, data, hypers, algorithm, *static, jnp.int32(number))))
            booking.begin(number + 1)
            folder.save(number, ended[-1])
            if bar is not None:
                bar.update(min(width, keys.size - bar.n))
    stacked = jax.tree.map(lambda *x: np.stack(x), *ended)
    return jax.tree.map(jnp.asarray, _placed(stacked, keys.shape, 1 + (width > 1)))


_compiled = jax.jit(_in_turn, static_argnames=("algorithm", "problem", "observe", "at_once"))
