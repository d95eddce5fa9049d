"""Recursive regularisation for any convex-concave problem, by noisy descent-ascent.

The rounds, parts and quadratics of `recursive`; no smoothness is needed. Round t runs K - 1 steps
of descent-ascent from its predecessor's output z_1 on its own part of m records. By default steps
decay and the quadratic is handled in the projection,

    g_k     = (sum_{i in B_k} clip(g(z_k; x_i)) + Gaussian) / m  +  public terms at z_k
    z_{k+1} = P((k z_k + c_t - g_k / mu_t) / (k + 1)),                   k = 1, ..., K - 1,

and the round's output is its last iterate z_K. Here m is the public batch size of the sampling.
The quadratic is a public function of earlier outputs, so it is added after the noise: it is
neither clipped nor charged. The paper's steps (`decaying=False`) are constant in a round,

    z_{k+1} = P(z_k - step_t (g_k + mu_t (z_k - c_t))),      output (z_1 + ... + z_K) / K,

or, with `composite`,  z_{k+1} = P((z_k - step_t (g_k - mu_t c_t)) / (1 + step_t mu_t)).

They are  step_t = D_t / sqrt(K (L_t^2 + d sigma^2 + V)),  with D_t = min(D, (2 + 2.19 L / (lambda D
sqrt n')) D / 2^t) the distance from start to solution, n' the records of a part, L the joint clip
norm, or (C_w^2 + C_v^2)^(1/2) of two, L_t = L + mu_t D (L if composite), d sigma^2 the noise and
V = L^2 (1 - q) / (q n') the sampling variance of a Poisson sample at rate q.

Source: Bassily, Guzman and Menart, COLT 2023, arXiv:2302.12909, Algorithm 1 with Appendix C.2.
Departures: decaying steps, whose error is proved in `recursion`; samples are Poisson's of Theorem
21's size, and noise is calibrated to them (the paper draws with replacement, cites a bound for
Poisson samples, and leaves its constant open); noise covers L, not the 5 L of the regularised loss;
K is min{n', n'^2 / (d r^2)}, r the Gaussian's ratio of noise to sensitivity, no less than Theorem
21's, at most n' / 8; D_t as the proof has it, not D / 2^t; the last iterate of a round is averaged
without a query of its own.

Examples:
    >>> plan = jmm.plan(jmm.recursive_sgda, population=5000, dim=10, bound=1.0, diameter=2.0,
    ...                 epsilon=1.0, delta=1e-6)
    >>> jmm.epsilon(jmm.recursive_sgda.mechanism(plan.hyper), 1e-6) <= 1
    True
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxminimax.algorithms import descent, planning, recursion, recursive
from jaxminimax.base import arguments, checks, tree
from jaxminimax.base.types import Problem, PyTree, Saddle, pytree_dataclass
from jaxminimax.mechanism import Poisson, Query, Repeat, Sampling, batch_size, grid
from jaxminimax.releases.sums import noisy_operator


@pytree_dataclass
class Hyper:
    """The settings of a run; its numbers are leaves, which may be traced and vmapped over.

    Attributes:
      query: clip norms, noise multipliers, sampling of a part; population n', the number of
        records of a part.
        One joint clip has half the noise of two.
      base: lambda, the first regularisation.
      diameter: D, the diameter of W x V.
      rounds: T, the number of rounds.
      inner: K >= 2, the iterates of a round, which makes K - 1 releases.
      composite: whether constant steps handle the quadratic in the projection.
      decaying: whether steps are 1 / (mu_t k), with the last iterate as a round's output.
    """

    query: Query
    base: float | jax.Array
    diameter: float | jax.Array
    rounds: int = jax.tree.static()
    inner: int = jax.tree.static()
    composite: bool = jax.tree.static(default=False)
    decaying: bool = jax.tree.static(default=False)

    @property
    def iterations(self) -> int:
        """The number of steps, T (K - 1), with one release each."""
        return self.rounds * (self.inner - 1)


class State(NamedTuple):
    """The state of a run, all of it private output, which may be published and stored.

    Attributes:
      z: the current iterate.
      mean: running average of this round's iterates.
      centre: c_t, the centre of the round's quadratic.
      average: the last round's output; the initial point before the first round ends.
      spent: number of releases so far, int32 `[]`.
    """

    z: Saddle
    mean: descent.Mean
    centre: Saddle
    average: Saddle
    spent: jax.Array


def mechanism(hyper: Hyper) -> Repeat:
    """Describes a run: K - 1 releases on each part. The accountant reads no more."""
    return Repeat(query=hyper.query, times=hyper.inner - 1, parts=hyper.rounds)


def example(query: Query, iterations: int, parts: int = 1) -> Hyper:
    """Returns the smallest legal settings around a description, for accounting and audits."""
    return Hyper(query=query, base=0.1, diameter=10.0, rounds=parts, inner=iterations + 1)


plan_variants = (planning.Variant({}, 0.084),)


def plan(target: planning.Target, *, population: int, dim: int, bound: float, diameter: float,
         mode: str = "tight", kappa: float = 1.0, rounds: int | str = "near_optimal",
         inner: int | None = None, sampling: Sampling | None = None,
         composite: bool = False, decaying: bool | None = None, public_bound: float = 0.0,
         radius: float | None = None) -> planning.Plan[Hyper]:
    """Plans rounds and lambda by the theorem, see `recursion`.

    Args:
      target: the privacy target; without epsilon there is no noise.
      population: n, the number of records.
      dim: d, the number of coordinates of both players together.
      bound: L, the largest norm of a record's operator: the joint clip norm.
      diameter: B, the diameter of W x V.
      mode: "tight", the lambda of the theorem's smallest bound; "manual", kappa times that; or
        "paper".
      kappa: the factor of "manual".
      rounds: "near_optimal", the largest T whose bound is at most 1.2 times the smallest;
        "bound_optimal", the T of the smallest; "largest" T with 2^T lambda B <= L,
        as in the paper; or a number.
      inner: K, the iterates of a round; None for the module's formula.
      sampling: the sampling of a round; None for Poisson samples of m sqrt(epsilon / (4 K))
        records.
      composite: whether constant steps handle the quadratic in the projection.
      decaying: whether steps decay; None for True if mode is "tight".
      public_bound: P, the largest norm of the public terms' operator; 0 for none.
      radius: R, the largest distance of a point of the set from the start; None for B.

    Raises:
      ValueError: for numbers out of range.
    """
    decaying = mode == "tight" if decaying is None else decaying
    public = recursion.Public(dim, bound, diameter, target.epsilon, target.delta,
                              target.multiplier(), inner=inner, sampling=sampling,
                              decaying=decaying, composite=composite, public_bound=public_bound,
                              radius=radius, parts=target.parts)
    planned = recursion.schedule(public, population, mode=mode, kappa=kappa, rounds=rounds)
    query = planning.joint_query(bound, planned.population, public.drawn(planned.population))
    hyper = target.noise(Hyper(
        query=query, base=planned.base, diameter=diameter, rounds=planned.rounds,
        inner=public.iterates(planned.population), composite=composite, decaying=decaying))
    if target.epsilon is not None:  # what the samples really cost, over full batches' z
        z = grid.check_noise(hyper.query).w
        full = public.multiplier * math.sqrt(hyper.inner - 1) / planned.population
        public = dataclasses.replace(public, excess=z / batch_size(query) / full)
        planned = recursion.schedule(public, population, mode=mode, kappa=kappa,
                                     rounds=planned.rounds)
        hyper = dataclasses.replace(hyper, base=planned.base)
    return recursion.guaranteed(hyper, public, planned)


def steps(hyper: Hyper, z: Saddle, t: Any) -> Any:
    """The constant step_t of round t = 1, 2, ...; it reads only the shapes of z."""
    query, reach = hyper.query, hyper.diameter
    clips = [0.0 if c is None else c for c in query.clip]
    bound = jnp.maximum(*clips) if query.joint else jnp.hypot(*clips)
    distance = recursion.step_distance(bound, hyper.base, reach, query.population, t)
    steep = bound + (0.0 if hyper.composite else recursive.modulus(hyper.base, t) * reach)
    noise = sum(sum(a.size for a in jax.tree.leaves(x)) * (c * s / batch_size(query)) ** 2
                for x, c, s in zip(z, clips, grid.check_noise(query), strict=True) if s is not None)
    if isinstance(query.sampling, Poisson):
        spread: Any = query.sampling.spread(query.population)
        noise = noise + bound**2 * spread / batch_size(query)
    return distance / jnp.sqrt(hyper.inner * (steep**2 + noise))


def init(z: Saddle, hyper: Hyper) -> State:
    """Returns the state before the first round.

    Args:
      z: initial point in W x V; must not depend on the data. Leaves of any shape and float dtype.
      hyper: see `Hyper`.

    Raises:
      ValueError: for numbers out of range.
    """
    checks.count("rounds", hyper.rounds)
    checks.count("inner", hyper.inner, low=2)
    checks.positive(base=hyper.base, diameter=hyper.diameter)
    z = arguments.point(z)
    return State(z, descent.start_mean(z), z, z, jnp.int32(0))


def update(key: jax.Array, state: State, data: PyTree, hyper: Hyper, problem: Problem) -> State:
    """Makes one step; the last one of a round averages, recentres and starts the next round.

    Args:
      key: secret root key of the run, which is never part of the state.
      state: from `init` or the previous step.
      data: leaves `[n, ...]` with n >= T m; round t reads rows [(t - 1) m, t m). Their order must
        not depend on their values.
      hyper: see `Hyper`.
      problem: operator, public terms and projection.

    Returns:
      The next state, in the dtypes of `state.z`; NaN once all releases are spent.

    Raises:
      ValueError: while tracing, if `data` has too few rows or no noise was calibrated.
    """
    g = noisy_operator(key, mechanism(hyper), state.spent, problem, state.z, data)  # g_k
    dtype = state.mean.weight.dtype
    t = (state.spent // (hyper.inner - 1) + 1).astype(dtype)
    mu, step = recursive.modulus(hyper.base, t), steps(hyper, state.z, t)

    k = (state.spent % (hyper.inner - 1) + 1).astype(dtype)

    def move(x: jax.Array, g: jax.Array, c: jax.Array) -> jax.Array:
        if hyper.decaying:
            return (k * x + c - g / mu) / (k + 1)
        if hyper.composite:
            return (x - step * (g - mu * c)) / (1 + step * mu)
        return x - step * (g + mu * (x - c))

    z = descent.projected(jax.tree.map(move, state.z, g, state.centre), state.z, problem)  # z_{k+1}
    mean = descent.weigh(state.mean, state.z, jnp.ones((), dtype))
    # the round ends after K - 1 steps, with its last iterate or the mean of K as its output
    ends = (state.spent + 1) % (hyper.inner - 1) == 0
    all_iterates = descent.weigh(mean, z, jnp.ones((), dtype))
    out = z if hyper.decaying else tree.cast_like(all_iterates.value, z)
    going = State(z, mean, state.centre, state.average, state.spent + 1)
    centre = recursive.recentred(state.centre, out, t + 1)  # c_{t+1}
    next_state = State(out, descent.start_mean(out), centre, out, state.spent + 1)
    return optax.tree.where(ends, next_state, going)
