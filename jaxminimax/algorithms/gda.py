"""Differentially private gradient descent-ascent (DP-GDA), full batch.

For losses that are rho-strongly convex in w and rho-strongly concave in v, T rounds of

    g_t     = (1/n) sum_i clip(g(z_t; x_i)) + N(0, sigma^2 I)  +  (grad_w r, -grad_v r)(z_t)
    z_{t+1} = P_{W x V}(z_t - g_t / (rho (t + phi))),            output (z_1 + ... + z_T) / T.

Source: Kang, Liu, Li and Wang, "Stability and Generalization of Differentially Private Minimax
Problems", arXiv:2204.04858, Algorithm 1. Departures: the noise is the exact Gaussian one for T
joint releases of both players (the paper's constant is unspecified, and its proof counts one
player); each record's operator is clipped, the identity for clip norms at or above the Lipschitz
constants; phi >= 0 delays the steps, which the first rounds need when the coupling exceeds rho.
All T releases are charged, although the average does not use the last one: the state does.

Examples:
    >>> query = jmm.Query(clip=Saddle(1.0, 1.0), joint=True, population=1000)
    >>> hyper = jmm.gda.Hyper(query=query, modulus=0.5, offset=jmm.gda.safe_offset(2.0, 0.5),
    ...                       iterations=50)
    >>> hyper = jmm.calibrate(jmm.gda, hyper, epsilon=1.0, delta=1e-6)
    >>> jmm.epsilon(jmm.gda.mechanism(hyper), 1e-6) <= 1
    True
"""

import math

import jax

from jaxminimax.algorithms import bounds, descent, planning
from jaxminimax.base import checks
from jaxminimax.base.types import Problem, PyTree, Saddle, pytree_dataclass
from jaxminimax.mechanism import Full, Query, Repeat
from jaxminimax.mechanism.costs import concrete

State = descent.State


@pytree_dataclass
class Hyper:
    """The settings of a run; its numbers are leaves, which may be traced and vmapped over.

    Attributes:
      query: clip norms, noise multipliers, population; the sampling must be `Full()`.
      modulus: rho, of strong convexity and concavity; half of it with `plan`'s steps.
      offset: phi; max{0, l^2 / (2 rho^2) - 1} for an l-Lipschitz operator keeps every round from
        amplifying errors, see `safe_offset`.
      iterations: T, the number of rounds and of releases.
      averaging: weights of the average of the iterates.
    """

    query: Query
    modulus: float | jax.Array
    offset: float | jax.Array = 0.0
    iterations: int = jax.tree.static()
    averaging: descent.Averaging = descent.UNIFORM


def mechanism(hyper: Hyper) -> Repeat:
    """Describes a run: one full-batch release a round.

    Raises:
      ValueError: for another sampling than `Full()`, and for clip norms that follow a quantile.
    """
    if not isinstance(hyper.query.sampling, Full):
        raise ValueError(f"gda reads every record in every round, got {hyper.query.sampling!r}: "
                         "use sampling=Full(), or sgda for minibatches.")
    return Repeat(query=descent.fixed_clip(hyper.query), times=hyper.iterations)


def example(query: Query, iterations: int) -> Hyper:
    """Returns the smallest legal settings around a description, for accounting and audits."""
    return Hyper(query=query, modulus=1.0, iterations=iterations)


def rule(hyper: Hyper, t: jax.Array, g: Saddle, state: State) -> tuple[Saddle, tuple[()]]:
    """Returns the change -g_t / (rho (t + phi))."""
    step = planning.Decay(scale=1.0 / hyper.modulus, offset=hyper.offset)
    return descent.along(state.z, g, step, t), ()


def init(z: Saddle, hyper: Hyper) -> State:
    """Returns the state before the first round, at z, which must not depend on the data.

    The paper starts at the origin.

    Raises:
      ValueError: for an undefined modulus, offset or average.
    """
    checks.number("modulus", hyper.modulus, low=0.0)
    checks.number("offset", hyper.offset, low=0.0, high=1e30, closed=True)
    return descent.init(z, hyper)


def update(key: jax.Array, state: State, data: PyTree, hyper: Hyper, problem: Problem) -> State:
    """Makes one round: a release on `data`, leaves `[n, ...]`, and a step from the last state.

    `key` is the secret root key of the run. The result is NaN once all releases are spent.
    """
    return descent.update(key, state, data, hyper, problem, mechanism(hyper), rule)


def safe_offset(lipschitz: float, modulus: float) -> float:
    """Returns phi = max{0, l^2 / (2 rho^2) - 1}: the first step is then at most 2 rho / l^2."""
    planning.check_numbers(lipschitz=lipschitz, modulus=modulus)
    return max(0.0, lipschitz**2 / (2 * modulus**2) - 1)


plan_variants = (planning.Variant({}, 0.029),)


def plan(target: planning.Target, *, population: int, bound: float, smooth: float, modulus: float,
         iterations: int | None = None, dim: int | None = None, diameter: float | None = None,
         public_bound: float = 0.0, public_smooth: float = 0.0,
         radius: float | None = None) -> planning.Plan[Hyper]:
    """Plans T = n^(2/3) rounds, as the paper's Remarks prescribe, with safe steps from round 1 on.

    Steps are 2 / (rho (t + phi + 1)), a `Hyper` of modulus rho / 2 and offset phi + 1, with phi =
    max{0, (l / rho)^2 - 2}: the first is at most 2 rho / l^2. The average has weights t. z_t is
    near the mean of t noises, so that of equal weights has 2 / T times the variance of a release,
    and that of weights t has 4 / (3 T). With `dim` and `diameter` the plan has the bound of
    `bounds.WeightedDescent` on the strong gap on the population, and says what holds with
    probability 0.95.

    Args:
      target: the privacy target.
      population: n, the number of records.
      bound: L, the largest norm of a record's operator, players together: the joint clip.
      smooth: l, the Lipschitz constant of a record's operator.
      modulus: rho, of strong convexity and concavity, public terms included.
      iterations: T; None for n^(2/3), rounded up.
      dim: d, the number of coordinates of both players together, for a guarantee.
      diameter: D, the diameter of W x V, for a guarantee.
      public_bound: P, the largest norm of the public terms' operator; 0 for none.
      public_smooth: its Lipschitz constant.
      radius: R, the largest distance of a point of the set from the start; None for D.

    Raises:
      ValueError: for numbers out of range.
    """
    checks.number("modulus", modulus, low=0.0)
    steep = smooth + public_smooth
    rounds = math.ceil(population ** (2 / 3)) if iterations is None else iterations
    offset = max(0.0, (steep / modulus) ** 2 - 2)
    query = planning.joint_query(bound, population, Full())
    hyper = target.noise(Hyper(query=query, modulus=modulus / 2, averaging=descent.WEIGHTED,
                               offset=offset + 1, iterations=rounds))
    why = ("The average has weights t, and steps are 2 / (rho (t + phi + 1)), so that no round "
           "amplifies errors; Kang, Liu, Li and Wang (2022) have 1 / (rho t) and equal weights.",)
    if dim is None or diameter is None:
        return planning.Plan(hyper, None, False, (
            "The strong gap, as a rate: for a bound give dim and diameter.", *why))
    theorem = bounds.WeightedDescent(
        rounds=rounds, dim=dim, bound=bound, public_bound=public_bound, smooth=steep,
        modulus=modulus, diameter=diameter, offset=offset, radius=radius,
        deviation=bound * concrete(hyper.query.noise_multiplier.w) / population)
    return planning.guaranteed(
        hyper, theorem.expected(population), (bound + public_bound) * diameter,
        "The strong gap, for independent records of which nothing is clipped, by the bounds of "
        "`bounds.WeightedDescent`; with probability 0.95 it is at most "
        f"{theorem.likely(population, 0.05):.3g}.", *why)
