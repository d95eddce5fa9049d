"""Recursive regularisation over any algorithm that repeats one release, as a black box.

The rounds, parts and quadratics of `recursive`: phase t = 1, ..., T runs an inner algorithm anew,
for all of its rounds on its own part of m records, on the problem with a further public term,

    (1/m) sum_{i in part t} F(z; x_i)  +  r(z)  +  mu_t (z - c_t),      mu_t = 4 lambda (2^t - 1),

from its predecessor's output z_{t-1}. The inner algorithm's average is the phase's output z_t, and
z_T is the output of the run. The quadratic is a public function of earlier outputs, so it is
neither clipped nor charged. A record is in one part, so one phase is charged, by what the inner
algorithm describes:  Repeat(query, times=K)  becomes  Repeat(query, times=K, parts=T).

An inner algorithm whose releases are certified solutions, `proximal`, has a quadratic already. Its
query must be `doubling`, with prox p >= 4 lambda. Its problem then is that of weight p_t = p (2^t -
1) around (4 lambda c_t + (p - 4 lambda) z) / p, which is mu_t (u - c_t) + (p_t - mu_t) (u - z): the
regularised problem's proximal point around z, with the noise of its larger modulus. At p = 4
lambda one release a phase is `recursive` itself, by the same releases.

Source: Bassily, Guzman and Menart, COLT 2023, arXiv:2302.12909, Algorithm 1, whose subroutine is
any algorithm of a given empirical accuracy. Departures: as `recursive`; phases share one
description, so that a record costs the same in each; what holds of `z_t` is its distance from the
phase's solution (`solver_error`), not the relative accuracy of Definition 4, whose comparator is
that solution too.

Examples:
    >>> plan = jmm.plan(jmm.recursive_inner, inner=jmm.optimistic, population=5000, dim=10,
    ...                 bound=1.0, diameter=2.0, smooth=1.0, epsilon=1.0, delta=1e-6)
    >>> jmm.epsilon(jmm.recursive_inner.mechanism(plan.hyper), 1e-6) <= 1
    True
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxminimax.algorithms import (
    descent,
    extragradient,
    optimistic,
    planning,
    proximal,
    recursion,
    recursive,
    sgda,
)
from jaxminimax.base import arguments, checks, tree
from jaxminimax.base.types import Problem, PyTree, Saddle, pytree_dataclass
from jaxminimax.mechanism import Full, Query, Repeat, Resolvent, composed, grid
from jaxminimax.mechanism.costs import concrete
from jaxminimax.releases.parts import on_part


@pytree_dataclass
class Hyper:
    """The settings of a run; its numbers are leaves, which may be traced and vmapped over.

    Attributes:
      phase: the inner algorithm's `Hyper`, of a run on the m records of one part.
      base: lambda, the first regularisation.
      inner: the inner algorithm, a module such as `optimistic`.
      rounds: T, the number of phases.
      numbers: fields of `phase` that change from phase to phase, such as "step", each like the
        field with leaves `[T]`.
    """

    phase: Any
    base: float | jax.Array
    inner: Any = jax.tree.static()
    rounds: int = jax.tree.static()
    numbers: Any = dataclasses.field(default_factory=dict)

    @property
    def iterations(self) -> int:
        """The number of rounds, those of T phases."""
        return self.rounds * self.phase.iterations


class State(NamedTuple):
    """The state of a run, all of it private output, which may be published and stored.

    Attributes:
      z: the current iterate of the inner algorithm.
      inner: its state in this phase.
      centre: c_t, the centre of the phase's quadratic.
      average: the last phase's output; the initial point before the first phase ends.
      spent: number of releases so far, int32 `[]`.
    """

    z: Saddle
    inner: Any
    centre: Saddle
    average: Saddle
    spent: jax.Array


def mechanism(hyper: Hyper) -> Repeat:
    """Describes a run: the releases of the inner algorithm, on each part.

    Raises:
      ValueError: for an inner algorithm that does not repeat one release of the whole data.
    """
    described = hyper.inner.mechanism(hyper.phase)
    if not isinstance(described, Repeat) or described.parts != 1 or (
            not described.query.sum_of_sample):
        raise ValueError(
            f"inner must repeat one release of all its data, as sgda, gda, extragradient, "
            f"optimistic and proximal do; {_name(hyper.inner)} describes a "
            f"{type(described).__name__}, whose releases need their data as a whole.")
    return dataclasses.replace(described, parts=hyper.rounds)


def _name(algorithm: Any) -> str:
    return getattr(algorithm, "__name__", repr(algorithm)).split(".")[-1]


def example(query: Query, iterations: int, parts: int = 1) -> Hyper:
    """Returns the smallest legal settings around a description, for accounting and audits."""
    return Hyper(phase=sgda.example(query, iterations), base=0.1, inner=sgda, rounds=parts)


plan_variants = ()  # each is of an inner algorithm that has to be chosen


def plan(target: planning.Target, *, inner: Any, population: int, dim: int, bound: float,
         diameter: float, smooth: float, mode: str = "tight", kappa: float = 1.0,
         rounds: int | str = "near_optimal", iterations: int | None = None,
         slack: float = 0.01, solver: Any = None, public_bound: float = 0.0,
         public_smooth: float = 0.0, radius: float | None = None) -> planning.Plan[Hyper]:
    """Plans phases, lambda and steps by the theorem of `recursion`, with the error of `inner`.

    Args:
      target: the privacy target; without epsilon there is no noise.
      inner: `extragradient` or `optimistic`, on full batches by `solver_error`; or `proximal` with
        one release a phase, which is the plan of `recursive`.
      population: n, the number of records.
      dim: d, the number of coordinates of both players together.
      bound: L, the largest norm of a record's operator, players together.
      diameter: B, the diameter of W x V.
      smooth: the Lipschitz constant of a record's operator.
      mode: "tight", the lambda of the theorem's smallest bound, or "manual", kappa times that.
      kappa: the factor of "manual".
      rounds: "near_optimal", the largest T whose bound is at most 1.2 times the smallest;
        "bound_optimal", the T of the smallest; "largest" T with 2^T lambda B <= L;
        or a number.
      iterations: K, the inner algorithm's rounds in a phase; None for `optimistic.rounds`.
      slack: as in `recursive.plan`, for `proximal`.
      solver: as in `recursive.plan`, for `proximal`.
      public_bound: P, the largest norm of the public terms' operator; 0 for none.
      public_smooth: its Lipschitz constant.
      radius: R, the largest distance of a point of the set from the start; None for B.

    Raises:
      ValueError: for numbers out of range; for an inner algorithm whose error has no proof here.
    """
    checks.one_of("mode", mode, ("tight", "manual"))
    settings: Any = dict(mode=mode, kappa=kappa, rounds=rounds)
    if inner is proximal:
        return _certified(target, slack, solver, settings | dict(
            population=population, dim=dim, bound=bound, diameter=diameter, smooth=smooth,
            public_bound=public_bound, public_smooth=public_smooth, radius=radius))
    if inner not in KNOWN:
        raise ValueError(f"inner={_name(inner)} has no proven error here, so there is no guarantee "
                         "to print: take extragradient, optimistic or proximal, or make the Hyper "
                         "yourself, and calibrate it.")
    theorem, steep = KNOWN[inner], smooth + public_smooth
    public = recursion.Public(dim, bound, diameter, target.epsilon, target.delta,
                              target.multiplier(), public_bound=public_bound, radius=radius,
                              parts=target.parts)
    noise = bound * public.multiplier * math.sqrt(dim)  # the norm of a release's noise, times m
    count = iterations or optimistic.rounds(steep, public.far, noise / population)
    checks.count("iterations", count, low=2)

    def with_noise(sum_noise: float) -> recursion.Public:
        def error(m: int, mu: float, start: float) -> float:
            return theorem.error_and_step(steep + mu, (sum_noise / m) ** 2, count, mu, start)[0]

        return dataclasses.replace(public, solver_error=error)

    chosen = recursion.schedule(with_noise(noise * math.sqrt(theorem.releases * count)), population,
                                **settings)
    query = planning.joint_query(bound, chosen.population, Full())
    phase = inner.Hyper(query=query, step=Saddle(1.0, 1.0), iterations=count,
                        averaging=descent.Averaging(skip=theorem.left_out(count)))
    hyper = target.noise(Hyper(phase=phase, base=chosen.base, inner=inner, rounds=chosen.rounds))
    sum_noise = bound * concrete(hyper.phase.query.noise_multiplier.w) * math.sqrt(dim)
    public = with_noise(sum_noise)
    chosen = recursion.schedule(public, population, **(settings | {"rounds": chosen.rounds}))
    m, base = chosen.population, chosen.base
    step = jnp.asarray([theorem.error_and_step(
        steep + mu, (sum_noise / m) ** 2, count, mu, start)[1]
        for mu, start in public.starts(base, m, chosen.rounds)])
    return recursion.guaranteed(dataclasses.replace(
        hyper, base=base, numbers={"step": Saddle(step, step)}), public, chosen)


def _certified(target: planning.Target, slack: float, solver: Any,
               numbers: dict[str, Any]) -> planning.Plan[Hyper]:
    """Plans one certified solution a phase, as `recursive` does."""
    def over(hyper: recursive.Hyper) -> Hyper:
        return Hyper(phase=proximal.Hyper(query=hyper.query, iterations=1), inner=proximal,
                     base=concrete(hyper.query.prox) / 4, rounds=hyper.iterations)

    planned = recursive.plan(target._replace(noise=lambda hyper: dataclasses.replace(
        hyper, query=target.noise(over(hyper)).phase.query)), slack=slack, solver=solver, **numbers)
    return planning.Plan(over(planned.hyper), *planned[1:])


class Known(NamedTuple):
    """An inner algorithm whose distance from the solution of a phase is bounded, on full batches.

    Let H be the operator of a phase, mu-strongly monotone and l-Lipschitz, u its solution, A at
    least the distance of u from the start, V the variance of a release, and S the rounds that are
    averaged. The average then is at most e from u, in the root of the mean square, with

        e^2 = (A^2 / (2 eta S) + c eta V) / mu,      eta <= cap / l.

    *Proof.* The bounds of `extragradient.single_pass` (c = 5/4, cap = 3^(-1/2), S = K) and of
    `optimistic` (c = 2, cap = 1/4, S = K - 1, from z_2 on) begin with

        eta E sum <h_k, w_k - u>  <=  A^2 / 2 + c eta^2 S V

    for a fixed u, h_k the operator that is stepped along, w_k where it was released. Given the
    records, u is fixed and the noise of h_k is new, so the mean of <h_k, w_k - u> is that of
    <H(w_k), w_k - u>, at least mu ||w_k - u||^2 as <H(u), w_k - u> >= 0. Jensen. QED. It is sharper
    than what a bound a on the gap of the phase gives, e^2 = 2 a / mu: that is for all u at once.
    The phase's quadratic is a public term, so V is that of the records' noise alone.

    Attributes:
      releases: of a round.
      factor: c.
      cap: on eta l.
      lost: K - S, rounds that are not averaged.
    """

    releases: int
    factor: float
    cap: float
    lost: int

    def error_and_step(self, smooth: float, variance: float, rounds: int, mu: float,
                       start: float) -> tuple[float, float]:
        """Returns e, and eta of the smallest e."""
        averaged = rounds - self.lost
        step = self.cap / smooth
        if variance:
            step = min(step, start / math.sqrt(2 * self.factor * averaged * variance))
        square = start**2 / (2 * step * averaged) + self.factor * step * variance
        return math.sqrt(square / mu), step

    def left_out(self, rounds: int) -> float:
        """The share of rounds to leave out of the average."""
        return (self.lost + 0.5) / rounds if self.lost else 0.0


KNOWN = {extragradient: Known(2, 1.25, 1 / math.sqrt(3), 0), optimistic: Known(1, 2.0, 0.25, 1)}


def init(z: Saddle, hyper: Hyper) -> State:
    """Returns the state before the first round.

    Args:
      z: initial point in W x V; must not depend on the data. Leaves of any shape and float dtype.
      hyper: see `Hyper`.

    Raises:
      ValueError: for an inner algorithm that does not fit, a query that is a certified solution's
        and does not double, or numbers out of range.
    """
    checks.count("rounds", hyper.rounds)
    checks.number("base", hyper.base, low=0.0)
    query = hyper.phase.query
    fields = {x.name for x in dataclasses.fields(hyper.phase)} - {"query", "iterations"}
    if unknown := sorted(set(hyper.numbers) - fields):
        raise ValueError(f"numbers may change fields of {_name(hyper.inner)}.Hyper but query and "
                         f"iterations, which all phases share, got {', '.join(unknown)}.")
    if lengths := {jnp.shape(x)[:1] for x in jax.tree.leaves(hyper.numbers)} - {(hyper.rounds,)}:
        raise ValueError(f"numbers must have {hyper.rounds} entries, one for each phase, got "
                         f"leaves of leading axes {sorted(lengths)}.")
    if isinstance(query, Resolvent):
        if not query.doubling:
            raise ValueError("query.doubling must be True: recursive.certified(query, rounds).")
        if grid.are_plain(hyper.base, query.prox):
            checks.number("query.prox", query.prox, low=4 * concrete(hyper.base), closed=True)
    composed.check(mechanism(hyper))
    z = arguments.point(z)
    return State(z, _begun(z, hyper, 0), z, z, jnp.int32(0))


def _begun(z: Saddle, hyper: Hyper, t: Any) -> Any:
    """The inner algorithm's state before phase t."""
    phase = _phase(hyper, t)
    if isinstance(phase.query, Resolvent) and isinstance(phase.query.steps, tuple):
        # on one part, as the inner algorithm describes itself
        query = dataclasses.replace(phase.query, steps=phase.query.steps[:1])
        phase = dataclasses.replace(phase, query=query)
    return hyper.inner.init(z, phase)


def _phase(hyper: Hyper, t: Any) -> Any:
    """The settings of phase t = 0, 1, ..., T - 1; of the last one from T on."""
    number = jnp.minimum(t, hyper.rounds - 1)
    return dataclasses.replace(hyper.phase, **jax.tree.map(lambda x: jnp.asarray(x)[number],
                                                           hyper.numbers))


def update(key: jax.Array, state: State, data: PyTree, hyper: Hyper, problem: Problem) -> State:
    """Makes one round of a phase; after its last one the next phase begins at its output.

    Args:
      key: secret root key of the run, which is never part of the state.
      state: from `init` or the previous round.
      data: leaves `[n, ...]` with n >= T m; phase t reads rows [(t - 1) m, t m). Their order must
        not depend on their values.
      hyper: see `Hyper`.
      problem: operator, public terms and projection.

    Returns:
      The next state, in the dtypes of `state.z`; NaN once all releases are spent.

    Raises:
      ValueError: as the inner algorithm's.
    """
    phase_releases = mechanism(hyper).times  # releases of a phase
    number = state.spent // phase_releases  # t - 1
    phase, inner = _phase(hyper, number), state.inner._replace(spent=state.spent % phase_releases)
    mu = recursive.modulus(hyper.base, (number + 1).astype(jnp.float32))
    if isinstance(phase.query, Resolvent):
        share = jnp.asarray(4 * hyper.base / phase.query.prox)
        # at 1 exactly the centre
        inner = inner._replace(z=jax.tree.map(
            lambda x, c: (1 - share).astype(x.dtype) * x + share.astype(x.dtype) * c,
            inner.z, state.centre))
    else:
        problem = _regularised(problem, mu, state.centre)
    with on_part(number, hyper.rounds):
        inner = hyper.inner.update(key, inner, data, phase, problem)
    spent = number * phase_releases + inner.spent
    going = State(inner.z, inner, state.centre, state.average, spent)
    out = tree.cast_like(inner.average, state.z)  # z_t
    centre = recursive.recentred(state.centre, out, number + 2)  # c_{t+1}
    next_state = State(out, _begun(out, hyper, number + 1), centre, out, spent)
    return optax.tree.where(spent % phase_releases == 0, next_state, going)


def _regularised(problem: Problem, mu: jax.Array, centre: Saddle) -> Problem:
    """The problem with the public term mu (z - c)."""
    def public(z: Saddle, *key: jax.Array) -> Saddle:
        pull = jax.tree.map(lambda x, c: mu.astype(x.dtype) * (x - c.astype(x.dtype)), z, centre)
        return pull if problem.public is None else tree.add(problem.public(z, *key), pull)

    return problem._replace(public=public)
