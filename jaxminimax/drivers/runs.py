"""Plans a run from public numbers, and makes it as one program; results, and progress bars.

    plan(algorithm, epsilon=..., delta=..., population=..., ...) -> Plan

The keywords are those of the algorithm's own `plan`, which receives the accountant as an argument.
"""

import contextlib
import dataclasses
import importlib.util
import inspect
from collections.abc import Callable
from typing import Any, Generic, NamedTuple

import jax
import jax.numpy as jnp

from jaxminimax.accounting import Statement, calibrate, calibrate_noise
from jaxminimax.algorithms import planning
from jaxminimax.algorithms.planning import Plan, Target
from jaxminimax.base import arguments, checks, programs
from jaxminimax.base.types import Algorithm, AnyProblem, HyperT, PyTree, Saddle, StateT
from jaxminimax.mechanism import Solution, composed, costs
from jaxminimax.placement.sharding import arrays, as_rows
from jaxminimax.releases import record_isolation
from jaxminimax.releases.watch import update


def plan(algorithm: Algorithm[HyperT, Any], *, epsilon: float | None, delta: float,
         neighbours: str = "replace_one", problem: AnyProblem | None = None,
         **numbers: Any) -> Plan[HyperT]:
    """Plans a run by an algorithm's theorem, with the noise that the privacy target needs.

        planned = jmm.plan(jmm.proximal, epsilon=1.0, delta=1e-6, population=n, dim=d, bound=M,
                           smooth=L, diameter=D, passes="many")
        state, _ = jmm.run(key, start, data, planned.hyper, jmm.proximal, problem)

    Args:
      algorithm: a module such as `sgda`.
      epsilon: epsilon of the privacy target; None for no noise and no privacy, if the algorithm's
        plan allows that.
      delta: delta of the privacy target.
      neighbours: the neighbouring relation of the privacy target.
      problem: a problem of groups, whose constants its plans read; or the problem that the plan is
        for, to refuse one with public terms if `public_bound` is left out.
      **numbers: public numbers, the keywords of `algorithm.plan`.

    Raises:
      ValueError: for an algorithm without a plan, numbers that are missing or unknown to it, or out
        of range, or no `public_bound` for a problem with public terms.
      TypeError: for an object that is no algorithm.

    Examples:
        >>> planned = jmm.plan(jmm.gda, population=1000, bound=1.0, smooth=1.0, modulus=0.5,
        ...                    epsilon=1.0, delta=1e-6)
        >>> planned.hyper.iterations, jmm.epsilon(jmm.gda.mechanism(planned.hyper), 1e-6) <= 1
        (100, True)
    """
    arguments.algorithm(algorithm)
    name = getattr(algorithm, "__name__", "").split(".")[-1]
    if not hasattr(algorithm, "plan"):
        raise ValueError(f"{name} has no plan, because no theorem sets its numbers: make its Hyper "
                         "yourself, and calibrate it.")

    def noise(hyper: Any) -> Any:
        if epsilon is None:
            return composed.with_noise_of_all(hyper, 0.0)
        return calibrate(algorithm, hyper, epsilon, delta, neighbours=neighbours)

    def multiplier() -> float:
        # a replaced record moves a sum by twice the clip norm
        return gaussian_ratio(epsilon, delta) * (2 if neighbours == costs.REPLACE_ONE else 1)

    target = Target(epsilon, delta, noise, multiplier, parts=neighbours == costs.REPLACE_ONE)
    names = list(inspect.signature(algorithm.plan).parameters)[1:]
    if problem is not None and "problem" in names:
        numbers["problem"] = problem
    elif getattr(problem, "public", None) is not None and "public_bound" in names and not (
            numbers.get("public_bound")):
        raise ValueError(f"public_bound is missing, a bound on the norm of problem.public on the "
                         f"feasible set: without it the guarantee of {name} is for a problem that "
                         "has no public terms.")
    try:
        inspect.signature(algorithm.plan).bind(target, **numbers)
    except TypeError as error:
        raise ValueError(f"plan({name}, ...): {error}. Its public numbers are {', '.join(names)}."
                         ) from error
    planning.check_given(numbers | {"epsilon": epsilon, "delta": delta})
    planned: Plan[HyperT] = algorithm.plan(target, **numbers)
    if planned.guarantee is not None or "public_smooth" in names:
        planning.remember(planned.hyper, numbers)
    return planned


def gaussian_ratio(epsilon: float | None, delta: float) -> float:
    """Returns r, the ratio of noise to sensitivity of the exactly calibrated Gaussian mechanism."""
    if epsilon is None:
        return 0.0
    noisy = calibrate_noise(Solution(sensitivity=1.0, because="-"), epsilon, delta)
    return float(noisy.noise_multiplier)


class _Ended(NamedTuple, Generic[StateT]):
    state: StateT
    observations: PyTree = ()


class Run(_Ended[StateT]):
    """The result of a run, or of several with leading axes; it unpacks as a pair.

    Attributes:
      state: the last state; its `z` is the point, its `spent` counts the releases.
      observations: the values of `observe` for every round, with a leading axis of rounds; ()
        without `observe`. `fit` keeps none: its `callback` sees the states.
      statement: the privacy statement of `fit`; None from `run` and `sweep`, which have no delta:
        use `jaxminimax.statement(algorithm, hyper, run.state, delta=...)`. It is no part of the
        tree: the result of `jax.tree.map` on a run has none.

    Examples:
        >>> done = jmm.types.Run(state="the last state", observations=())
        >>> state, seen = done  # as `run` and `sweep` return it
        >>> state
        'the last state'
    """

    statement: Statement | None = None

    @classmethod
    def stated(cls, state: StateT, statement: Statement) -> "Run[StateT]":
        """Makes a run with its statement."""
        run = cls(state)
        run.statement = statement
        return run


class Functions(NamedTuple):
    """The functions of an algorithm, by which compiled programs are kept.

    A module that is loaded again is the same object with other functions. A program that was traced
    before would release what these functions no longer describe.
    """

    mechanism: Callable[[Any], Any]
    init: Callable[..., Any]
    update: Callable[..., Any]

    @classmethod
    def from_algorithm(cls, algorithm: Algorithm[Any, Any]) -> "Functions":
        """Returns the functions of a module, a class or an object."""
        return cls(algorithm.mechanism, algorithm.init, algorithm.update)


def nothing(state: Any) -> tuple[()]:
    """Observes nothing of a round, which is the default."""
    return ()


def run(key: jax.Array, z: Saddle, data: PyTree, hyper: HyperT,
        algorithm: Algorithm[HyperT, StateT], problem: AnyProblem,
        observe: Callable[[StateT], PyTree] = nothing) -> Run[StateT]:
    """Runs all `hyper.iterations` rounds of an algorithm in one compiled scan.

    It compiles itself, once for each algorithm, problem, `observe` and set of shapes: use the same
    functions again, not new ones that do the same. Inside your own `jit` or `vmap` it is a part of
    that program. Arrays that an operator closes over are then compared with the data's lengths, but
    not with their numbers, which are unknown there.

    Args:
      key: root key of the run, a secret: drawn for this run, never printed or stored.
      z: initial point; must not depend on the data.
      data: leaves `[n, ...]`, n = `hyper.query.population`, of JAX's or NumPy's arrays.
      hyper: the algorithm's `Hyper`, calibrated.
      algorithm: a module such as `sgda`.
      problem: operator, public terms, projection.
      observe: `state -> tree`, the values to keep of every round. It gets the state, which is
        private output already, and never the data.

    Returns:
      The last state, and the observations with a leading axis of rounds.

    Raises:
      ValueError: for a description that is not valid or does not fit the data; for an operator that
        reads more than one record; for arithmetic in which NaN is no number like others.
      TypeError: for arguments of another kind: a loss or an operator in place of a `Problem`, a
        number in place of a `Saddle`, lists, frames, tensors of other libraries, integer
        parameters, keys that are not typed.

    Examples:
        >>> game = jmm.problems.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(2.0, 2.0))
        >>> data = (jnp.ones((100, 2)), jnp.zeros((100, 2)))
        >>> start = Saddle(jnp.zeros(2), jnp.zeros(2))
        >>> query = jmm.Query(clip=Saddle(3.0, 3.0), population=100)
        >>> hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=5)
        >>> hyper = jmm.calibrate(jmm.sgda, hyper, epsilon=1.0, delta=1e-3)
        >>> state, _ = jmm.run(jmm.noise.secret_key(), start, data, hyper, jmm.sgda, game)
        >>> int(state.spent), state.average.w.shape
        (5, (2,))
    """
    checks.exact_arithmetic()
    arguments.call(key, z, hyper, algorithm, problem)
    arguments.records(data)
    checks.takes("observe", observe, "state")
    composed.check(algorithm.mechanism(hyper))
    return Run(*_full_run(key, arrays(z), as_rows(data), hyper, algorithm, problem, observe))


def _full_run(key: jax.Array, z: Saddle, data: PyTree, hyper: Any, algorithm: Algorithm[Any, Any],
              problem: AnyProblem, observe: Callable[[Any], PyTree]) -> tuple[Any, PyTree]:
    """Runs all rounds, as a program of its own or as a part of the traced one."""
    if programs.is_traced(key, z, data, hyper):
        check_functions(algorithm, z, hyper, data, observe)
        return _rounds(key, z, data, hyper, algorithm, problem, observe)
    jax.eval_shape(lambda: algorithm.init(z, hyper))  # settings are refused by their numbers
    return call_kept(_compiled, key, z, data, hyper, algorithm, problem, observe)


def check_functions(algorithm: Algorithm[Any, Any], z: Saddle, hyper: Any, data: PyTree,
                    observe: Callable[[Any], PyTree] = nothing) -> None:
    """Refuses an `init` or an `observe` that closes over one of the data's arrays.

    What they get does not depend on the data, so that all they can read of them is a closure.

    Args:
      algorithm: as in `run`.
      z: as in `run`.
      hyper: as in `run`.
      data: as in `run`.
      observe: as in `run`.

    Raises:
      ValueError: naming the function and the array's shape; what `init` raises.
    """
    started, state = jax.make_jaxpr(lambda z: algorithm.init(z, hyper), return_shape=True)(z)
    record_isolation.check_constants(started, data, "init")
    if observe is not nothing:
        record_isolation.check_constants(jax.make_jaxpr(observe)(state), data, "observe")


def call_kept(program: Any, key: jax.Array, z: Saddle, data: PyTree, hyper: Any,
              algorithm: Algorithm[Any, Any], *further: Any) -> Any:
    """Calls a jitted program, which JAX traces if it has none for such arguments.

    Args:
      program: a jitted function.
      key: root key of the run, or several.
      z: initial point.
      data: what the releases read.
      hyper: the algorithm's settings.
      algorithm: a module such as `sgda`.
      *further: other arguments of the program: problem, `observe` and others.

    Raises:
      ValueError: for a program that closes over one of the data's arrays.
    """
    functions = Functions.from_algorithm(algorithm)
    traced = program.trace(key, z, data, hyper, functions, *further)
    # it may have been traced for other data of the same shapes: what it closes over is compared
    try:
        record_isolation.check_constants(traced.jaxpr, data)
    except ValueError:
        _, observe, *_ = further
        check_functions(algorithm, z, hyper if key.ndim == 0 else jax.tree.map(
            lambda x: x[0], hyper), data, observe)  # which names the function
        raise
    return program(key, z, data, hyper, functions, *further)


def _rounds(key: jax.Array, z: Saddle, data: PyTree, hyper: Any, algorithm: Algorithm[Any, Any],
            problem: AnyProblem, observe: Callable[[Any], PyTree]) -> tuple[Any, PyTree]:
    def step(state: Any, _: None) -> tuple[Any, PyTree]:
        state = update(algorithm, key, state, data, hyper, problem)
        return state, observe(state)

    return jax.lax.scan(step, algorithm.init(z, hyper), length=hyper.iterations)


_compiled = jax.jit(_rounds, static_argnames=("algorithm", "problem", "observe"))


def round(key: jax.Array, state: StateT, data: PyTree, hyper: HyperT,
          algorithm: Algorithm[HyperT, StateT], problem: AnyProblem) -> StateT:
    """Makes one round of an algorithm, for a loop of your own.

    It is what `run` does in every round: `algorithm.update`, whose traced program is checked. A
    round is refused if anything of the rows or of the key reaches its state, a print or a callback
    other than through a release, or if its releases are not those that are charged. That is decided
    while it is traced, so put `jax.jit` around it, and nothing is checked or read at run time.

    Between rounds your program sees the state, which is private, and nobody checks what it does
    with the data. Reserve the run in a `Ledger` before, or state it afterwards.

    Args:
      key: root key of the run, the same for all rounds.
      state: of the round before, at first `algorithm.init(z, hyper)`.
      data: leaves `[n, ...]`, the same for all rounds.
      hyper: the algorithm's `Hyper`, calibrated.
      algorithm: a module such as `sgda`.
      problem: operator, public terms, projection.

    Returns:
      The next state; NaN in its points once the budget is spent.

    Raises:
      ValueError: naming the leaf of the state, the leaf of the data and the line of a round that
        reads rows past its releases; for releases that are not described, not charged, or made
        twice with one key and number; as `run`.

    Examples:
        >>> game = jmm.problems.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(2.0, 2.0))
        >>> data = (jnp.ones((100, 2)), jnp.zeros((100, 2)))
        >>> query = jmm.Query(clip=Saddle(3.0, 3.0), population=100)
        >>> hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=5)
        >>> hyper = jmm.calibrate(jmm.sgda, hyper, epsilon=1.0, delta=1e-3)
        >>> step = jax.jit(jmm.round, static_argnames=("algorithm", "problem"))
        >>> state = jmm.sgda.init(Saddle(jnp.zeros(2), jnp.zeros(2)), hyper)
        >>> key = jmm.noise.secret_key()
        >>> for _ in range(5):
        ...     state = step(key, state, data, hyper, algorithm=jmm.sgda, problem=game)
        >>> int(state.spent)
        5
    """
    checks.exact_arithmetic()
    arguments.call(key, getattr(state, "z", None), hyper, algorithm, problem)
    arguments.records(data)
    return update(algorithm, key, state, data, hyper, problem)


def whole_run(key: jax.Array, z: Saddle, data: PyTree, hyper: Any, algorithm: Algorithm[Any, Any],
              problem: AnyProblem, lengths: tuple[int, ...], number: jax.Array,
              hide_time: bool = False) -> Any:
    """Returns the last state of a run whose iterations are `lengths[number]`.

    Args:
      key: as in `run`.
      z: as in `run`.
      data: as in `run`.
      hyper: one of several, with the iterations of the longest.
      algorithm: as in `run`.
      problem: as in `run`.
      lengths: iterations of each of them.
      number: which one it is.
      hide_time: whether to make the rounds of the longest always, the last ones for nothing.
    """
    if len(set(lengths)) == 1:
        return run(key, z, data, hyper, algorithm, problem)[0]
    length = jnp.asarray(lengths, jnp.int32)[number]
    settings = dataclasses.replace(hyper, iterations=length)  # decides averages, and the end

    def step(t: jax.Array, state: Any) -> Any:
        new = update(algorithm, key, state, data, settings, problem)
        if not hide_time:
            return new
        return jax.tree.map(lambda a, b: jnp.where(t < length, a, b), new, state)

    return jax.lax.fori_loop(0, max(lengths) if hide_time else length, step,
                             algorithm.init(z, hyper))


# --- progress, if wanted and if tqdm is installed ---


def bar(total: int, initial: int, shown: bool, unit: str = "round") -> Any:
    """Returns a context that gives a progress bar, or None."""
    if not shown or importlib.util.find_spec("tqdm") is None:
        return contextlib.nullcontext()
    import tqdm

    return tqdm.tqdm(total=total, initial=initial, unit=unit)
