"""Private variance reduction: an estimate of the operator kept up by differences. Experimental.

    min over w in W, max over v in V, of  F(w, v) = (1/n) sum_i f(w, v; x_i) + r(w, v).

Of each q rounds the first releases the operator, the others how it has changed since the last
point, clipped at L times the distance and with noise in proportion to it:

    u_t     = (sum_{i in B_t} clip(g(z_t; x_i)) + Gaussian) / m                     q divides t - 1,
    u_t     = u_{t-1} + (sum_{i in B_t} clip(g(z_t; x_i) - g(z_{t-1}; x_i), l_t) + l_t Gaussian) / m
              otherwise,  l_t = L ||z_t - z_{t-1}||,
    z_{t+1} = P_{W x V}(z_t - step_t (u_t + (grad_w r, -grad_v r)(z_t))),       t = 1, ..., T.

The differences are of both players together: one clip, one noise, one sample for both points. Each
release is charged as one on clipped operators (`mechanism.difference` has the proof), and u_t is
postprocessing.

**When it helps.** With a share a of the budget for anchors and rho = l_t / C_1, the clip of a
difference over that of an anchor, the noise of u_t at the end of a window has 1 / (a q) +
q rho^2 / (1 - a) times the variance that `sgda` has; at a = 1/2 and q = 1 / rho that is 4 rho. So
it helps only where rho < 1/4, and the noise alone moves the points by so much that rho is at least
step L V^(1/2) / C_1, V the variance of a release. `docs/choosing.md` has where it was ahead, and
where it was not.

Source: Fang, Li, Lin and Zhang, "SPIDER", NeurIPS 2018, arXiv:1807.01695, Algorithm 1; private
differences, Arora, Bassily, Gonzalez, Guzman, Menart and Ullah, ICML 2023, arXiv:2206.00846.
Departures: both players descend and ascend along one estimate; the differences are clipped instead
of assumed Lipschitz; windows have a fixed length instead of ending by the path's length; steps are
not normalised; the terms r that read no data are neither clipped nor noised.

Examples:
    >>> difference = jmm.mechanism.Difference(lipschitz=1.0, population=1000)
    >>> query = jmm.mechanism.Windows(anchor=jmm.Query(clip=Saddle(1.0, 1.0), population=1000),
    ...                               difference=difference, length=10)
    >>> hyper = jmm.spider.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=50)
    >>> hyper = jmm.calibrate(jmm.spider, hyper, epsilon=1.0, delta=1e-6)
    >>> jmm.epsilon(jmm.spider.mechanism(hyper), 1e-6) <= 1
    True
"""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxminimax.algorithms import descent, planning
from jaxminimax.base import checks, tree
from jaxminimax.base.types import Problem, PyTree, Saddle, pytree_dataclass
from jaxminimax.mechanism import Difference, Full, Sampling, Windows
from jaxminimax.releases.release_keys import public_term
from jaxminimax.releases.sums import release_in_window


@pytree_dataclass
class Hyper:
    """The settings of a run; its numbers are leaves, which may be traced and vmapped over.

    Attributes:
      query: anchors, differences and the length of a window; its `rounds` is replaced by
        `iterations`.
      step: per player, a number or a schedule `t -> step` (`schedules.Decay`)
        [parameter units / gradient units].
      iterations: T, the number of rounds and of releases.
      averaging: weights of the average of the iterates.
    """

    query: Windows
    step: Saddle
    iterations: int = jax.tree.static()
    averaging: descent.Averaging = descent.UNIFORM


class State(NamedTuple):
    """The state of a run, all of it private output, which may be published and stored.

    Attributes:
      z: the iterate.
      before: z_{t-1}, the iterate of the round before.
      estimate: u_{t-1}, in at least float32.
      mean: running average of the iterates at which the operator was taken.
      spent: number of releases so far, int32 `[]`.
    """

    z: Saddle
    before: Saddle
    estimate: Saddle
    mean: descent.Mean
    spent: jax.Array

    @property
    def average(self) -> Saddle:
        """The averaged iterate, in the dtypes of z."""
        return tree.cast_like(self.mean.value, self.z)


def mechanism(hyper: Hyper) -> Windows:
    """Describes a run: one release a round. The accountant reads nothing else."""
    return dataclasses.replace(hyper.query, rounds=hyper.iterations)


def example(query: Windows, iterations: int) -> Hyper:
    """Returns the smallest legal settings around a description, for accounting and audits."""
    return Hyper(query=query, step=Saddle(0.5, 0.25), iterations=iterations)


def init(z: Saddle, hyper: Hyper) -> State:
    """Returns the state before the first round, at z, which must not depend on the data."""
    z = descent.started(z, hyper)
    hyper.query.check_own()
    mean = descent.start_mean(z)
    return State(z, z, jax.tree.map(jnp.zeros_like, mean.value), mean, jnp.int32(0))


def update(key: jax.Array, state: State, data: PyTree, hyper: Hyper, problem: Problem) -> State:
    """Makes one round: a release on `data`, leaves `[n, ...]`, and a step from the last state.

    `key` is the secret root key of the run. The result is NaN once all releases are spent.
    """
    t = state.spent + 1
    g, opens = release_in_window(key, mechanism(hyper), state.spent, problem, state.z, state.before,
                                 data)
    u = jax.tree.map(lambda a, b: jnp.where(opens, a, b + a), g, state.estimate)  # u_t
    along = u
    if problem.public is not None:
        along = tree.add(u, public_term(problem, state.z, key, mechanism(hyper), state.spent))
    z = descent.stepped(state.z, along, hyper.step, t, problem)  # z_{t+1}
    mean = descent.include(state.mean, state.z, hyper.averaging, t, hyper.iterations)
    return State(z, state.z, u, mean, t)


plan_variants = (planning.Variant({}, 0.04),)


def plan(target: planning.Target, *, population: int, dim: int, bound: float, smooth: float,
         iterations: int | None = None, step: float | None = None, anchors: float = 0.5,
         sampling: Sampling = Full()) -> planning.Plan[Hyper]:  # noqa: B008
    """Plans by the rule above, from public numbers: q = 1 / rho, half of the budget for anchors.

    rho = step L V^(1/2) / C_1, with V the variance of a release of `sgda` in as many rounds.

    The average of T rounds is off by about (C_1 / L)^2 / (step T) without noise, and by step V for
    it, V = C_1^2 T / Q with Q = (n / z)^2 / d, z the noise multiplier of a single release.
    The two are equal at T = Q^(1/2) / (step L), which is Q by the default step. By that step the
    first is of the order of the sample's error, n^(-1/2), at T = n, and half of it at T = 4 n.

    Args:
      target: the privacy target.
      population: n, the number of records.
      dim: d, the number of coordinates of both players together.
      bound: C_1, the largest norm of a record's operator, players together: the joint clip.
      smooth: L, the Lipschitz constant of a record's operator.
      iterations: T, the number of rounds; None for that T, at most 4 n and at most 100,000. They
        take n T evaluations of the operator: give a smaller number where that is too long.
      step: the step, at most 1 / L; None for 1 / (L T^(1/2)). By that, T rounds without noise on a
        bilinear game move no point further from the solution than e^(1/2) times the start.
      anchors: the share of the budget for anchors, in (0, 1).
      sampling: full batches, or samples drawn anew in every round.

    Raises:
      ValueError: for numbers out of range, or if rho is 1/4 or more, where `sgda` has less noise.
    """
    if step is not None:
        checks.number("step", step, low=0.0, high=(1 + 1e-9) / smooth, closed=True)
    if iterations is None:
        noise = target.multiplier() * math.sqrt(dim) / population  # Q^(-1/2)
        most = min(4 * population, planning.MOST_ROUNDS)
        scaled = noise**2 if step is None else noise * step * smooth  # 1 / T
        iterations = most if scaled * most <= 1 else math.ceil(1 / scaled)
    checks.count("iterations", iterations)
    step = 1 / (smooth * math.sqrt(iterations)) if step is None else step
    query = planning.joint_query(bound, population, sampling)
    difference = Difference(lipschitz=smooth, population=population, sampling=sampling)
    plain = Hyper(query=Windows(anchor=query, difference=difference, length=1),
                  step=Saddle(step, step), iterations=iterations)
    spread = descent.release_variance(target.noise(plain).query.anchor, dim)  # V
    rho = step * smooth * math.sqrt(spread) / bound
    if not rho < 0.25:
        raise ValueError(
            f"rho = step L V^(1/2) / bound must be below 1/4, got {rho:.3g} for step={step:.3g}, "
            f"smooth={smooth:.3g}, V={spread:.3g} and bound={bound:.3g}: differences would add "
            f"noise. Give a step below {0.25 * step / rho:.3g}, fewer iterations or more records, "
            "or take jmm.sgda.")
    length = min(iterations, max(1, round(1 / rho))) if rho else iterations
    opening = -(-iterations // length)
    # mu^2 is 4 times the sum of 1 / z^2
    ratio = math.sqrt(opening / anchors), math.sqrt((iterations - opening) / (1 - anchors))
    windows = Windows(anchor=dataclasses.replace(query, noise_multiplier=Saddle(*ratio[:1] * 2)),
                      difference=dataclasses.replace(difference, noise_multiplier=ratio[1] or 1.0),
                      length=length)
    hyper = target.noise(dataclasses.replace(plain, query=windows))
    return planning.Plan(hyper, None, False, (
        "No theorem covers these settings: they rest on measurement (docs/choosing.md).",
        f"rho is {rho:.3g} by the noise alone: variance reduction has at least {4 * rho:.2g} times "
        "the noise variance of sgda, more where the gradient moves the points further.",
        "This algorithm is experimental."), on="records")
